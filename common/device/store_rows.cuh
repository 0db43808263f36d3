/**
 * @file
 * How step 02c and later ones store the rows of a warp: O 16 bytes at a time, and LSE.
 */
#ifndef DEVICE_STORE_ROWS_CUH
#define DEVICE_STORE_ROWS_CUH

#include "device/fragments.cuh"
#include "device/log2.cuh"

/**
 * Divides O by l and stores this warp's rows of O and LSE; its first row is query `first`. The rows
 * are collected in `o_warp`, shared memory of this warp alone, so that a lane stores 16 bytes at a
 * time. With `lse_global` NULL, LSE is not stored.
 */
template <typename T, int HEAD_DIM, int M_FRAGMENTS>
__device__ __forceinline__ void store_rows(const float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                           const float (&m)[M_FRAGMENTS][2],
                                           const float (&l)[M_FRAGMENTS][2], T *o_warp, T *o_global,
                                           int64_t row_stride, float *lse_global, int first,
                                           int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = 16 * i + 8 * half + lane / 4;
      const float sum = lanes_reduce_sum<4>(l[i][half]);
      const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
      for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
        *reinterpret_cast<uint32_t *>(&o_warp[row * SMEM_STRIDE<HEAD_DIM> + 8 * n + lane % 4 * 2]) =
            pack<T>(o[i][n][2 * half] * factor, o[i][n][2 * half + 1] * factor);
      }
      // A fully masked row has sum = 0, and log2(0) is -inf; m is -inf or finite.
      if (lse_global != NULL && lane % 4 == 0 && first + row < rows) {
        lse_global[first + row] = (m[i][half] + log2_approx(sum)) * LN_2;
      }
    }
  }
  __syncwarp();  // the rows are complete: a lane stores what other lanes of the warp have written
  constexpr int ITERATIONS = 16 * M_FRAGMENTS * HEAD_DIM / CHUNK / WARP_SIZE;
  uint4 chunks[ITERATIONS];  // all loads come before the first store, so they overlap each other
#pragma unroll
  for (int j = 0; j < ITERATIONS; j++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, WARP_SIZE>(j, lane);
    chunks[j] = *reinterpret_cast<const uint4 *>(
        &o_warp[(chunk.row + chunk.row_offset) * SMEM_STRIDE<HEAD_DIM> + chunk.column]);
  }
#pragma unroll
  for (int j = 0; j < ITERATIONS; j++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, WARP_SIZE>(j, lane);
    T *target =
        o_global + (first + chunk.row) * row_stride + chunk.column + chunk.row_offset * row_stride;
    store_16(target, chunks[j], first + chunk.row + chunk.row_offset < rows);
  }
}

#endif
