/**
 * @file
 * What step 10b introduces: O that TMA stores from shared memory.
 */
#ifndef DEVICE_STORE_TILE_CUH
#define DEVICE_STORE_TILE_CUH

#include "attention.h"
#include "device/fragments.cuh"
#include "device/log2.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"

// As in steps/step10b_tma_store.cu:

/** The byte at which TMA has element (row, column) of a tile of swizzled panels of ROWS rows. */
template <int HEAD_DIM, int ROWS>
__device__ __forceinline__ int swizzled_byte(int row, int column) {
  constexpr int COLUMNS = PANEL<HEAD_DIM>;
  const int chunk = column % COLUMNS / CHUNK;
  const int swizzle = COLUMNS == 64 ? row % 8 : row / 2 % 4;
  return column / COLUMNS * ROWS * 2 * COLUMNS + row * 2 * COLUMNS + (chunk ^ swizzle) * 16 +
         column % CHUNK * 2;
}

/** Divides O by l, of which each lane has a part, and stores LSE of this warp's rows. */
template <int O_FRAGMENTS>
__device__ __forceinline__ void finish_rows(float (&o)[O_FRAGMENTS][4], const float (&m)[2],
                                            const float (&l)[2], float *lse_global, int first_row,
                                            int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first_row + lane / 4 + 8 * half;
    const float sum = lanes_reduce_sum<4>(l[half]);
    const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
    for (int n = 0; n < O_FRAGMENTS; n++) {
      o[n][2 * half] *= factor;
      o[n][2 * half + 1] *= factor;
    }
    // A fully masked row has sum = 0, and log2(0) is -inf.
    if (lane % 4 == 0 && row < rows) lse_global[row] = (m[half] + log2_approx(sum)) * LN_2;
  }
}

/** Writes this warp's 16 rows of O to `o_warp`, and has TMA store them from there. TMA leaves out
 * rows past the end. */
template <int HEAD_DIM, typename T>
__device__ __forceinline__ void store_tile(const float (&o)[HEAD_DIM / MMA_N][4], T *o_warp,
                                           const CUtensorMap &map, int first_row, int head,
                                           int batch) {
  const int lane = threadIdx.x % WARP_SIZE;
  if (lane == 0) tma_store_wait<0>();  // the previous O has been read
  __syncwarp();                        // all lanes may write the next
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
      const int offset = swizzled_byte<HEAD_DIM, 16>(lane / 4 + 8 * half, 8 * n + lane % 4 * 2);
      *(uint32_t *)((char *)o_warp + offset) = pack<T>(o[n][2 * half], o[n][2 * half + 1]);
    }
  }
  fence_proxy_async();  // each lane's stores are visible to TMA
  __syncwarp();         // those of all lanes
  if (lane == 0) {
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += PANEL<HEAD_DIM>) {
      tma_store(map, o_warp + 16 * column, column, first_row, head, batch);
    }
    tma_store_commit();
  }
}

/** The tensor maps of a pass. */
struct ForwardMaps {
  TensorMaps in; /**< Q, K and V */
  CUtensorMap o; /**< boxes of 16 rows, those of a warp */
};

/** The tensor maps for tiles of `kv_rows` keys. */
static inline cudaError_t make_forward_maps(ForwardMaps *maps, const Problem *problem,
                                            const Tensors *t, int kv_rows) {
  const cudaError_t error = make_tensor_maps(&maps->in, problem, t, 64, kv_rows);
  if (error != cudaSuccess) return error;
  return make_tensor_map(&maps->o, t->o, problem, problem->o_strides, problem->q_len,
                         problem->q_heads, 16, problem->o_dtype);
}

#endif
