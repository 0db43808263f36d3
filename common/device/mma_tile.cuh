/**
 * @file
 * What step 02c introduces: both products with operands from ldmatrix, and the rows of O stored by
 * store_rows.cuh. The layout of S and O is described in fragments.cuh.
 */
#ifndef DEVICE_MMA_TILE_CUH
#define DEVICE_MMA_TILE_CUH

#include "device/fragments.cuh"
#include "device/store_rows.cuh"

// As in steps/step02c_ldmatrix.cu:

/** S += Q K^T for this warp's rows and the keys of one tile. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_qk(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            const T *q_warp, const T *k_shared) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 16) {
    // Lanes 0-7 name the upper left 8 x 8 matrix of Q, then 8 lanes each the lower left, the upper
    // right and the lower right one: registers a[0] to a[3] of operand A.
    uint32_t q[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      ldmatrix_x4(q[i], &q_warp[(16 * i + lane % 16) * SMEM_STRIDE<HEAD_DIM> + d + lane / 16 * 8]);
    }
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n += 2) {
      // Left and right 8 columns of 8 keys, then of the next 8 keys: operand B of two mma.
      uint32_t k[4];
      const int key = 8 * n + lane / 16 * 8 + lane % 8;
      ldmatrix_x4(k, &k_shared[key * SMEM_STRIDE<HEAD_DIM> + d + lane / 8 % 2 * 8]);
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        mma_m16n8k16<T>(s[i][n], q[i], k[0], k[1]);
        mma_m16n8k16<T>(s[i][n + 1], q[i], k[2], k[3]);
      }
    }
  }
}

/** O += P V for this warp's rows and the keys of one tile. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                            const float (&probs)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            const T *v_shared) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
    // Two neighbouring fragments of P, 8 keys each, are operand A of one mma.
    uint32_t a[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      a[i][0] = pack<T>(probs[i][n][0], probs[i][n][1]);
      a[i][1] = pack<T>(probs[i][n][2], probs[i][n][3]);
      a[i][2] = pack<T>(probs[i][n + 1][0], probs[i][n + 1][1]);
      a[i][3] = pack<T>(probs[i][n + 1][2], probs[i][n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 16) {
      // 16 keys of the left 8 columns, then of the right 8: operand B of two mma. .trans transposes
      // each 8 x 8 matrix, so that a lane gets two keys of one column.
      uint32_t v[4];
      const int key = 8 * n + lane % 16;
      ldmatrix_x4_trans(v, &v_shared[key * SMEM_STRIDE<HEAD_DIM> + d + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        mma_m16n8k16<T>(o[i][d / MMA_N], a[i], v[0], v[1]);
        mma_m16n8k16<T>(o[i][d / MMA_N + 1], a[i], v[2], v[3]);
      }
    }
  }
}

#endif
