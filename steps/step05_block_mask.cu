/**
 * @file
 * Step 05: any mask, given as blocks: full, causal, partial, and none.
 *
 * The idea: most masks of practice are empty or full nearly everywhere. Cut into blocks, only those
 * with something in them are visited, and only those that are mixed run mask code.
 *
 * What changed since step 04: the loop walks over a list of key/value tiles instead of all tiles up
 * to the diagonal, so that the prefetch of the next K jumps over whatever is masked. Each tile says
 * how it is masked: not at all, by the causal rule, or by the bits of a partial tile. STAGES = 1
 * runs the same lists with one buffer for K and V, as step 03, to see what prefetch is worth here.
 *
 * What it costs: the lists and the bits are made once per mask by the kernels in
 * device/tile_list.cuh, and take memory.
 *
 * What to look at: a FULL tile runs what step 04 runs. Time follows the number of tiles in the
 * lists: `--mask window:1024` or `--mask document:8` against `--mask causal`.
 */
#include <math.h>
#include <stdio.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/mma_tile.cuh"
#include "device/ptx.cuh"
#include "device/requirements.cuh"
#include "device/tile_list.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;
constexpr int LEAST_BLOCK = 64;  // mask blocks are multiples of this, and of the tiles

/** Sizes of the tiles. M_TILES = 1 makes tiles of 64 queries, for mask blocks that are as small. */
template <int HEAD_DIM, int M_TILES, int STAGES>
struct Tiles {
  static constexpr int WARP_ROWS = 16 * M_TILES;
  static constexpr int Q_ROWS = WARPS * WARP_ROWS;
  static constexpr int KV_ROWS = HEAD_DIM <= 64 ? 64 : 32;
  static constexpr int SHARED_BYTES = 2 * (Q_ROWS + STAGES * KV_ROWS) * PITCH<HEAD_DIM>;
};

