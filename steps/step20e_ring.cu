/**
 * @file
 * Step 20e: K and V on their way to a ring in shared memory.
 *
 * The idea: in step 20d, K and V on their way from memory and operands of products are the same
 * registers. So they take half of the registers, with 16 rows of Q there is room for 16 keys only,
 * and a lane must load what it will multiply: a load has 64 bytes of each row. Here they arrive in
 * shared memory: each warp has a ring there with K and V of its next tiles. Neighbouring lanes copy
 * whole rows to it by cp.async, and a slot is asked for again as soon as it has been read.
 *
 * What changed since step 20d: lanes load from the ring what they had in registers before, so the
 * products are the same. No other warp reads it, so there is still no barrier. The warps take turns
 * over the whole share and not from the start of each row group, and K is asked for before Q.
 *
 * What it costs: each byte goes through shared memory, in and out; a quarter of its bandwidth.
 *
 * What to look at: Ring::place(). Which lanes load at the same time, and from which banks?
 */
#include "decode.h"
#include "device/decode_lane_tile.cuh"
#include "device/decode_launch.cuh"
#include "device/decode_messages.cuh"
#include "device/decode_mma.cuh"
#include "device/decode_ring_share.cuh"
#include "device/decode_shares.cuh"

// [ring]
/** Keys of a tile: K of a tile is an item, and V another one; of 16-bit elements it has 8 KB. */
template <int HEAD_DIM>
constexpr int RING_KEYS = 4096 / HEAD_DIM;

/** What the warps have asked for: of each warp so many items. */
template <typename Elements, int HEAD_DIM>
struct Ring {
  using Cache = Elements;                                           /**< of K and V */
  static constexpr int WORKER = WARP_SIZE;                          /**< threads that have a ring */
  static constexpr int TILE = RING_KEYS<HEAD_DIM>;                  /**< keys of a tile */
  static constexpr int CHUNKS = HEAD_DIM * (int)sizeof(Cache) / 16; /**< of 16 bytes, of a row */
  static constexpr int SLOTS = 16384 / (TILE * CHUNKS * 16);        /**< 16 KB for each warp */
  static constexpr int AHEAD = SLOTS; /**< items asked for, with the one that is needed now */
  uint4 items[MMA_WARPS][SLOTS][TILE * CHUNKS]; /**< chunks at their place() */

  /** Where a chunk of a row is in its item. Eight lanes read four chunks of two rows of K, or two
   * chunks of every other row of eight of V; in this order they reach all banks. */
  __device__ static __forceinline__ int place(int row, int chunk) {
    const int order = (row & 6) ^ (CHUNKS >= 8 ? (row & 1) * 4 : 0);
    // From row to row of a lane is an addition then, which a copy has in its instruction.
    return CHUNKS >= 8 ? row * CHUNKS + (chunk ^ order) : (row * CHUNKS + chunk) ^ order;
  }
  /** What this thread has copied is there; waits until that of the other lanes is, too. */
  __device__ static __forceinline__ void arrive() { __syncwarp(); }
  /** Waits until all lanes have read an item. */
  __device__ static __forceinline__ void leave() { __syncwarp(); }
};

/** Shared memory of a thread block. */
template <typename Tile, int HEAD_DIM, int ROWS>
struct RingShared {
  Ring<typename Tile::Cache, HEAD_DIM> ring;              /**< K and V */
  MmaParts<HEAD_DIM, ROWS, typename Tile::Columns> parts; /**< of the warps */
};
// [ring]

// [copy_item]
/** Starts to copy 16 keys. Neighbouring threads copy a row; `from` is the chunk that this thread
 * begins with. If it is not `valid`, zeros are stored and nothing is read. */
