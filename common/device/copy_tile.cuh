/**
 * @file
 * What step 03 introduces: a tile copied by cp.async, without registers and without waiting.
 */
#ifndef DEVICE_COPY_TILE_CUH
#define DEVICE_COPY_TILE_CUH

#include "device/fragments.cuh"

// As in steps/step03_mma_shared_kv.cu:

/**
 * Starts copying rows first to first + ROWS - 1 of a [rows][HEAD_DIM] matrix to shared memory. Rows
 * past the end become zero, so that they add nothing to any product.
 */
template <int HEAD_DIM, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void copy_tile(T *tile_shared, const T *matrix, int64_t row_stride,
                                          int first, int rows) {
  constexpr int ITERATIONS = ROWS * HEAD_DIM / CHUNK / THREADS;
  static_assert(ITERATIONS * THREADS * CHUNK == ROWS * HEAD_DIM, "all threads copy as much");
#pragma unroll
  for (int i = 0; i < ITERATIONS; i++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, THREADS>(i, threadIdx.x);
    const int row = chunk.row + chunk.row_offset;
    const T *source =
        matrix + (first + chunk.row) * row_stride + chunk.column + chunk.row_offset * row_stride;
    cp_async_16(&tile_shared[row * SMEM_STRIDE<HEAD_DIM> + chunk.column], source,
                first + row < rows);
  }
}

#endif
