/**
 * @file
 * What step 15 introduces: dS^T passes through shared memory, and dQ is added to sums.
 */
#ifndef DEVICE_ADD_DQ_CUH
#define DEVICE_ADD_DQ_CUH

#include "device/backward_products.cuh"
#include "device/dq_sums.cuh"

// As in steps/step15_one_pass.cu:

/** Writes 16 M rows of a tile of COLUMNS columns, from row `first` on: `a` as for operand A. */
template <int COLUMNS, int M>
__device__ __forceinline__ void write_rows(const uint32_t (&a)[M][COLUMNS / 16][4],
                                           const unsigned char *tile, int first) {
  const int lane = fresh_lane();
  const uint32_t target =
      shared_address(tile) + chunk_offset<COLUMNS>(first + lane / 4, 0) + lane % 4 * 4;
#pragma unroll
  for (int j = 0; j < 4 * M * COLUMNS / 16; j++) {
    const int i = j / 4 / (COLUMNS / 16), k = j / 4 % (COLUMNS / 16), c = j % 4;
    const uint32_t chunk = more_chunks<COLUMNS>(target, 2 * k + c / 2);
    *(uint32_t *)shared_pointer(chunk + (16 * i + c % 2 * 8) * 2 * COLUMNS) = a[i][k][c];
  }
}

/** C += A^T B for 16 K rows of A, with A_COLUMNS columns of which 16 M count, and of B, with
 * B_COLUMNS columns of which 8 N count: `a` is the address of this lane's chunk of A, b_lane(), and
 * `b` that of B, a_lane(). */
template <typename T, int A_COLUMNS, int B_COLUMNS, int K, int M, int N>
__device__ __forceinline__ void multiply_transposed(float (&c)[M][N][4], uint32_t a, uint32_t b) {
  constexpr int PAIRS = N / 2;
  uint32_t columns[2][M][4];
  load_ahead<K * PAIRS, AHEAD<M, B_COLUMNS>>(
      [&](uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, n = index % PAIRS;
#pragma unroll
        for (int i = 0; i < M; i++) {
          if (n > 0) continue;
          ldmatrix_x4_trans(columns[k % 2][i], shared_pointer(more_chunks<A_COLUMNS>(a, 2 * i) +
                                                              16 * k * 2 * A_COLUMNS));
        }
        ldmatrix_x4_trans(
            rows, shared_pointer(more_chunks<B_COLUMNS>(b, 2 * n) + 16 * k * 2 * B_COLUMNS));
      },
      [&](const uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, n = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][n], columns[k % 2][i], rows[0], rows[1]);
          mma_m16n8k16<T>(c[i][n + 1], columns[k % 2][i], rows[2], rows[3]);
        }
      });
}

/** Adds fragments of 16 rows and 8 columns to sums that lie fragment by fragment. `sums` are those
 * of this lane in the first one; from one 16 rows to the next there are ROW_FRAGMENTS. */
template <int ROW_FRAGMENTS, int M, int N>
__device__ __forceinline__ void add_to_sums(float *sums, const float (&c)[M][N][4], int rows) {
#pragma unroll
  for (int i = 0; i < M; i++) {
    if (16 * i >= rows) return;
#pragma unroll
    for (int n = 0; n < N; n++) {
      reduce_add_4(sums + (i * ROW_FRAGMENTS + n) * 4 * WARP_SIZE, c[i][n][0], c[i][n][1],
                   c[i][n][2], c[i][n][3]);
    }
  }
}

/** Adds what the keys of a block give to dQ of the tile `of`, for the rows and columns of warp
 * `warp`: dS K, with dS^T and K in shared memory. */
template <typename T, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int ROWS, int COLUMNS>
__device__ __forceinline__ void add_dq(const unsigned char *ds_tile, const unsigned char *k_tile,
                                       int warp, const Problem &problem, const BackwardTensors &t,
                                       PassHeads heads, QueryTile of) {
  const int first_row = warp % (BLOCK_M / ROWS) * ROWS, row = of.first_q + first_row;
  const int column = warp / (BLOCK_M / ROWS) * COLUMNS, lane = fresh_lane();
  const uint32_t a = more_chunks<BLOCK_M>(b_lane<BLOCK_M>(ds_tile, lane), first_row / CHUNK);
  const uint32_t b = more_chunks<HEAD_DIM>(a_lane<HEAD_DIM>(k_tile, 0, lane), column / CHUNK);
  float dq[ROWS / MMA_M][COLUMNS / MMA_N][4] = {};
  multiply_transposed<T, BLOCK_M, HEAD_DIM, BLOCK_N / 16>(dq, a, b);
  float *const sums = dq_sums(problem, t.workspace, heads.count, of.head - heads.first);
  add_to_sums<HEAD_DIM / 8>(sums + row * HEAD_DIM + column * 16 + lane * 4, dq,
                            problem.q_len - row);
}

#endif
