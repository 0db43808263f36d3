/**
 * @file
 * Where a head lies in memory, and which keys a query attends.
 */
#ifndef DEVICE_HEADS_CUH
#define DEVICE_HEADS_CUH

#include <cuda_runtime.h>

#include "attention.h"

/** Offsets in elements from the start of each tensor to row 0 of one query head. */
struct HeadOffsets {
  int64_t q, k, v, o, lse; /**< from the start of this tensor */
};

/** Where the rows of one query head begin. `index` counts query heads through the whole batch:
 * batch * q_heads + head. */
__device__ __forceinline__ HeadOffsets head_offsets(const Problem &problem, int index) {
  const int64_t batch = index / problem.q_heads;
  const int64_t head = index % problem.q_heads;
  const int64_t kv_head = head / (problem.q_heads / problem.kv_heads);
  return {batch * problem.q_strides.batch + head * problem.q_strides.head,
          batch * problem.k_strides.batch + kv_head * problem.k_strides.head,
          batch * problem.v_strides.batch + kv_head * problem.v_strides.head,
          batch * problem.o_strides.batch + head * problem.o_strides.head,
          (int64_t)index * problem.q_len};
}

/** The number of keys that query q attends under the causal rule: keys 0 to that number - 1. It is
 * 0 for q >= q_len. */
__host__ __device__ inline int causal_keys(const Problem &problem, int q) {
  if (q >= problem.q_len) return 0;
  const int last = problem.kv_len + (q - problem.q_len);
  return last < 0 ? 0 : last + 1;
}

/** The number of keys that query q attends under the full or the causal mask, as above. */
__host__ __device__ inline int attended_keys(const Problem &problem, int q) {
  if (problem.mask == MASK_CAUSAL) return causal_keys(problem, q);
  return q >= problem.q_len ? 0 : problem.kv_len;
}

/** Keys that some of the queries `first_q` to `first_q` + `rows` - 1 attend. */
__device__ __forceinline__ int keys_of_rows(const Problem &problem, int first_q, int rows) {
  if (first_q >= problem.q_len) return 0;
  return attended_keys(problem, min(first_q + rows, problem.q_len) - 1);
}

#endif