/** The whole forward pass: one thread block for Q_ROWS queries of one head. */
template <typename T, int HEAD_DIM, int M_TILES, int STAGES>
__global__ void __launch_bounds__(THREADS) attention_kernel(Problem p, Tensors t, TileLists lists) {
  using Tile = Tiles<HEAD_DIM, M_TILES, STAGES>;

  extern __shared__ __align__(16) unsigned char smem[];
  T *q_shared = (T *)smem;
  T *k_shared = q_shared + Tile::Q_ROWS * PITCH<HEAD_DIM>;
  T *v_shared = k_shared + (STAGES - 1) * Tile::KV_ROWS * PITCH<HEAD_DIM>;

  const BlockRow row = row_of_block(p, lists, blockIdx.x);
  const int head = row.head;
  const int list = list_of_head(lists, head / p.q_heads, head % p.q_heads) * lists.q_tiles;
  // The tiles of queries with the longest lists start first.
  const QueryTile own = lists.order[list + row.entry];
  const KeyTile *tiles = lists.tiles + (int64_t)(list + own.q_tile) * lists.most_tiles;
  const int first_q = own.q_tile * Tile::Q_ROWS;

  const HeadOffsets at = head_offsets(p, head);
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
  // With a scale that is not positive no tile is plain.
  const int plain = p.scale <= 0.0f ? (int)NONE_ATTENDED : (int)ALL_ATTENDED;
  const int plain_end = p.scale <= 0.0f ? 0 : p.kv_len;

  copy_tile<HEAD_DIM, Tile::Q_ROWS, THREADS>(q_shared, q_global, p.q_strides.row, first_q, p.q_len);
  KeyTile tile = own.first;
  if (STAGES == 2) {
    copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(k_shared, k_global, p.k_strides.row, tile.first_key,
                                                p.kv_len);
  }
  cp_async_commit();  // Q and, with two stages, the first K

  for (int i = 0; i < own.tile_count; i++) {
    if (STAGES == 1) {
      copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(k_shared, k_global, p.k_strides.row,
                                                  tile.first_key, p.kv_len);
      cp_async_commit();
    }
    cp_async_wait<0>();  // K of this tile: nothing else is in flight
    __syncthreads();  // it has arrived, whoever copied it, and every warp is done with the last V

    if (STAGES == 2) {
      copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(v_shared, v_global, p.v_strides.row,
                                                  tile.first_key, p.kv_len);
      cp_async_commit();  // V of this tile travels during Q K^T
    }

    float s[M_TILES][Tile::KV_ROWS / 8][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    // The bits of a partial tile and the next entry of the list are asked for before the barrier
    // and needed behind it.
    constexpr int WORDS = Tile::KV_ROWS / 32;  // of a row
    uint32_t bits[M_TILES][2][WORDS];
    if (tile.mask >= 0) {
      load_bits(bits, lists.bits + ((int64_t)tile.mask * Tile::Q_ROWS + warp_row) * WORDS);
    }
    const KeyTile next = tiles[i + 1];
    __syncthreads();  // every warp is done with K before something else takes its place

    if (STAGES == 2) {
      // K of the next tile in the list, however far away, travels during the softmax and P V.
      // Behind the last tile it is all zeros, so that the wait below names the same group.
      copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(k_shared, k_global, p.k_strides.row,
                                                  next.first_key, p.kv_len);
    } else {
      copy_tile<HEAD_DIM, Tile::KV_ROWS, THREADS>(v_shared, v_global, p.v_strides.row,
                                                  tile.first_key, p.kv_len);
    }
    cp_async_commit();

    if (tile.mask != plain) {
      if (tile.mask < 0 || tile.first_key + Tile::KV_ROWS > plain_end) {
        adjust_scores(s, p, tile.mask == CAUSAL_RULE, first_q + warp_row, tile.first_key);
      }
      if (tile.mask >= 0) hide_by_bits(s, bits);
    }
    update_softmax(s, m, l, o, scale_log2);

    cp_async_wait<STAGES - 1>();  // V; with two stages the next K stays in flight
    __syncthreads();              // it has arrived, whoever copied it
    multiply_pv<T, HEAD_DIM>(o, s, v_shared);
    if (STAGES == 1) {
      __syncthreads();  // every warp is done with V before the next K takes its place
    }
    tile = next;
  }

  cp_async_wait<0>();  // the zeros behind the last tile, or Q
  __syncthreads();     // Q is there, even if no key was attended: O takes its place
  store_rows<T, HEAD_DIM>(o, m, l, q_warp, (T *)t.o + at.o, p.o_strides.row, t.lse + at.lse,
                          first_q + warp_row, p.q_len);
}

/** One instantiation of the kernel, and what it needs. */
struct Variant {
  Dtype dtype;
  int head_dim, stages, q_rows, kv_rows, shared_bytes;
  void (*kernel)(Problem, Tensors, TileLists);
};

template <typename T, int HEAD_DIM, int M_TILES, int STAGES>
static constexpr Variant variant(Dtype dtype) {
  using Tile = Tiles<HEAD_DIM, M_TILES, STAGES>;
  return {dtype,
          HEAD_DIM,
          STAGES,
          Tile::Q_ROWS,
          Tile::KV_ROWS,
          Tile::SHARED_BYTES,
          attention_kernel<T, HEAD_DIM, M_TILES, STAGES>};
}

// Of the variants that fit, the first is taken: tiles of 128 queries before tiles of 64.
#define VARIANTS_OF(HEAD_DIM, M_TILES)                          \
  variant<__half, HEAD_DIM, M_TILES, 1>(DTYPE_FP16),            \
      variant<__half, HEAD_DIM, M_TILES, 2>(DTYPE_FP16),        \
      variant<__nv_bfloat16, HEAD_DIM, M_TILES, 1>(DTYPE_BF16), \
      variant<__nv_bfloat16, HEAD_DIM, M_TILES, 2>(DTYPE_BF16)

static const Variant VARIANTS[] = {
    VARIANTS_OF(32, 2),  VARIANTS_OF(64, 2),  VARIANTS_OF(96, 2),
    VARIANTS_OF(128, 2), VARIANTS_OF(32, 1),  VARIANTS_OF(64, 1),
    VARIANTS_OF(96, 1),  VARIANTS_OF(128, 1), VARIANTS_OF(256, 1),
};

/** The variant for this problem and its mask blocks, or NULL. */
static const Variant *find_variant(const Problem *p) {
  for (const Variant &v : VARIANTS) {
    if (v.dtype == p->dtype && v.head_dim == p->head_dim && v.stages == (p->shared_kv ? 1 : 2) &&
        p->q_block_size % v.q_rows == 0) {
      return &v;
    }
  }
  return NULL;
}

static int64_t block_count(const Problem *p, const Variant *v) {
  return (int64_t)p->batch * p->q_heads * ((p->q_len + v->q_rows - 1) / v->q_rows);
}

static bool supports(const Problem *p, char *why, size_t why_size) {
  if (p->q_block_size % LEAST_BLOCK != 0 || p->kv_block_size % LEAST_BLOCK != 0) {
    snprintf(why, why_size, "mask blocks of %dx%d: %s takes multiples of %d", p->q_block_size,
             p->kv_block_size, step.name, LEAST_BLOCK);
    return false;
  }
  const Variant *v = find_variant(p);
  if (v == NULL) {
    snprintf(why, why_size, "--head-dim %d: %s takes 32, 64, 96, 128 or 256", p->head_dim,
             step.name);
    return false;
  }
  return tensor_core_supports(p, v->shared_bytes, block_count(p, v), why, why_size);
}

static size_t prepared_bytes(const Problem *p, const BlockMask *mask) {
  const Variant *v = find_variant(p);
  TileLists lists;
  return lay_out_tile_lists(p, mask, v->q_rows, v->kv_rows, NULL, &lists);
}

static cudaError_t prepare(const Problem *p, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  const Variant *v = find_variant(p);
  TileLists lists;
  lay_out_tile_lists(p, mask, v->q_rows, v->kv_rows, prepared, &lists);
  const int64_t rows = (int64_t)lists.batches * lists.heads * lists.q_tiles;
  const unsigned row_blocks = (unsigned)((rows + THREADS - 1) / THREADS);
  if (lists.partial_tiles > 0) {
    pack_bits_kernel<<<(unsigned)lists.partial_tiles, THREADS, 0, stream>>>(*mask, lists);
  }
  list_tiles_kernel<<<(unsigned)rows, WARP_SIZE, 0, stream>>>(*p, *mask, lists);
  order_rows_kernel<<<row_blocks, THREADS, 0, stream>>>(lists, rows);
  return cudaGetLastError();
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
  TileLists lists;
  lay_out_tile_lists(p, t->block_mask, v->q_rows, v->kv_rows, t->prepared, &lists);
  v->kernel<<<blocks, THREADS, v->shared_bytes, stream>>>(*p, *t, lists);
  return cudaGetLastError();
}

static const char *const TOUR[] = {
    "-b 1 -n 1024 --mask causal --mask-block 64x64 --min-time 0.1",
    "-b 1 -n 1024 --mask window:200 --mask-block 64x64 --min-time 0.1",
    "-b 1 -n 1024 --mask document:3 --mask-block 64x64 --min-time 0.1",
    "-b 1 -n 1024 --mask interleaved:1 --mask-block 64x64 --min-time 0.1",
    "-b 1 -n 1024 --mask random:0.5 --mask-block 64x64 --min-time 0.1",
    NULL,
};

static const BlockMaskSupport BLOCK_MASKS = {
    .tour = TOUR,
    .prepared_bytes = prepared_bytes,
    .prepare = prepare,
};

const Step step = {
    .name = "step05",
    .title = "The full block mask",
    .idea = "Only blocks that the mask leaves are visited; only mixed ones run mask code.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports,
    .workspace_bytes = NULL,
    .describe = describe,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
