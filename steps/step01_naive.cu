/**
 * @file
 * Step 01 opens a chapter: attention as the formula is written, in three kernels.
 *
 * The idea: S = scale * Q K^T, then P = softmax(S), then O = P V. Each is a kernel of its own that
 * writes its result to device memory. One thread computes one entry of a product, and one warp
 * computes one row of the softmax.
 *
 * What it costs: S has q_len * kv_len fp32 entries per head. They are written, read, written again
 * as P and read again, so memory and traffic grow with N^2. If S of all heads does not fit into
 * memory, the three kernels run once for each group of heads that does.
 *
 * What to look at: both products copy their operands to shared memory in coalesced pieces; no
 * access is slow on purpose. The next step removes what costs time here: S and P go through device
 * memory, and two loads from shared memory for every multiply-add.
 *
 * P stays in fp32 until O is rounded; only the tensor cores, from step 02b on, need it in 16 bits.
 */
#include <math.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/warp.cuh"

// [grid]
constexpr int TILE = 32;           // a thread block computes TILE x TILE entries of S or O
constexpr int ROWS_PER_BLOCK = 8;  // rows of the softmax per thread block

static_assert(TILE == WARP_SIZE, "a row of the tile is loaded by one warp");

/** All three kernels work on some heads, from first_head on. */
using Kernel = void (*)(Problem problem, Tensors t, int first_head);

/** Thread blocks for a rows x columns matrix per head: blockIdx.x counts columns, rows, heads. */
static dim3 grid(int64_t rows, int64_t columns, int heads) {
  return dim3(heads * ((rows + TILE - 1) / TILE) * ((columns + TILE - 1) / TILE));
}
// [grid]

// [element_or_zero]
/** Element (row, column) of a [rows][head_dim] matrix, or 0 outside it. */
template <typename T>
__device__ float element_or_zero(const T *matrix, int64_t row_stride, int row, int rows, int column,
                                 int columns) {
  return row < rows && column < columns ? to_float(matrix[row * row_stride + column]) : 0.0f;
}
// [element_or_zero]

// [scores_indices]
/**
 * S[head][q][k] = scale * Q[q] . K[k]. S is in the workspace, [heads][q_len][kv_len]. A thread
 * block computes TILE x TILE entries and loops over the head dimension, TILE columns at a time.
 */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    scores_kernel(Problem problem, Tensors t, int first_head) {
  __shared__ float q_shared[TILE][TILE];
  __shared__ float k_shared[TILE][TILE + 1];  // +1: a warp reads a column, one row a lane

  const int q_tiles = (problem.q_len + TILE - 1) / TILE;
  const int kv_tiles = (problem.kv_len + TILE - 1) / TILE;
  const int first_k = blockIdx.x % kv_tiles * TILE;
  const int first_q = blockIdx.x / kv_tiles % q_tiles * TILE;
  const int head = blockIdx.x / kv_tiles / q_tiles;
  const int lane = threadIdx.x;
  const int row = threadIdx.y;

  // If no query of this tile attends to any of its keys, these entries are never read.
  const int last_q = min(first_q + TILE, problem.q_len) - 1;
  if (first_k >= attended_keys(problem, last_q)) return;

  const HeadOffsets offset = head_offsets(problem, first_head + head);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  // [scores_indices]

  // [scores_loop]
  float s = 0.0f;
  for (int d = 0; d < problem.head_dim; d += TILE) {
    q_shared[row][lane] = element_or_zero(q_global, problem.q_strides.row, first_q + row,
                                          problem.q_len, d + lane, problem.head_dim);
    k_shared[row][lane] = element_or_zero(k_global, problem.k_strides.row, first_k + row,
                                          problem.kv_len, d + lane, problem.head_dim);
    __syncthreads();  // both operands are complete
#pragma unroll
    for (int i = 0; i < TILE; i++) s += q_shared[row][i] * k_shared[lane][i];
    __syncthreads();  // all warps have read both; they can be overwritten
  }

  const int q = first_q + row;
  const int k = first_k + lane;
  if (q < problem.q_len && k < problem.kv_len) {
    ((float *)t.workspace)[((int64_t)head * problem.q_len + q) * problem.kv_len + k] =
        problem.scale * s;
  }
  // [scores_loop]
}

// [softmax_max]
/**
 * P = softmax(S) in place; one warp per row, each lane takes every 32nd entry. Masked entries are
 * neither read nor written.
 */
