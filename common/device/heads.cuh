/**
 * @file
 * Where a head lies in memory, which keys a query attends to, and which queries a thread block has.
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

/** The number of keys that query q attends to under the causal rule: keys 0 to that number - 1. It
 * is 0 for q >= q_len. */
__host__ __device__ inline int causal_keys(const Problem &problem, int q) {
  if (q >= problem.q_len) return 0;
  const int last = problem.kv_len + (q - problem.q_len);
  return last < 0 ? 0 : last + 1;
}

/** The number of keys that query q attends to under the full or the causal mask, as above. */
__host__ __device__ inline int attended_keys(const Problem &problem, int q) {
  if (problem.mask == MASK_CAUSAL) return causal_keys(problem, q);
  return q >= problem.q_len ? 0 : problem.kv_len;
}

/** Keys that some of the queries `first_q` to `first_q` + `rows` - 1 attend to. */
__device__ __forceinline__ int keys_of_rows(const Problem &problem, int first_q, int rows) {
  if (first_q >= problem.q_len) return 0;
  return attended_keys(problem, min(first_q + rows, problem.q_len) - 1);
}

/** Bytes of K and V that stay in the L2 cache of an H200 beside everything else: the best of four
 * sizes that were tried. With a smaller cache, K and V come from device memory more often. */
constexpr int CACHED_BYTES = 16 << 20;

/** The work of a thread block: a tile of queries of one head. */
struct BlockRow {
  int head;  /**< counted through the whole batch */
  int entry; /**< of the head's tiles in the order of their work: 0 has the most */
};

/** The number of heads whose K and V, of 16 bits, stay in the L2 cache together. */
__host__ __device__ inline int heads_per_wave(const Problem &problem) {
  const int heads = problem.batch * problem.q_heads;
  const int fit = CACHED_BYTES / (2 * 2 * problem.head_dim) / problem.kv_len;
  return fit < 1 ? 1 : fit < heads ? fit : heads;
}

/** Thread blocks take the longest rows of several heads first, so that the grid ends with short
 * rows and no SM is still busy with a long one when all others are done. */
__device__ __forceinline__ BlockRow row_of_block(const Problem &problem, int heads_per_wave,
                                                 int q_tiles, int block) {
  const int all_heads = problem.batch * problem.q_heads;
  const int first_head = block / (heads_per_wave * q_tiles) * heads_per_wave;
  const int heads = min(heads_per_wave, all_heads - first_head);
  const int rest = block - first_head * q_tiles;
  return {first_head + rest % heads, rest / heads};
}

#endif
