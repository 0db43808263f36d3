/**
 * @file
 * What step 09 introduces: the softmax of a tile apart from the rescale of O, which may have to
 * wait for a product in flight.
 */
#ifndef DEVICE_SPLIT_SOFTMAX_CUH
#define DEVICE_SPLIT_SOFTMAX_CUH

#include <float.h>
#include <math.h>

#include "device/ptx.cuh"
#include "device/warp.cuh"

/** Replaces scores by unnormalised probabilities and updates m and l, as update_softmax() does, but
 * leaves O alone: `rescale` is what its rows are to be multiplied by. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void softmax_of_tile(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                                float (&l)[2], float (&rescale)[2],
                                                float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float row_max = -INFINITY;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      row_max = fmaxf(row_max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    row_max = fmaxf(m[half], lanes_reduce_max<4>(row_max) * scale_log2);
    const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
    rescale[half] = exp2_approx(m[half] - safe_max);
    m[half] = row_max;
    float tile_sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        s[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, -safe_max));
        tile_sum += s[n][c];
      }
    }
    l[half] = l[half] * rescale[half] + tile_sum;
  }
}

/** Of P of a row in a lane; in fp16, P must be below 65504. Scores beyond 2^28 are so coarse in
 * fp32 that even P of a new m may be larger (docs/correctness.md). */
constexpr float MOST_SUM = 512;

/** Replaces scores by unnormalised probabilities with the m of the tiles before; `sums` is what
 * they add to l. Returns whether m is too small for a row of this lane, which is if a sum exceeds
 * MOST_SUM: then P may not be representable. A row with m = -inf has attended nothing yet. */
template <int N_FRAGMENTS>
__device__ __forceinline__ bool exponentiate(float (&s)[N_FRAGMENTS][4], float (&sums)[2],
                                             const float (&m)[2], float scale_log2) {
  bool too_small = false;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    // Without a maximum, any finite score gives a sum above 0, and one of -inf adds nothing.
    const float safe_max = m[half] == -INFINITY ? -FLT_MAX : m[half];
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        s[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, -safe_max));
        sum += s[n][c];
      }
    }
    sums[half] = sum;
    too_small |= !(sum <= (m[half] == -INFINITY ? 0.0f : MOST_SUM));
  }
  return too_small;
}

/** Multiplies the rows of O. */
template <int O_FRAGMENTS>
__device__ __forceinline__ void rescale_rows(float (&o)[O_FRAGMENTS][4],
                                             const float (&rescale)[2]) {
#pragma unroll
  for (int n = 0; n < O_FRAGMENTS; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) o[n][c] *= rescale[c / 2];
  }
}

#endif
