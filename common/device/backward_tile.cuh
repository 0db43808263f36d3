/**
 * @file
 * Tiles of a backward pass on tensor cores, from step 14b on: their copies, the addresses of
 * operands in them, and what happens to fragments between two products. Tiles are swizzled as in
 * swizzle_tile.cuh.
 */
#ifndef DEVICE_BACKWARD_TILE_CUH
#define DEVICE_BACKWARD_TILE_CUH

#include "backward.h"
#include "device/backward_rows.cuh"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/log2.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"

/** Starts copying rows first to first + ROWS - 1 of a [rows][HEAD_DIM] matrix to the swizzled tile
 * at the address `tile`. Rows past the end become zero, so that they add nothing to any product. */
template <int HEAD_DIM, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void copy_tile_rows(uint32_t tile, const T *matrix, int64_t row_stride,
                                               int first, int rows) {
  uint32_t thread = threadIdx.x;
  keep_in_register(thread);  // nvcc keeps nothing that follows from it between two calls
  const int row = thread / SWIZZLE_CHUNKS<HEAD_DIM>, chunk = thread % SWIZZLE_CHUNKS<HEAD_DIM>;
  copy_rows<HEAD_DIM, ROWS, THREADS>(tile + chunk_offset<HEAD_DIM>(row, chunk),
                                     matrix + (first + row) * row_stride + chunk * CHUNK,
                                     row_stride, rows - first - row);
}

/** The work of a thread block that owns keys. */
struct KeyBlock {
  int first_key;  /**< the first of them */
  int first_head; /**< the first query head that reads them, counted through the whole batch */
};

/** The work of thread block `number`. Under the causal mask the first keys of a head have the most
 * queries: they come first. */
template <int BLOCK_N>
__device__ __forceinline__ KeyBlock key_block(const Problem &problem, PassHeads heads, int number) {
  const int tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int group = problem.q_heads / problem.kv_heads;
  return {number % tiles * BLOCK_N, heads.first + number / tiles * group};
}

/** Starts copying K and V of a block: V lies behind K, in a tile of BLOCK_N rows each. */
template <typename T, int HEAD_DIM, int BLOCK_N, int THREADS>
__device__ __forceinline__ void copy_keys(uint32_t tile, const Problem &problem,
                                          const BackwardTensors &t, KeyBlock block) {
  const HeadOffsets from = head_offsets(problem, block.first_head);
  copy_tile_rows<HEAD_DIM, BLOCK_N, THREADS>(tile, (const T *)t.k + from.k, problem.k_strides.row,
                                             block.first_key, problem.kv_len);
  copy_tile_rows<HEAD_DIM, BLOCK_N, THREADS>(tile + BLOCK_N * 2 * HEAD_DIM, (const T *)t.v + from.v,
                                             problem.v_strides.row, block.first_key,
                                             problem.kv_len);
}

/** Starts copying a tile of queries: Q, dO behind it, and their RowNumbers. */
template <typename T, int HEAD_DIM, int BLOCK_M, int THREADS>
__device__ __forceinline__ void copy_queries(uint32_t tile, unsigned char *numbers,
                                             const Problem &problem, const BackwardTensors &t,
                                             PassHeads heads, QueryTile of) {
  const HeadOffsets from = head_offsets(problem, of.head);
  copy_tile_rows<HEAD_DIM, BLOCK_M, THREADS>(tile, (const T *)t.q + from.q, problem.q_strides.row,
                                             of.first_q, problem.q_len);
  copy_tile_rows<HEAD_DIM, BLOCK_M, THREADS>(tile + BLOCK_M * 2 * HEAD_DIM,
                                             (const T *)t.d_o + from.o, problem.o_strides.row,
                                             of.first_q, problem.q_len);
  copy_row_numbers<BLOCK_M>(numbers, row_numbers(problem, t.workspace, of.head - heads.first),
                            of.first_q);
}

/** The number of this lane, as a value that nvcc does not know. What is computed from it in the
 * loop is computed there, and takes no registers in the rest of the loop. */
__device__ __forceinline__ int fresh_lane() {
  uint32_t lane = threadIdx.x % WARP_SIZE;
  keep_in_register(lane);
  return lane;
}

/** The address of this lane's chunk for operand A of mma, or for a transposed operand B: row `row`
 * of the tile is the first of 16. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t a_lane(const unsigned char *tile, int row,
                                           int lane = threadIdx.x % WARP_SIZE) {
  return lane_address<HEAD_DIM>(tile, row + lane % 16, lane / 16);
}

/** The same for operand B, not transposed, of two mma: 16 rows from the first of the tile on. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t b_lane(const unsigned char *tile,
                                           int lane = threadIdx.x % WARP_SIZE) {
  return lane_address<HEAD_DIM>(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/** Lets `multiply` use operand B of step after step, while `load` loads that of later steps. */
template <int STEPS, int DISTANCE, typename Load, typename Multiply>
__device__ __forceinline__ void load_ahead(Load load, Multiply multiply) {
  constexpr int OPERANDS = DISTANCE + 1;  // that are in registers
  uint32_t b[OPERANDS][4];
#pragma unroll
  for (int i = 0; i < DISTANCE; i++) load(b[i], i);
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    if (i + DISTANCE < STEPS) load(b[(i + DISTANCE) % OPERANDS], i + DISTANCE);
    multiply(b[i % OPERANDS], i);
  }
}

/** Steps that operand B is loaded ahead: with several fragments of A, the mma of one step take
 * longer than a load. At D = 256 there are registers for two steps, which is faster. */
