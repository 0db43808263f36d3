/**
 * @file
 * What step 15 introduces: dS^T in shared memory, and sums of dQ in device memory.
 */
#ifndef DEVICE_DQ_SUMS_CUH
#define DEVICE_DQ_SUMS_CUH

#include "device/backward_products.cuh"
#include "device/backward_rows.cuh"

// As in steps/step15_one_pass.cu:

/** Writes 16 M rows of a tile with COLUMNS columns, rounded. `target` is the address of the element
 * of this lane in the first fragment: row lane / 4, column lane % 4 * 2. */
template <typename T, int COLUMNS, int M>
__device__ __forceinline__ void write_rows(const uint32_t (&a)[M][COLUMNS / 16][4],
                                           uint32_t target) {
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
  load_ahead<K * PAIRS, AHEAD<M>>(
      [&](uint32_t (&rows)[4], int step) {
        const int k = step / PAIRS, n = step % PAIRS;
#pragma unroll
        for (int i = 0; i < M; i++) {
          if (n > 0) continue;
          ldmatrix_x4_trans(columns[k % 2][i], shared_pointer(more_chunks<A_COLUMNS>(a, 2 * i) +
                                                              16 * k * 2 * A_COLUMNS));
        }
        ldmatrix_x4_trans(
            rows, shared_pointer(more_chunks<B_COLUMNS>(b, 2 * n) + 16 * k * 2 * B_COLUMNS));
      },
      [&](const uint32_t (&rows)[4], int step) {
        const int k = step / PAIRS, n = step % PAIRS * 2;
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

/** The sums of dQ of head `head` of a pass, of `heads`: they lie behind all RowNumbers. */
__host__ __device__ inline float *dq_sums(const Problem &problem, void *workspace, int heads,
                                          int head) {
  return row_numbers(problem, workspace, heads).lse_log2 + dq_floats(problem) * head;
}

/** dQ = scale * its sums, rounded: a thread for each four of them. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(ROWS_THREADS)
    convert_dq_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  const int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x;
  if (4 * i >= dq_floats(problem)) return;
  const float4 sums = ((const float4 *)dq_sums(problem, t.workspace, heads.count, blockIdx.y))[i];
  const int lane = threadIdx.x % WARP_SIZE, fragment = i / WARP_SIZE;
  const int row = fragment / (HEAD_DIM / 8) * 16 + lane / 4;
  T *const dq = (T *)t.d_q + head_offsets(problem, heads.first + blockIdx.y).q +
                row * problem.q_strides.row + fragment % (HEAD_DIM / 8) * 8 + lane % 4 * 2;
  using Pair = typename PairOf<T>::type;
  const float scale = problem.scale;
  if (row < problem.q_len) *(Pair *)dq = from_floats<T>(scale * sums.x, scale * sums.y);
  if (row + 8 < problem.q_len) {
    *(Pair *)(dq + 8 * problem.q_strides.row) = from_floats<T>(scale * sums.z, scale * sums.w);
  }
}

#endif
