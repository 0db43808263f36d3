/**
 * @file
 * Step 14 opens a chapter: the backward pass in tiles, without P and dS in device memory.
 *
 * The idea: P of any tile can be computed again from Q, K and LSE, at the price of one product, so
 * nothing of size N^2 is stored. One kernel loops over queries: a thread block keeps a tile of K
 * and V, and sums up its rows of dK and dV. Another loops over keys: a thread block keeps a tile of
 * Q and dO, and sums up its rows of dQ. (Dao 2023 has one kernel for all; that is step 15.)
 *
 * What changed since step 13: P and dS are computed where they are needed, in tiles in shared
 * memory. Memory beside the tensors is D alone, 4 bytes for each query and head. Tiles without an
 * unmasked entry are skipped.
 *
 * What it costs: both kernels need S and dP, so there are seven products instead of five. In return
 * each gradient is written by one thread block, which adds in a fixed order: no atomics, and the
 * same bits every time. The arithmetic is fp32 on the CUDA cores.
 *
 * What to look at: the two kernels have the same shape, with the sides exchanged. For keys, the
 * block computes S^T = K Q^T, so that a thread holds rows of P^T, as dV = P^T dO needs them.
 */
#include <math.h>

#include "backward.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/row_dot.cuh"

constexpr int ROWS = 2;            // rows of the kept tile that a thread works on
constexpr int LANES = 8;           // lanes that share those rows: neighbours in one warp
constexpr int ROWS_PER_BLOCK = 8;  // rows of D per thread block

// [shared_tiles]
/** Tiles in shared memory, all fp32: BLOCK rows of the side that a thread block keeps, and BLOCK of
 * the side over which it loops. `a` is Q or K, `b` is dO or V. */
template <int HEAD_DIM, int BLOCK>
struct SharedTiles {
  static_assert(HEAD_DIM % (4 * LANES) == 0, "a lane owns whole float4s of a row of a gradient");
  static_assert(BLOCK % (ROWS * WARP_SIZE / LANES) == 0, "the shuffles need whole warps");
  static constexpr int THREADS = LANES * BLOCK / ROWS;
  static constexpr int OTHERS = BLOCK / LANES;           // entries of a row that a thread computes
  static constexpr int ROW_STEP = BLOCK / ROWS;          // a thread's rows are this far apart
  static constexpr int CHUNKS = HEAD_DIM / (4 * LANES);  // float4s of a gradient's row per thread

  // Padding: a row starts 4 banks after the row before, so eight are read without conflict, 16
  // bytes each. A row of p or ds starts 8 banks after, as eight lanes write 4 bytes each.
  float kept_a[BLOCK][HEAD_DIM + 4];
  float kept_b[BLOCK][HEAD_DIM + 4];
  float other_a[BLOCK][HEAD_DIM + 4];
  float other_b[BLOCK][HEAD_DIM + 4];
  float p[BLOCK][BLOCK + 8];
  float ds[BLOCK][BLOCK + 8];
};
// [shared_tiles]

/** Copies BLOCK rows of a [rows][head_dim] matrix, from row `first` on, to shared memory as fp32.
 * Elements past the last row or column become 0. */
template <int THREADS, int BLOCK, int STRIDE, typename T>
__device__ void load_tile(float (&tile_shared)[BLOCK][STRIDE], const T *matrix, int64_t row_stride,
                          int first, int rows, int head_dim) {
  constexpr int HEAD_DIM = STRIDE - 4;
#pragma unroll 4
  for (int i = threadIdx.x; i < BLOCK * HEAD_DIM; i += THREADS) {
    const int row = i / HEAD_DIM, d = i % HEAD_DIM;
    const bool inside = first + row < rows && d < head_dim;
    tile_shared[row][d] = inside ? to_float(matrix[(first + row) * row_stride + d]) : 0.0f;
  }
}

// [multiply_rows]
/** x += A B^T for one thread: rows row + i ROW_STEP of A, rows lane + j LANES of B. */
template <int ROW_STEP, int OTHERS, int BLOCK, int STRIDE>
__device__ __forceinline__ void multiply_rows(float (&x)[ROWS][OTHERS],
                                              const float (&a)[BLOCK][STRIDE],
                                              const float (&b)[BLOCK][STRIDE], int row, int lane) {
#pragma unroll 4
  for (int d = 0; d < STRIDE - 4; d += 4) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const float4 y = *reinterpret_cast<const float4 *>(&a[row + i * ROW_STEP][d]);
#pragma unroll
      for (int j = 0; j < OTHERS; j++) {
        const float4 z = *reinterpret_cast<const float4 *>(&b[lane + j * LANES][d]);
        x[i][j] += y.x * z.x + y.y * z.y + y.z * z.z + y.w * z.w;
      }
    }
  }
}
// [multiply_rows]

