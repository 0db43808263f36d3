/**
 * @file
 * What step 06b introduces: a row maximum that is rarely raised, and P of 32 keys at a time.
 */
#ifndef DEVICE_RARE_MAX_CUH
#define DEVICE_RARE_MAX_CUH

#include <float.h>
#include <math.h>

#include "device/new_max.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"

// As in steps/step06b_rare_max.cu:

constexpr int PART = 32; /**< keys whose probabilities are computed at a time */

/** Probabilities 2^(scale_log2 s - m) of PART keys from fragment `first` of S on, as operand A of
 * one mma per 16 keys, and their sums over the keys of this lane. */
template <typename T, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void exponentiate(uint32_t (&probs)[PART / 16][M_FRAGMENTS][4],
                                             float (&sums)[M_FRAGMENTS][2],
                                             const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                             int first, const float (&m)[M_FRAGMENTS][2],
                                             float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
    sums[i][0] = sums[i][1] = 0.0f;
#pragma unroll
    for (int j = 0; j < PART / 16; j++) {
      float prob[8];  // of two fragments
#pragma unroll
      for (int c = 0; c < 8; c++) {
        const int half = c / 2 % 2;
        prob[c] = exp2_approx(fmaf(s[i][first + 2 * j + c / 4][c % 4], scale_log2, -m[i][half]));
        sums[i][half] += prob[c];
      }
#pragma unroll
      for (int c = 0; c < 4; c++) probs[j][i][c] = pack<T>(prob[2 * c], prob[2 * c + 1]);
    }
  }
}

/** The maximum score of each row from fragment `first` of S on. */
template <int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void row_maxima(float (&maxima)[M_FRAGMENTS][2],
                                           const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                           int first) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float maximum = -INFINITY;
#pragma unroll
      for (int n = first; n < N_FRAGMENTS; n++) {
        maximum = fmaxf(maximum, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
      }
      maxima[i][half] = lanes_reduce_max<4>(maximum);
    }
  }
}

/** Gives m of rows without an unmasked key so far, whose l and O are 0, these maxima. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void start_m(float (&m)[M_FRAGMENTS][2],
                                        const float (&maxima)[M_FRAGMENTS][2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (m[i][half] == -FLT_MAX) m[i][half] = fmaxf(-FLT_MAX, maxima[i][half] * scale_log2);
    }
  }
}

/** Raises m to these maxima and rescales l and O. */
template <int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void raise_m(float (&m)[M_FRAGMENTS][2], float (&l)[M_FRAGMENTS][2],
                                        float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                        const float (&maxima)[M_FRAGMENTS][2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float raised = fmaxf(m[i][half], maxima[i][half] * scale_log2);
      const float rescale = exp2_approx(m[i][half] - raised);
      m[i][half] = raised;
      l[i][half] *= rescale;
#pragma unroll
      for (int n = 0; n < O_FRAGMENTS; n++) {
        o[i][n][2 * half] *= rescale;
        o[i][n][2 * half + 1] *= rescale;
      }
    }
  }
}

/** Adds the sums of PART keys to l. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void add_sums(float (&l)[M_FRAGMENTS][2],
                                         const float (&sums)[M_FRAGMENTS][2]) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) l[i][half] += sums[i][half];
  }
}

/** O += P V for 16 keys. `probs` is operand A, and `v` the lane's address in V: of the first key
 * plus lane % 16, chunk lane / 16. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                            const uint32_t (&probs)[M_FRAGMENTS][4], uint32_t v) {
#pragma unroll
  for (int d = 0; d < O_FRAGMENTS / 2; d++) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, shared_pointer(more_chunks<HEAD_DIM>(v, 2 * d)));
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      mma_m16n8k16<T>(o[i][2 * d], probs[i], b[0], b[1]);
      mma_m16n8k16<T>(o[i][2 * d + 1], probs[i], b[2], b[3]);
    }
  }
}

/** Takes one tile into O, m and l: its scores are `s`, and `v` is the lane's address in its V. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void update_output(float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                              float (&m)[M_FRAGMENTS][2],
                                              float (&l)[M_FRAGMENTS][2],
                                              const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                              uint32_t v, float scale_log2) {
  float maxima[M_FRAGMENTS][2];
  if (__any_sync(FULL_WARP, m[0][0] == -FLT_MAX)) {
    // Usually the first tile. Without this branch, its P would be computed twice. Only m[0][0] is
    // tested, eight rows of a warp: if others alone lack an m, their P is computed twice.
    row_maxima(maxima, s, 0);
    start_m(m, maxima, scale_log2);
  }
  uint32_t probs[2][PART / 16][M_FRAGMENTS][4];  // of this part and the next
  float sums[2][M_FRAGMENTS][2];
  exponentiate<T>(probs[0], sums[0], s, 0, m, scale_log2);
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += PART / 8) {
    const int now = n / (PART / 8) % 2, next = n + PART / 8;
    if (__any_sync(FULL_WARP, needs_new_max(sums[now], MOST_SUM))) {
      row_maxima(maxima, s, n);
      raise_m(m, l, o, maxima, scale_log2);
      exponentiate<T>(probs[now], sums[now], s, n, m, scale_log2);
    }
    add_sums(l, sums[now]);
    // No branch separates this from P V, so nvcc can put the exponentials between its mma.
    if (next < N_FRAGMENTS) {
      exponentiate<T>(probs[1 - now], sums[1 - now], s, next, m, scale_log2);
    }
#pragma unroll
    for (int j = 0; j < PART / 16; j++) {
      multiply_pv<T, HEAD_DIM>(o, probs[now][j], v + (8 * n + 16 * j) * 2 * HEAD_DIM);
    }
  }
}

#endif
