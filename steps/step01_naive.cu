/**
 * @file
 * Step 01: attention as the formula is written, in three kernels.
 *
 * The idea: S = scale * Q K^T, then P = softmax(S), then O = P V, each by a kernel of its own that
 * leaves its result in device memory. One thread computes one entry of a product, one warp one row
 * of the softmax.
 *
 * What it costs: S has q_len * kv_len fp32 entries per head. They are written, read, written again
 * as P and read again, so memory grows with N^2 and so does the traffic. Where S does not fit for
 * all heads at once, the heads go through in several passes.
 *
 * What to look at: both products bring their operands through shared memory in coalesced pieces, so
 * nothing here is slow on purpose. It is the round trip of S, and two shared memory loads for every
 * multiply-add, that the next step removes.
 *
 * P stays in fp32 until O is rounded; only the tensor cores, from step 03 on, need it in 16 bits.
 */
#include <math.h>
#include <stdio.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/warp.cuh"

constexpr int TILE = 32;           // S and O are computed in TILE x TILE entries, one thread each
constexpr int ROWS_PER_BLOCK = 8;  // rows of the softmax that one thread block takes

static_assert(TILE == WARP_SIZE, "a row of the tile is loaded by one warp");

/** Element (row, column) of a [rows][head_dim] matrix, or 0 outside it. */
template <typename T>
__device__ float element_or_zero(const T *matrix, int64_t row_stride, int row, int rows, int column,
                                 int columns) {
  return row < rows && column < columns ? to_float(matrix[row * row_stride + column]) : 0.0f;
}

/**
 * S[head][q][k] = scale * Q[q] . K[k], for the heads first_head .. of one pass.
 * A thread block computes a TILE x TILE piece and walks along the head dimension TILE columns at a
 * time.
 */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    scores_kernel(Problem p, int first_head, const T *q_global, const T *k_global,
                  float *s_global /* [heads of this pass][q_len][kv_len] */) {
  __shared__ float q_shared[TILE][TILE];
  __shared__ float k_shared[TILE][TILE + 1];  // +1: a warp reads a column, one row a lane

  const int q_tiles = (p.q_len + TILE - 1) / TILE;
  const int kv_tiles = (p.kv_len + TILE - 1) / TILE;
  const int first_k = blockIdx.x % kv_tiles * TILE;
  const int first_q = blockIdx.x / kv_tiles % q_tiles * TILE;
  const int head = blockIdx.x / kv_tiles / q_tiles;
  const int lane = threadIdx.x;
  const int row = threadIdx.y;

  // No query of this tile attends any of its keys: nobody will read these entries.
  const int last_q = min(first_q + TILE, p.q_len) - 1;
  if (first_k >= attended_keys(p, last_q)) return;

  const HeadOffsets at = head_offsets(p, first_head + head);
  float s = 0.0f;
  for (int d = 0; d < p.head_dim; d += TILE) {
    q_shared[row][lane] = element_or_zero(q_global + at.q, p.q_strides.row, first_q + row, p.q_len,
                                          d + lane, p.head_dim);
    k_shared[row][lane] = element_or_zero(k_global + at.k, p.k_strides.row, first_k + row, p.kv_len,
                                          d + lane, p.head_dim);
    __syncthreads();  // both pieces are complete
#pragma unroll
    for (int i = 0; i < TILE; i++) s += q_shared[row][i] * k_shared[lane][i];
    __syncthreads();  // everyone is done with them before they are overwritten
  }

  const int q = first_q + row;
  const int k = first_k + lane;
  if (q < p.q_len && k < p.kv_len) {
    s_global[((int64_t)head * p.q_len + q) * p.kv_len + k] = p.scale * s;
  }
}

/**
 * P = softmax(S) row by row, in place; one warp a row, each lane every 32nd entry.
 * Entries that the mask hides are neither read nor written.
 */
