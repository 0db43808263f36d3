/**
 * @file
 * What step 10c introduces: a softmax that keeps the maximum of a row as long as P stays in the
 * range of its type, and computes S again where it does not.
 */
#ifndef DEVICE_LAZY_SOFTMAX_CUH
#define DEVICE_LAZY_SOFTMAX_CUH

#include "device/log2.cuh"
#include "device/new_max.cuh"
#include "device/overlap.cuh"
#include "device/ptx.cuh"
#include "device/ptx_hopper.cuh"
#include "device/store_tile.cuh"
#include "device/warp.cuh"

// As in steps/step10c_lazy_max.cu:

/** Replaces scores by unnormalised probabilities with the m that is there. `sums` is what they add
 * to l. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void exponentiate_tile(float (&s)[N_FRAGMENTS][4], float (&sums)[2],
                                                  const float (&m)[2], float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sums[half] = 0.0f;
    const float shift = 0.0f - m[half];  // no -m: nvcc would not give it a register of its own
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        s[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, shift));
        sums[half] += s[n][c];
      }
    }
  }
}

/** S = Q K^T of this warp's 16 rows once more, by mma.sync: what P was computed from is gone. */
template <typename T, int HEAD_DIM, int BLOCK_N, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_qk_again(float (&s)[N_FRAGMENTS][4], const T *q,
                                                  const T *k_tile) {
  const int lane = threadIdx.x % WARP_SIZE, first_row = threadIdx.x / WARP_SIZE % 4 * 16;
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) s[n][c] = 0.0f;
  }
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d += MMA_K) {
    uint32_t a[4];
    ldmatrix_x4(
        a, (const char *)q + swizzled_byte<HEAD_DIM, 64>(first_row + lane % 16, d + lane / 16 * 8));
#pragma unroll
    for (int n = 0; n < MMA_N * N_FRAGMENTS; n += 16) {
      uint32_t b[4];
      ldmatrix_x4(
          b, (const char *)k_tile + swizzled_byte<HEAD_DIM, BLOCK_N>(n + lane / 16 * 8 + lane % 8,
                                                                     d + lane / 8 % 2 * 8));
      mma_m16n8k16<T>(s[n / MMA_N], a, b[0], b[1]);
      mma_m16n8k16<T>(s[n / MMA_N + 1], a, b[2], b[3]);
    }
  }
  fence_proxy_async();  // these loads come before the TMA load of the next tile
  __syncwarp();
}

/** Replaces scores, which mask() masks, by unnormalised probabilities, and updates l. Returns
 * whether m was raised, for some row of this warp: then the rows of O are to be multiplied by
 * `rescale`. */
template <typename T, int HEAD_DIM, int BLOCK_N, int N_FRAGMENTS, typename Mask>
__device__ __forceinline__ bool lazy_softmax(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                             float (&l)[2], float (&rescale)[2], float scale_log2,
                                             const T *q, const T *k_tile, Mask mask) {
  mask();
  float sums[1][2];
  exponentiate_tile(s, sums[0], m, scale_log2);
  // One decision for the whole warp: ldmatrix and mma need all lanes.
  const bool raise = __any_sync(FULL_WARP, needs_new_max(sums, MOST_SUM));
  if (raise) {
    multiply_qk_again<T, HEAD_DIM, BLOCK_N>(s, q, k_tile);
    mask();
    softmax_of_tile(s, m, l, rescale, scale_log2);
  } else {
    l[0] += sums[0][0], l[1] += sums[0][1];
  }
  return raise;
}

#endif
