/**
 * @file
 * What step 14b introduces: the two kinds of products of a backward pass.
 */
#ifndef DEVICE_BACKWARD_PRODUCTS_CUH
#define DEVICE_BACKWARD_PRODUCTS_CUH

#include "device/backward_tile.cuh"

/** What runs beside the mma of a product: nothing. */
struct Nothing {
  /** After the mma of a step. */
  __device__ __forceinline__ void operator()(int) const {}
};

/** As the products below, with both operands in shared memory: C += A B for 16 M rows of A, of
 * A_COLUMNS columns, and for 8 N of the B_COLUMNS columns of B. `a` and `b` are the addresses of
 * this lane's chunks in them, a_lane(). `beside` is called after the mma of each step, of which
 * there are A_COLUMNS / 16 * N / 2. */
template <typename T, int A_COLUMNS, int B_COLUMNS, int M, int N, typename Beside = Nothing>
__device__ __forceinline__ void multiply_shared(float (&c)[M][N][4], uint32_t a, uint32_t b,
                                                Beside beside = Beside()) {
  constexpr int PAIRS = N / 2;
  uint32_t rows[2][M][4];
  load_ahead<A_COLUMNS / 16 * PAIRS, AHEAD<M, B_COLUMNS>>(
      [&](uint32_t(&columns)[4], int index) {
        const int k = index / PAIRS, n = index % PAIRS;
#pragma unroll
        for (int i = 0; i < M; i++) {
          if (n > 0) continue;
          ldmatrix_x4(rows[k % 2][i],
                      shared_pointer(more_chunks<A_COLUMNS>(a, 2 * k) + 16 * i * 2 * A_COLUMNS));
        }
        ldmatrix_x4_trans(
            columns, shared_pointer(more_chunks<B_COLUMNS>(b, 2 * n) + 16 * k * 2 * B_COLUMNS));
      },
      [&](const uint32_t(&columns)[4], int index) {
        const int k = index / PAIRS, n = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][n], rows[k % 2][i], columns[0], columns[1]);
          mma_m16n8k16<T>(c[i][n + 1], rows[k % 2][i], columns[2], columns[3]);
        }
        beside(index);
      });
}

// As in steps/step14b_backward_mma.cu:

/** C += A B^T for 16 M rows of A and 8 N rows of B, all of HEAD_DIM columns: `a` and `b` are the
 * addresses of this lane's chunks in them, a_lane() and b_lane(). */
template <typename T, int HEAD_DIM, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], uint32_t a, uint32_t b) {
  constexpr int PAIRS = N / 2;
  uint32_t rows[2][M][4];
  load_ahead<HEAD_DIM / 16 * PAIRS, AHEAD<M, HEAD_DIM>>(
      [&](uint32_t(&columns)[4], int index) {
        const int d = index / PAIRS, n = index % PAIRS;
#pragma unroll
        for (int i = 0; i < M; i++) {
          if (n > 0) continue;
          ldmatrix_x4(rows[d % 2][i],
                      shared_pointer(more_chunks<HEAD_DIM>(a, 2 * d) + 16 * i * 2 * HEAD_DIM));
        }
        ldmatrix_x4(columns,
                    shared_pointer(more_chunks<HEAD_DIM>(b, 2 * d) + 16 * n * 2 * HEAD_DIM));
      },
      [&](const uint32_t(&columns)[4], int index) {
        const int d = index / PAIRS, n = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][n], rows[d % 2][i], columns[0], columns[1]);
          mma_m16n8k16<T>(c[i][n + 1], rows[d % 2][i], columns[2], columns[3]);
        }
      });
}

/** C += A B for A in registers, 16 M rows and 16 K columns, and 16 K rows of B with HEAD_DIM
 * columns: `b` is the address of this lane's chunk in it, a_lane(). */
template <typename T, int HEAD_DIM, int M, int K>
__device__ __forceinline__ void multiply_columns(float (&c)[M][HEAD_DIM / MMA_N][4],
                                                 const uint32_t (&a)[M][K][4], uint32_t b) {
  constexpr int PAIRS = HEAD_DIM / 16;
  load_ahead<K * PAIRS, AHEAD<M, HEAD_DIM>>(
      [&](uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, d = index % PAIRS;
        ldmatrix_x4_trans(rows,
                          shared_pointer(more_chunks<HEAD_DIM>(b, 2 * d) + 16 * k * 2 * HEAD_DIM));
      },
      [&](const uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, d = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][d], a[i][k], rows[0], rows[1]);
          mma_m16n8k16<T>(c[i][d + 1], a[i][k], rows[2], rows[3]);
        }
      });
}

#endif
