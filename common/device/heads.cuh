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
__device__ __forceinline__ HeadOffsets head_offsets(const Problem &p, int index) {
  const int64_t batch = index / p.q_heads;
  const int64_t head = index % p.q_heads;
  const int64_t kv_head = head / (p.q_heads / p.kv_heads);
  return {batch * p.q_strides.batch + head * p.q_strides.head,
          batch * p.k_strides.batch + kv_head * p.k_strides.head,
          batch * p.v_strides.batch + kv_head * p.v_strides.head,
          batch * p.o_strides.batch + head * p.o_strides.head, (int64_t)index * p.q_len};
}

/** The number of keys that query q attends under the causal rule: keys 0 to that number - 1. It is
 * 0 for q >= q_len. */
__host__ __device__ inline int causal_keys(const Problem &p, int q) {
  if (q >= p.q_len) return 0;
  const int last = p.kv_len + (q - p.q_len);
  return last < 0 ? 0 : last + 1;
}

/** The number of keys that query q attends under the full or the causal mask, as above. */
__host__ __device__ inline int attended_keys(const Problem &p, int q) {
  if (p.mask == MASK_CAUSAL) return causal_keys(p, q);
  return q >= p.q_len ? 0 : p.kv_len;
}

#endif