__global__ void __launch_bounds__(ROWS_PER_BLOCK *WARP_SIZE)
    softmax_kernel(Problem p, int first_head, int64_t rows, float *s_global, float *lse_global) {
  const int lane = threadIdx.x;
  const int64_t row = (int64_t)blockIdx.x * ROWS_PER_BLOCK + threadIdx.y;
  if (row >= rows) return;  // a whole warp leaves, so the shuffles below stay complete

  const int keys = attended_keys(p, (int)(row % p.q_len));
  float *s_row = s_global + row * p.kv_len;

  float row_max = -INFINITY;
  for (int k = lane; k < keys; k += WARP_SIZE) row_max = fmaxf(row_max, s_row[k]);
  row_max = lanes_max<WARP_SIZE>(row_max);
  // Every score is -inf: subtracting -inf from -inf would give NaN, subtracting 0 gives exp(-inf) =
  // 0.
  if (row_max == -INFINITY) row_max = 0.0f;

  float row_sum = 0.0f;
  for (int k = lane; k < keys; k += WARP_SIZE) row_sum += __expf(s_row[k] - row_max);
  row_sum = lanes_sum<WARP_SIZE>(row_sum);

  const float inverse_sum = row_sum == 0.0f ? 0.0f : 1.0f / row_sum;
  for (int k = lane; k < keys; k += WARP_SIZE) {
    s_row[k] = __expf(s_row[k] - row_max) * inverse_sum;
  }
  if (lane == 0) lse_global[(int64_t)first_head * p.q_len + row] = row_max + logf(row_sum);
}

/**
 * O[head][q][d] = sum over k of P[head][q][k] * V[k][d].
 * The same product as for S: a TILE x TILE piece of O, walking along the keys TILE at a time.
 */
template <typename T>
__global__ void __launch_bounds__(TILE *TILE)
    output_kernel(Problem p, int first_head, const float *p_global, const T *v_global,
                  T *o_global) {
  __shared__ float p_shared[TILE][TILE];
  __shared__ float v_shared[TILE][TILE];

  const int q_tiles = (p.q_len + TILE - 1) / TILE;
  const int d_tiles = (p.head_dim + TILE - 1) / TILE;
  const int first_d = blockIdx.x % d_tiles * TILE;
  const int first_q = blockIdx.x / d_tiles % q_tiles * TILE;
  const int head = blockIdx.x / d_tiles / q_tiles;
  const int lane = threadIdx.x;
  const int row = threadIdx.y;
  const int q = first_q + row;
  const int d = first_d + lane;

  const HeadOffsets at = head_offsets(p, first_head + head);
  const float *p_head = p_global + (int64_t)head * p.q_len * p.kv_len;
  const int keys = attended_keys(p, q);  // of this thread's row: P holds nothing past them
  const int key_end = attended_keys(p, min(first_q + TILE, p.q_len) - 1);  // of the tile's last row

  float o = 0.0f;
  for (int k = 0; k < key_end; k += TILE) {
    p_shared[row][lane] = k + lane < keys ? p_head[(int64_t)q * p.kv_len + k + lane] : 0.0f;
    v_shared[row][lane] =
        element_or_zero(v_global + at.v, p.v_strides.row, k + row, p.kv_len, d, p.head_dim);
    __syncthreads();  // both pieces are complete
    // Hidden keys are left out, not multiplied by a weight of 0: V may hold NaN there.
    const int tile_keys = min(TILE, keys - k);
#pragma unroll 16
    for (int i = 0; i < tile_keys; i++) o += p_shared[row][i] * v_shared[i][lane];
    __syncthreads();  // everyone is done with them before they are overwritten
  }
  if (q < p.q_len && d < p.head_dim) {
    o_global[at.o + q * p.o_strides.row + d] = from_float<T>(o);
  }
}

/** Thread blocks that each kernel takes for a number of heads; they must fit gridDim.x, 31 bits. */
struct Grids {
  int64_t scores, softmax, output;
};