template <typename SomeRing>
__device__ __forceinline__ void copy_keys(uint4 *item, int key,
                                          const typename SomeRing::Cache *from, int stride,
                                          bool valid) {
  constexpr int CHUNKS = SomeRing::CHUNKS, ROWS_AT_A_TIME = SomeRing::WORKER / CHUNKS;
  const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x % SomeRing::WORKER / CHUNKS;
#pragma unroll
  for (int i = 0; i < 16; i += ROWS_AT_A_TIME, from += ROWS_AT_A_TIME * stride) {
    cp_async_16_once(&item[SomeRing::place(key + i + first, chunk)], from, valid);
  }
}

/** Starts to copy K or V of a tile. */
template <typename SomeRing>
__device__ __forceinline__ void copy_item(uint4 *item, const Strides &strides,
                                          const typename SomeRing::Cache *cache, const Walk &walk,
                                          const int (&found)[SomeRing::TILE / 16], bool valid) {
  constexpr int CHUNKS = SomeRing::CHUNKS, ROWS_AT_A_TIME = SomeRing::WORKER / CHUNKS;
  const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x % SomeRing::WORKER / CHUNKS;
  const int stride = (int)strides.row;
  cache += chunk * (16 / (int)sizeof *cache);
#pragma unroll
  for (int n = 0; n < SomeRing::TILE / 16; n++) {
    const auto keys = find_keys(cache, strides, walk, found[n],
                                walk.first_key + walk.tile * SomeRing::TILE + 16 * n);
    // All 16 are there: from one to the next is an addition. wgmma would suffer from the branch.
    if (SomeRing::WORKER == WARP_SIZE && keys.last >= 15) {
      copy_keys<SomeRing>(item, 16 * n, keys.row + (int64_t)first * stride, stride, valid);
    } else {
#pragma unroll(SomeRing::WORKER == WARP_SIZE ? 1 : 16)
      for (int i = 0; i < 16; i += ROWS_AT_A_TIME) {
        cp_async_16_once(&item[SomeRing::place(16 * n + first + i, chunk)],
                         keys.row + (int64_t)min(first + i, keys.last) * stride, valid);
      }
    }
  }
}
// [copy_item]

// [ask]
/** Asks for K or V of a tile. After V it goes on to the next tile. Without a tile it asks for
 * nothing; with `always`, as warpgroups do, it asks for zeros then, without a branch. */
template <typename SomeRing, typename SomeAsked>
__device__ __forceinline__ void ask(SomeRing &ring, SomeAsked &asked, const Problem &problem,
                                    const DecodeTensors &t, bool is_v, bool always = false) {
  Walk &walk = asked.walk;
  if (always || walk.tile < walk.end) {
    copy_item<SomeRing>(ring.items[threadIdx.x / ring.WORKER][asked.to],
                        is_v ? problem.v_strides : problem.k_strides,
                        (const typename SomeRing::Cache *)(is_v ? t.v : t.k), walk, asked.found,
                        walk.tile < walk.end && walk.last >= 0);
  }
  cp_async_commit();  // a group for each item, even without a key
  asked.to = asked.to + 1 == ring.SLOTS ? 0 : asked.to + 1;
  if (!is_v) return;
  walk.tile += MMA_THREADS / ring.WORKER;
  find_next(asked, problem, t);
}

/** Asks for K or V of the first tile, if all of its keys exist. Nothing else is on its way yet, so
 * this has few instructions. */
template <typename SomeRing>
__device__ __forceinline__ void ask_whole(SomeRing &ring, int slot,
                                          const FirstTile<SomeRing::TILE> &tile,
                                          const Strides &strides, const void *k_or_v) {
  const int chunk = threadIdx.x % ring.CHUNKS, first = threadIdx.x % WARP_SIZE / ring.CHUNKS;
  const int stride = (int)strides.row;
  const auto *const head = (const typename SomeRing::Cache *)k_or_v +
                           (uint32_t)tile.kv_head * strides.head +
                           chunk * (16 / (int)sizeof(typename SomeRing::Cache));
#pragma unroll
  for (int n = 0; n < ring.TILE / 16; n++) {
    const int row = ((tile.key + 16 * n) & tile.pages.row_mask) + first;
    copy_keys<SomeRing>(ring.items[threadIdx.x / WARP_SIZE][slot], 16 * n,
                        head + (uint32_t)tile.found[n] * strides.batch + (int64_t)row * stride,
                        stride, true);
  }
  cp_async_commit();
}

