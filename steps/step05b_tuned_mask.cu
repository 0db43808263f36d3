/**
 * @file
 * Step 05b: the masks of step 05 in the kernel of step 06b.
 *
 * The idea: what the tuned kernel needs to know of a mask arrives like K and V. The list names the
 * next tile while there is time to copy it, and the bits of a PARTIAL tile are copied with it.
 *
 * What changed since step 06b: the loop follows a list, as in step 05 (device/tile_list.cuh). Bits
 * are in shared memory instead of registers, of which none is left. Mask blocks that are smaller
 * than the tiles have smaller tiles; these also serve GPUs with less shared memory, and D = 256.
 *
 * What it costs: up to 4 KiB of shared memory for the bits, and registers for the list.
 *
 * What to look at: the times of `--mask window:1024` and `--mask document:8` for each tile, against
 * those of step 05, and of step 06b for `--mask causal`.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/rare_max.cuh"
#include "device/store_rows.cuh"
#include "device/swizzle_tile.cuh"
#include "device/tile_list.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

// [tile_shapes]
/**
 * Sizes of the tiles. LARGE tiles, those of step 06b, need mask blocks whose sides are multiples of
 * BLOCK_M and BLOCK_N. The others are for smaller mask blocks or less shared memory.
 */
template <int HEAD_DIM, bool LARGE>
struct Tiles {
  static constexpr int M_FRAGMENTS = LARGE ? 2 : 1;  // of 16 rows of Q each, per warp
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;                             // rows of Q
  static constexpr int BLOCK_N = (LARGE ? 64 : 32) * (HEAD_DIM <= 64 ? 2 : 1);  // rows of K and V
  static constexpr int WORDS = BLOCK_N / 32;                                    // of bits, in a row
  static constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;   // of one stage of K or of V
  static constexpr int BITS_BYTES = BLOCK_M * BLOCK_N / 8;  // of one stage of the mask's bits
  static constexpr int SHARED_BYTES = Q_BYTES + 4 * KV_BYTES + 2 * BITS_BYTES;
};
// [tile_shapes]

// [bits]
/** Starts copying the bits of a PARTIAL tile. */
template <int BYTES>
__device__ __forceinline__ void copy_bits(unsigned char *bits_shared, const uint32_t *bits) {
  static_assert(BYTES / 16 <= THREADS, "one chunk per thread");
  if (threadIdx.x < BYTES / 16) {
    cp_async_16(bits_shared + 16 * threadIdx.x, bits + 4 * threadIdx.x, true);
  }
}

/** Sets the scores whose bit is 0 to -inf. Bit j of a word is key 32 * word + j; rows are WORDS
 * apart, and `row_bits` is the word of this warp's first row and first key. */
template <int WORDS, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void apply_bitmask(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                              const uint32_t *row_bits) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint32_t *words = row_bits + (16 * i + 8 * half + lane / 4) * WORDS;
#pragma unroll
      for (int n = 0; n < N_FRAGMENTS; n += 4) {  // four fragments are 32 keys, one word
        const uint32_t word = words[n / 4] >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if ((word >> (j / 2 * 8 + j % 2) & 1) == 0) s[i][n + j / 2][2 * half + j % 2] = -INFINITY;
        }
      }
    }
  }
}
// [bits]