static Grids grids_for(const Problem *p, int64_t heads) {
  const int64_t q_tiles = (p->q_len + TILE - 1) / TILE;
  const int64_t kv_tiles = (p->kv_len + TILE - 1) / TILE;
  const int64_t d_tiles = (p->head_dim + TILE - 1) / TILE;
  const int64_t rows = heads * p->q_len;
  return {heads * q_tiles * kv_tiles, (rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK,
          heads * q_tiles * d_tiles};
}

/** Bytes of S of one head. */
static size_t score_bytes(const Problem *p) {
  return sizeof(float) * p->q_len * (size_t)p->kv_len;
}

/** Heads that one pass over the three kernels takes: as many as the workspace holds, at least 1. */
static int heads_per_pass(const Problem *p, size_t workspace_bytes) {
  const Grids grids = grids_for(p, 1);
  const int64_t largest_grid = max(grids.scores, max(grids.softmax, grids.output));
  int64_t heads = (int64_t)p->batch * p->q_heads;
  heads = min(heads, (int64_t)(workspace_bytes / score_bytes(p)));
  heads = min(heads, INT32_MAX / largest_grid);
  return (int)max(heads, (int64_t)1);
}

static bool supports(const Problem *p, char *why, size_t why_size) {
  if (p->head_dim > MAX_HEAD_DIM) {
    snprintf(why, why_size, "--head-dim %d: step01 takes 1 to %d", p->head_dim, MAX_HEAD_DIM);
    return false;
  }
  if ((int64_t)p->batch * p->q_heads > INT32_MAX) {
    snprintf(why, why_size, "--batch %d x --heads %d: step01 takes at most 2^31 - 1 heads in all",
             p->batch, p->q_heads);
    return false;
  }
  return true;
}

static size_t workspace_bytes(const Problem *p, size_t free_bytes) {
  return heads_per_pass(p, free_bytes) * score_bytes(p);
}

static void describe(const Problem *p, size_t workspace_bytes, Description *description) {
  const int heads = heads_per_pass(p, workspace_bytes);
  const int all_heads = p->batch * p->q_heads;
  const int passes = all_heads / heads + (all_heads % heads != 0);
  const Grids grids = grids_for(p, heads);
  const bool half = p->dtype == DTYPE_FP16;
  const dim3 tile(TILE, TILE), rows(WARP_SIZE, ROWS_PER_BLOCK);

  *description = {};
  description->block_m = TILE;
  description->block_n = TILE;
  description->ceiling = CEILING_COPY;
  description->intermediate_bytes_per_entry =
      4 * sizeof(float);  // write S, read S, write P, read P
  description->launch_count = 3;
  description->launches[0] = {
      "scores",
      half ? (const void *)scores_kernel<__half> : (const void *)scores_kernel<__nv_bfloat16>,
      dim3((unsigned)grids.scores), tile, 0};
  description->launches[1] = {"softmax", (const void *)softmax_kernel,
                              dim3((unsigned)grids.softmax), rows, 0};
  description->launches[2] = {
      "output",
      half ? (const void *)output_kernel<__half> : (const void *)output_kernel<__nv_bfloat16>,
      dim3((unsigned)grids.output), tile, 0};
  snprintf(description->note, sizeof description->note,
           "S and P hold %d of %d heads at a time: %d pass%s", heads, all_heads, passes,
           passes == 1 ? "" : "es");
}

template <typename T>
static cudaError_t forward_as(const Problem *p, const Tensors *t, size_t workspace_bytes,
                              cudaStream_t stream) {
  const int64_t all_heads = (int64_t)p->batch * p->q_heads;
  const int pass_heads = heads_per_pass(p, workspace_bytes);
  const dim3 tile(TILE, TILE), rows_block(WARP_SIZE, ROWS_PER_BLOCK);
  float *s = (float *)t->workspace;

  for (int64_t done = 0; done < all_heads; done += pass_heads) {
    const int first = (int)done;
    const int64_t heads = min((int64_t)pass_heads, all_heads - done);
    const int64_t rows = heads * p->q_len;
    const Grids grids = grids_for(p, heads);

    scores_kernel<T><<<(unsigned)grids.scores, tile, 0, stream>>>(*p, first, (const T *)t->q,
                                                                  (const T *)t->k, s);
    softmax_kernel<<<(unsigned)grids.softmax, rows_block, 0, stream>>>(*p, first, rows, s, t->lse);
    output_kernel<T>
        <<<(unsigned)grids.output, tile, 0, stream>>>(*p, first, s, (const T *)t->v, (T *)t->o);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

static cudaError_t forward(const Problem *p, const Tensors *t, size_t workspace_bytes,
                           cudaStream_t stream) {
  return p->dtype == DTYPE_FP16 ? forward_as<__half>(p, t, workspace_bytes, stream)
                                : forward_as<__nv_bfloat16>(p, t, workspace_bytes, stream);
}

const Step step = {
    .name = "step01",
    .title = "Naive attention in three kernels",
    .idea = "S and P go through device memory; shared memory loads set the speed.",
    .head_dims = "any D up to 256",
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .describe = describe,
    .forward = forward,
    .block_masks = NULL,
};
