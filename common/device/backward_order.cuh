/**
 * @file
 * What step 17c introduces: the longest blocks of several heads come first.
 */
#ifndef DEVICE_BACKWARD_ORDER_CUH
#define DEVICE_BACKWARD_ORDER_CUH

#include "device/backward_tile.cuh"

// As in steps/step17c_short_ends.cu:

/** As key_block(), but under the causal mask the longest blocks of several heads come first. Of
 * these heads Q, dO and the sums of dQ, 8 bytes an element, fit the L2 cache together. */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ KeyBlock long_block_first(const Problem &problem, PassHeads heads,
                                                     int number) {
  constexpr int CACHED_ELEMENTS = (32 << 20) / 8;
  if (problem.mask != MASK_CAUSAL) return key_block<BLOCK_N>(problem, heads, number);
  const int group = problem.q_heads / problem.kv_heads, kv_heads = heads.count / group;
  const int tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int fit = CACHED_ELEMENTS / HEAD_DIM / problem.q_len / group;
  const int section = max(1, min(fit, kv_heads)), first = number / (section * tiles) * section;
  const int size = min(section, kv_heads - first), rest = number - first * tiles;
  return {rest / size * BLOCK_N, heads.first + (first + rest % size) * group};
}

#endif
