/**
 * @file
 * Step 02: tiled attention with an online softmax, in one fused kernel.
 *
 * The idea: a thread block keeps one tile of Q and walks over the tiles of K and V. Of each row of
 * S it remembers only the running maximum m, the running sum l and the unfinished row of O. When a
 * later tile raises m, what was summed so far is scaled by 2^(m_old - m_new). At the end O is
 * divided by l. (Milakov and Gimelshein 2018; Dao 2023, algorithm 1.)
 *
 * What changed since step 01: S and P never leave the chip, so device memory holds O(N) and the
 * traffic is Q, K, V, O.
 *
 * What it costs: the arithmetic is fp32 on the CUDA cores, and every operand comes out of shared
 * memory.
 *
 * What to look at: a thread holds a 4 x 4 piece of S and a 4 x (HEAD_DIM / 8) piece of O in
 * registers, so that eight 16-byte loads feed 64 multiply-adds. P stays in fp32; only the tensor
 * cores, from step 03 on, need it in 16 bits.
 */
#include <math.h>
#include <stdio.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/warp.cuh"

constexpr int ROWS = 4;   // rows of Q, S and O that a thread works on
constexpr int LANES = 8;  // lanes that share those rows: neighbours in one warp

/** Tiles in shared memory, all fp32, and how the threads share them. */
template <int HEAD_DIM, int Q_TILE, int KV_TILE>
struct SharedTiles {
  static_assert(HEAD_DIM % (4 * LANES) == 0, "a row of O is shared out four columns at a time");
  static_assert(Q_TILE % ROWS == 0 && KV_TILE % LANES == 0 && KV_TILE % 4 == 0, "no remainders");
  static_assert(LANES * Q_TILE / ROWS % WARP_SIZE == 0, "the shuffles need whole warps");

  static constexpr int THREADS = LANES * Q_TILE / ROWS;
  static constexpr int KEYS = KV_TILE / LANES;           // keys of S that a thread works on
  static constexpr int ROW_STEP = Q_TILE / ROWS;         // a thread's rows are this far apart
  static constexpr int CHUNKS = HEAD_DIM / (4 * LANES);  // float4s of a row of O per thread

  // +4 and +8: rows that a warp reads or writes together start in different banks.
  float q[Q_TILE][HEAD_DIM + 4];
  float k[KV_TILE][HEAD_DIM + 4];
  float v[KV_TILE][HEAD_DIM];
  float p[Q_TILE][KV_TILE + 8];
};

/** True if four elements at a time can be loaded from, or stored to, every row of this tensor. */
__device__ __forceinline__ bool takes_vectors(const void *tensor, const Strides &strides,
                                              int head_dim) {
  return ((uintptr_t)tensor % 8 | strides.batch % 4 | strides.head % 4 | strides.row % 4 |
          head_dim % 4) == 0;
}

/**
 * Copies rows first .. first + TILE_ROWS - 1 of a [rows][head_dim] matrix to shared memory as fp32.
 * What lies past the last row or column becomes 0, so that it adds nothing to any product.
 */
template <int TILE_ROWS, int HEAD_DIM, int THREADS, int PITCH, typename T>
__device__ void load_tile(float (&tile_shared)[TILE_ROWS][PITCH], const T *matrix,
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

/** S = Q K^T for the rows and keys of one thread: its `row` and `lane` are the first of each. */
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

/**
 * Turns the scores of one row into weights 2^(scale s - m), leaves them in `p_row`, and brings m, l
 * and O up to date. Of its keys, the row attends the first `keys`; this lane has every LANES-th.
 */
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
  row_max = lanes_max<LANES>(row_max);
  // Nothing attended so far: -inf - -inf would be NaN, -inf - 0 gives 2^-inf = 0.
  const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
  const float rescale = exp2f(m - safe_max);
  m = row_max;
  l *= rescale;
#pragma unroll
  for (int j = 0; j < KEYS; j++) {
    const float weight = exp2f(s[j] - safe_max);
    l += weight;
    p_row[lane + j * LANES] = weight;
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
    for (int x = 0; x < 4; x++) o[c][x] *= rescale;
  }
}

/**
 * O += P V for this thread's rows and columns. With HIDE, row i takes only the first keys[i] keys
 * of the tile: hidden keys have weight 0, but V may hold NaN there, and 0 * NaN is NaN.
 */
template <bool HIDE, typename Tiles>
__device__ __forceinline__ void multiply_pv(float (&o)[ROWS][Tiles::CHUNKS][4], const Tiles &tiles,
                                            const int (&keys)[ROWS], int row, int lane) {
  constexpr int KV_TILE = LANES * Tiles::KEYS;
#pragma unroll 2
  for (int key = 0; key < KV_TILE; key += 4) {
    float weights[ROWS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const float4 w = *reinterpret_cast<const float4 *>(&tiles.p[row + i * Tiles::ROW_STEP][key]);
      weights[i][0] = w.x, weights[i][1] = w.y, weights[i][2] = w.z, weights[i][3] = w.w;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int c = 0; c < Tiles::CHUNKS; c++) {
        const float4 v =
            *reinterpret_cast<const float4 *>(&tiles.v[key + j][c * 4 * LANES + lane * 4]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          if (HIDE && key + j >= keys[i]) continue;
          o[i][c][0] += weights[i][j] * v.x;
          o[i][c][1] += weights[i][j] * v.y;
          o[i][c][2] += weights[i][j] * v.z;
          o[i][c][3] += weights[i][j] * v.w;
        }
      }
    }
  }
}

