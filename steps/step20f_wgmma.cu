/**
 * @file
 * Step 20f: wgmma for up to 64 rows.
 *
 * The idea: with 16 new queries in each of four heads there are 64 rows that need the same K and V.
 * In step 20e they are four row groups, and each of them reads all keys. A warpgroup computes 64
 * rows at once: that is what wgmma is made for, and it reads its operands from shared memory. So a
 * warpgroup has a ring, as a warp had, and keys are read once.
 *
 * What changed since step 20e: a worker is a warpgroup with 64 keys. Its four warps have copied
 * parts of each item, so a named barrier of the warpgroup is where a warp had __syncwarp(). Chunks
 * are where wgmma looks for them. Products and softmax are those of step 07: rows of Q are rows of
 * S and of O.
 *
 * What it costs: with fewer rows, products of rows that do not exist. And a part has 40 KB, so the
 * workspace has room for those of 48 blocks only, where the GPU has 132 SMs: step 20g.
 *
 * What to look at: leave(). What would happen if a warp asked for the next item without it?
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_messages.cuh"
#include "device/decode_mma.cuh"
#include "device/decode_ring.cuh"
#include "device/decode_shares.cuh"
#include "device/wgmma_tile.cuh"

// [wide_ring]
constexpr int WIDE_ROWS = 64;                           /**< of a row group */
constexpr int WIDE_KEYS = 64;                           /**< of a tile */
constexpr int GROUPS = MMA_THREADS / WARPGROUP_THREADS; /**< that take turns */

/** What the warpgroups have asked for. */
template <typename T, int HEAD_DIM>
struct WideRing {
  using Cache = T;                                 /**< of K and V */
  static constexpr int WORKER = WARPGROUP_THREADS; /**< threads that have a ring */
  static constexpr int TILE = WIDE_KEYS;           /**< keys of a tile */
  static constexpr int CHUNKS = HEAD_DIM / CHUNK;  /**< of 16 bytes, of a row */
  static constexpr int SLOTS = 512 / HEAD_DIM;     /**< of a warpgroup */
  static constexpr int AHEAD = SLOTS;              /**< items asked for */
  uint4 items[GROUPS][SLOTS][TILE * CHUNKS];       /**< chunks at their place() */

  /** Panels of 64 columns, swizzled as wgmma wants them. */
  __device__ static __forceinline__ int place(int row, int chunk) {
    return chunk / 8 * 8 * TILE + row * 8 + (chunk % 8 ^ row % 8);
  }
  /** Waits until the whole warpgroup has read an item. */
  __device__ static __forceinline__ void leave() {
    named_barrier_sync<WARPGROUP_THREADS>(1 + threadIdx.x / WARPGROUP_THREADS);
  }
  /** What this thread has copied is there; waits until that of the warpgroup is, too. */
  __device__ static __forceinline__ void arrive() {
    fence_proxy_async();  // wgmma sees what this thread has copied
    leave();
  }
  /** Waits for all warpgroups that multiply. */
  __device__ static __forceinline__ void meet() { __syncthreads(); }
};

/** Shared memory of a thread block. */
template <typename T, int HEAD_DIM, typename SomeRing = WideRing<T, HEAD_DIM>>
struct alignas(1024) WideShared {
  SomeRing ring;                                          /**< K and V */
  alignas(1024) uint4 q[WIDE_ROWS * HEAD_DIM / CHUNK];    /**< in panels, too */
  MmaParts<HEAD_DIM, WIDE_ROWS, Padded<8>, GROUPS> parts; /**< of the warpgroups */
};
// [wide_ring]

// [wide_rows]
/** What a thread has of a row group: of the rows lane / 4 and 8 below of its warp. */
template <int HEAD_DIM>
struct WideRows {
  float o[1][HEAD_DIM / MMA_N][4]; /**< accumulators, as in step 07 */
  float m[1][2];                   /**< as in step 07 */
  float l[1][2];                   /**< likewise */
  uint4 q[HEAD_DIM / CHUNK / 4];   /**< on its way: of row threadIdx.x / 4, every fourth chunk */
};

/** Which chunk of its row a thread has as number i. Neighbouring rows have others, so that they are
 * stored to other banks. */
__device__ __forceinline__ int own_chunk(int i) {
  return threadIdx.x % 4 + 4 * (i ^ threadIdx.x / 4 % 2);
}

/** Starts to load all rows of Q, the last one for those that do not exist. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_q(WideRows<HEAD_DIM> &rows, const Problem &problem,
                                       const DecodeTensors &t, const RowGroup &group) {
  const int row = min(group.first + (int)threadIdx.x / 4, group.end - 1);
  const QueryRow of = row_of_group(problem, group, row);
  const T *const source =
      (const T *)t.q + head_offsets(problem, of.head).q + of.query * problem.q_strides.row;
#pragma unroll
  for (int i = 0; i < HEAD_DIM / CHUNK / 4; i++)
    rows.q[i] = load_once_16(source + own_chunk(i) * CHUNK);
}

/** Begins with the row group of this Q. */
template <typename T, int HEAD_DIM, typename SomeRing>
__device__ __forceinline__ void begin_rows(WideShared<T, HEAD_DIM, SomeRing> &shared,
                                           WideRows<HEAD_DIM> &rows) {
#pragma unroll
  for (int i = 0; i < HEAD_DIM / CHUNK / 4; i++) {
    shared.q[shared.ring.place(threadIdx.x / 4, own_chunk(i))] = rows.q[i];
  }
  memset(rows.o, 0, sizeof rows.o);
  start_rows(rows.m, rows.l, -INFINITY);
  fence_proxy_async();
  shared.ring.meet();  // Q is there
}

