/**
 * @file
 * One step as a shared library, libstepNN.so, for callers that are not written in C: the step, and
 * the functions of the CUDA runtime that its callers need. library.py and plots/bench/device.py
 * declare the same structures and functions. A function that can fail returns NULL on success, or
 * an error message that is valid until the next call.
 */
#include <float.h>
#include <stdio.h>

#include "backward.h"
#include "block_mask.h"
#include "decode.h"
#include "host/device/flush.h"
#include "host/device/graph.h"
#include "host/device/limits.h"

/** The problem; tensors are [batch][heads][rows][head_dim]. */
typedef struct Shape {
  int batch, q_heads, kv_heads, q_len, kv_len, head_dim;
  bool bf16;
  bool causal; /**< ignored with a block mask */
  bool e4m3;   /**< Q, K and V, of a decode step K and V; O is fp16, or bf16 as `bf16` says */
  float scale;
  Strides strides[4]; /**< of Q, K, V and O; a row of 0 stands for compact tensors */
} Shape;

#define EXPORTED __attribute__((visibility("default")))

static char why[256];

/** Linked into the libraries of backward steps only: the step that computes O and LSE, or the one
 * for steps that take block masks. */
extern const Step forward_step __attribute__((weak)), masked_forward_step __attribute__((weak));

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
      .dtype = s->e4m3   ? DTYPE_E4M3
               : s->bf16 ? DTYPE_BF16
                         : DTYPE_FP16,
      .o_dtype = s->bf16 ? DTYPE_BF16 : DTYPE_FP16,
      .mask = s->causal ? MASK_CAUSAL : MASK_FULL,
      .scale = s->scale,
      .q_strides = compact(s->q_heads, s->q_len, s->head_dim),
      .k_strides = compact(s->kv_heads, s->kv_len, s->head_dim),
      .v_strides = compact(s->kv_heads, s->kv_len, s->head_dim),
      .o_strides = compact(s->q_heads, s->q_len, s->head_dim),
  };
  if (s->strides[0].row != 0) {
    p.q_strides = s->strides[0];
    p.k_strides = s->strides[1];
    p.v_strides = s->strides[2];
    p.o_strides = s->strides[3];
  }
  if (mask != NULL) {
    p.mask = MASK_BLOCKS;
    p.q_block_size = mask->q_block_size;
    p.kv_block_size = mask->kv_block_size;
  }
  return p;
}

/** Why no step takes a problem, or NULL. Kernels find the largest score before they multiply by the
 * scale, so it must not be negative. */
static const char *refused_by_all(const Problem *p) {
  if (p->batch < 1 || p->q_len < 1 || p->kv_len < 1) return "q, k, v: a dimension is 0";
  if (p->scale >= FLT_MIN && p->scale <= FLT_MAX) return NULL;
  snprintf(why, sizeof why, "scale %g: must be positive and finite", p->scale);
  return why;
}

/** NULL if the step supports this problem, else the reason. */
static const char *refusal(const Problem *p, const BlockMask *mask) {
  const char *const by_all = refused_by_all(p);
  if (by_all != NULL) return by_all;
  if (step.fp8 != (p->dtype == DTYPE_E4M3)) {
    snprintf(why, sizeof why, "%s takes %s", step.name, step.fp8 ? "e4m3" : "fp16 and bf16");
    return why;
  }
  if ((step.block_masks != NULL) != (mask != NULL)) {
    snprintf(why, sizeof why, "%s %s block mask", step.name, mask == NULL ? "needs a" : "takes no");
    return why;
  }
  if (mask != NULL && mask->row_spans != NULL && !step.block_masks->takes_spans) {
    snprintf(why, sizeof why, "%s takes no row spans", step.name);
    return why;
  }
  return step.supports == NULL || step.supports(p, why, sizeof why) ? NULL : why;
}

static const char *too_little(const Problem *p, size_t workspace_bytes) {
  snprintf(why, sizeof why, "%s needs a workspace of %zu bytes or more, not %zu", step.name,
           step.workspace_bytes(p), workspace_bytes);
  return why;
}

