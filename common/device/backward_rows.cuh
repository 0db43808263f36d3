/**
 * @file
 * What backward passes on tensor cores need of each query: LSE in powers of two, and D.
 */
#ifndef DEVICE_BACKWARD_ROWS_CUH
#define DEVICE_BACKWARD_ROWS_CUH

#include <math.h>

#include "backward.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

/** The query heads of a pass, a multiple of those that share a key/value head. */
struct PassHeads {
  int first; /**< counted through the whole batch */
  int count; /**< of them */
};

/** Rows of a head in the workspace: it has whole tiles, so that no copy asks where a head ends. */
__host__ __device__ inline int padded_rows(const Problem &problem) {
  return (problem.q_len + 127) / 128 * 128;
}

/** Of one head: LSE * log2(e) of each row, then D of each row. Rows without a key, and those past
 * the end, have an LSE of infinity, which makes all of their P 0. */
struct RowNumbers {
  float *lse_log2; /**< padded_rows() of them */
  float *d;        /**< as many */
};

/** Those of head `head` of a pass. */
__host__ __device__ inline RowNumbers row_numbers(const Problem &problem, void *workspace,
                                                  int head) {
  const int64_t rows = padded_rows(problem);
  float *const first = (float *)workspace + 2 * rows * head;
  return {first, first + rows};
}

/** Floats of the sums of dQ of one head. They lie as mma has them: for each 16 rows and 8 columns,
 * the four of each lane. */
__host__ __device__ inline int64_t dq_floats(const Problem &problem) {
  return (int64_t)((problem.q_len + 15) / 16 * 16) * problem.head_dim;
}

constexpr int ROWS_THREADS = 128; /**< of a thread block of row_numbers_kernel */

/** D = sum over d of dO o O, 8 elements a thread; blockIdx.y counts the heads of a pass. P will be
 * multiplied by 2^SHIFT, because LSE is written without so much. With FOURS, of 16 rows the four
 * that a lane has in two fragments lie together: 0, 1, 8, 9, 2, 3, 10, 11 and so on. */
template <typename T, int HEAD_DIM, int SHIFT = 0, bool FOURS = false>
__global__ void __launch_bounds__(ROWS_THREADS)
    row_numbers_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  constexpr int LANES = HEAD_DIM / 8;
  const int row = (blockIdx.x * ROWS_THREADS + threadIdx.x) / LANES;
  const int column = threadIdx.x % LANES * 8;
  const HeadOffsets offset = head_offsets(problem, heads.first + blockIdx.y);
  float d = 0, lse = INFINITY;
  if (row < problem.q_len) {
    const int64_t first = offset.o + row * problem.o_strides.row + column;
    const uint4 o_chunk = *(const uint4 *)&((const T *)t.o)[first];
    const uint4 d_o_chunk = *(const uint4 *)&((const T *)t.d_o)[first];
    using Pair = typename PairOf<T>::type;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t o_bits = (&o_chunk.x)[i], d_o_bits = (&d_o_chunk.x)[i];
      const float2 o = to_float2(*(const Pair *)&o_bits);
      const float2 d_o = to_float2(*(const Pair *)&d_o_bits);
      d += o.x * d_o.x + o.y * d_o.y;
    }
    lse = t.lse[offset.lse + row] * LOG2_E;
  }
  d = lanes_reduce_sum<LANES>(d);
  if (column > 0 || row >= padded_rows(problem)) return;
  const RowNumbers numbers = row_numbers(problem, t.workspace, blockIdx.y);
  const int place = FOURS ? row / 16 * 16 + row % 8 / 2 * 4 + row % 16 / 8 * 2 + row % 2 : row;
  numbers.lse_log2[place] = lse == -INFINITY ? INFINITY : lse - SHIFT;
  numbers.d[place] = d;
}

/** Starts copying the numbers of BLOCK_M rows from row `first` on: LSE, then D. */
template <int BLOCK_M>
__device__ __forceinline__ void copy_row_numbers(unsigned char *target, const RowNumbers &numbers,
                                                 int first) {
  constexpr int CHUNKS = BLOCK_M / 4;  // of 4 numbers
  if (threadIdx.x >= 2 * CHUNKS) return;
  const float *const from = threadIdx.x < CHUNKS ? numbers.lse_log2 : numbers.d;
  cp_async_16(target + 16 * threadIdx.x, from + first + threadIdx.x % CHUNKS * 4, true);
}

/** The first query that attends to key `key`, or q_len. */
__host__ __device__ inline int first_query(const Problem &problem, int key) {
  const int first = problem.mask == MASK_CAUSAL ? key - problem.kv_len + problem.q_len : 0;
  return first < 0 ? 0 : first < problem.q_len ? first : problem.q_len;
}

/** A tile of queries of one head. */
struct QueryTile {
  int head;    /**< counted through the whole batch */
  int first_q; /**< its first query */
};

/** The tiles of BLOCK_M queries that attend to keys of a block, head after head of a group. */
template <int BLOCK_M>
struct QueryTiles {
  int first_q, last_q; /**< of the first and the last tile of each head */
  int count;           /**< of all heads together */
  int step = BLOCK_M;  /**< from one tile to the next */

  /** Those of the block whose first key is `first_key`. */
  __device__ __forceinline__ QueryTiles(const Problem &problem, int first_key) {
    first_q = first_query(problem, first_key) / BLOCK_M * BLOCK_M;
    last_q = (problem.q_len - 1) / BLOCK_M * BLOCK_M;
    const int tiles =
        first_query(problem, first_key) < problem.q_len ? (last_q - first_q) / BLOCK_M + 1 : 0;
    count = problem.q_heads / problem.kv_heads * tiles;
  }
  /** From now on the last tile of each head comes first. */
  __device__ __forceinline__ void reverse() {
    const int last = first_q;
    first_q = last_q, last_q = last, step = -BLOCK_M;
  }
  /** The tile after this one. */
  __device__ __forceinline__ QueryTile next(QueryTile tile) const {
    return tile.first_q != last_q ? QueryTile{tile.head, tile.first_q + step}
                                  : QueryTile{tile.head + 1, first_q};
  }
  /** The tile before this one. */
  __device__ __forceinline__ QueryTile previous(QueryTile tile) const {
    return tile.first_q > first_q ? QueryTile{tile.head, tile.first_q - BLOCK_M}
                                  : QueryTile{tile.head - 1, last_q};
  }
};

#endif