/** One row of a thread's piece of O, rounded and stored. */
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

/**
 * The whole forward pass. HEAD_DIM is the head dimension rounded up to what the tiles take; columns
 * past problem.head_dim are zero in shared memory and never stored.
 */
template <typename T, int HEAD_DIM, int Q_TILE, int KV_TILE>
__global__ void __launch_bounds__(LANES *Q_TILE / ROWS, 1) attention_kernel(Problem p, Tensors t) {
  using Tiles = SharedTiles<HEAD_DIM, Q_TILE, KV_TILE>;
  extern __shared__ __align__(16) unsigned char smem[];
  auto &tiles = *reinterpret_cast<Tiles *>(smem);

  const int q_tiles = (p.q_len + Q_TILE - 1) / Q_TILE;
  const int first_q = blockIdx.x % q_tiles * Q_TILE;
  const HeadOffsets at = head_offsets(p, blockIdx.x / q_tiles);
  const T *q_global = (const T *)t.q + at.q;
  const T *k_global = (const T *)t.k + at.k;
  const T *v_global = (const T *)t.v + at.v;
  T *o_global = (T *)t.o + at.o;
  const bool k_vectors = takes_vectors(t.k, p.k_strides, p.head_dim);
  const bool v_vectors = takes_vectors(t.v, p.v_strides, p.head_dim);

  const int lane = threadIdx.x % LANES;
  const int row = threadIdx.x / LANES;

  load_tile<Q_TILE, HEAD_DIM, Tiles::THREADS>(tiles.q, q_global, p.q_strides.row, first_q, p.q_len,
                                              p.head_dim,
                                              takes_vectors(t.q, p.q_strides, p.head_dim));

  float m[ROWS];                         // running maximum of the scores, in units of log2
  float l[ROWS];                         // running sum of 2^(score - m), this thread's keys only
  float o[ROWS][Tiles::CHUNKS][4] = {};  // running sum of 2^(score - m) * V
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    m[i] = -INFINITY;
    l[i] = 0.0f;
  }

  // 2^(x log2 e) = e^x: the GPU computes powers of two, so the scores are kept in units of log2.
  const float scale_log2 = p.scale * 1.4426950408889634f;
  // Tiles past the last key of the last row are wholly above the diagonal.
  const int key_end = attended_keys(p, min(first_q + Q_TILE, p.q_len) - 1);
  // Every row attends the keys before this one.
  const int plain_end = attended_keys(p, first_q);

  for (int first_key = 0; first_key < key_end; first_key += KV_TILE) {
    __syncthreads();  // every warp is done with the K and V of the tile before
    load_tile<KV_TILE, HEAD_DIM, Tiles::THREADS>(tiles.k, k_global, p.k_strides.row, first_key,
                                                 p.kv_len, p.head_dim, k_vectors);
    load_tile<KV_TILE, HEAD_DIM, Tiles::THREADS>(tiles.v, v_global, p.v_strides.row, first_key,
                                                 p.kv_len, p.head_dim, v_vectors);
    __syncthreads();  // K, V and, the first time, Q are complete

    int keys[ROWS];  // of this tile, that row i attends
    float s[ROWS][Tiles::KEYS] = {};
    multiply_qk(s, tiles, row, lane);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      keys[i] = attended_keys(p, first_q + row + i * Tiles::ROW_STEP) - first_key;
      update_softmax(s[i], keys[i], scale_log2, tiles.p[row + i * Tiles::ROW_STEP], lane, m[i],
                     l[i], o[i]);
    }
    __syncwarp();  // a row of P is written and read by the same eight lanes of one warp
    if (first_key + KV_TILE <= plain_end) {
      multiply_pv<false>(o, tiles, keys, row, lane);
    } else {
      multiply_pv<true>(o, tiles, keys, row, lane);
    }
  }

  const bool o_vectors = takes_vectors(t.o, p.o_strides, p.head_dim);
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const float sum = lanes_sum<LANES>(l[i]);
    const int q = first_q + row + i * Tiles::ROW_STEP;
    if (q >= p.q_len) continue;
    store_row(o_global + q * p.o_strides.row, o[i], sum == 0.0f ? 0.0f : 1.0f / sum, lane,
              p.head_dim, o_vectors);
    // ln(2^m * sum); a row that attends nothing has m = -inf and sum = 0.
    if (lane == 0)
      t.lse[at.lse + q] = sum == 0.0f ? -INFINITY : m[i] * 0.6931471805599453f + logf(sum);
  }
}

