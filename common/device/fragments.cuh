/**
 * @file
 * What step 02b introduces, for warps with any number of 16-row fragments: tiles of 16-bit elements
 * in padded shared memory, the mask and the online softmax on mma fragments.
 *
 * A warp owns M_FRAGMENTS x 16 rows of Q. S is an array [M_FRAGMENTS][N_FRAGMENTS] of accumulator
 * fragments of 16 x 8 elements, N_FRAGMENTS = keys / 8, and O is [M_FRAGMENTS][HEAD_DIM / 8] of
 * them. Of each fragment, a lane holds c[0] and c[1] in row lane / 4, and c[2] and c[3] in the row
 * 8 below, at columns 2 * (lane % 4) and the next (see mma_m16n8k16() in ptx.cuh). Four lanes share
 * a row: each keeps m of the row, and l of its own keys.
 */
#ifndef DEVICE_FRAGMENTS_CUH
#define DEVICE_FRAGMENTS_CUH

#include <cuda_runtime.h>
#include <math.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

constexpr int CHUNK = 8; /**< elements in 16 bytes, the most that one thread copies at a time */

/** Elements from one row of a tile in shared memory to the next: 16 bytes of padding let the 8 rows
 * that ldmatrix reads together start in different banks. */
template <int HEAD_DIM>
constexpr int SMEM_STRIDE = HEAD_DIM + CHUNK;

/**
 * The chunk that a thread copies in one iteration, when THREADS threads copy a tile row by row. Its
 * row is `row + row_offset`. If THREADS is a multiple of the chunks in a row, `row` depends on the
 * thread alone and `row_offset` on the iteration alone, so that a thread computes one address and
 * adds the same offsets as all others.
 */
struct ChunkPosition {
  int row;        /**< plus row_offset: the row of the tile */
  int column;     /**< of the first of its 8 elements */
  int row_offset; /**< the part of the row that is the same for all threads */
};

/** The chunk of a thread in one iteration of copying a tile of HEAD_DIM columns. */
template <int HEAD_DIM, int THREADS>
__device__ __forceinline__ ChunkPosition chunk_position(int iteration, int thread) {
  constexpr int ROW_CHUNKS = HEAD_DIM / CHUNK;
  if (THREADS % ROW_CHUNKS == 0) {
    return {thread / ROW_CHUNKS, thread % ROW_CHUNKS * CHUNK, iteration * (THREADS / ROW_CHUNKS)};
  }
  const int i = iteration * THREADS + thread;  // D = 96: an iteration ends in the middle of a row
  return {i / ROW_CHUNKS, i % ROW_CHUNKS * CHUNK, 0};
}

/**
 * Copies rows first to first + ROWS - 1 of a [rows][HEAD_DIM] matrix to shared memory, through
 * registers. Rows past the end become zero, so that they add nothing to any product.
 */
template <int HEAD_DIM, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void load_tile(T *tile_shared, const T *matrix, int64_t row_stride,
                                          int first, int rows) {
  constexpr int ITERATIONS = ROWS * HEAD_DIM / CHUNK / THREADS;
  static_assert(ITERATIONS * THREADS * CHUNK == ROWS * HEAD_DIM, "all threads copy as much");
#pragma unroll
  for (int i = 0; i < ITERATIONS; i++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, THREADS>(i, threadIdx.x);
    const int row = chunk.row + chunk.row_offset;
    const T *source =
        matrix + (first + chunk.row) * row_stride + chunk.column + chunk.row_offset * row_stride;
    uint4 elements = make_uint4(0, 0, 0, 0);
    if (first + row < rows) elements = *reinterpret_cast<const uint4 *>(source);
    *reinterpret_cast<uint4 *>(&tile_shared[row * SMEM_STRIDE<HEAD_DIM> + chunk.column]) = elements;
  }
}

/**
 * Sets masked scores to -inf: those of keys past the last one and, if `causal`, of keys past the
 * diagonal. Row 0 of `s` is query first_q, column 0 is key first_key.
 */
template <int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void apply_mask(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                           const Problem &problem, bool causal, int first_q,
                                           int first_key) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {  // of the 16 rows: upper, lower
      const int q = first_q + 16 * i + 8 * half + lane / 4;
      // Attended keys from the first key of this lane on; may be negative.
      const int keys =
          (causal ? causal_keys(problem, q) : problem.kv_len) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          if (8 * n + c >= keys) s[i][n][2 * half + c] = -INFINITY;
        }
      }
    }
  }
}

/** Sets m and l of rows before their first tile. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void start_rows(float (&m)[M_FRAGMENTS][2], float (&l)[M_FRAGMENTS][2],
                                           float first_m) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      m[i][half] = first_m;
      l[i][half] = 0.0f;
    }
  }
}

/** Replaces scores by unnormalised probabilities 2^(scale_log2 s - m) and updates m, l and O. */
template <int M_FRAGMENTS, int N_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void update_softmax(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                               float (&m)[M_FRAGMENTS][2],
                                               float (&l)[M_FRAGMENTS][2],
                                               float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                               float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float row_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < N_FRAGMENTS; n++) {
        row_max = fmaxf(row_max, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
      }
      // The scale is positive, so scaling the maximum once is the same as scaling every score.
      row_max = fmaxf(m[i][half], lanes_reduce_max<4>(row_max) * scale_log2);
      const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
      const float rescale = exp2_approx(m[i][half] - safe_max);
      m[i][half] = row_max;
      float tile_sum = 0.0f;
#pragma unroll
      for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; c++) {
          s[i][n][c] = exp2_approx(fmaf(s[i][n][c], scale_log2, -safe_max));
          tile_sum += s[i][n][c];
        }
      }
      l[i][half] = l[i][half] * rescale + tile_sum;
#pragma unroll
      for (int n = 0; n < O_FRAGMENTS; n++) {
        o[i][n][2 * half] *= rescale;
        o[i][n][2 * half + 1] *= rescale;
      }
    }
  }
}

/** Two values, rounded to T, as one register of a fragment: `low` in the lower half. */
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const typename PairOf<T>::type pair = from_floats<T>(low, high);
  return *reinterpret_cast<const uint32_t *>(&pair);
}

#endif