/** Waits for the item that was asked for first. */
template <typename SomeRing, typename SomeAsked>
__device__ __forceinline__ const uint4 *wait_for_item(SomeRing &ring, SomeAsked &asked) {
  const uint4 *const item = ring.items[threadIdx.x / ring.WORKER][asked.from];
  asked.from = asked.from + 1 == ring.SLOTS ? 0 : asked.from + 1;
  cp_async_wait<SomeRing::AHEAD - 1>();
  ring.arrive();
  return item;
}
// [ask]

// [read_item]
/** Loads K of a tile from its item. */
template <typename T, int HEAD_DIM, int TILE>
__device__ __forceinline__ void read_k(LaneTile<T, HEAD_DIM, TILE> &tile, const uint4 *item) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 32; c++) {
      tile.k[n][c] = item[Ring<T, HEAD_DIM>::place(8 * n + lane / 4, 4 * c + lane % 4)];
    }
  }
}

/** The same for V. Eight keys further, or eight chunks, the order of the chunks is the same. */
template <typename T, int HEAD_DIM, int TILE>
__device__ __forceinline__ void read_v(LaneTile<T, HEAD_DIM, TILE> &tile, const uint4 *item) {
  using Items = Ring<T, HEAD_DIM>;
  const int lane = threadIdx.x % WARP_SIZE;
  const uint4 *const even = item + Items::place(lane % 4 * 2, lane / 4);
  const uint4 *const odd = item + Items::place(lane % 4 * 2 + 1, lane / 4);
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const uint4 *const chunks = (r % 2 ? odd : even) + (16 * n + r / 2 * 8) * Items::CHUNKS;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / 64; c++) tile.v[n][r][c] = chunks[8 * c];
    }
  }
}
// [read_item]

// [decode_kernel]
/** The whole decode pass; each block has a share of all tiles. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(MMA_THREADS, 1) decode_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(128) unsigned char smem[];
  const auto place = [&](int block, bool begins) {
    return (Message *)t.workspace + (2 * block + begins) * ROWS * HEAD_DIM / MESSAGE_COLUMNS;
  };
  const Share share = load_share(t);
  using Tile = LaneTile<T, HEAD_DIM, RING_KEYS<HEAD_DIM>>;
  attend_ring<T, Tile, HEAD_DIM, ROWS>(problem, t, share, *(RingShared<Tile, HEAD_DIM, ROWS> *)smem,
                                       place);
  if (share.parts < 2) return;
  merge_messages<T, HEAD_DIM>(problem, t, share, place, *(LaneSums *)smem);
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, MMA_THREADS, RING_KEYS<D>), NULL, 1,
    (int)sizeof(Message) * ROWS *D / MESSAGE_COLUMNS,
    (int)sizeof(RingShared<LaneTile<T, D, RING_KEYS<D>>, D, ROWS>)};

static constexpr SharesConfig CONFIGS[] = {
    CONFIG<__half, 64, 8>,         CONFIG<__half, 64, 16>,        CONFIG<__half, 128, 8>,
    CONFIG<__half, 128, 16>,       CONFIG<__half, 256, 8>,        CONFIG<__nv_bfloat16, 64, 8>,
    CONFIG<__nv_bfloat16, 64, 16>, CONFIG<__nv_bfloat16, 128, 8>, CONFIG<__nv_bfloat16, 128, 16>,
    CONFIG<__nv_bfloat16, 256, 8>};

const Step step = {
    .name = "step20e",
    .after = "step20d",
    .title = "A ring of copies for each warp",
    .idea = "K and V arrive in shared memory, a ring for each warp, and not in its registers.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_ring<CONFIGS, false>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .workspace_zero = true,
    .describe = describe_ring<CONFIGS>,
    .decode = decode_together<CONFIGS>,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
