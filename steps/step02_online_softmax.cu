/**
 * @file
 * Step 02 opens a chapter: tiled attention with an online softmax, in one fused kernel.
 *
 * The idea: a thread block keeps one tile of Q and loops over the tiles of K and V. For each row of
 * S it keeps only the running maximum m, the running sum l and the unfinished row of O. When a
 * later tile raises m, the sums so far are multiplied by 2^(m_old - m_new). At the end O is divided
 * by l. (Milakov and Gimelshein 2018; Dao 2023, algorithm 1.)
 *
 * What changed since step 01: S and P never leave the chip. Device memory holds Q, K, V, O and LSE,
 * so it grows linearly with the sequence length; each tile of queries reads K and V once.
 *
 * What it costs: the arithmetic is fp32 on the CUDA cores, and its operands are read from shared
 * memory again and again. Longer than other steps: tiles in registers, and 14 head dimensions.
 *
 * What to look at: with tiles of 32 keys, a thread holds 4 x 4 entries of S, and 4 x (HEAD_DIM / 8)
 * of O, in registers. In multiply_qk() it uses four loads of Q and four of K, 16 bytes each, for 64
 * multiply-adds. P stays in fp32; only the tensor cores, from step 02b on, need it in 16 bits.
 */
#include <math.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/warp.cuh"

// [shared_tiles]
constexpr int ROWS = 4;   // rows of Q, S and O that a thread works on
constexpr int LANES = 8;  // lanes that share those rows: neighbours in one warp

/** Tiles in shared memory, all fp32, and how the threads divide them. */
template <int HEAD_DIM, int M, int N>
struct SharedTiles {
  static constexpr int BLOCK_M = M;  // rows of Q
  static constexpr int BLOCK_N = N;  // rows of K and V
  static_assert(HEAD_DIM % (4 * LANES) == 0, "a lane owns whole float4s of a row of O");
  static_assert(BLOCK_M % ROWS == 0 && BLOCK_N % LANES == 0 && BLOCK_N % 4 == 0, "no remainders");
  static_assert(LANES * BLOCK_M / ROWS % WARP_SIZE == 0, "the shuffles need whole warps");

  static constexpr int THREADS = LANES * BLOCK_M / ROWS;
  static constexpr int KEYS = BLOCK_N / LANES;           // keys of S that a thread works on
  static constexpr int ROW_STEP = BLOCK_M / ROWS;        // a thread's rows are this far apart
  static constexpr int CHUNKS = HEAD_DIM / (4 * LANES);  // float4s of a row of O per thread

  // Padding: a row of q or k starts 4 banks after the row before, so eight of k are read without
  // conflict, 16 bytes each. A row of p starts 8 banks after, as eight lanes write 4 bytes each.
  float q[BLOCK_M][HEAD_DIM + 4];
  float k[BLOCK_N][HEAD_DIM + 4];
  float v[BLOCK_N][HEAD_DIM];
  float p[BLOCK_M][BLOCK_N + 8];
};
// [shared_tiles]

/** True if every row of this tensor can be loaded or stored four elements at a time. */
__device__ __forceinline__ bool takes_vectors(const void *tensor, const Strides &strides,
                                              int head_dim) {
  return ((uintptr_t)tensor % 8 | strides.batch % 4 | strides.head % 4 | strides.row % 4 |
          head_dim % 4) == 0;
}

// [load_tile]
/** Copies TILE_ROWS rows of a [rows][head_dim] matrix, from row `first` on, to shared memory as
 * fp32. Elements past the last row or column become 0, so that they add nothing to any product.
 * (Keys past the last one still need the mask: their score would be 0.) */