// [multiply_columns]
/** gradient += X Y for one thread: its rows of X, P or dS, and its columns of Y. */
template <int ROW_STEP, int CHUNKS, int BLOCK, int X_STRIDE, int STRIDE>
__device__ __forceinline__ void multiply_columns(float (&gradient)[ROWS][CHUNKS][4],
                                                 const float (&x)[BLOCK][X_STRIDE],
                                                 const float (&y)[BLOCK][STRIDE], int row,
                                                 int lane) {
#pragma unroll 4
  for (int other = 0; other < BLOCK; other++) {
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const float4 z = *reinterpret_cast<const float4 *>(&y[other][c * 4 * LANES + lane * 4]);
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const float w = x[row + i * ROW_STEP][other];
        gradient[i][c][0] += w * z.x;
        gradient[i][c][1] += w * z.y;
        gradient[i][c][2] += w * z.z;
        gradient[i][c][3] += w * z.w;
      }
    }
  }
}
// [multiply_columns]

/** Multiplies the thread's rows of a gradient by `factor`, rounds and stores them. */
template <int ROW_STEP, int CHUNKS, typename T>
__device__ void store_rows(T *matrix, int64_t row_stride, const float (&gradient)[ROWS][CHUNKS][4],
                           float factor, int first, int rows, int head_dim, int lane) {
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    if (first + i * ROW_STEP >= rows) continue;
    T *row = matrix + (first + i * ROW_STEP) * row_stride;
#pragma unroll
    for (int x = 0; x < 4 * CHUNKS; x++) {
      const int d = x / 4 * 4 * LANES + lane * 4 + x % 4;
      if (d < head_dim) row[d] = from_float<T>(factor * gradient[i][x / 4][x % 4]);
    }
  }
}

// [compute_tile]
/** P and dS of one tile, or P^T and dS^T if the kept side are the keys, for one thread. */
template <bool OF_KEYS, typename Tiles>
__device__ __forceinline__ void compute_tile(Tiles &tiles, const Problem &problem, int first_kept,
                                             int first_other, const float *lse,
                                             const float *row_dots, int row, int lane) {
  float s[ROWS][Tiles::OTHERS] = {}, dp[ROWS][Tiles::OTHERS] = {};
  multiply_rows<Tiles::ROW_STEP>(s, tiles.kept_a, tiles.other_a, row, lane);
  multiply_rows<Tiles::ROW_STEP>(dp, tiles.kept_b, tiles.other_b, row, lane);
#pragma unroll
  for (int x = 0; x < ROWS * Tiles::OTHERS; x++) {
    const int i = x / Tiles::OTHERS, j = x % Tiles::OTHERS;
    const int kept = row + i * Tiles::ROW_STEP, other = lane + j * LANES;
    const int q = OF_KEYS ? first_other + other : first_kept + kept;
    const int k = OF_KEYS ? first_kept + kept : first_other + other;
    float p = 0.0f, ds = 0.0f;
    if (k < attended_keys(problem, q)) {  // a row without any key has LSE = -inf: no 2^inf
      p = exp2f((problem.scale * s[i][j] - lse[q]) * LOG2_E);
      ds = p * (dp[i][j] - row_dots[q]);
    }
    if (OF_KEYS) tiles.p[kept][other] = p;
    tiles.ds[kept][other] = ds;
  }
  __syncwarp();  // P and dS are complete: eight lanes of one warp write and read a row
}
// [compute_tile]

/** D[q] = dO[q] . O[q]; one warp per row. blockIdx.y is the head. */
template <typename T>
__global__ void __launch_bounds__(ROWS_PER_BLOCK *WARP_SIZE)
    row_dots_kernel(Problem problem, BackwardTensors t, int first_head) {
  const int lane = threadIdx.x % WARP_SIZE;
  const int q = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / WARP_SIZE;
  if (q >= problem.q_len) return;
  const int64_t row = head_offsets(problem, first_head + blockIdx.y).o + q * problem.o_strides.row;
  const float d = row_dot((const T *)t.d_o + row, (const T *)t.o + row, problem.head_dim, lane);
  if (lane == 0) ((float *)t.workspace)[(int64_t)blockIdx.y * problem.q_len + q] = d;
}

