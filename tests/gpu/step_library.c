/**
 * @file
 * One step as a shared library, libstepNN.so, for callers that are not written in C: a single
 * function with plain arguments. Used by step_library.py.
 */
#include <stdio.h>

#include "attention.h"

__attribute__((visibility("default"))) const char *step_forward(
    int batch, int q_heads, int kv_heads, int q_len, int kv_len, int head_dim, bool bf16,
    bool causal, float scale, const void *q, const void *k, const void *v, void *o, float *lse,
    cudaStream_t stream);

static Strides compact(int64_t heads, int64_t rows, int64_t head_dim) {
  return (Strides){heads * rows * head_dim, rows * head_dim, head_dim};
}

/**
 * Enqueues a forward pass on `stream`. The pointers are to device memory, [batch][heads][rows] or
 * [batch][heads][rows][head_dim]. NULL if all went well, else one sentence, valid until the next
 * call.
 */
const char *step_forward(int batch, int q_heads, int kv_heads, int q_len, int kv_len, int head_dim,
                         bool bf16, bool causal, float scale, const void *q, const void *k,
                         const void *v, void *o, float *lse, cudaStream_t stream) {
  static char why[256];
  const Problem p = {
      .batch = batch,
      .q_heads = q_heads,
      .kv_heads = kv_heads,
      .q_len = q_len,
      .kv_len = kv_len,
      .head_dim = head_dim,
      .dtype = bf16 ? DTYPE_BF16 : DTYPE_FP16,
      .mask = causal ? MASK_CAUSAL : MASK_FULL,
      .scale = scale,
      .q_strides = compact(q_heads, q_len, head_dim),
      .k_strides = compact(kv_heads, kv_len, head_dim),
      .v_strides = compact(kv_heads, kv_len, head_dim),
      .o_strides = compact(q_heads, q_len, head_dim),
  };
  const Tensors t = {.q = q, .k = k, .v = v, .o = o, .lse = lse};
  if (step.workspace_bytes != NULL) {
    snprintf(why, sizeof why, "%s needs a workspace, and a library call has none", step.name);
    return why;
  }
  if (step.block_masks != NULL) {
    snprintf(why, sizeof why, "%s needs a block mask, and a library call has none", step.name);
    return why;
  }
  if (!step.supports(&p, why, sizeof why)) return why;
  const cudaError_t error = step.forward(&p, &t, 0, stream);
  return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}
