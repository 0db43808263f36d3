/**
 * @file
 * Step 13 opens a chapter: the backward pass as the formula is written, in six kernels.
 *
 * The idea: given dO = dL/dO of some L, what are dQ, dK and dV? O = P V gives dV = P^T dO and
 * dP = dO V^T. The softmax of a row gives dS = P o (dP - D), where D is the sum of P o dP over the
 * row; since O = P V, this is the dot product of the rows of dO and O, without any P. S is scale *
 * Q K^T, so dQ = scale * dS K and dK = scale * dS^T Q. P needs no softmax: the forward pass has
 * left LSE, and P = exp(S - LSE).
 *
 * What changed since step 01: five products instead of two, and two matrices in device memory, P
 * and dS. Both products for keys read them by columns. Query heads that share a key/value head all
 * add to its dK and dV, so one thread block loops over them.
 *
 * What it costs: P and dS have q_len * kv_len fp32 entries each, for every query head. They are
 * written once and read three times and twice, so memory and traffic grow with N^2. Masked entries
 * are stored and multiplied as 0.
 *
 * What to look at: each kernel is one line of the formula. dV and dK are the same kernel, and dQ is
 * the one that does not transpose.
 */
#include <math.h>

#include "backward.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/row_dot.cuh"
#include "device/warp.cuh"

constexpr int TILE = 32;           // a thread block computes TILE x TILE entries of a product
constexpr int ROWS_PER_BLOCK = 8;  // rows of D per thread block

static_assert(TILE == WARP_SIZE, "a row of the tile is loaded by one warp");

/** All kernels work on some heads, from query head first_head on. */
using Kernel = void (*)(Problem problem, BackwardTensors t, int first_head);

/** Thread blocks for a rows x columns matrix per head: blockIdx.x counts columns, rows, heads. */
static dim3 grid(int64_t rows, int64_t columns, int heads) {
  return dim3(heads * ((rows + TILE - 1) / TILE) * ((columns + TILE - 1) / TILE));
}

// [workspace]
/** The part of the workspace of one query head. */
struct HeadMatrices {
  float *p, *ds; /**< [q_len][kv_len], 0 where masked */
  float *d;      /**< [q_len] */
};

__host__ __device__ inline int64_t floats_per_head(const Problem &problem) {
  return (2 * (int64_t)problem.kv_len + 1) * problem.q_len;
}

__device__ HeadMatrices matrices_of(const Problem &problem, const BackwardTensors &t, int head) {
  const int64_t entries = (int64_t)problem.q_len * problem.kv_len;
  float *first = (float *)t.workspace + head * floats_per_head(problem);
  return {first, first + entries, first + 2 * entries};
}
// [workspace]

/** Element (row, column) of a [rows][columns] matrix, or 0 outside it. */
template <typename T>
__device__ float element_or_zero(const T *matrix, int64_t row_stride, int row, int rows, int column,
                                 int columns) {
  return row < rows && column < columns ? to_float(matrix[row * row_stride + column]) : 0.0f;
}

// [row_dots]
/** D[q] = dO[q] . O[q]; one warp per row. blockIdx.y is the head. */
template <typename T>
__global__ void __launch_bounds__(ROWS_PER_BLOCK *WARP_SIZE)
    row_dots_kernel(Problem problem, BackwardTensors t, int first_head) {
  const int lane = threadIdx.x;
  const int q = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
  // The whole warp returns, so the shuffles of row_dot() have all 32 lanes.
  if (q >= problem.q_len) return;
  const int64_t row = head_offsets(problem, first_head + blockIdx.y).o + q * problem.o_strides.row;
  const float d = row_dot((const T *)t.d_o + row, (const T *)t.o + row, problem.head_dim, lane);
  if (lane == 0) matrices_of(problem, t, blockIdx.y).d[q] = d;
}
// [row_dots]

// [multiply_rows]
/** The dot product of row first_a + threadIdx.y of `a` and row first_b + threadIdx.x of `b`: the
 * form of Q K^T and of dO V^T. Rows past the end are 0. */
template <typename T>
__device__ float multiply_rows(const T *a, int64_t a_stride, int first_a, int a_rows, const T *b,
                               int64_t b_stride, int first_b, int b_rows, int head_dim) {
  __shared__ float a_shared[TILE][TILE];
  __shared__ float b_shared[TILE][TILE + 1];  // +1: a warp reads a column, one row a lane
  const int lane = threadIdx.x;
  const int row = threadIdx.y;
  float sum = 0.0f;
  for (int d = 0; d < head_dim; d += TILE) {
    a_shared[row][lane] = element_or_zero(a, a_stride, first_a + row, a_rows, d + lane, head_dim);
    b_shared[row][lane] = element_or_zero(b, b_stride, first_b + row, b_rows, d + lane, head_dim);
    __syncthreads();  // both operands are complete
#pragma unroll
    for (int i = 0; i < TILE; i++) sum += a_shared[row][i] * b_shared[lane][i];
    __syncthreads();  // all warps have read both; they can be overwritten
  }
  return sum;
}
// [multiply_rows]

