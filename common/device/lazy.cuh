#ifndef DEVICE_LAZY_CUH
#define DEVICE_LAZY_CUH
#include <float.h>
#include "device/overlap.cuh"
constexpr float MOST_SUM = 512;
template <int N_FRAGMENTS>
__device__ __forceinline__ bool exponentiate(float (&s)[N_FRAGMENTS][4], float (&sums)[2],
                                             const float (&m)[2], float scale_log2) {
  bool too_small = false;
#pragma unroll
  for (int half = 0; half < 2; half++) {
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
#include "device/store_tile.cuh"
/** S = Q K^T of this warp's 16 rows once more, by mma.sync: what P was computed from is gone. */
template <typename T, int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void multiply_qk_again(float (&s)[BLOCK_N / MMA_N][4], const T *q_group,
                                                  const T *k_tile) {
  const int lane = threadIdx.x % WARP_SIZE, first_row = threadIdx.x / WARP_SIZE % 4 * 16;
#pragma unroll
  for (int n = 0; n < BLOCK_N / MMA_N; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) s[n][c] = 0.0f;
  }
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d += 16) {
    uint32_t a[4];
    ldmatrix_x4(a, (const char *)q_group +
                       swizzled_byte<HEAD_DIM, 64>(first_row + lane % 16, d + lane / 16 * 8));
#pragma unroll
    for (int n = 0; n < BLOCK_N; n += 16) {
      uint32_t b[4];
      ldmatrix_x4(
          b, (const char *)k_tile + swizzled_byte<HEAD_DIM, BLOCK_N>(n + lane / 16 * 8 + lane % 8,
                                                                     d + lane / 8 % 2 * 8));
      mma_m16n8k16<T>(s[n / MMA_N], a, b[0], b[1]);
      mma_m16n8k16<T>(s[n / MMA_N + 1], a, b[2], b[3]);
    }
  }
  fence_proxy_async();  // these loads come before the tensor copy of the next tile
  __syncwarp();
}

/** A tile of keys: S, and P with the m that is there, unless it is too small; P V of the tile
 * before runs meanwhile. mask(s) masks the scores. */
template <typename T, int HEAD_DIM, int STAGES, int P_FRAGMENTS, typename Mask>
__device__ __forceinline__ void attend_tile(Shared<T, HEAD_DIM> &shared, int consumer,
                                            PipelineState<STAGES> k, PipelineState<STAGES> v,
                                            float scale_log2, float (&o)[HEAD_DIM / MMA_N][4],
                                            float (&m)[2], float (&l)[2],
                                            uint32_t (&probs)[P_FRAGMENTS][4], Mask mask) {
  float s[2 * P_FRAGMENTS][4];
  start_qk_of(s, shared, consumer, k);
  start_pv_of(o, probs, shared, v);
  wgmma_wait<1>(s);  // S of this tile is complete; P V of the one before may still run
  mask(s);
  float sums[2], rescale[2];
  const bool needs_new_max = __any_sync(FULL_WARP, exponentiate(s, sums, m, scale_log2));
  if (needs_new_max) {  // rarely
    multiply_qk_again<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(s, shared.q[consumer],
                                                             shared.k[k.index()]);
    mask(s);
    softmax_of_tile(s, m, l, rescale, scale_log2);
  } else {
    l[0] += sums[0], l[1] += sums[1];
  }
  release(shared.k_empty, k);
  wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
  release(shared.v_empty, v);
  if (needs_new_max) rescale_rows(o, rescale);
  pack_probs<T>(probs, s);
}

/** A tile that only other consumers need: waits until it has arrived, and releases it. Released
 * earlier, it would count for the tile that was in its stage before. */
template <typename T, int HEAD_DIM, int STAGES>
__device__ __forceinline__ void skip_tile(Shared<T, HEAD_DIM> &shared, PipelineState<STAGES> k,
                                          PipelineState<STAGES> v) {
  mbarrier_wait(&shared.k_full[k.index()], k.phase());
  __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
  release(shared.k_empty, k);
  mbarrier_wait(&shared.v_full[v.index()], v.phase());
  __syncwarp();
  release(shared.v_empty, v);
}

#endif
