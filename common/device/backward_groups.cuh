/**
 * @file
 * What step 15c introduces: P^T and dS^T of two groups of warps lie in shared memory.
 */
#ifndef DEVICE_BACKWARD_GROUPS_CUH
#define DEVICE_BACKWARD_GROUPS_CUH

#include "device/backward_tile.cuh"
#include "device/launch.cuh"

// As in steps/step15c_two_groups.cu:

/** P^T is multiplied by 2^P_SHIFT before it is rounded. In fp16, small probabilities would lose
 * bits, which the factor dP - D could make visible in dS. */
template <typename T>
constexpr int P_SHIFT = DTYPE_OF<T> == DTYPE_FP16 ? 11 : 0;

/** Where this lane has the first fragment of a warp in a tile of P^T or dS^T. */
template <int BLOCK_M>
__device__ __forceinline__ uint32_t fragment_lane(const unsigned char *tile, int key, int query) {
  const int lane = fresh_lane();
  return shared_address(tile) + chunk_offset<BLOCK_M>(key + lane / 4, query / CHUNK) + lane % 4 * 4;
}

/** Writes P^T of this warp, computed from S^T; `lse` is LSE * log2(e) from its first query on. All
 * exponentials come first: a rounding waits for its two, and whatever follows it waits, too. */
template <typename T, int BLOCK_M, int M, int N>
__device__ __forceinline__ void write_p(const unsigned char *tile, float (&s)[M][N][4],
                                        const float *lse, float scale_log2, int key, int query) {
  const uint32_t target = fragment_lane<BLOCK_M>(tile, key, query);
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&lse[8 * n + threadIdx.x % 4 * 2];
    const float left = pair.x - P_SHIFT<T>, right = pair.y - P_SHIFT<T>;
#pragma unroll
    for (int j = 0; j < 4 * M; j++) {
      float &x = s[j / 4][n][j % 4];
      x = exp2_approx(fmaf(x, scale_log2, j % 2 == 0 ? -left : -right));
    }
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int j = 0; j < 2 * M; j++) {
      const float *const x = &s[j / 2][n][j % 2 * 2];
      *(uint32_t *)shared_pointer(more_chunks<BLOCK_M>(target, n) + 8 * j * 2 * BLOCK_M) =
          pack<T>(x[0], x[1]);
    }
  }
}

/** Writes dS^T of this warp: P^T, which ldmatrix loads as fragments, times `dp`, dP^T - D. */
template <typename T, int BLOCK_M, int M, int N>
__device__ __forceinline__ void write_ds(const unsigned char *tile, const float (&dp)[M][N][4],
                                         const unsigned char *p_tile, int key, int query) {
  constexpr float FACTOR = 1.0f / (1 << P_SHIFT<T>);
  const uint32_t target = fragment_lane<BLOCK_M>(tile, key, query);
  const uint32_t source =
      more_chunks<BLOCK_M>(a_lane<BLOCK_M>(p_tile, key, fresh_lane()), query / CHUNK);
  load_ahead<M * N / 2, 1>(
      [&](uint32_t(&p)[4], int index) {
        const int i = index / (N / 2), n = index % (N / 2) * 2;
        ldmatrix_x4(p, shared_pointer(more_chunks<BLOCK_M>(source, n) + 16 * i * 2 * BLOCK_M));
      },
      [&](const uint32_t(&p)[4], int index) {
        const int i = index / (N / 2), n = index % (N / 2) * 2;
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const float *const x = &dp[i][n + c / 2][c % 2 * 2];
          const float2 pair = to_float2(*(const typename PairOf<T>::type *)&p[c]);
          *(uint32_t *)shared_pointer(more_chunks<BLOCK_M>(target, n + c / 2) +
                                      (16 * i + c % 2 * 8) * 2 * BLOCK_M) =
              pack<T>(x[0] * FACTOR * pair.x, x[1] * FACTOR * pair.y);
        }
      });
}

#endif