// [mask_scores]
/** Applies the mask of a tile to the scores of this warp; its first row is query `first_q`. */
template <int WORDS, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void mask_scores(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            const Problem &problem, int mask, int first_q,
                                            int first_key, const uint32_t *row_bits) {
  if (mask == ALL_ATTENDED) return;
  if (mask < 0 || first_key + 8 * N_FRAGMENTS > problem.kv_len) {
    apply_mask(s, problem, mask == CAUSAL_RULE, first_q, first_key);
  }
  if (mask >= 0) apply_bitmask<WORDS>(s, row_bits);
}
// [mask_scores]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM, bool LARGE>
__global__ void __launch_bounds__(THREADS, HEAD_DIM <= 128 ? 2 : 1)
    attention_kernel(Problem problem, Tensors t, TileLists lists) {
  using Tile = Tiles<HEAD_DIM, LARGE>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;

  extern __shared__ __align__(128) unsigned char smem[];
  unsigned char *k_shared = smem + Tile::Q_BYTES, *v_shared = k_shared + 2 * Tile::KV_BYTES;
  unsigned char *bits_shared = v_shared + 2 * Tile::KV_BYTES;  // two stages, like K and V

  // [find_work]
  const BlockWork work = work_of_block(problem, lists, blockIdx.x);
  const KeyTile *list = work.tiles, *end = list + work.own.tile_count;
  const int first_q = work.own.q_tile * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, work.head);
  // [find_work]
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  const int lane = threadIdx.x % WARP_SIZE;
  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  const uint32_t q_lane = lane_address<HEAD_DIM>(smem, warp_row + lane % 16, lane / 16);
  const uint32_t k_lane = lane_address<HEAD_DIM>(k_shared, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t v_lane = lane_address<HEAD_DIM>(v_shared, lane % 16, lane / 16);

  const int copy_row = threadIdx.x / SWIZZLE_CHUNKS<HEAD_DIM>;
  const int copy_chunk = threadIdx.x % SWIZZLE_CHUNKS<HEAD_DIM>;
  const uint32_t target = shared_address(k_shared) + chunk_offset<HEAD_DIM>(copy_row, copy_chunk);
  const T *k_chunk = first_chunk<HEAD_DIM>(k_global, problem.k_strides.row);
  const T *v_chunk = first_chunk<HEAD_DIM>(v_global, problem.v_strides.row);
  const auto copy_keys = [&](KeyTile tile, int stage) {
    const int key = tile.first_key, rows = problem.kv_len - key - copy_row;
    const int64_t k_stride = problem.k_strides.row, v_stride = problem.v_strides.row;
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(target + stage * Tile::KV_BYTES,
                                                k_chunk + key * k_stride, k_stride, rows);
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(target + (2 + stage) * Tile::KV_BYTES,
                                                v_chunk + key * v_stride, v_stride, rows);
    if (tile.mask >= 0) {
      copy_bits<Tile::BITS_BYTES>(bits_shared + stage * Tile::BITS_BYTES,
                                  bits_of_tile(lists, tile.mask));
    }
    cp_async_commit();
  };

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // maximum of score * scale * log2(e) over some of the keys so far
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -FLT_MAX);
  const float scale_log2 = problem.scale * LOG2_E;

  copy_rows<HEAD_DIM, Tile::BLOCK_M, THREADS>(
      shared_address(smem) + chunk_offset<HEAD_DIM>(copy_row, copy_chunk),
      q_global + (first_q + copy_row) * problem.q_strides.row + copy_chunk * CHUNK,
      problem.q_strides.row, problem.q_len - first_q - copy_row);
  KeyTile tile = work.own.first;
  copy_keys(tile, 0);  // zeros, if all keys are masked

  // [iteration]
  int stage = 1;
  while (list < end) {
    stage ^= 1;
    cp_async_wait<0>();  // K, V and bits of this tile, at first also Q: nothing else is in flight
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_lane, k_lane + stage * Tile::KV_BYTES);
    // The copies come after Q K^T, so that the tensor cores have work after the barrier at once.
    const KeyTile next = *++list;
    if (list < end) copy_keys(next, 1 - stage);
    mask_scores<Tile::WORDS>(
        s, problem, tile.mask, first_q + warp_row, tile.first_key,
        (const uint32_t *)(bits_shared + stage * Tile::BITS_BYTES) + warp_row * Tile::WORDS);
    update_output<T, HEAD_DIM>(o, m, l, s, v_lane + stage * Tile::KV_BYTES, scale_log2);
    tile = next;
  }
  // [iteration]

  cp_async_wait<0>();  // Q and the first keys, if all keys are masked
  __syncthreads();     // no warp reads Q or K any more; O can be written there, in padded rows
  T *o_warp = (T *)smem + warp_row * SMEM_STRIDE<HEAD_DIM>;
  store_rows<T, HEAD_DIM>(o, m, l, o_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_q + warp_row, problem.q_len);
}

template <typename T, int HEAD_DIM, bool LARGE>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM, LARGE>>(
    attention_kernel<T, HEAD_DIM, LARGE>, THREADS, Tiles<HEAD_DIM, LARGE>::SHARED_BYTES, USES_MMA);

#define CONFIGS_OF(HEAD_DIM, LARGE) \
  CONFIG<__half, HEAD_DIM, LARGE>, CONFIG<__nv_bfloat16, HEAD_DIM, LARGE>

static constexpr KernelConfig<TileLists> CONFIGS[] = {
    CONFIGS_OF(32, true),  CONFIGS_OF(32, false),  CONFIGS_OF(64, true),
    CONFIGS_OF(64, false), CONFIGS_OF(96, true),   CONFIGS_OF(96, false),
    CONFIGS_OF(128, true), CONFIGS_OF(128, false), CONFIGS_OF(256, false)};

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
    .name = "step05b",
    .after = "step06b",
    .title = "Block-sparse masks in the tuned kernel",
    .idea = "Bits of masks are copied like K and V; lists of tiles replace the loop's bounds.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
