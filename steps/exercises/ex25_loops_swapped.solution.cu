/**
 * @file
 * Exercise 25: the loops of step 02 swapped, the order of the first FlashAttention (Dao et al.,
 * 2022, algorithm 1).
 *
 * The idea: a thread block works on a whole head. It keeps one tile of K and V, loops over all
 * tiles of Q, and then takes the next tile of K and V. So K and V are read once.
 *
 * What it costs: when a thread block returns to a row, it has worked on all others meanwhile. So m,
 * l and O of all rows are in device memory between one tile of keys and the next. O is fp32 there:
 * rounded to 16 bits after each tile, it would lose precision. And with one thread block for each
 * head, a GPU needs many heads to be busy.
 *
 * The tiles and the arithmetic are those of step 02. For brevity, elements are loaded and stored
 * one by one, and a thread finishes one of its rows before the next.
 */
#include <math.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/warp.cuh"

constexpr int ROWS = 4;   // rows of Q, S and O that a thread works on
constexpr int LANES = 8;  // lanes that share those rows: neighbours in one warp

/** Tiles in shared memory, all fp32, and how the threads divide them. */
template <int HEAD_DIM>
struct SharedTiles {
  static constexpr int BLOCK_M = 64;  // rows of Q
  static constexpr int BLOCK_N = 32;  // rows of K and V
  static constexpr int THREADS = LANES * BLOCK_M / ROWS;
  static constexpr int KEYS = BLOCK_N / LANES;      // a lane has keys lane, lane + LANES, ... of S
  static constexpr int COLUMNS = HEAD_DIM / LANES;  // and columns lane, lane + LANES, ... of O
  static constexpr int ROW_STEP = BLOCK_M / ROWS;   // a thread's rows are this far apart

  float q[BLOCK_M][HEAD_DIM + 4];
  float k[BLOCK_N][HEAD_DIM + 4];
  float v[BLOCK_N][HEAD_DIM];
  float p[BLOCK_M][BLOCK_N + 8];
};

/** The unfinished rows of one head, in device memory. */
struct Running {
  float *m;  // [q_len]: maximum of score * scale * log2(e) so far
  float *l;  // [q_len]: sum of 2^(score - m) so far
  float *o;  // [q_len][HEAD_DIM]: sum of 2^(score - m) * V so far
};

/** Copies rows of a [rows][head_dim] matrix to shared memory as fp32; outside of it are zeros. */
template <int TILE_ROWS, int HEAD_DIM, int THREADS, int SMEM_STRIDE, typename T>
__device__ void load_tile(float (&tile_shared)[TILE_ROWS][SMEM_STRIDE], const T *matrix,
                          int64_t row_stride, int first, int rows, int head_dim) {
  for (int i = threadIdx.x; i < TILE_ROWS * HEAD_DIM; i += THREADS) {
    const int row = i / HEAD_DIM, column = i % HEAD_DIM;
    const bool inside = first + row < rows && column < head_dim;
    tile_shared[row][column] =
        inside ? to_float(matrix[(first + row) * row_stride + column]) : 0.0f;
  }
}

/** S = Q K^T for one row of Q and this lane's keys. */
template <int KEYS, int HEAD_DIM, int BLOCK_N, int SMEM_STRIDE>
__device__ __forceinline__ void multiply_qk(float (&s)[KEYS], const float *q_row,
                                            const float (&k_shared)[BLOCK_N][SMEM_STRIDE],
                                            int lane) {
#pragma unroll
  for (int j = 0; j < KEYS; j++) s[j] = 0.0f;
#pragma unroll 8
  for (int d = 0; d < HEAD_DIM; d++) {
#pragma unroll
    for (int j = 0; j < KEYS; j++) s[j] += q_row[d] * k_shared[lane + j * LANES][d];
  }
}

/**
 * Writes unnormalised probabilities 2^(scale_log2 s - m) of one row to `p_row`, and updates m, l
 * and O. The row attends to the first `keys` keys of the tile: none if `keys` <= 0.
 */
