/**
 * @file
 * Reductions among neighbouring lanes of a warp. All 32 lanes take part, and every lane gets the
 * result of its group.
 */
#ifndef DEVICE_WARP_CUH
#define DEVICE_WARP_CUH

#include <cuda_runtime.h>

constexpr int WARP_SIZE = 32;              /**< lanes of a warp */
constexpr unsigned FULL_WARP = 0xffffffff; /**< the mask of all lanes */

/** Maximum over each group of LANES neighbouring lanes; LANES is a power of two. */
template <int LANES>
__device__ __forceinline__ float lanes_reduce_max(float x) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));
  }
  return x;
}

/** Sum over each group of LANES neighbouring lanes, the same bits in every lane. */
template <int LANES>
__device__ __forceinline__ float lanes_reduce_sum(float x) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(FULL_WARP, x, distance);
  }
  return x;
}

#endif
