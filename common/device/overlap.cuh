/**
 * @file
 * What step 09 introduces: products that start when their tile has arrived, and the softmax of a
 * tile apart from the rescale of O, which has to wait for a product in flight.
 */
#ifndef DEVICE_OVERLAP_CUH
#define DEVICE_OVERLAP_CUH

#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

// As in steps/step09_overlap.cu:

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
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        s[n][2 * half + c] = exp2_approx(fmaf(s[n][2 * half + c], scale_log2, -safe_max));
        sum += s[n][2 * half + c];
      }
    }
    l[half] = l[half] * rescale[half] + sum;
  }
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

/** Starts S = Q K^T for a tile of K, as soon as it has arrived. */
template <typename T, int HEAD_DIM, int N_FRAGMENTS>
__device__ __forceinline__ void start_qk_of(float (&s)[N_FRAGMENTS][4], Shared<T, HEAD_DIM> &shared,
                                            int consumer,
                                            PipelineState<Tiles<HEAD_DIM>::STAGES> k) {
  mbarrier_wait(&shared.k_full[k.index()], k.phase());  // K has arrived
  wgmma_fence();                                        // the last softmax has read and written S
  start_qk<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(s, shared.q[consumer], shared.k[k.index()]);
}

/** Starts O += P V for a tile of V, as soon as it has arrived. */
template <typename T, int HEAD_DIM, int P_FRAGMENTS>
__device__ __forceinline__ void start_pv_of(float (&o)[HEAD_DIM / MMA_N][4],
                                            const uint32_t (&probs)[P_FRAGMENTS][4],
                                            Shared<T, HEAD_DIM> &shared,
                                            PipelineState<Tiles<HEAD_DIM>::STAGES> v) {
  mbarrier_wait(&shared.v_full[v.index()], v.phase());  // V has arrived
  wgmma_fence();  // P and O were written by other instructions
  start_pv<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(o, probs, shared.v[v.index()]);
}

/** Masks the scores of the keys from `first_key` on, unless all rows of this warp, from `first_row`
 * on, attend to all of these keys: to those before `unmasked_end` they do. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void mask_tile(float (&s)[1][N_FRAGMENTS][4], const Problem &problem,
                                          int first_row, int first_key, int unmasked_end) {
  if (first_key + MMA_N * N_FRAGMENTS > unmasked_end) {
    apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, first_key);
  }
}

#endif