// [keys_kernel]
/** dK and dV of BLOCK keys of one key/value head: loops over the queries of all heads that read it.
 */
template <typename T, int HEAD_DIM, int BLOCK>
__global__ void __launch_bounds__(LANES *BLOCK / ROWS, 1)
    keys_kernel(Problem problem, BackwardTensors t, int first_head) {
  using Tiles = SharedTiles<HEAD_DIM, BLOCK>;
  extern __shared__ __align__(16) unsigned char smem[];
  auto &tiles = *reinterpret_cast<Tiles *>(smem);
  const int lane = threadIdx.x % LANES;
  const int row = threadIdx.x / LANES;
  const int kv_tiles = (problem.kv_len + BLOCK - 1) / BLOCK;
  const int first_k = blockIdx.x % kv_tiles * BLOCK;
  const int group = problem.q_heads / problem.kv_heads;
  const int head = blockIdx.x / kv_tiles * group;  // the first of the pass that reads these keys
  const HeadOffsets kv = head_offsets(problem, first_head + head);
  load_tile<Tiles::THREADS>(tiles.kept_a, (const T *)t.k + kv.k, problem.k_strides.row, first_k,
                            problem.kv_len, problem.head_dim);
  load_tile<Tiles::THREADS>(tiles.kept_b, (const T *)t.v + kv.v, problem.v_strides.row, first_k,
                            problem.kv_len, problem.head_dim);
  // [keys_kernel]

  // [keys_loop]
  float dk[ROWS][Tiles::CHUNKS][4] = {}, dv[ROWS][Tiles::CHUNKS][4] = {};
  for (int h = head; h < head + group; h++) {
    const HeadOffsets offset = head_offsets(problem, first_head + h);
    const float *lse = t.lse + offset.lse;
    const float *row_dots = (const float *)t.workspace + (int64_t)h * problem.q_len;
    for (int first_q = 0; first_q < problem.q_len; first_q += BLOCK) {
      if (first_k >= keys_of_rows(problem, first_q, BLOCK)) continue;  // all masked
      __syncthreads();  // all warps have read the previous Q and dO
      load_tile<Tiles::THREADS>(tiles.other_a, (const T *)t.q + offset.q, problem.q_strides.row,
                                first_q, problem.q_len, problem.head_dim);
      load_tile<Tiles::THREADS>(tiles.other_b, (const T *)t.d_o + offset.o, problem.o_strides.row,
                                first_q, problem.q_len, problem.head_dim);
      __syncthreads();  // Q and dO and, in the first iteration, K and V are complete
      compute_tile<true>(tiles, problem, first_k, first_q, lse, row_dots, row, lane);
      multiply_columns<Tiles::ROW_STEP>(dv, tiles.p, tiles.other_b, row, lane);
      multiply_columns<Tiles::ROW_STEP>(dk, tiles.ds, tiles.other_a, row, lane);
    }
  }
  store_rows<Tiles::ROW_STEP>((T *)t.d_k + kv.k, problem.k_strides.row, dk, problem.scale,
                              first_k + row, problem.kv_len, problem.head_dim, lane);
  store_rows<Tiles::ROW_STEP>((T *)t.d_v + kv.v, problem.v_strides.row, dv, 1.0f, first_k + row,
                              problem.kv_len, problem.head_dim, lane);
  // [keys_loop]
}

