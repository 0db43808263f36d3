/**
 * @file
 * Step 04: K and V in buffers of their own, each fetched while the other is worked on.
 *
 * The idea: cp.async returns at once, so the copies for later work can travel during the work at
 * hand: V of this tile during Q K^T, K of the next tile during the softmax and P V. A wait names
 * the group that it needs and lets the later one travel on.
 *
 * What changed since step 03: two buffers instead of one, and the order of copies and waits in the
 * loop. Every other line is the same; `make diff04` shows them.
 *
 * What it costs: shared memory for one more tile, and a last copy of zeros.
 *
 * What to look at: what each wait leaves in flight. With cp_async_wait<0> in place of <1> the
 * answer stays right, and half of the overlap is gone: V still travels during Q K^T, the next K no
 * longer during P V.
 */
#include <math.h>
#include <stdio.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/mma_tile.cuh"
#include "device/ptx.cuh"
#include "device/requirements.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

/** Sizes of the tiles, by head dimension: as large as the registers allow. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int M_TILES = HEAD_DIM <= 128 ? 2 : 1;  // 16-row tiles of Q per warp
  static constexpr int WARP_ROWS = 16 * M_TILES;
  static constexpr int Q_ROWS = WARPS * WARP_ROWS;
  static constexpr int KV_ROWS = HEAD_DIM <= 64 ? 64 : 32;
  static constexpr int SHARED_BYTES = 2 * (Q_ROWS + 2 * KV_ROWS) * PITCH<HEAD_DIM>;
};

/** The whole forward pass: one thread block for Q_ROWS queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS) attention_kernel(Problem p, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_TILES = Tile::M_TILES;

  extern __shared__ __align__(16) unsigned char smem[];
  T *q_shared = (T *)smem;
  T *k_shared = q_shared + Tile::Q_ROWS * PITCH<HEAD_DIM>;
  T *v_shared = k_shared + Tile::KV_ROWS * PITCH<HEAD_DIM>;

  // Under the causal mask the last rows have the most work: they start first.
  const int q_tiles = (p.q_len + Tile::Q_ROWS - 1) / Tile::Q_ROWS;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::Q_ROWS;
  const HeadOffsets at = head_offsets(p, blockIdx.x / q_tiles);
  const T *q_global = (const T *)t.q + at.q;
  const T *k_global = (const T *)t.k + at.k;
  const T *v_global = (const T *)t.v + at.v;

  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  T *q_warp = q_shared + warp_row * PITCH<HEAD_DIM>;

  // Of the rows lane / 4 and 8 below in each 16-row tile:
  float m[M_TILES][2];  // running maximum of the scores, in units of log2
  float l[M_TILES][2];  // running sum of the weights, this lane's keys only
  float o[M_TILES][HEAD_DIM / 8][4] = {};
#pragma unroll
  for (int i = 0; i < M_TILES; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      m[i][half] = -INFINITY;
      l[i][half] = 0.0f;
    }
  }
  // adjust_scores() sees to the sign and to 0: a hidden score is -inf, and -inf * 0 would be NaN.
  const float scale_log2 = p.scale == 0.0f ? 1.0f : fabsf(p.scale) * 1.4426950408889634f;
  const int key_end = attended_keys(p, min(first_q + Tile::Q_ROWS, p.q_len) - 1);
  // Every row attends the keys before this one, so that their scores need no second look.
  const int plain_end = p.scale <= 0.0f ? 0 : attended_keys(p, first_q);

  copy_tile<HEAD_DIM, Tile::Q_ROWS, THREADS>(q_shared, q_global, p.q_strides.row, first_q, p.q_len);
  copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(k_shared, k_global, p.k_strides.row, 0, p.kv_len);
  cp_async_commit();  // Q and the first K

  for (int first_key = 0; first_key < key_end; first_key += Tile::KV_ROWS) {
    cp_async_wait<0>();  // K of this tile: nothing else is in flight
    __syncthreads();  // it has arrived, whoever copied it, and every warp is done with the last V

    copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(v_shared, v_global, p.v_strides.row, first_key,
                                                p.kv_len);
    cp_async_commit();  // V of this tile travels during Q K^T

    float s[M_TILES][Tile::KV_ROWS / 8][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    __syncthreads();  // every warp is done with K before the next one takes its place

    // K of the next tile travels during the softmax and P V. Behind the last tile it is all zeros,
    // so that the wait below names the same group every time.
    const int next_key = first_key + Tile::KV_ROWS;
    copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(k_shared, k_global, p.k_strides.row, next_key,
                                                next_key < key_end ? p.kv_len : 0);
    cp_async_commit();

    if (next_key > plain_end) {
      adjust_scores(s, p, p.mask == MASK_CAUSAL, first_q + warp_row, first_key);
    }
    update_softmax(s, m, l, o, scale_log2);

    cp_async_wait<1>();  // V, the last group but one; the next K stays in flight
    __syncthreads();     // it has arrived, whoever copied it
    multiply_pv<T, HEAD_DIM>(o, s, v_shared);
  }

  cp_async_wait<0>();  // the zeros behind the last tile, or Q
  __syncthreads();     // Q is there, even if no key was attended: O takes its place
  store_rows<T, HEAD_DIM>(o, m, l, q_warp, (T *)t.o + at.o, p.o_strides.row, t.lse + at.lse,
                          first_q + warp_row, p.q_len);
}

/** One instantiation of the kernel, and what it needs. */
struct Variant {
  Dtype dtype;
  int head_dim, q_rows, kv_rows, shared_bytes;
  void (*kernel)(Problem, Tensors);
};