template <int TILE_ROWS, int HEAD_DIM, int THREADS, int SMEM_STRIDE, typename T>
__device__ void load_tile(float (&tile_shared)[TILE_ROWS][SMEM_STRIDE], const T *matrix,
                          int64_t row_stride, int first, int rows, int head_dim, bool vectors) {
  constexpr int COLUMNS = HEAD_DIM / 4;
#pragma unroll 4
  for (int i = threadIdx.x; i < TILE_ROWS * COLUMNS; i += THREADS) {
    const int row = i / COLUMNS;
    const int column = i % COLUMNS * 4;
    const T *source = matrix + (first + row) * row_stride + column;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first + row < rows) {
      if (vectors) {
        if (column < head_dim) x = load_four(source);
      } else {
        if (column + 0 < head_dim) x.x = to_float(source[0]);
        if (column + 1 < head_dim) x.y = to_float(source[1]);
        if (column + 2 < head_dim) x.z = to_float(source[2]);
        if (column + 3 < head_dim) x.w = to_float(source[3]);
      }
    }
    *reinterpret_cast<float4 *>(&tile_shared[row][column]) = x;
  }
}
// [load_tile]

// [multiply_qk]
/** S += Q K^T for one thread: rows row + i ROW_STEP, keys lane + j LANES. */
template <typename Tiles>
__device__ __forceinline__ void multiply_qk(float (&s)[ROWS][Tiles::KEYS], const Tiles &tiles,
                                            int row, int lane) {
  constexpr int HEAD_DIM = 4 * LANES * Tiles::CHUNKS;
#pragma unroll 4
  for (int d = 0; d < HEAD_DIM; d += 4) {
    float4 q[ROWS], k[Tiles::KEYS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      q[i] = *reinterpret_cast<const float4 *>(&tiles.q[row + i * Tiles::ROW_STEP][d]);
    }
#pragma unroll
    for (int j = 0; j < Tiles::KEYS; j++) {
      k[j] = *reinterpret_cast<const float4 *>(&tiles.k[lane + j * LANES][d]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
      for (int j = 0; j < Tiles::KEYS; j++) {
        s[i][j] += q[i].x * k[j].x;
        s[i][j] += q[i].y * k[j].y;
        s[i][j] += q[i].z * k[j].z;
        s[i][j] += q[i].w * k[j].w;
      }
    }
  }
}
// [multiply_qk]

// [update_softmax]
/** Replaces the scores of one row by unnormalised probabilities 2^(scale_log2 s - m), writes them
 * to `p_row`, and updates m, l and O. The row attends to the first `keys` keys of the tile: none if
 * `keys` <= 0, all if it is at least the size of the tile. This lane holds every LANES-th key. */
template <int KEYS, int CHUNKS>
__device__ __forceinline__ void update_softmax(float (&s)[KEYS], int keys, float scale_log2,
                                               float *p_row, int lane, float &m, float &l,
                                               float (&o)[CHUNKS][4]) {
  float row_max = m;
#pragma unroll
  for (int j = 0; j < KEYS; j++) {
    s[j] = lane + j * LANES < keys ? s[j] * scale_log2 : -INFINITY;
    row_max = fmaxf(row_max, s[j]);
  }
  row_max = lanes_reduce_max<LANES>(row_max);
  // If all keys so far are masked, m and row_max are -inf and their difference would be NaN.
  // With 0 instead, the exponents are -inf and the powers 0.
  const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
  const float rescale = exp2f(m - safe_max);
  m = row_max;
  l *= rescale;
#pragma unroll
  for (int j = 0; j < KEYS; j++) {
    const float prob = exp2f(s[j] - safe_max);
    l += prob;
    p_row[lane + j * LANES] = prob;
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
    for (int x = 0; x < 4; x++) o[c][x] *= rescale;
  }
}
// [update_softmax]

// [multiply_pv]
/**
 * O += P V for this thread's rows and columns. With MASKED, row i uses only the first keys[i] keys
 * of the tile: masked keys have probability 0, but V may hold NaN there, and 0 * NaN is NaN.
 */
template <bool MASKED, typename Tiles>
__device__ __forceinline__ void multiply_pv(float (&o)[ROWS][Tiles::CHUNKS][4], const Tiles &tiles,
                                            const int (&keys)[ROWS], int row, int lane) {
  constexpr int BLOCK_N = LANES * Tiles::KEYS;
#pragma unroll 2
  for (int key = 0; key < BLOCK_N; key += 4) {
    float probs[ROWS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const float4 w = *reinterpret_cast<const float4 *>(&tiles.p[row + i * Tiles::ROW_STEP][key]);
      probs[i][0] = w.x, probs[i][1] = w.y, probs[i][2] = w.z, probs[i][3] = w.w;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int c = 0; c < Tiles::CHUNKS; c++) {
        const float4 v =
            *reinterpret_cast<const float4 *>(&tiles.v[key + j][c * 4 * LANES + lane * 4]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          if (MASKED && key + j >= keys[i]) continue;
          o[i][c][0] += probs[i][j] * v.x;
          o[i][c][1] += probs[i][j] * v.y;
          o[i][c][2] += probs[i][j] * v.z;
          o[i][c][3] += probs[i][j] * v.w;
        }
      }
    }
  }
}
// [multiply_pv]

