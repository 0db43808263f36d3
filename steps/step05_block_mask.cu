/**
 * @file
 * Step 05: block-sparse masks.
 *
 * The idea: most blocks of practical masks are all-masked or all-unmasked. Cut into blocks, a mask
 * says which blocks to visit at all, and which of those need mask code.
 *
 * What changed since step 04: the loop goes through a list of key/value tiles instead of all tiles
 * up to the diagonal, so the prefetch of the next K skips what is masked. Each tile names its mask:
 * none, the causal rule, or the bits of a PARTIAL block.
 *
 * What it costs: the kernels in device/tile_list.cuh make the lists and the bits once per mask, and
 * these take memory.
 *
 * What to look at: a tile without a mask runs what step 04 runs. Time is proportional to the number
 * of tiles in the lists: compare `--mask window:1024` or `--mask document:8` with `--mask causal`.
 */
#include <math.h>

#include "attention.h"
#include "device/copy_tile.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mma_tile.cuh"
#include "device/ptx.cuh"
#include "device/tile_list.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

/** Sizes of the tiles. M_FRAGMENTS = 1 makes tiles of 64 queries, for mask blocks of 64 rows. */
template <int HEAD_DIM, int M_FRAGMENTS>
struct Tiles {
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;         // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 64 : 32;  // rows of K and V
  static constexpr int SHARED_BYTES = 2 * (BLOCK_M + 2 * BLOCK_N) * SMEM_STRIDE<HEAD_DIM>;
};

// [load_bits]
/**
 * Loads the mask bits of this lane's rows: bit j of a word is key 32 * word + j of the tile. Rows
 * are WORDS apart; `row_bits` are those of row 0 of this warp.
 */
template <int M_FRAGMENTS, int WORDS>
__device__ __forceinline__ void load_bitmask(uint32_t (&bits)[M_FRAGMENTS][2][WORDS],
                                             const uint32_t *row_bits) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int word = 0; word < WORDS; word++) {
        bits[i][half][word] = row_bits[(16 * i + 8 * half + lane / 4) * WORDS + word];
      }
    }
  }
}
// [load_bits]

// [apply_bits]
/** Sets the scores whose bit is 0 to -inf. */
template <int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void apply_bitmask(
    float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
    const uint32_t (&bits)[M_FRAGMENTS][2][N_FRAGMENTS / 4]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int n = 0; n < N_FRAGMENTS; n += 4) {  // four fragments are 32 keys, one word
        const uint32_t word = bits[i][half][n / 4] >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if ((word >> (j / 2 * 8 + j % 2) & 1) == 0) s[i][n + j / 2][2 * half + j % 2] = -INFINITY;
        }
      }
    }
  }
}
// [apply_bits]