template <int KEYS, int COLUMNS>
__device__ __forceinline__ void update_softmax(float (&s)[KEYS], int keys, float scale_log2,
                                               float *p_row, int lane, float &m, float &l,
                                               float (&o)[COLUMNS]) {
  float row_max = m;
#pragma unroll
  for (int j = 0; j < KEYS; j++) {
    s[j] = lane + j * LANES < keys ? s[j] * scale_log2 : -INFINITY;
    row_max = fmaxf(row_max, s[j]);
  }
  row_max = lanes_reduce_max<LANES>(row_max);
  // If all keys so far are masked, -inf - -inf would be NaN. With 0, the powers are 0.
  const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
  const float rescale = exp2f(m - safe_max);
  m = row_max;
  float tile_sum = 0.0f;
#pragma unroll
  for (int j = 0; j < KEYS; j++) {
    p_row[lane + j * LANES] = exp2f(s[j] - safe_max);
    tile_sum += p_row[lane + j * LANES];
  }
  // Unlike in step 02, every lane has the sum of the whole row.
  l = l * rescale + lanes_reduce_sum<LANES>(tile_sum);
#pragma unroll
  for (int j = 0; j < COLUMNS; j++) o[j] *= rescale;
}

/**
 * O += P V for one row and this lane's columns. Only the first `keys` keys take part: masked keys
 * have probability 0, but V may hold NaN there, and 0 * NaN is NaN.
 */
template <int COLUMNS, int BLOCK_N, int HEAD_DIM>
__device__ __forceinline__ void multiply_pv(float (&o)[COLUMNS], const float *p_row,
                                            const float (&v_shared)[BLOCK_N][HEAD_DIM], int keys,
                                            int lane) {
  const int end = min(keys, BLOCK_N);
  for (int key = 0; key < end; key++) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) o[j] += p_row[key] * v_shared[key][lane + j * LANES];
  }
}

/** Before the first tile of keys: all rows are masked so far. */
template <int HEAD_DIM, int THREADS>
__device__ void start_rows(const Running &running, int rows) {
  for (int64_t i = threadIdx.x; i < (int64_t)rows * HEAD_DIM; i += THREADS) running.o[i] = 0.0f;
  for (int row = threadIdx.x; row < rows; row += THREADS) {
    running.m[row] = -INFINITY;
    running.l[row] = 0.0f;
  }
}

/** After the last tile of keys: divides O by l, rounds it, and stores it and LSE. */
template <int HEAD_DIM, int THREADS, typename T>
__device__ void finish_rows(const Running &running, T *o_global, int64_t row_stride,
                            float *lse_global, int rows, int head_dim) {
  for (int64_t i = threadIdx.x; i < (int64_t)rows * HEAD_DIM; i += THREADS) {
    const int row = i / HEAD_DIM, column = i % HEAD_DIM;
    const float sum = running.l[row];
    if (column < head_dim) {
      o_global[row * row_stride + column] = from_float<T>(sum == 0.0f ? 0.0f : running.o[i] / sum);
    }
    // ln(2^m * sum); a fully masked row has sum = 0.
    if (column == 0) {
      lse_global[row] = sum == 0.0f ? -INFINITY : running.m[row] * LN_2 + logf(sum);
    }
  }
}