/** Multiplies one row of this thread's part of O by `factor`, rounds it and stores it. */
template <int CHUNKS, typename T>
__device__ void store_row(T *o_row, const float (&o)[CHUNKS][4], float factor, int lane,
                          int head_dim, bool vectors) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const int column = c * 4 * LANES + lane * 4;
    if (vectors) {
      if (column < head_dim) {
        store_four(o_row + column, make_float4(o[c][0] * factor, o[c][1] * factor, o[c][2] * factor,
                                               o[c][3] * factor));
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (column + i < head_dim) o_row[column + i] = from_float<T>(o[c][i] * factor);
      }
    }
  }
}

// [thread_block]
/**
 * The whole forward pass: one thread block for BLOCK_M queries of one head. HEAD_DIM is the head
 * dimension rounded up to one of CONFIGS; columns past problem.head_dim are zero in shared memory
 * and never stored.
 */
template <typename T, int HEAD_DIM, int BLOCK_M, int BLOCK_N>
__global__ void __launch_bounds__(LANES *BLOCK_M / ROWS, 1)
    attention_kernel(Problem problem, Tensors t) {
  using Tiles = SharedTiles<HEAD_DIM, BLOCK_M, BLOCK_N>;
  extern __shared__ __align__(16) unsigned char smem[];
  auto &tiles = *reinterpret_cast<Tiles *>(smem);

  const int q_tiles = (problem.q_len + BLOCK_M - 1) / BLOCK_M;
  const int first_q = blockIdx.x % q_tiles * BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, blockIdx.x / q_tiles);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;
  T *o_global = (T *)t.o + offset.o;
  const bool k_vectors = takes_vectors(t.k, problem.k_strides, problem.head_dim);
  const bool v_vectors = takes_vectors(t.v, problem.v_strides, problem.head_dim);

  const int lane = threadIdx.x % LANES;  // 0 to 7, among the lanes that share these rows
  const int row = threadIdx.x / LANES;
  // [thread_block]

  // [state]
  load_tile<BLOCK_M, HEAD_DIM, Tiles::THREADS>(
      tiles.q, q_global, problem.q_strides.row, first_q, problem.q_len, problem.head_dim,
      takes_vectors(t.q, problem.q_strides, problem.head_dim));

  float m[ROWS];                         // running maximum of score * scale * log2(e)
  float l[ROWS];                         // running sum of 2^(score - m), this thread's keys only
  float o[ROWS][Tiles::CHUNKS][4] = {};  // running sum of 2^(score - m) * V
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    m[i] = -INFINITY;
    l[i] = 0.0f;
  }

  // e^x = 2^(x log2(e)): the GPU has an instruction for 2^x and none for e^x.
  const float scale_log2 = problem.scale * LOG2_E;
  // No row of this tile attends to this key or a later one.
  const int key_end = attended_keys(problem, min(first_q + BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one.
  const int unmasked_end = attended_keys(problem, first_q);
  // [state]

  // [kv_loop]
  for (int first_key = 0; first_key < key_end; first_key += BLOCK_N) {
    __syncthreads();  // all warps have read the previous K and V; their buffers can be overwritten
    load_tile<BLOCK_N, HEAD_DIM, Tiles::THREADS>(tiles.k, k_global, problem.k_strides.row,
                                                 first_key, problem.kv_len, problem.head_dim,
                                                 k_vectors);
    load_tile<BLOCK_N, HEAD_DIM, Tiles::THREADS>(tiles.v, v_global, problem.v_strides.row,
                                                 first_key, problem.kv_len, problem.head_dim,
                                                 v_vectors);
    __syncthreads();  // K, V and, in the first iteration, Q are complete

    int keys[ROWS];  // attended keys of row i from the first key of this tile on; may be negative
    float s[ROWS][Tiles::KEYS] = {};
    multiply_qk(s, tiles, row, lane);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      keys[i] = attended_keys(problem, first_q + row + i * Tiles::ROW_STEP) - first_key;
      update_softmax(s[i], keys[i], scale_log2, tiles.p[row + i * Tiles::ROW_STEP], lane, m[i],
                     l[i], o[i]);
    }
    __syncwarp();  // P is complete: a row is written and read by the same eight lanes of one warp
    if (first_key + BLOCK_N <= unmasked_end) {
      multiply_pv<false>(o, tiles, keys, row, lane);
    } else {
      multiply_pv<true>(o, tiles, keys, row, lane);
    }
  }
  // [kv_loop]

  // [epilogue]
  const bool o_vectors = takes_vectors(t.o, problem.o_strides, problem.head_dim);
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const float sum = lanes_reduce_sum<LANES>(l[i]);
    const int q = first_q + row + i * Tiles::ROW_STEP;
    if (q >= problem.q_len) continue;
    store_row(o_global + q * problem.o_strides.row, o[i], sum == 0.0f ? 0.0f : 1.0f / sum, lane,
              problem.head_dim, o_vectors);
    // ln(2^m * sum); a fully masked row has sum = 0.
    if (lane == 0) t.lse[offset.lse + q] = sum == 0.0f ? -INFINITY : m[i] * LN_2 + logf(sum);
  }
  // [epilogue]
}

