/**
 * @file
 * What step 06b introduces: how to tell from P that m is too small.
 */
#ifndef DEVICE_NEW_MAX_CUH
#define DEVICE_NEW_MAX_CUH

// As in steps/step06b_rare_max.cu:

/** The largest sum of P of a row in a lane. In fp16, P must be below 65504. Scores beyond 2^28 are
 * so coarse in fp32 that even P of a new m may be larger (docs/correctness.md). */
constexpr float MOST_SUM = 512;

/** Whether a sum of P exceeds `most`, so that m is too small for a row of this lane. Before its
 * first unmasked key a row has m = -FLT_MAX: P of a masked key is 0, and P of any other is
 * infinite. A score of NaN or +inf makes the sum NaN or infinite, too. */
template <int M_FRAGMENTS>
__device__ __forceinline__ bool needs_new_max(const float (&sums)[M_FRAGMENTS][2], float most) {
  bool needs = false;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) needs |= !(sums[i][half] <= most);
  }
  return needs;
}

#endif
