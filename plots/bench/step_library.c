/**
 * @file
 * One step as a shared library, libstepNN.so, for callers that are not written in C: the step, and
 * what of the CUDA runtime a caller needs to use it. step_library.py declares the structures and
 * functions once more. A function that can fail returns NULL, or one sentence that is valid until
 * the next call.
 */
#include <stdio.h>

#include "attention.h"

/** The problem; tensors are compact, [batch][heads][rows][head_dim]. */
typedef struct Shape {
  int batch, q_heads, kv_heads, q_len, kv_len, head_dim;
  bool bf16;
  bool causal;    /**< ignored where there is a block mask */
  bool shared_kv; /**< the variant of a step that takes block masks; ignored elsewhere */
  float scale;
} Shape;

#define EXPORTED __attribute__((visibility("default")))

static char why[256];

static Strides compact(int64_t heads, int64_t rows, int64_t head_dim) {
  return (Strides){heads * rows * head_dim, rows * head_dim, head_dim};
}

static Problem problem_of(const Shape *s, const BlockMask *mask) {
  Problem p = {
      .batch = s->batch,
      .q_heads = s->q_heads,
      .kv_heads = s->kv_heads,
      .q_len = s->q_len,
      .kv_len = s->kv_len,
      .head_dim = s->head_dim,
      .dtype = s->bf16 ? DTYPE_BF16 : DTYPE_FP16,
      .mask = s->causal ? MASK_CAUSAL : MASK_FULL,
      .scale = s->scale,
      .q_strides = compact(s->q_heads, s->q_len, s->head_dim),
      .k_strides = compact(s->kv_heads, s->kv_len, s->head_dim),
      .v_strides = compact(s->kv_heads, s->kv_len, s->head_dim),
      .o_strides = compact(s->q_heads, s->q_len, s->head_dim),
  };
  if (mask != NULL) {
    p.mask = MASK_BLOCKS;
    p.q_block_size = mask->q_block_size;
    p.kv_block_size = mask->kv_block_size;
    p.shared_kv = s->shared_kv;
  }
  return p;
}

/** NULL if the step can be called for this problem, else why not. */
static const char *refusal(const Problem *p, const BlockMask *mask) {
  if ((step.block_masks != NULL) != (mask != NULL)) {
    snprintf(why, sizeof why, "%s %s block mask", step.name, mask == NULL ? "needs a" : "takes no");
    return why;
  }
  return step.supports == NULL || step.supports(p, why, sizeof why) ? NULL : why;
}