/** One instantiation of the kernel, and what it needs. */
struct Variant {
  Dtype dtype;
  int head_dim, q_tile, kv_tile;
  size_t shared_bytes;
  void (*kernel)(Problem, Tensors);
};

template <typename T, int HEAD_DIM, int Q_TILE, int KV_TILE>
static constexpr Variant variant(Dtype dtype) {
  return {dtype,
          HEAD_DIM,
          Q_TILE,
          KV_TILE,
          sizeof(SharedTiles<HEAD_DIM, Q_TILE, KV_TILE>),
          attention_kernel<T, HEAD_DIM, Q_TILE, KV_TILE>};
}

// For each head dimension the larger tile first; the smaller is for GPUs with less shared memory,
// down to the 64 KB of compute capability 7.5.
static const Variant VARIANTS[] = {
    variant<__half, 32, 64, 32>(DTYPE_FP16),  variant<__nv_bfloat16, 32, 64, 32>(DTYPE_BF16),
    variant<__half, 64, 64, 32>(DTYPE_FP16),  variant<__nv_bfloat16, 64, 64, 32>(DTYPE_BF16),
    variant<__half, 96, 64, 32>(DTYPE_FP16),  variant<__nv_bfloat16, 96, 64, 32>(DTYPE_BF16),
    variant<__half, 128, 64, 32>(DTYPE_FP16), variant<__nv_bfloat16, 128, 64, 32>(DTYPE_BF16),
    variant<__half, 128, 32, 32>(DTYPE_FP16), variant<__nv_bfloat16, 128, 32, 32>(DTYPE_BF16),
    variant<__half, 256, 64, 32>(DTYPE_FP16), variant<__nv_bfloat16, 256, 64, 32>(DTYPE_BF16),
    variant<__half, 256, 16, 16>(DTYPE_FP16), variant<__nv_bfloat16, 256, 16, 16>(DTYPE_BF16),
};

/** Bytes of shared memory that a thread block may have on this device. */
static size_t shared_limit() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

/** The smallest head dimension that holds the problem's, with the largest tile that fits; if none
 * does, the one that needs least. */
static const Variant *choose_variant(const Problem *p) {
  const Variant *chosen = NULL;
  const size_t limit = shared_limit();
  for (const Variant &v : VARIANTS) {
    if (v.dtype != p->dtype || v.head_dim < p->head_dim) continue;
    if (chosen != NULL && v.head_dim != chosen->head_dim) break;
    chosen = &v;
    if (v.shared_bytes <= limit) break;
  }
  return chosen;
}

static int64_t block_count(const Problem *p, const Variant *v) {
  return (int64_t)p->batch * p->q_heads * ((p->q_len + v->q_tile - 1) / v->q_tile);
}

static bool supports(const Problem *p, char *why, size_t why_size) {
  if (p->head_dim > MAX_HEAD_DIM) {
    snprintf(why, why_size, "--head-dim %d: step02 takes 1 to %d", p->head_dim, MAX_HEAD_DIM);
    return false;
  }
  const Variant *v = choose_variant(p);
  if (v->shared_bytes > shared_limit()) {
    snprintf(why, why_size,
             "--head-dim %d: takes %zu bytes of shared memory, but this device has %zu",
             p->head_dim, v->shared_bytes, shared_limit());
    return false;
  }
  if (block_count(p, v) > INT32_MAX) {
    snprintf(
        why, why_size,
        "--batch %d x --heads %d x --seqlen %d: step02 takes at most 2^31 - 1 tiles of %d rows",
        p->batch, p->q_heads, p->q_len, v->q_tile);
    return false;
  }
  return true;
}

static void describe(const Problem *p, size_t, Description *description) {
  const Variant *v = choose_variant(p);
  *description = {};
  description->block_m = v->q_tile;
  description->block_n = v->kv_tile;
  description->ceiling = CEILING_FFMA;
  description->launch_count = 1;
  description->launches[0] = {"attention", (const void *)v->kernel,
                              dim3((unsigned)block_count(p, v)), dim3(LANES * v->q_tile / ROWS),
                              v->shared_bytes};
}

static cudaError_t forward(const Problem *p, const Tensors *t, size_t, cudaStream_t stream) {
  const Variant *v = choose_variant(p);
  const unsigned blocks = (unsigned)block_count(p, v);
  const unsigned threads = LANES * v->q_tile / ROWS;
  const cudaError_t error = cudaFuncSetAttribute(
      v->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)v->shared_bytes);
  if (error != cudaSuccess) return error;
  v->kernel<<<blocks, threads, v->shared_bytes, stream>>>(*p, *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step02",
    .title = "Tiled attention with an online softmax",
    .idea = "One fused kernel: S and P never leave the chip, memory is O(N).",
    .head_dims = "any D up to 256",
    .supports = supports,
    .workspace_bytes = NULL,
    .describe = describe,
    .forward = forward,
    .block_masks = NULL,
};