/** The whole forward pass: one thread block for each head, from first_head on. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(SharedTiles<HEAD_DIM>::THREADS)
    attention_kernel(Problem problem, Tensors t, int first_head) {
  using Tiles = SharedTiles<HEAD_DIM>;
  constexpr int THREADS = Tiles::THREADS, BLOCK_M = Tiles::BLOCK_M, BLOCK_N = Tiles::BLOCK_N;
  extern __shared__ __align__(16) unsigned char smem[];
  auto &tiles = *reinterpret_cast<Tiles *>(smem);

  const HeadOffsets offset = head_offsets(problem, first_head + blockIdx.x);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  // The workspace has m of all heads of this launch, then l, then O.
  const int64_t rows_before = (int64_t)blockIdx.x * problem.q_len;
  const int64_t all_rows = (int64_t)gridDim.x * problem.q_len;
  float *workspace = (float *)t.workspace;
  const Running running = {workspace + rows_before, workspace + all_rows + rows_before,
                           workspace + 2 * all_rows + rows_before * HEAD_DIM};
  start_rows<HEAD_DIM, THREADS>(running, problem.q_len);

  const int lane = threadIdx.x % LANES;  // 0 to 7, among the lanes that share these rows
  const float scale_log2 = problem.scale * LOG2_E;

  for (int first_key = 0; first_key < problem.kv_len; first_key += BLOCK_N) {
    __syncthreads();  // all warps have read the previous K and V; their buffers can be overwritten
    load_tile<BLOCK_N, HEAD_DIM, THREADS>(tiles.k, k_global, problem.k_strides.row, first_key,
                                          problem.kv_len, problem.head_dim);
    load_tile<BLOCK_N, HEAD_DIM, THREADS>(tiles.v, v_global, problem.v_strides.row, first_key,
                                          problem.kv_len, problem.head_dim);

    for (int first_q = 0; first_q < problem.q_len; first_q += BLOCK_M) {
      // Under the causal mask, no row of the first tiles of Q may attend to these keys.
      if (first_key >= attended_keys(problem, min(first_q + BLOCK_M, problem.q_len) - 1)) continue;
      __syncthreads();  // all warps have read the previous Q; it can be overwritten
      load_tile<BLOCK_M, HEAD_DIM, THREADS>(tiles.q, q_global, problem.q_strides.row, first_q,
                                            problem.q_len, problem.head_dim);
      __syncthreads();  // Q, K and V are complete, and all threads have passed start_rows()

#pragma unroll 1
      for (int i = 0; i < ROWS; i++) {
        const int row = threadIdx.x / LANES + i * Tiles::ROW_STEP;  // of the tile
        const int q = first_q + row;
        const int keys = attended_keys(problem, q) - first_key;  // of this tile; may be negative
        float m = -INFINITY, l = 0.0f, o[Tiles::COLUMNS] = {};
        float *o_running = running.o + (int64_t)q * HEAD_DIM + lane;
        if (q < problem.q_len) {
          m = running.m[q];
          l = running.l[q];
#pragma unroll
          for (int j = 0; j < Tiles::COLUMNS; j++) o[j] = o_running[j * LANES];
        }

        float s[Tiles::KEYS];
        multiply_qk<Tiles::KEYS, HEAD_DIM>(s, tiles.q[row], tiles.k, lane);
        update_softmax(s, keys, scale_log2, tiles.p[row], lane, m, l, o);
        __syncwarp();  // this row of P is complete: eight lanes of this warp write and read it
        multiply_pv(o, tiles.p[row], tiles.v, keys, lane);

        if (q < problem.q_len) {
          if (lane == 0) {
            running.m[q] = m;
            running.l[q] = l;
          }
#pragma unroll
          for (int j = 0; j < Tiles::COLUMNS; j++) o_running[j * LANES] = o[j];
        }
      }
    }
  }

  __syncthreads();  // all rows are stored; other threads finish them
  finish_rows<HEAD_DIM, THREADS>(running, (T *)t.o + offset.o, problem.o_strides.row,
                                 t.lse + offset.lse, problem.q_len, problem.head_dim);
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, SharedTiles<HEAD_DIM>>(
    attention_kernel<T, HEAD_DIM>, SharedTiles<HEAD_DIM>::THREADS, sizeof(SharedTiles<HEAD_DIM>),
    USES_FFMA);

static constexpr KernelConfig<int> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

static size_t workspace_bytes(const Problem *problem) {
  return sizeof(float) * problem->q_len * (2 + find_config<CONFIGS>(problem)->head_dim);
}

static void describe(const Problem *problem, int heads, Description *description) {
  describe_config<CONFIGS>(problem, heads, description);
  description->launches[0].grid = dim3(heads);
}

static cudaError_t forward(const Problem *problem, const Tensors *t, int heads,
                           cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  for (int first = 0, all = problem->batch * problem->q_heads; first < all; first += heads) {
    config->kernel<<<min(heads, all - first), config->threads, config->shared_bytes, stream>>>(
        *problem, *t, first);
  }
  return cudaGetLastError();
}

const Step step = {
    .name = "ex25",
    .title = "The loops swapped: K and V outside, Q inside",
    .idea = "K and V are read once; m, l and O of all rows go through device memory.",
    .head_dims = "any D up to 256",
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = workspace_bytes,
    .describe = describe,
    .forward = forward,
};