/** Computes this warpgroup's tiles of a row group, every second one from `tile` on. wgmma must not
 * be in a branch that a thread may take alone, or nvcc waits for each. */
template <typename T, int HEAD_DIM, typename SomeRing, typename SomeAsked>
__device__ __forceinline__ void attend_rows(WideShared<T, HEAD_DIM, SomeRing> &shared,
                                            WideRows<HEAD_DIM> &rows, SomeAsked &asked,
                                            const Problem &problem, const DecodeTensors &t,
                                            const RowGroup &group, int length, int tile, int end) {
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  for (; tile < end; tile += GROUPS) {
    const int key = (tiles_of_sequence(problem, length, WIDE_KEYS).first + tile) * WIDE_KEYS;
    float s[1][WIDE_KEYS / MMA_N][4];
    uint32_t probs[WIDE_KEYS / 16][4];
    const uint4 *item = wait_for_item(shared.ring, asked);
    wgmma_fence();
    start_qk<T, HEAD_DIM, WIDE_KEYS>(s[0], (const T *)shared.q, (const T *)item);
    wgmma_wait<0>(s[0]);
    shared.ring.leave();
    ask(shared.ring, asked, problem, t, false);
    if (needs_mask<WIDE_KEYS>(problem, length, key)) {
      mask_scores<16, WIDE_KEYS>(s[0], problem, group, 16 * warp + lane / 4, length, key);
    }
    update_softmax(s, rows.m, rows.l, rows.o, problem.scale * LOG2_E);
    pack_probs<T>(probs, s[0]);
    item = wait_for_item(shared.ring, asked);
    touch_accumulators(rows.o[0]);
    wgmma_fence();
    start_pv<T, HEAD_DIM, WIDE_KEYS>(rows.o[0], probs, (const T *)item);
    wgmma_wait<0>(rows.o[0]);
    shared.ring.leave();
    ask(shared.ring, asked, problem, t, true);
  }
}

/** Leaves the part of this warpgroup for the block. */
template <typename T, int HEAD_DIM, typename SomeRing>
__device__ __forceinline__ void store_rows(WideShared<T, HEAD_DIM, SomeRing> &shared,
                                           const WideRows<HEAD_DIM> &rows) {
  const int lane = threadIdx.x % WARP_SIZE, group = threadIdx.x / WARPGROUP_THREADS;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = threadIdx.x / WARP_SIZE % 4 * 16 + 8 * half + lane / 4;
    const float l = lanes_reduce_sum<4>(rows.l[0][half]);
    if (lane % 4 == 0) {
      shared.parts.m[group][row] = rows.m[0][half], shared.parts.l[group][row] = l;
    }
#pragma unroll
    for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
      *(float2 *)&shared.parts.o[group][row][MMA_N * n + lane % 4 * 2] =
          make_float2(rows.o[0][n][2 * half], rows.o[0][n][2 * half + 1]);
    }
  }
  shared.ring.meet();  // the parts of both warpgroups are there
}
// [wide_rows]

// [decode_kernel]
/** The whole decode pass; each block has a share of all tiles. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(MMA_THREADS, 1) decode_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(1024) unsigned char smem[];
  auto &shared = *(WideShared<T, HEAD_DIM> *)smem;
  const auto place = [&](int block, bool begins) {
    return (Message *)t.workspace + (2 * block + begins) * WIDE_ROWS * HEAD_DIM / MESSAGE_COLUMNS;
  };
  const Share share = load_share(t);
  WideRows<HEAD_DIM> rows;
  attend_groups<WIDE_KEYS, WIDE_ROWS>(
      problem, t, share, shared.ring, [&] { load_q<T>(rows, problem, t, share.rows); },
      [&](auto &asked, const RowGroup &group, int length, int tile, int end) {
        begin_rows(shared, rows);
        attend_rows(shared, rows, asked, problem, t, group, length, tile, end);
      },
      [&](const RowGroup &group, bool whole, bool begins, bool goes_on, const RowGroup &next) {
        if (goes_on) load_q<T>(rows, problem, t, next);
        store_rows(shared, rows);
        send_parts<T, HEAD_DIM>(problem, t, shared.parts, group, whole, begins, place);
      });
  if (share.parts < 2) return;
  merge_messages<T, HEAD_DIM>(problem, t, share, place, *(LaneSums *)smem);
}
// [decode_kernel]

template <typename T, int D>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, WIDE_ROWS>(decode_kernel<T, D>, MMA_THREADS, WIDE_KEYS), NULL, 1,
    (int)sizeof(Message) * WIDE_ROWS *D / MESSAGE_COLUMNS, (int)sizeof(WideShared<T, D>)};

static constexpr SharesConfig CONFIGS[] = {CONFIG<__half, 64>, CONFIG<__half, 128>,
                                           CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>};

const Step step = {
    .name = "step20f",
    .after = "step20e",
    .title = "wgmma for up to 64 rows",
    .idea = "Rows of all new queries of a group are 64 rows of wgmma, so keys are read once.",
    .head_dims = "D = 64 or 128",
    .supports = supports_ring<CONFIGS, true>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .workspace_zero = true,
    .describe = describe_ring<CONFIGS>,
    .decode = decode_together<CONFIGS>,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
