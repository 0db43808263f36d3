/**
 * @file
 * Step 20i: TMA loads the tiles.
 *
 * The idea: by the clock, a warpgroup of step 20g hardly waits for memory. Of the 3500 clocks that
 * it has a tile, 1200 go by while it computes addresses and asks for the next one, and it
 * multiplies nothing meanwhile. So warps of their own ask, and they ask TMA, which copies a box of
 * 64 keys and 64 columns with one instruction.
 *
 * What changed since step 20g: each warpgroup gets a warp that loads its tiles. A slot of a ring
 * has two mbarriers: `full` counts the bytes that arrive, and `empty` the warps that have read
 * them. Tensor maps say where boxes are; pages are their outermost dimension. A box must not read
 * past the last key of a sequence. So its last tile has boxes of one row, and for rows without a
 * key they are outside of the tensor: TMA reads nothing there, and stores zeros.
 *
 * What it costs: the host makes four tensor maps for each launch. And of ten warps, a quarter of an
 * SM has three, so there are at most 168 registers for a thread.
 *
 * What to look at: `exists` in load_tiles(). What would be in V without it, and what would 0 times
 * that be?
 */
#include "decode.h"
#include "device/decode_half_parts.cuh"
#include "device/decode_launch.cuh"
#include "device/decode_messages.cuh"
#include "device/decode_mma.cuh"
#include "device/decode_own_rows.cuh"
#include "device/decode_ring_share.cuh"
#include "device/decode_shares.cuh"
#include "device/decode_wide.cuh"
#include "device/pipeline.cuh"
#include "device/tensor_map.cuh"

// [cache_maps]
/** Maps of K and V, with coordinates column, row of the page, head, page. Boxes have 64 columns;
 * those of map 0 have one row, of map 1 the rows of a tile, or of a page if that is less. */
struct CacheMaps {
  CUtensorMap k[2], v[2]; /**< of K and of V */
};

/** Rows of a box of map 1. */
__host__ __device__ inline int box_keys(const Problem &problem) {
  return problem.page_size == 0 ? WIDE_KEYS : min(problem.page_size, WIDE_KEYS);
}

/** Makes both maps of K or V. A contiguous cache has a page for each sequence. */
static cudaError_t make_maps(CUtensorMap (&maps)[2], const void *cache, const Problem *problem,
                             const Strides &strides) {
  const bool pages = problem->page_size > 0;
  const cuuint64_t sizes[] = {(cuuint64_t)problem->head_dim,
                              (cuuint64_t)(pages ? problem->page_size : max(problem->kv_len, 1)),
                              (cuuint64_t)problem->kv_heads,
                              (cuuint64_t)(pages ? INT32_MAX : problem->batch)};
  const int64_t elements[] = {strides.row, strides.head, strides.batch};
  cuuint64_t bytes[3];  // of a dimension of size 1 they are not used, but must be valid
  for (int i = 0; i < 3; i++) bytes[i] = sizes[i + 1] == 1 ? 16 : (cuuint64_t)elements[i] * 2;
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < 2 && error == cudaSuccess; i++) {
    const cuuint32_t box[] = {64, i == 0 ? 1u : (cuuint32_t)box_keys(*problem), 1, 1};
    error = encode_tensor_map(&maps[i], CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, cache, sizes, bytes, box,
                              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE);
  }
  return error;
}
// [cache_maps]

// [tile_ring]
/** Tiles that TMA copies to the rings of the warpgroups. */
template <typename T, int HEAD_DIM>
struct TileRing : WideRing<T, HEAD_DIM> {
  using WideRing<T, HEAD_DIM>::SLOTS;
  uint64_t full[GROUPS][SLOTS];  /**< mbarriers: an item has arrived */
  uint64_t empty[GROUPS][SLOTS]; /**< all four warps have read it */

  /** Each warp leaves an item on its own, in ask(). */
  __device__ static __forceinline__ void leave() {}
  /** Waits for both warpgroups that multiply. */
  __device__ static __forceinline__ void meet() { named_barrier_sync<MMA_THREADS>(1 + GROUPS); }
};

/** Waits for the next item of this warpgroup. */
template <typename T, int HEAD_DIM, int SLOTS>
__device__ __forceinline__ const uint4 *wait_for_item(TileRing<T, HEAD_DIM> &ring,
                                                      PipelineState<SLOTS> &needed) {
  const int group = threadIdx.x / WARPGROUP_THREADS;
  mbarrier_wait(&ring.full[group][needed.index()], needed.phase());  // all bytes are there
  return ring.items[group][needed.index()];
}

/** This warp has read the item. The name is that of step 20f, where it asks for another one; here
 * it only says that the slot is free. */
template <typename T, int HEAD_DIM, int SLOTS>
__device__ __forceinline__ void ask(TileRing<T, HEAD_DIM> &ring, PipelineState<SLOTS> &needed,
                                    const Problem &, const DecodeTensors &, bool) {
  release(ring.empty[threadIdx.x / WARPGROUP_THREADS], needed);
  ++needed;
}
// [tile_ring]