template <typename T, int HEAD_DIM, int BLOCK_M, int BLOCK_N,
          typename Tiles = SharedTiles<HEAD_DIM, BLOCK_M, BLOCK_N>>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles>(
    attention_kernel<T, HEAD_DIM, BLOCK_M, BLOCK_N>, Tiles::THREADS, sizeof(Tiles), USES_FFMA);
// [configs]
static constexpr KernelConfig<> CONFIGS[] = {  // the smaller tiles fit GPUs with 64 KiB per block
    CONFIG<__half, 32, 64, 32>,  CONFIG<__nv_bfloat16, 32, 64, 32>,
    CONFIG<__half, 64, 64, 32>,  CONFIG<__nv_bfloat16, 64, 64, 32>,
    CONFIG<__half, 96, 64, 32>,  CONFIG<__nv_bfloat16, 96, 64, 32>,
    CONFIG<__half, 128, 64, 32>, CONFIG<__nv_bfloat16, 128, 64, 32>,
    CONFIG<__half, 128, 32, 32>, CONFIG<__nv_bfloat16, 128, 32, 32>,
    CONFIG<__half, 256, 64, 32>, CONFIG<__nv_bfloat16, 256, 64, 32>,
    CONFIG<__half, 256, 16, 16>, CONFIG<__nv_bfloat16, 256, 16, 16>};
// [configs]

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  config->kernel<<<grid_size(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step02",
    .after = "step01",
    .title = "Tiled attention with an online softmax",
    .idea = "One fused kernel: S and P never leave the chip, memory is O(N).",
    .head_dims = "any D up to 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