static const char *sentence(cudaError_t error) {
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* --- The step ------------------------------------------------------------------------------- */

/** True if every call needs a block mask; false if none may have one. */
EXPORTED bool step_takes_block_masks(void) {
  return step.block_masks != NULL;
}

/** What bounds the step at best, a Ceiling, and the traffic of S and P per unmasked entry. */
EXPORTED const char *step_describe(const Shape *shape, const BlockMask *mask, int *ceiling,
                                   int *intermediate_bytes_per_entry) {
  const Problem p = problem_of(shape, mask);
  const char *refused = refusal(&p, mask);
  if (refused != NULL) return refused;
  Description description = {0};
  step.describe(&p, 1, &description);
  *ceiling = (int)description.ceiling;
  *intermediate_bytes_per_entry = description.intermediate_bytes_per_entry;
  return NULL;
}

/**
 * Writes to `bytes` how much device memory the step wants for what it prepares of a mask. Unless
 * `prepared` is NULL, it points to as much, and the preparation is enqueued on `stream`: once per
 * mask and lengths, before the forward passes with it. `mask` lies in host memory, its tensors in
 * device memory; it is trusted to be valid.
 */
EXPORTED const char *step_prepare(const Shape *shape, const BlockMask *mask, void *prepared,
                                  size_t *bytes, cudaStream_t stream) {
  const Problem p = problem_of(shape, mask);
  const char *refused = refusal(&p, mask);
  if (refused != NULL) return refused;
  if (mask == NULL) {
    *bytes = 0;
    return NULL;
  }
  *bytes = step.block_masks->prepared_bytes(&p, mask);
  if (prepared == NULL) return NULL;
  return sentence(step.block_masks->prepare(&p, mask, prepared, stream));
}

/**
 * Writes to `bytes` how much workspace the step wants when `free_bytes` of device memory are free,
 * 0 if none; more than `free_bytes` if that is too little for it.
 */
EXPORTED const char *step_workspace(const Shape *shape, size_t free_bytes, size_t *bytes) {
  const Problem p = problem_of(shape, NULL);
  *bytes = 0;
  if (step.workspace_bytes == NULL) return NULL;
  const int heads = heads_at_a_time(&p, free_bytes);
  *bytes = (size_t)(heads > 0 ? heads : 1) * step.workspace_bytes(&p);
  return NULL;
}

/**
 * Enqueues a forward pass on `stream`. The pointers are to device memory, [batch][heads][rows] or
 * [batch][heads][rows][head_dim]; `mask` and `prepared` are those of step_prepare(), or NULL for a
 * step without block masks; `workspace` has as many bytes as step_workspace() said, or is NULL for
 * a step that wants none.
 */
EXPORTED const char *step_forward(const Shape *shape, const BlockMask *mask, void *prepared,
                                  void *workspace, size_t workspace_bytes, const void *q,
                                  const void *k, const void *v, void *o, float *lse,
                                  cudaStream_t stream) {
  const Problem p = problem_of(shape, mask);
  const Tensors t = {.q = q,
                     .k = k,
                     .v = v,
                     .o = o,
                     .lse = lse,
                     .workspace = workspace,
                     .block_mask = mask,
                     .prepared = prepared};
  const char *refused = refusal(&p, mask);
  if (refused != NULL) return refused;
  const int heads = heads_at_a_time(&p, workspace_bytes);
  if (heads > 0) return sentence(step.forward(&p, &t, heads, stream));
  snprintf(why, sizeof why, "%s needs a workspace of %zu bytes or more, not %zu", step.name,
           step.workspace_bytes(&p), workspace_bytes);
  return why;
}

/* --- The device: memory of one library serves all of them ------------------------------------ */

EXPORTED const char *device_allocate(size_t bytes, void **pointer) {
  return sentence(cudaMalloc(pointer, bytes));
}

EXPORTED const char *device_free(void *pointer) {
  return sentence(cudaFree(pointer));
}

/** In either direction; waits for what was enqueued before. */
EXPORTED const char *device_copy(void *target, const void *source, size_t bytes) {
  return sentence(cudaMemcpy(target, source, bytes, cudaMemcpyDefault));
}

/** Enqueued. */
EXPORTED const char *device_fill(void *pointer, int value, size_t bytes) {
  return sentence(cudaMemsetAsync(pointer, value, bytes, NULL));
}

EXPORTED const char *device_synchronize(void) {
  return sentence(cudaDeviceSynchronize());
}

static cudaEvent_t begin, end;

/** Enqueues the start of a time. */
EXPORTED const char *timer_start(void) {
  cudaError_t error = begin == NULL ? cudaEventCreate(&begin) : cudaSuccess;
  if (error == cudaSuccess && end == NULL) error = cudaEventCreate(&end);
  return sentence(error == cudaSuccess ? cudaEventRecord(begin, NULL) : error);
}

/**
 * The time of what was enqueued since timer_start(). It is `late` if the device had got to the
 * start before all of it was enqueued: it may have waited for the host in between.
 */
EXPORTED const char *timer_stop(float *milliseconds, bool *late) {
  cudaError_t error = cudaEventRecord(end, NULL);
  if (error != cudaSuccess) return sentence(error);
  *late = cudaEventQuery(begin) == cudaSuccess;
  error = cudaEventSynchronize(end);
  return sentence(error == cudaSuccess ? cudaEventElapsedTime(milliseconds, begin, end) : error);
}