/** The entry of P and dS that a thread computes. */
struct Entry {
  int head;             /**< of the pass */
  int first_q, first_k; /**< of the tile */
  int q, k;             /**< of this thread */
  bool inside, attended;
};

__device__ Entry entry_of_thread(const Problem &problem) {
  const int q_tiles = (problem.q_len + TILE - 1) / TILE;
  const int kv_tiles = (problem.kv_len + TILE - 1) / TILE;
  Entry e;
  e.first_k = blockIdx.x % kv_tiles * TILE;
  e.first_q = blockIdx.x / kv_tiles % q_tiles * TILE;
  e.head = blockIdx.x / kv_tiles / q_tiles;
  e.q = e.first_q + threadIdx.y;
  e.k = e.first_k + threadIdx.x;
  e.inside = e.q < problem.q_len && e.k < problem.kv_len;
  e.attended = e.k < attended_keys(problem, e.q);
  return e;
}

// [probs]
/** P[q][k] = exp(scale * Q[q] . K[k] - LSE[q]), or 0 where masked: a row of masked entries has
 * LSE = -inf, and its P must not become exp(inf). */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    probs_kernel(Problem problem, BackwardTensors t, int first_head) {
  const Entry e = entry_of_thread(problem);
  const HeadOffsets offset = head_offsets(problem, first_head + e.head);
  const float s =
      problem.scale * multiply_rows((const T *)t.q + offset.q, problem.q_strides.row, e.first_q,
                                    problem.q_len, (const T *)t.k + offset.k, problem.k_strides.row,
                                    e.first_k, problem.kv_len, problem.head_dim);
  if (!e.inside) return;
  matrices_of(problem, t, e.head).p[(int64_t)e.q * problem.kv_len + e.k] =
      e.attended ? __expf(s - t.lse[offset.lse + e.q]) : 0.0f;
}
// [probs]

// [ds]
/** dS[q][k] = P[q][k] (dO[q] . V[k] - D[q]), or 0 where masked. */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    ds_kernel(Problem problem, BackwardTensors t, int first_head) {
  const Entry e = entry_of_thread(problem);
  const HeadOffsets offset = head_offsets(problem, first_head + e.head);
  const float dp = multiply_rows((const T *)t.d_o + offset.o, problem.o_strides.row, e.first_q,
                                 problem.q_len, (const T *)t.v + offset.v, problem.v_strides.row,
                                 e.first_k, problem.kv_len, problem.head_dim);
  if (!e.inside) return;
  const HeadMatrices m = matrices_of(problem, t, e.head);
  const int64_t entry = (int64_t)e.q * problem.kv_len + e.k;
  m.ds[entry] = e.attended ? m.p[entry] * (dp - m.d[e.q]) : 0.0f;
}
// [ds]

// [multiply_columns]
/** Adds to the entry (row, column) of a product whose left operand is `matrix`, [q_len][kv_len]:
 * of matrix x, or with TRANSPOSED of matrix^T x. `x` has `inner` rows, over which the sum runs. */
template <bool TRANSPOSED, typename T>
__device__ float multiply_columns(float sum, const float *matrix, const Problem &problem,
                                  int first_row, const T *x, int64_t x_stride, int inner, int d) {
  __shared__ float m_shared[TILE][TILE];
  __shared__ float x_shared[TILE][TILE];
  const int lane = threadIdx.x;
  const int row = threadIdx.y;
  for (int first = 0; first < inner; first += TILE) {
    // Both ways a warp reads consecutive addresses.
    const int q = (TRANSPOSED ? first : first_row) + row;
    const int k = (TRANSPOSED ? first_row : first) + lane;
    const bool inside = q < problem.q_len && k < problem.kv_len;
    m_shared[row][lane] = inside ? matrix[(int64_t)q * problem.kv_len + k] : 0.0f;
    x_shared[row][lane] = element_or_zero(x, x_stride, first + row, inner, d, problem.head_dim);
    __syncthreads();  // both operands are complete
#pragma unroll
    for (int i = 0; i < TILE; i++) {
      sum += (TRANSPOSED ? m_shared[i][row] : m_shared[row][i]) * x_shared[i][lane];
    }
    __syncthreads();  // all warps have read both; they can be overwritten
  }
  return sum;
}
// [multiply_columns]

// [dkdv]
/** dV = P^T dO, or dK = scale * dS^T Q: TILE keys of one key/value head per thread block. The sum
 * runs over the queries of all query heads that read it. */
