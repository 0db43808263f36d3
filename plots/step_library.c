/**
 * @file
 * One step as a shared library, libstepNN.so, for callers that are not written in C: functions with
 * plain arguments. Used by step_library.py, which describes the two structures once more.
 */
#include <stdio.h>

#include "attention.h"

/** The problem; tensors are compact, [batch][heads][rows][head_dim]. */
typedef struct Shape {
  int batch, q_heads, kv_heads, q_len, kv_len, head_dim;
  bool bf16;
  bool causal; /**< not looked at where there is a block mask */
  float scale;
} Shape;

#define EXPORTED __attribute__((visibility("default")))

EXPORTED bool step_takes_block_masks(void);
EXPORTED const char *step_prepare(const Shape *shape, const BlockMask *mask, void *prepared,
                                  size_t *bytes, cudaStream_t stream);
EXPORTED const char *step_workspace(const Shape *shape, size_t free_bytes, size_t *bytes);
EXPORTED const char *step_forward(const Shape *shape, const BlockMask *mask, void *prepared,
                                  void *workspace, size_t workspace_bytes, const void *q,
                                  const void *k, const void *v, void *o, float *lse,
                                  cudaStream_t stream);

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
  }
  return p;
}

/** How many bytes of workspace the step wants when so many are free. */
static size_t workspace_of(const Problem *p, size_t free_bytes) {
  return step.workspace_bytes != NULL ? step.workspace_bytes(p, free_bytes) : 0;
}

/** NULL if the step can be called for this problem, else why not. */
static const char *refusal(const Problem *p, const BlockMask *mask) {
  const char *what = NULL;
  if (step.block_masks != NULL && mask == NULL) what = "needs a block mask";
  if (step.block_masks == NULL && mask != NULL) what = "takes no block mask";
  if (what != NULL) {
    snprintf(why, sizeof why, "%s %s", step.name, what);
    return why;
  }
  return step.supports(p, why, sizeof why) ? NULL : why;
}

/** True if every call needs a block mask; false if none may have one. */
bool step_takes_block_masks(void) {
  return step.block_masks != NULL;
}

/**
 * Writes to `bytes` how much device memory the step wants for what it prepares of a mask. Unless
 * `prepared` is NULL, it points to as much, and the preparation is enqueued on `stream`: once per
 * mask and lengths, before the forward passes with it. `mask` lies in host memory, its tensors in
 * device memory; it is trusted to be valid. NULL if all went well, else one sentence, valid until
 * the next call.
 */
const char *step_prepare(const Shape *shape, const BlockMask *mask, void *prepared, size_t *bytes,
                         cudaStream_t stream) {
  const Problem p = problem_of(shape, mask);
  const char *refused = refusal(&p, mask);
  if (refused != NULL) return refused;
  if (mask == NULL) {
    *bytes = 0;
    return NULL;
  }
  *bytes = step.block_masks->prepared_bytes(&p, mask);
  if (prepared == NULL) return NULL;
  const cudaError_t error = step.block_masks->prepare(&p, mask, prepared, stream);
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/**
 * Writes to `bytes` how much workspace the step wants when `free_bytes` of device memory are free:
 * 0 if none; more than `free_bytes` if that is too little for it. Returns as step_prepare() does.
 */
const char *step_workspace(const Shape *shape, size_t free_bytes, size_t *bytes) {
  const Problem p = problem_of(shape, NULL);
  *bytes = 0;
  if (step.workspace_bytes == NULL) return NULL;
  const char *refused = refusal(&p, NULL);
  if (refused == NULL) *bytes = workspace_of(&p, free_bytes);
  return refused;
}

/**
 * Enqueues a forward pass on `stream`. The pointers are to device memory, [batch][heads][rows] or
 * [batch][heads][rows][head_dim]; `mask` and `prepared` are those of step_prepare(), or NULL for a
 * step without block masks; `workspace` has as many bytes as step_workspace() said, or is NULL for
 * a step that wants none. Returns as step_prepare() does.
 */
const char *step_forward(const Shape *shape, const BlockMask *mask, void *prepared, void *workspace,
                         size_t workspace_bytes, const void *q, const void *k, const void *v,
                         void *o, float *lse, cudaStream_t stream) {
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
  const size_t needed = workspace_of(&p, workspace_bytes);
  if (needed > workspace_bytes) {
    snprintf(why, sizeof why, "%s needs a workspace of %zu bytes or more, not %zu", step.name,
             needed, workspace_bytes);
    return why;
  }
  const cudaError_t error = step.forward(&p, &t, workspace_bytes, stream);
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}