template <int M, int COLUMNS>
constexpr int AHEAD = M == 1 || COLUMNS == 256 ? 2 : 1;

/** Sets scores that are masked to -inf. Row 0 of S^T is key first_key, column 0 query first_q. */
template <int M, int N>
__device__ __forceinline__ void mask_transposed(float (&s)[M][N][4], const Problem &problem,
                                                int first_key, int first_q) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    const int key = first_key + 8 * i + lane / 4;
    // The first query that attends to the key, counted from the first one of this lane.
    int first = key < problem.kv_len ? 0 : INT32_MAX;
    if (problem.mask == MASK_CAUSAL && first == 0) first = key - problem.kv_len + problem.q_len;
    first -= first_q + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
      if (8 * n < first) s[i / 2][n][i % 2 * 2] = -INFINITY;
      if (8 * n + 1 < first) s[i / 2][n][i % 2 * 2 + 1] = -INFINITY;
    }
  }
}

/** Replaces S^T by P^T; `lse` is LSE * log2(e) of the query of column 0. */
template <int M, int N>
__device__ __forceinline__ void to_probabilities(float (&s)[M][N][4], const float *lse,
                                                 float scale_log2) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&lse[8 * n + threadIdx.x % 4 * 2];
#pragma unroll
    for (int j = 0; j < 4 * M; j++) {
      float &x = s[j / 4][n][j % 4];
      x = exp2_approx(fmaf(x, scale_log2, j % 2 == 0 ? -pair.x : -pair.y));
    }
  }
}

/** Fragments of dP^T start with -D of their columns, so that the product gives dP^T - D. */
template <int M, int N>
__device__ __forceinline__ void start_with_d(float (&dp)[M][N][4], const float *d) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&d[8 * n + threadIdx.x % 4 * 2];
#pragma unroll
    for (int j = 0; j < 4 * M; j++) dp[j / 4][n][j % 4] = j % 2 == 0 ? -pair.x : -pair.y;
  }
}

/** Two neighbouring fragments of C, rounded, are operand A of 16 columns. */
template <typename T, int M, int N>
__device__ __forceinline__ void pack_rows(uint32_t (&a)[M][N / 2][4], const float (&c)[M][N][4]) {
#pragma unroll
  for (int i = 0; i < M; i++) {
#pragma unroll
    for (int n = 0; n < N; n++) {
      a[i][n / 2][n % 2 * 2] = pack<T>(c[i][n][0], c[i][n][1]);
      a[i][n / 2][n % 2 * 2 + 1] = pack<T>(c[i][n][2], c[i][n][3]);
    }
  }
}

/** C o= A, element by element. */
template <int M, int N>
__device__ __forceinline__ void multiply_elements(float (&c)[M][N][4], const float (&a)[M][N][4]) {
#pragma unroll
  for (int j = 0; j < 4 * M * N; j++)
    c[j / 4 / N][j / 4 % N][j % 4] *= a[j / 4 / N][j / 4 % N][j % 4];
}

/** Stores factor * C, rounded: 16 M rows and 8 N columns of a matrix with `rows` rows, from row
 * `first` on. */
template <int M, int N, typename T>
__device__ __forceinline__ void store_gradient(const float (&c)[M][N][4], float factor, T *matrix,
                                               int64_t row_stride, int first, int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    const int row = first + 8 * i + lane / 4;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < N; n++) {
      const float *const pair = &c[i / 2][n][i % 2 * 2];
      *reinterpret_cast<uint32_t *>(&matrix[row * row_stride + 8 * n + lane % 4 * 2]) =
          pack<T>(pair[0] * factor, pair[1] * factor);
    }
  }
}

/** The same for rows of dK or dV of a block, from key `key` on: `gradient` is the whole tensor. */
template <int M, int N, typename T>
__device__ __forceinline__ void store_keys(const float (&c)[M][N][4], float factor, T *gradient,
                                           const Strides &strides, const Problem &problem,
                                           KeyBlock block, int key) {
  uint32_t head = block.first_head;
  keep_in_register(
      head);  // nvcc does not compute what follows before a loop, to keep it until then
  const int64_t batch = head / problem.q_heads;
  const int64_t kv_head = head % problem.q_heads / (problem.q_heads / problem.kv_heads);
  store_gradient(c, factor, gradient + batch * strides.batch + kv_head * strides.head, strides.row,
                 key, problem.kv_len);
}

/** Stores dV and dK of a warp, or one of them: `side` 0 is dV. Row 0 is key `key` of the block. */
template <typename T, bool BOTH, int M, int N>
__device__ __forceinline__ void store_dv_dk(const float (&sums)[1 + BOTH][M][N][4], int side,
                                            const Problem &problem, const BackwardTensors &t,
                                            KeyBlock block, int key) {
  key += block.first_key;
  if (BOTH || side == 0) {
    store_keys(sums[0], 1.0f, (T *)t.d_v, problem.v_strides, problem, block, key);
  }
  if (BOTH || side == 1) {
    store_keys(sums[BOTH], problem.scale, (T *)t.d_k, problem.k_strides, problem, block, key);
  }
}

/** The same for rows of dQ of a head, from query `first` on. */
template <int M, int N, typename T>
__device__ __forceinline__ void store_queries(const float (&c)[M][N][4], float factor, T *gradient,
                                              const Problem &problem, int head, int first) {
  uint32_t index = head;
  keep_in_register(index);  // as above
  store_gradient(c, factor, gradient + head_offsets(problem, index).q, problem.q_strides.row, first,
                 problem.q_len);
}

#endif