static const char *sentence(cudaError_t error) {
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* --- The step ------------------------------------------------------------------------------- */

/** True if every call needs a block mask, false if no call may have one. */
EXPORTED bool step_takes_block_masks(void) {
  return step.block_masks != NULL;
}

/** True if such a block mask may have row spans. */
EXPORTED bool step_takes_spans(void) {
  return step.block_masks != NULL && step.block_masks->takes_spans;
}

/** True if Q, K and V must be e4m3. */
EXPORTED bool step_takes_e4m3(void) {
  return step.fp8;
}

/** True if the step computes a backward pass. */
EXPORTED bool step_is_backward(void) {
  return step.backward != NULL;
}

/** Sets the step's Ceiling and the bytes of S and P in device memory per unmasked entry. */
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
 * Sets `bytes` to the device memory that the step needs to prepare a mask. Unless `prepared`,
 * device memory of as many bytes, is NULL, also enqueues the preparation on `stream`: once per mask
 * and lengths, before the forward passes with it. `mask` is in host memory, its tensors are in
 * device memory; the mask must be valid, it is not checked.
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
 * Sets `bytes` to the workspace that the step uses if `free_bytes` of device memory are free: 0 if
 * it uses none, more than `free_bytes` if these are too few.
 */
EXPORTED const char *step_workspace(const Shape *shape, size_t free_bytes, size_t *bytes) {
  const Problem p = problem_of(shape, NULL);
  *bytes = 0;
  if (step.workspace_bytes == NULL) return NULL;
  const int heads = heads_at_a_time(&p, free_bytes);
  *bytes = (size_t)(heads > 0 ? heads : 1) * step.workspace_bytes(&p);
  return NULL;
}

/** A pass of the forward step in the library of a backward step, with what it needs beside the
 * tensors; waits for it. */
static cudaError_t forward_pass(const Problem *p, Tensors t, cudaStream_t stream) {
  const Step *const s = step.block_masks != NULL ? &masked_forward_step : &forward_step;
  const int heads = p->batch * p->q_heads;
  const size_t bytes = s->workspace_bytes == NULL ? 0 : s->workspace_bytes(p) * (size_t)heads;
  cudaError_t error = cudaSuccess;
  t.workspace = t.prepared = NULL;
  if (bytes > 0) error = cudaMalloc(&t.workspace, bytes);
  if (bytes > 0 && error == cudaSuccess) error = cudaMemset(t.workspace, 0, bytes);
  if (t.block_mask != NULL && error == cudaSuccess) {
    const BlockMaskSupport *masks = s->block_masks;
    error = cudaMalloc(&t.prepared, masks->prepared_bytes(p, t.block_mask));
    if (error == cudaSuccess) error = masks->prepare(p, t.block_mask, t.prepared, stream);
  }
  if (error == cudaSuccess) error = s->forward(p, &t, heads, stream);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  cudaFree(t.workspace);
  cudaFree(t.prepared);
  return error;
}

/**
 * Enqueues a forward pass on `stream`. `lse`, compact [batch][heads][rows], and the other tensors,
 * [batch][heads][rows][head_dim], are device memory; `mask` and `prepared` are those of
 * step_prepare(), or NULL for a step without block masks; `workspace` has the bytes that
 * step_workspace() set, or is NULL if they are 0. The scales, [batch][kv_heads], are of Q, K and V
 * in e4m3, else NULL. In the library of a backward step the pass is that of another step:
 * forward_pass().
 */
EXPORTED const char *step_forward(const Shape *shape, const BlockMask *mask, void *prepared,
                                  void *workspace, size_t workspace_bytes, const void *q,
                                  const void *k, const void *v, void *o, float *lse,
                                  cudaStream_t stream, const float *q_scales, const float *k_scales,
                                  const float *v_scales) {
  const Problem p = problem_of(shape, mask);
  const Tensors t = {.q = q,
                     .k = k,
                     .v = v,
                     .q_scales = q_scales,
                     .k_scales = k_scales,
                     .v_scales = v_scales,
                     .o = o,
                     .lse = lse,
                     .workspace = workspace,
                     .block_mask = mask,
                     .prepared = prepared};
  const char *refused = refusal(&p, mask);
  if (refused != NULL) return refused;
  if (step.backward != NULL) return sentence(forward_pass(&p, t, stream));
  const int heads = heads_at_a_time(&p, workspace_bytes);
  return heads > 0 ? sentence(step.forward(&p, &t, heads, stream))
                   : too_little(&p, workspace_bytes);
}

/**
 * Enqueues a backward pass on `stream`, with tensors in device memory. Their workspace has the
 * bytes that step_workspace() set.
 */
EXPORTED const char *step_backward(const Shape *shape, const BackwardTensors *tensors,
                                   size_t workspace_bytes, cudaStream_t stream) {
  const Problem p = problem_of(shape, tensors->block_mask);
  const char *refused = refusal(&p, tensors->block_mask);
  if (refused != NULL) return refused;
  const int heads = heads_at_a_time(&p, workspace_bytes);
  return heads > 0 ? sentence(step.backward(&p, tensors, heads, stream))
                   : too_little(&p, workspace_bytes);
}

/* --- A decode step ---------------------------------------------------------------------------- */

/** The forms of the cache that a decode step takes, 0 for other steps. */
EXPORTED unsigned step_caches(void) {
  return step.decode == NULL ? 0 : step.caches;
}

/** K and V are [batch, kv_heads, kv_len, head_dim], or [pages, page_size, kv_heads, head_dim] if
 * `page_size` is not 0; strides are of batch or page, head and row. */
static Problem decode_problem(const Shape *s, int page_size) {
  Shape in_16_bits = *s;
  in_16_bits.e4m3 = false;
  Problem p = problem_of(&in_16_bits, NULL);
  p.kv_dtype = s->e4m3 ? DTYPE_E4M3 : p.dtype;
  p.page_size = page_size;
  if (page_size > 0 && s->strides[0].row == 0) {
    const int64_t row = (int64_t)s->kv_heads * s->head_dim;
    p.k_strides = p.v_strides = (Strides){page_size * row, s->head_dim, row};
  }
  return p;
}

/** Sets the bytes of workspace and schedule. The workspace must be 0 at first. */
EXPORTED const char *step_decode_bytes(const Shape *shape, int page_size, size_t *workspace,
                                       size_t *schedule) {
  const Problem p = decode_problem(shape, page_size);
  const unsigned needed =
      (shape->e4m3 ? CACHE_E4M3 : CACHE_16_BIT) | (page_size > 0 ? CACHE_PAGES : 0);
  if ((step_caches() & needed) != needed) return "the step does not take such a cache";
  const char *const by_all = refused_by_all(&p);
  if (by_all != NULL) return by_all;
  if (step.supports != NULL && !step.supports(&p, why, sizeof why)) return why;
  *workspace = step.workspace_bytes == NULL ? 0 : step.workspace_bytes(&p);
  *schedule = step.schedule_bytes == NULL ? 0 : step.schedule_bytes(&p);
  return NULL;
}

/** Enqueues the schedule of these lengths, if the step has one. */
EXPORTED const char *step_schedule(const Shape *shape, int page_size, const DecodeTensors *tensors,
                                   cudaStream_t stream) {
  const Problem p = decode_problem(shape, page_size);
  return step.schedule == NULL ? NULL : sentence(step.schedule(&p, tensors, stream));
}

/** Enqueues a decode pass. */
EXPORTED const char *step_decode(const Shape *shape, int page_size, const DecodeTensors *tensors,
                                 cudaStream_t stream) {
  const Problem p = decode_problem(shape, page_size);
  return sentence(step.decode(&p, tensors, stream));
}

/** Makes a CUDA graph of a decode pass. */
EXPORTED const char *step_graph(const Shape *shape, int page_size, const DecodeTensors *tensors,
                                cudaGraphExec_t *made) {
  const Problem p = decode_problem(shape, page_size);
  return sentence(make_decode_graph(&p, tensors, made));
}

/** Enqueues a replay of such a graph. */
EXPORTED const char *device_replay(cudaGraphExec_t graph) {
  return sentence(cudaGraphLaunch(graph, NULL));
}

EXPORTED const char *device_free_graph(cudaGraphExec_t graph) {
  return sentence(cudaGraphExecDestroy(graph));
}

/** Enqueues a kernel that only reads so many bytes of each of two tensors. */
EXPORTED const char *device_read(const void *first, const void *second, size_t bytes) {
  return sentence(launch_reads(first, second, bytes, NULL));
}

/** Enqueues an empty kernel. */
EXPORTED const char *device_do_nothing(void) {
  return sentence(launch_empty(NULL));
}

/* --- The device: memory of one library serves all of them ------------------------------------ */

EXPORTED const char *device_allocate(size_t bytes, void **pointer) {
  return sentence(cudaMalloc(pointer, bytes));
}

EXPORTED const char *device_free(void *pointer) {
  return sentence(cudaFree(pointer));
}

/** Copies in either direction, after the work enqueued before, and waits for the copy. */
EXPORTED const char *device_copy(void *target, const void *source, size_t bytes) {
  return sentence(cudaMemcpy(target, source, bytes, cudaMemcpyDefault));
}

/** Enqueues setting all bytes to `value`. */
EXPORTED const char *device_fill(void *pointer, int value, size_t bytes) {
  return sentence(cudaMemsetAsync(pointer, value, bytes, NULL));
}

/** Enqueues a flush of L2 with this buffer, see flush_l2(). */
EXPORTED const char *device_flush(void *buffer, size_t bytes) {
  return sentence(flush_l2(buffer, bytes, NULL));
}

EXPORTED const char *device_synchronize(void) {
  return sentence(cudaDeviceSynchronize());
}

/** Sets the PCI address, by which nvidia-smi knows the GPU; empty on the CPU backend. */
EXPORTED const char *device_address(char *address, int size) {
#ifdef SIMT_BACKEND
  snprintf(address, size, "%s", "");
  return NULL;
#else
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return sentence(error == cudaSuccess ? cudaDeviceGetPCIBusId(address, size, device) : error);
#endif
}

static cudaEvent_t begin, end;

/** Enqueues the start of a timing. */
EXPORTED const char *timer_start(void) {
  cudaError_t error = begin == NULL ? cudaEventCreate(&begin) : cudaSuccess;
  if (error == cudaSuccess && end == NULL) error = cudaEventCreate(&end);
  return sentence(error == cudaSuccess ? cudaEventRecord(begin, NULL) : error);
}

/**
 * Sets the time of the work enqueued since timer_start(). `late` is true if the device reached the
 * start before all the work was enqueued, so that it may have waited for the host.
 */
EXPORTED const char *timer_stop(float *milliseconds, bool *late) {
  cudaError_t error = cudaEventRecord(end, NULL);
  if (error != cudaSuccess) return sentence(error);
  *late = cudaEventQuery(begin) == cudaSuccess;
  error = cudaEventSynchronize(end);
  return sentence(error == cudaSuccess ? cudaEventElapsedTime(milliseconds, begin, end) : error);
}