// [load_tiles]
/** Loads the tiles of one warpgroup, which takes turns with the other, as slots become free. Lane n
 * asks for boxes n, n + 32, .. of a tile, if it has so many. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_tiles(TileRing<T, HEAD_DIM> &ring, const CacheMaps &maps,
                                           const Problem &problem, const DecodeTensors &t,
                                           const Share &share) {
  constexpr int PANELS = HEAD_DIM / 64, ROWS = PANELS * WIDE_KEYS;
  const int lane = threadIdx.x % WARP_SIZE, group = threadIdx.x / WARP_SIZE % GROUPS;
  const int box_rows = box_keys(problem), boxes = ROWS / box_rows;
  Walk walk = {};
  walk.left = share.tiles;
  enter_rows<WIDE_KEYS>(walk, problem, t, share.rows, share.length, share.first);
  walk.tile = share.first;
  for (int n = 0; n < share.tiles; n++, walk.tile++) {
    while (walk.tile >= walk.end) {
      const RowGroup rows = next_rows<WIDE_ROWS>(problem, walk.rows, share.stride);
      enter_rows<WIDE_KEYS>(walk, problem, t, rows, t.lengths[rows.batch], 0);
      walk.tile = 0;
    }
    if (n % GROUPS != group) continue;
    const int key = walk.first_key + walk.tile * WIDE_KEYS, keys = walk.last + 1 - key;
    const bool whole = keys >= WIDE_KEYS;  // else boxes have one row
    for (int is_v = 0; is_v < 2; is_v++) {
      const PipelineState<TileRing<T, HEAD_DIM>::SLOTS> state = {n / GROUPS * 2u + is_v};
      uint64_t *const full = &ring.full[group][state.index()];
      const CUtensorMap &map = is_v ? maps.v[whole] : maps.k[whole];
      mbarrier_wait(&ring.empty[group][state.index()], state.phase() ^ 1);  // it has been read
      if (lane == 0) mbarrier_arrive_expect(full, sizeof *ring.items[group]);
      for (int box = lane; box < (whole ? boxes : ROWS); box += WARP_SIZE) {
        const int panel = box % PANELS, row = box / PANELS * (whole ? box_rows : 1);
        const bool exists = row < keys;  // else it is outside of the tensor: TMA stores zeros
        tma_load(&ring.items[group][state.index()][(panel * WIDE_KEYS + row) * 8], map, full,
                 panel * 64, exists ? (key + row) & walk.pages.row_mask : -1, walk.rows.kv_head,
                 exists ? find_page(walk.pages, key + row) : 0);
      }
      __syncwarp();  // no lane falls two phases behind
    }
  }
}
// [load_tiles]

// [decode_kernel]
constexpr int TMA_THREADS = MMA_THREADS + GROUPS * WARP_SIZE; /**< of a thread block */

/** The whole decode pass; each block has a share of all tiles. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(TMA_THREADS, 1)
    decode_kernel(Problem problem, DecodeTensors t, const __grid_constant__ CacheMaps maps) {
  using Ring = TileRing<T, HEAD_DIM>;
  extern __shared__ __align__(1024) unsigned char smem[];
  auto &shared = *(WideShared<T, HEAD_DIM, Ring> *)smem;
  const Share share = load_share(t);
  if (threadIdx.x == 0) {
    for (int group = 0; group < GROUPS; group++) {
      init_barriers(shared.ring.full[group], 1, shared.ring.empty[group],
                    WARPGROUP_THREADS / WARP_SIZE);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers
  if (threadIdx.x >= MMA_THREADS) {
    load_tiles(shared.ring, maps, problem, t, share);
    return;
  }
  WideRows<HEAD_DIM> rows;
  PipelineState<Ring::SLOTS> needed;
  if (share.tiles > 0) load_q<T>(rows, problem, t, share.rows);
  each_group<WIDE_KEYS, WIDE_ROWS, WARPGROUP_THREADS, true>(
      problem, t, share,
      [&](const RowGroup &group, int length, int tile, int end, bool goes_on,
          const RowGroup &next) {
        begin_rows(shared, rows);
        if (goes_on) load_q<T>(rows, problem, t, next);
        attend_rows(shared, rows, needed, problem, t, group, length, tile, end);
      },
      [&](const RowGroup &group, bool whole, bool, bool goes_on, const RowGroup &) {
        const int all = group.end - group.first;  // a block that goes on merges none
        const OwnRows own =
            goes_on || whole ? OwnRows{all, all} : own_rows(share, (int)blockIdx.x - share.begin);
        end_rows(shared, rows, problem, t, group, whole, own);
      });
  if (share.parts > 1) merge_rows(shared, problem, t, share);
}
// [decode_kernel]

template <typename T, int D>
constexpr SharesConfigWith<CacheMaps> CONFIG = {
    make_decode_config<T, D, WIDE_ROWS>(decode_kernel<T, D>, TMA_THREADS, WIDE_KEYS), NULL, 1,
    (int)sizeof(RowMessage<D>) * WIDE_ROWS / 2,  // twice that for each block
    (int)sizeof(WideShared<T, D, TileRing<T, D>>)};

static constexpr SharesConfigWith<CacheMaps> CONFIGS[] = {
    CONFIG<__half, 64>, CONFIG<__half, 128>, CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>};

/** Step::decode */
static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;  // before the driver sees them
  CacheMaps maps;
  cudaError_t error = make_maps(maps.k, t->k, problem, problem->k_strides);
  if (!error) error = make_maps(maps.v, t->v, problem, problem->v_strides);
  return error ? error : decode_together<CONFIGS>(problem, t, stream, maps);
}

const Step step = {
    .name = "step20i",
    .after = "step20g",
    .title = "TMA loads the tiles",
    .idea = "Warps of their own ask TMA for tiles, and the others compute no addresses.",
    .head_dims = "D = 64 or 128",
    .supports = supports_ring<CONFIGS, true>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .workspace_zero = true,
    .describe = describe_ring<CONFIGS>,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
