/**
 * @file
 * What step 17b introduces: numbers of queries that are loaded four at a time, and dK with dS^T
 * from registers and from shared memory.
 */
#ifndef DEVICE_BACKWARD_FOURS_CUH
#define DEVICE_BACKWARD_FOURS_CUH

#include "device/backward_groups.cuh"
#include "device/wgmma_tile.cuh"

// As in steps/step17b_fewer_reads.cu:

/** Loads LSE or D of the columns of this lane, which lie together for each 16 columns. */
template <int N>
__device__ __forceinline__ void load_fours(float (&pairs)[N][2], const float *numbers) {
  const int first = fresh_lane() % 4 * 4;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    const float4 four = *(const float4 *)&numbers[8 * n + first];
    pairs[n][0] = four.x, pairs[n][1] = four.y;
    pairs[n + 1][0] = four.z, pairs[n + 1][1] = four.w;
  }
}

/** Replaces S^T by 2^P_SHIFT P^T. */
template <typename T, int N>
__device__ __forceinline__ void to_p(float (&s)[N][4], const float *lse, float scale_log2) {
  float lse_log2[N][2];
  load_fours(lse_log2, lse);
#pragma unroll
  for (int j = 0; j < 4 * N; j++) {
    float &x = s[j / 4][j % 4];
    x = exp2_approx(fmaf(x, scale_log2, -lse_log2[j / 4][j % 2]));
  }
}

/** Replaces dP^T by dS^T = P^T o (dP^T - D), given 2^P_SHIFT P^T as operand A. */
template <typename T, int N>
__device__ __forceinline__ void to_ds(float (&dp)[N][4], const uint32_t (&p)[N / 2][4],
                                      const float *d) {
  constexpr float FACTOR = 1.0f / (1 << P_SHIFT<T>);
  float d_row[N][2];
  load_fours(d_row, d);
#pragma unroll
  for (int j = 0; j < 4 * N; j += 2) {
    const int n = j / 4;
    const float2 pair =
        to_float2(*(const typename PairOf<T>::type *)&p[n / 2][n % 2 * 2 + j % 4 / 2]);
    dp[n][j % 4] = pair.x * fmaf(FACTOR, dp[n][j % 4], -FACTOR * d_row[n][0]);
    dp[n][j % 4 + 1] = pair.y * fmaf(FACTOR, dp[n][j % 4 + 1], -FACTOR * d_row[n][1]);
  }
}

/** Starts dK += dS^T Q for the 64 keys of this consumer. The first fragments of dS^T come from
 * registers, the others from shared memory, where `first_row` is that of the consumer. */
template <typename T, int HEAD_DIM, int BLOCK_M, int PANELS, int ELEMENTS>
__device__ __forceinline__ void start_dk(float (&dk)[HEAD_DIM / MMA_N][4],
                                         const uint32_t (&fragments)[BLOCK_M / 16][4],
                                         const T (&ds)[PANELS][ELEMENTS], int first_row,
                                         const T *q_tile, int barrier) {
  constexpr int SPLIT = Tiles<HEAD_DIM>::DS_IN_REGISTERS;
  const uint64_t a = wgmma_descriptor<64>(ds[0] + 64 * first_row, 0);
  const uint64_t q = wgmma_descriptor<HEAD_DIM>(q_tile, 2 * BLOCK_M * 64);
#pragma unroll
  for (int i = 0; i < SPLIT; i++)
    wgmma<T, true>(dk, fragments[i], q + units(2 * 16 * i * 64), true);
  named_barrier_sync<WARPGROUP_THREADS>(barrier);  // all warps of the consumer have written dS^T
#pragma unroll
  for (int i = SPLIT; i < BLOCK_M / 16; i++) {
    const int column = i / 4 * ELEMENTS + i % 4 * 16;
    wgmma<T, true>(dk, a + units(2 * column), q + units(2 * 16 * i * 64), true);
  }
  wgmma_commit();
}

#endif