template <typename T, bool OF_V>
__global__ void __launch_bounds__(TILE *TILE)
    keys_kernel(Problem problem, BackwardTensors t, int first_head) {
  const int kv_tiles = (problem.kv_len + TILE - 1) / TILE;
  const int d_tiles = (problem.head_dim + TILE - 1) / TILE;
  const int d = blockIdx.x % d_tiles * TILE + threadIdx.x;
  const int first_k = blockIdx.x / d_tiles % kv_tiles * TILE;
  const int k = first_k + threadIdx.y;
  const int group = problem.q_heads / problem.kv_heads;
  const int head = blockIdx.x / d_tiles / kv_tiles * group;  // the first that reads these keys

  float sum = 0.0f;
  for (int h = head; h < head + group; h++) {
    const HeadOffsets offset = head_offsets(problem, first_head + h);
    const HeadMatrices m = matrices_of(problem, t, h);
    const T *x = OF_V ? (const T *)t.d_o + offset.o : (const T *)t.q + offset.q;
    sum = multiply_columns<true>(sum, OF_V ? m.p : m.ds, problem, first_k, x,
                                 OF_V ? problem.o_strides.row : problem.q_strides.row,
                                 problem.q_len, d);
  }
  if (k >= problem.kv_len || d >= problem.head_dim) return;
  const HeadOffsets offset = head_offsets(problem, first_head + head);
  if (OF_V) {
    ((T *)t.d_v)[offset.v + k * problem.v_strides.row + d] = from_float<T>(sum);
  } else {
    ((T *)t.d_k)[offset.k + k * problem.k_strides.row + d] = from_float<T>(problem.scale * sum);
  }
}
// [dkdv]

// [dq]
/** dQ = scale * dS K: TILE queries of one query head per thread block. */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    dq_kernel(Problem problem, BackwardTensors t, int first_head) {
  const int q_tiles = (problem.q_len + TILE - 1) / TILE;
  const int d_tiles = (problem.head_dim + TILE - 1) / TILE;
  const int d = blockIdx.x % d_tiles * TILE + threadIdx.x;
  const int first_q = blockIdx.x / d_tiles % q_tiles * TILE;
  const int q = first_q + threadIdx.y;
  const int head = blockIdx.x / d_tiles / q_tiles;
  const HeadOffsets offset = head_offsets(problem, first_head + head);
  const float sum =
      multiply_columns<false>(0.0f, matrices_of(problem, t, head).ds, problem, first_q,
                              (const T *)t.k + offset.k, problem.k_strides.row, problem.kv_len, d);
  if (q >= problem.q_len || d >= problem.head_dim) return;
  ((T *)t.d_q)[offset.q + q * problem.q_strides.row + d] = from_float<T>(problem.scale * sum);
}
// [dq]

template <typename T>
static constexpr Kernel KERNELS[] = {row_dots_kernel<T>,   probs_kernel<T>,       ds_kernel<T>,
                                     keys_kernel<T, true>, keys_kernel<T, false>, dq_kernel<T>};

static void describe(const Problem *p, int heads, Description *d) {
  const Kernel *kernels = p->dtype == DTYPE_FP16 ? KERNELS<__half> : KERNELS<__nv_bfloat16>;
  const dim3 tile(TILE, TILE), rows((p->q_len + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, heads);
  const dim3 entries = grid(p->q_len, p->kv_len, heads);
  const dim3 keys = grid(p->kv_len, p->head_dim, heads / group_size(p));
  *d = {.block_m = TILE, .block_n = TILE, .ceiling = CEILING_FFMA};
  d->intermediate_bytes_per_entry = 7 * sizeof(float);  // write both, read P three times, dS twice
  d->multiplies_masked_keys = true;
  d->launch_count = 6;
  d->launches[0] = {"row_dots", (void *)kernels[0], rows, dim3(WARP_SIZE, ROWS_PER_BLOCK)};
  d->launches[1] = {"probs", (void *)kernels[1], entries, tile};
  d->launches[2] = {"ds", (void *)kernels[2], entries, tile};
  d->launches[3] = {"dv", (void *)kernels[3], keys, tile};
  d->launches[4] = {"dk", (void *)kernels[4], keys, tile};
  d->launches[5] = {"dq", (void *)kernels[5], grid(p->q_len, p->head_dim, heads), tile};
}

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  Description d;
  for (int first = 0, all = problem->batch * problem->q_heads; first < all; first += heads) {
    describe(problem, min(heads, all - first), &d);  // the last pass may have fewer
    for (auto *l = d.launches; l < d.launches + d.launch_count; l++)
      ((Kernel)l->kernel)<<<l->grid, l->block, 0, stream>>>(*problem, *t, first);
  }
  return cudaGetLastError();
}

const Step step = {
    .name = "step13",
    .after = "step01",
    .title = "The gradients, one kernel for each product",
    .idea = "P = exp(S - LSE) and dS = P o (dP - D) go through device memory.",
    .workspace_bytes =
        [](const Problem *problem) { return sizeof(float) * floats_per_head(*problem); },
    .describe = describe,
    .backward = backward,
};