// [find_row]
/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS>
__global__ void __launch_bounds__(THREADS)
    attention_kernel(Problem problem, Tensors t, TileLists lists) {
  using Tile = Tiles<HEAD_DIM, M_FRAGMENTS>;

  extern __shared__ __align__(16) unsigned char smem[];
  T *q_shared = (T *)smem;
  T *k_shared = q_shared + Tile::BLOCK_M * SMEM_STRIDE<HEAD_DIM>;
  T *v_shared = k_shared + Tile::BLOCK_N * SMEM_STRIDE<HEAD_DIM>;

  const BlockRow row = row_of_block(problem, lists.heads_per_wave, lists.q_tiles, blockIdx.x);
  const int head = row.head;
  const int list =
      list_of_head(lists, head / problem.q_heads, head % problem.q_heads) * lists.q_tiles;
  // The tiles of queries with the longest lists start first.
  const QueryList own = lists.order[list + row.entry];
  const KeyTile *tiles = lists.tiles + (int64_t)(list + own.q_tile) * lists.most_tiles;
  const int first_q = own.q_tile * Tile::BLOCK_M;
  // [find_row]

  const HeadOffsets offset = head_offsets(problem, head);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  T *q_warp = q_shared + warp_row * SMEM_STRIDE<HEAD_DIM>;

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // running maximum of score * scale * log2(e)
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -INFINITY);
  const float scale_log2 = problem.scale * LOG2_E;

  // [first_copies]
  copy_tile<HEAD_DIM, Tile::BLOCK_M, THREADS>(q_shared, q_global, problem.q_strides.row, first_q,
                                              problem.q_len);
  KeyTile tile = own.first;
  copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_shared, k_global, problem.k_strides.row,
                                              tile.first_key, problem.kv_len);
  cp_async_commit();  // Q and the first K
  // [first_copies]

  // [next_entry]
  for (int i = 0; i < own.tile_count; i++) {
    cp_async_wait<0>();  // K of this tile: nothing else is in flight
    __syncthreads();     // all threads' copies are visible, and all warps have read the previous V

    copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(v_shared, v_global, problem.v_strides.row,
                                                tile.first_key, problem.kv_len);
    cp_async_commit();  // V of this tile is copied during Q K^T and the softmax

    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    // The bits of a PARTIAL tile and the next entry of the list are loaded before the barrier and
    // used after it, so that the loads overlap the wait.
    constexpr int WORDS = Tile::BLOCK_N / 32;  // of one row
    uint32_t bits[M_FRAGMENTS][2][WORDS];
    if (tile.mask >= 0) {
      load_bitmask(bits, lists.bits + ((int64_t)tile.mask * Tile::BLOCK_M + warp_row) * WORDS);
    }
    const KeyTile next = tiles[i + 1];
    __syncthreads();  // all warps have read K; its buffer can be overwritten
    // [next_entry]

    // [copy_and_mask]
    // K of the next tile in the list is copied during the softmax and P V. After the last tile the
    // copy writes zeros, so that the wait below counts the same groups in every iteration.
    copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_shared, k_global, problem.k_strides.row,
                                                next.first_key, problem.kv_len);
    cp_async_commit();

    if (tile.mask != ALL_ATTENDED) {
      if (tile.mask < 0 || tile.first_key + Tile::BLOCK_N > problem.kv_len) {
        apply_mask(s, problem, tile.mask == CAUSAL_RULE, first_q + warp_row, tile.first_key);
      }
      if (tile.mask >= 0) apply_bitmask(s, bits);
    }
    update_softmax(s, m, l, o, scale_log2);

    cp_async_wait<1>();  // waits for V; the next K stays in flight
    __syncthreads();     // all threads' copies are visible
    multiply_pv<T, HEAD_DIM>(o, s, v_shared);
    tile = next;
  }
  // [copy_and_mask]

  cp_async_wait<0>();  // the zeros after the last tile or, if the list is empty, Q
  __syncthreads();     // all threads' copies of Q are complete; its rows can be overwritten by O
  store_rows<T, HEAD_DIM>(o, m, l, q_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_q + warp_row, problem.q_len);
}

template <typename T, int HEAD_DIM, int M_FRAGMENTS>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM, M_FRAGMENTS>>(
    attention_kernel<T, HEAD_DIM, M_FRAGMENTS>, THREADS, Tiles<HEAD_DIM, M_FRAGMENTS>::SHARED_BYTES,
    USES_MMA);

#define CONFIGS_OF(HEAD_DIM, M_FRAGMENTS) \
  CONFIG<__half, HEAD_DIM, M_FRAGMENTS>, CONFIG<__nv_bfloat16, HEAD_DIM, M_FRAGMENTS>

static constexpr KernelConfig<TileLists> CONFIGS[] = {  // tiles of 128 queries before those of 64
    CONFIGS_OF(32, 2), CONFIGS_OF(64, 2), CONFIGS_OF(96, 2),  CONFIGS_OF(128, 2), CONFIGS_OF(32, 1),
    CONFIGS_OF(64, 1), CONFIGS_OF(96, 1), CONFIGS_OF(128, 1), CONFIGS_OF(256, 1)};

// [prepare_lists]
static cudaError_t prepare(const Problem *problem, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  const TileLists lists =
      lay_out_tile_lists(problem, mask, find_config<CONFIGS>(problem), prepared);
  if (lists.partial_tiles > 0) {
    pack_bits_kernel<<<(unsigned)lists.partial_tiles, THREADS, 0, stream>>>(*mask, lists);
  }
  list_tiles_kernel<<<lists.rows, WARP_SIZE, 0, stream>>>(*problem, *mask, lists);
  order_rows_kernel<<<(lists.rows + THREADS - 1) / THREADS, THREADS, 0, stream>>>(lists);
  return cudaGetLastError();
}
// [prepare_lists]

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  const TileLists lists = lay_out_tile_lists(problem, t->block_mask, config, t->prepared);
  config->kernel<<<grid_size(config, problem), THREADS, config->shared_bytes, stream>>>(*problem,
                                                                                        *t, lists);
  return cudaGetLastError();
}

static const BlockMaskSupport BLOCK_MASKS = {.prepared_bytes = tile_list_bytes<CONFIGS>,
                                             .prepare = prepare};

const Step step = {
    .name = "step05",
    .after = "step04",
    .title = "Block-sparse masks",
    .idea = "Only blocks with unmasked entries are visited; only mixed ones run mask code.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