template <typename T, int HEAD_DIM>
static constexpr Variant variant(Dtype dtype) {
  using Tile = Tiles<HEAD_DIM>;
  return {dtype,         HEAD_DIM,           Tile::Q_ROWS,
          Tile::KV_ROWS, Tile::SHARED_BYTES, attention_kernel<T, HEAD_DIM>};
}

static const Variant VARIANTS[] = {
    variant<__half, 32>(DTYPE_FP16),         variant<__half, 64>(DTYPE_FP16),
    variant<__half, 96>(DTYPE_FP16),         variant<__half, 128>(DTYPE_FP16),
    variant<__half, 256>(DTYPE_FP16),        variant<__nv_bfloat16, 32>(DTYPE_BF16),
    variant<__nv_bfloat16, 64>(DTYPE_BF16),  variant<__nv_bfloat16, 96>(DTYPE_BF16),
    variant<__nv_bfloat16, 128>(DTYPE_BF16), variant<__nv_bfloat16, 256>(DTYPE_BF16),
};

/** The variant for this dtype and head dimension, or NULL. */
static const Variant *find_variant(const Problem *p) {
  for (const Variant &v : VARIANTS) {
    if (v.dtype == p->dtype && v.head_dim == p->head_dim) return &v;
  }
  return NULL;
}

static int64_t block_count(const Problem *p, const Variant *v) {
  return (int64_t)p->batch * p->q_heads * ((p->q_len + v->q_rows - 1) / v->q_rows);
}

static bool supports(const Problem *p, char *why, size_t why_size) {
  const Variant *v = find_variant(p);
  if (v == NULL) {
    snprintf(why, why_size, "--head-dim %d: %s takes 32, 64, 96, 128 or 256", p->head_dim,
             step.name);
    return false;
  }
  return tensor_core_supports(p, v->shared_bytes, block_count(p, v), why, why_size);
}

static void describe(const Problem *p, size_t, Description *description) {
  const Variant *v = find_variant(p);
  *description = {};
  description->block_m = v->q_rows;
  description->block_n = v->kv_rows;
  description->ceiling = CEILING_MMA;
  description->multiplies_hidden_keys = true;
  description->launch_count = 1;
  description->launches[0] = {"attention", (const void *)v->kernel,
                              dim3((unsigned)block_count(p, v)), dim3(THREADS),
                              (size_t)v->shared_bytes};
}

static cudaError_t forward(const Problem *p, const Tensors *t, size_t, cudaStream_t stream) {
  const Variant *v = find_variant(p);
  const unsigned blocks = (unsigned)block_count(p, v);
  cudaError_t error = check_alignment(t);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(v->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 v->shared_bytes);
  }
  if (error != cudaSuccess) return error;
  v->kernel<<<blocks, THREADS, v->shared_bytes, stream>>>(*p, *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step04",
    .title = "Prefetch: K and V in buffers of their own",
    .idea = "V travels during Q K^T, the next K during the softmax and P V.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports,
    .workspace_bytes = NULL,
    .describe = describe,
    .forward = forward,
    .block_masks = NULL,
};