__global__ void __launch_bounds__(ROWS_PER_BLOCK *WARP_SIZE)
    softmax_kernel(Problem problem, Tensors t, int first_head) {
  const int lane = threadIdx.x;
  const int q = blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
  // The whole warp returns, so the shuffles below have all 32 lanes.
  if (q >= problem.q_len) return;

  const int keys = attended_keys(problem, q);
  const int64_t row = (int64_t)blockIdx.y * problem.q_len + q;  // blockIdx.y is the head
  float *s_row = (float *)t.workspace + row * problem.kv_len;

  float row_max = -INFINITY;
  for (int k = lane; k < keys; k += WARP_SIZE) row_max = fmaxf(row_max, s_row[k]);
  row_max = lanes_reduce_max<WARP_SIZE>(row_max);
  // If every score is -inf, -inf - -inf would be NaN; -inf - 0 gives exp(-inf) = 0.
  if (row_max == -INFINITY) row_max = 0.0f;
  // [softmax_max]

  // [softmax_probs]
  float row_sum = 0.0f;
  for (int k = lane; k < keys; k += WARP_SIZE) row_sum += __expf(s_row[k] - row_max);
  row_sum = lanes_reduce_sum<WARP_SIZE>(row_sum);

  const float inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
  for (int k = lane; k < keys; k += WARP_SIZE) {
    s_row[k] = __expf(s_row[k] - row_max) * inverse_sum;
  }
  if (lane == 0) t.lse[(int64_t)first_head * problem.q_len + row] = row_max + logf(row_sum);
  // [softmax_probs]
}

// [output_loop]
/**
 * O[head][q][d] = sum over k of P[head][q][k] * V[k][d]. Like the product for S: TILE x TILE
 * entries of O per thread block, and a loop over the keys, TILE at a time.
 */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    output_kernel(Problem problem, Tensors t, int first_head) {
  __shared__ float p_shared[TILE][TILE];
  __shared__ float v_shared[TILE][TILE];

  const int q_tiles = (problem.q_len + TILE - 1) / TILE;
  const int d_tiles = (problem.head_dim + TILE - 1) / TILE;
  const int first_d = blockIdx.x % d_tiles * TILE;
  const int first_q = blockIdx.x / d_tiles % q_tiles * TILE;
  const int head = blockIdx.x / d_tiles / q_tiles;
  const int lane = threadIdx.x;
  const int row = threadIdx.y;
  const int q = first_q + row;
  const int d = first_d + lane;

  const HeadOffsets offset = head_offsets(problem, first_head + head);
  const float *p_row = (float *)t.workspace + ((int64_t)head * problem.q_len + q) * problem.kv_len;
  const T *v_global = (const T *)t.v + offset.v;
  const int keys = attended_keys(problem, q);  // of this thread's row; P has no entries after them
  const int key_end =
      attended_keys(problem, min(first_q + TILE, problem.q_len) - 1);  // of the tile's last row

  float o = 0.0f;
  for (int k = 0; k < key_end; k += TILE) {
    p_shared[row][lane] = k + lane < keys ? p_row[k + lane] : 0.0f;
    v_shared[row][lane] = element_or_zero(v_global, problem.v_strides.row, k + row, problem.kv_len,
                                          d, problem.head_dim);
    __syncthreads();  // both operands are complete
    // Masked keys are left out rather than multiplied by 0: V may hold NaN there.
    const int tile_keys = min(TILE, keys - k);
#pragma unroll 16
    for (int i = 0; i < tile_keys; i++) o += p_shared[row][i] * v_shared[i][lane];
    __syncthreads();  // all warps have read both; they can be overwritten
  }
  if (q < problem.q_len && d < problem.head_dim) {
    ((T *)t.o)[offset.o + q * problem.o_strides.row + d] = from_float<T>(o);
  }
}
// [output_loop]

// [forward]
static constexpr Kernel SCORES[] = {scores_kernel<__half>, scores_kernel<__nv_bfloat16>};
static constexpr Kernel OUTPUT[] = {output_kernel<__half>, output_kernel<__nv_bfloat16>};

static void describe(const Problem *problem, int heads, Description *d) {
  const dim3 tile(TILE, TILE), rows((problem->q_len + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, heads);
  *d = {.block_m = TILE, .block_n = TILE, .ceiling = CEILING_COPY, .launch_count = 3};
  d->intermediate_bytes_per_entry = 4 * sizeof(float);  // write S, read S, write P, read P
  d->launches[0] = {"scores", (void *)SCORES[problem->dtype],
                    grid(problem->q_len, problem->kv_len, heads), tile};
  d->launches[1] = {"softmax", (void *)softmax_kernel, rows, dim3(WARP_SIZE, ROWS_PER_BLOCK)};
  d->launches[2] = {"output", (void *)OUTPUT[problem->dtype],
                    grid(problem->q_len, problem->head_dim, heads), tile};
}

static cudaError_t forward(const Problem *problem, const Tensors *t, int heads,
                           cudaStream_t stream) {
  Description d;
  for (int first = 0, all = problem->batch * problem->q_heads; first < all; first += heads) {
    describe(problem, min(heads, all - first), &d);  // the last pass may have fewer
    for (auto *l = d.launches; l < d.launches + d.launch_count; l++)
      ((Kernel)l->kernel)<<<l->grid, l->block, 0, stream>>>(*problem, *t, first);
  }
  return cudaGetLastError();
}
// [forward]

const Step step = {
    .name = "step01",
    .title = "Naive attention in three kernels",
    .idea = "S and P go through device memory; shared-memory loads bound the speed.",
    .workspace_bytes =
        [](const Problem *problem) { return sizeof(float) * problem->q_len * problem->kv_len; },
    .describe = describe,
    .forward = forward,
};