// [queries_kernel]
/** dQ of BLOCK queries of one query head: loops over the keys. */
template <typename T, int HEAD_DIM, int BLOCK>
__global__ void __launch_bounds__(LANES *BLOCK / ROWS, 1)
    queries_kernel(Problem problem, BackwardTensors t, int first_head) {
  using Tiles = SharedTiles<HEAD_DIM, BLOCK>;
  extern __shared__ __align__(16) unsigned char smem[];
  auto &tiles = *reinterpret_cast<Tiles *>(smem);
  const int lane = threadIdx.x % LANES;
  const int row = threadIdx.x / LANES;
  const int q_tiles = (problem.q_len + BLOCK - 1) / BLOCK;
  const int first_q = blockIdx.x % q_tiles * BLOCK;
  const int head = blockIdx.x / q_tiles;
  const HeadOffsets offset = head_offsets(problem, first_head + head);
  const float *lse = t.lse + offset.lse;
  const float *row_dots = (const float *)t.workspace + (int64_t)head * problem.q_len;
  load_tile<Tiles::THREADS>(tiles.kept_a, (const T *)t.q + offset.q, problem.q_strides.row, first_q,
                            problem.q_len, problem.head_dim);
  load_tile<Tiles::THREADS>(tiles.kept_b, (const T *)t.d_o + offset.o, problem.o_strides.row,
                            first_q, problem.q_len, problem.head_dim);
  float dq[ROWS][Tiles::CHUNKS][4] = {};
  const int key_end = keys_of_rows(problem, first_q, BLOCK);
  for (int first_k = 0; first_k < key_end; first_k += BLOCK) {
    __syncthreads();  // all warps have read the previous K and V
    load_tile<Tiles::THREADS>(tiles.other_a, (const T *)t.k + offset.k, problem.k_strides.row,
                              first_k, problem.kv_len, problem.head_dim);
    load_tile<Tiles::THREADS>(tiles.other_b, (const T *)t.v + offset.v, problem.v_strides.row,
                              first_k, problem.kv_len, problem.head_dim);
    __syncthreads();  // K and V and, in the first iteration, Q and dO are complete
    compute_tile<false>(tiles, problem, first_q, first_k, lse, row_dots, row, lane);
    multiply_columns<Tiles::ROW_STEP>(dq, tiles.ds, tiles.other_a, row, lane);
  }
  store_rows<Tiles::ROW_STEP>((T *)t.d_q + offset.q, problem.q_strides.row, dq, problem.scale,
                              first_q + row, problem.q_len, problem.head_dim, lane);
}
// [queries_kernel]

// [configs]
/** The kernels for one type and the head dimensions up to head_dim; larger ones have smaller tiles.
 */
using Kernel = void (*)(Problem problem, BackwardTensors t, int first_head);
struct Config {
  Kernel row_dots, keys, queries;
  int head_dim, block, threads, shared_bytes;
};
template <typename T, int HEAD_DIM, int BLOCK, typename Tiles = SharedTiles<HEAD_DIM, BLOCK>>
constexpr Config CONFIG = {row_dots_kernel<T>,
                           keys_kernel<T, HEAD_DIM, BLOCK>,
                           queries_kernel<T, HEAD_DIM, BLOCK>,
                           HEAD_DIM,
                           BLOCK,
                           Tiles::THREADS,
                           sizeof(Tiles)};
static constexpr Config CONFIGS[2][3] = {
    {CONFIG<__half, 64, 32>, CONFIG<__half, 128, 32>, CONFIG<__half, 256, 16>},
    {CONFIG<__nv_bfloat16, 64, 32>, CONFIG<__nv_bfloat16, 128, 32>, CONFIG<__nv_bfloat16, 256, 16>},
};
// [configs]

static void describe(const Problem *p, int heads, Description *d) {
  const Config *c = CONFIGS[p->dtype];
  while (c->head_dim < p->head_dim) c++;
  const auto tiles = [c](int rows) { return (unsigned)((rows + c->block - 1) / c->block); };
  *d = {.block_m = c->block, .block_n = c->block, .ceiling = CEILING_FFMA};
  d->multiplies_masked_keys = true;
  d->launch_count = 3;
  d->launches[0] = {"row_dots", (void *)c->row_dots,
                    dim3((p->q_len + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, heads),
                    dim3(ROWS_PER_BLOCK * WARP_SIZE)};
  d->launches[1] = {"keys", (void *)c->keys, dim3(tiles(p->kv_len) * (heads / group_size(p))),
                    dim3(c->threads), (size_t)c->shared_bytes};
  d->launches[2] = {"queries", (void *)c->queries, dim3(tiles(p->q_len) * heads), dim3(c->threads),
                    (size_t)c->shared_bytes};
}

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  Description d;
  for (int first = 0, all = problem->batch * problem->q_heads; first < all; first += heads) {
    describe(problem, min(heads, all - first), &d);  // the last pass may have fewer
    for (int i = 0; i < d.launch_count; i++) {
      const KernelLaunch &l = d.launches[i];
      if (const cudaError_t error = cudaFuncSetAttribute(
              l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.dynamic_shared_bytes)) {
        return error;
      }
      ((Kernel)l.kernel)<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, first);
    }
  }
  return cudaGetLastError();
}

const Step step = {
    .name = "step14",
    .after = "step13",
    .title = "Nothing stored: P is recomputed from LSE",
    .idea = "One kernel for dK and dV, one for dQ: seven products, no atomics, memory is O(N).",
    .workspace_bytes = [](const Problem *problem) { return sizeof(float) * problem->q_len; },
    .describe = describe,
    .backward = backward,
};
