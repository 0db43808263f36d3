/**
 * @file
 * The loop of decode steps whose K and V come through the ring of step 20e.
 */
#ifndef DEVICE_DECODE_RING_SHARE_CUH
#define DEVICE_DECODE_RING_SHARE_CUH

#include "device/decode_messages.cuh"
#include "device/decode_mma.cuh"

/** What a worker, a warp or more, asks for and needs. */
template <int TILE, int ROWS, int WORKER>
struct Asked {
  int tiles;            /**< of the share */
  Walk walk;            /**< the next tile that it asks for */
  int found[TILE / 16]; /**< the pages of this tile */
  int to, from;         /**< the slots of the next item that it asks for, and that it needs */
};

/** Workers of so many threads take turns, from one tile of the share to the next: the first tile of
 * one, of a row group that begins after `before` tiles of the share. */
template <int WORKER>
__device__ __forceinline__ int own_tile(int before) {
  return (threadIdx.x / WORKER - before) % (MMA_THREADS / WORKER);
}

/** Skips row groups that have no more tiles for this worker, and looks up the pages of the next. */
template <int TILE, int ROWS, int WORKER>
__device__ __forceinline__ void find_next(Asked<TILE, ROWS, WORKER> &asked, const Problem &problem,
                                          const DecodeTensors &t) {
  Walk &walk = asked.walk;
  while (walk.tile >= walk.end && walk.left > 0) {
    const int own = own_tile<WORKER>(asked.tiles - walk.left);
    const RowGroup rows = next_rows<ROWS>(problem, walk.rows, walk.stride);
    enter_rows<TILE>(walk, problem, t, rows, t.lengths[rows.batch], 0);
    walk.tile = own;
  }
  find_pages<TILE>(asked.found, walk);
}

/** The first tile of a warp. */
template <int TILE>
struct FirstTile {
  bool whole;           /**< it is in the first row group, and all of its keys exist */
  int kv_head, key;     /**< what it is of, and its first key */
  Pages pages;          /**< of the sequence */
  int found[TILE / 16]; /**< those of the tile */
};

/** Finds it. */
template <int TILE>
__device__ __forceinline__ FirstTile<TILE> find_first(const Problem &problem,
                                                      const DecodeTensors &t, const Share &share) {
  const int warp = threadIdx.x / WARP_SIZE;
  const int first = tiles_of_sequence(problem, share.length, TILE).first + share.first;
  const bool whole = warp < min(share.tiles, (share.length >> (__ffs(TILE) - 1)) - first);
  FirstTile<TILE> tile = {whole, share.rows.kv_head, (first + warp) * TILE,
                          pages_of_sequence(problem, t, share.rows.batch)};
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
    if (whole) tile.found[n] = find_page(tile.pages, tile.key + 16 * n);
  }
  return tile;
}

/** Begins with the first tile of a share that this worker has not asked for yet. */
template <int TILE, int ROWS, int WORKER>
__device__ __forceinline__ Asked<TILE, ROWS, WORKER> begin_share(const Problem &problem,
                                                                 const DecodeTensors &t,
                                                                 const Share &share, int asked_for,
                                                                 int slots) {
  Asked<TILE, ROWS, WORKER> asked = {};
  asked.tiles = asked.walk.left = share.tiles, asked.walk.stride = share.stride;
  asked.to = 2 * asked_for % slots;
  enter_rows<TILE>(asked.walk, problem, t, share.rows, share.length, share.first);
  asked.walk.tile = share.first + threadIdx.x / WORKER + asked_for * (MMA_THREADS / WORKER);
  find_next(asked, problem, t);
  return asked;
}

/** Computes every MMA_WARPS-th tile of a row group, from `tile` on. */
template <typename Tile, typename Shared, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void attend_rows(MmaRows<HEAD_DIM, ROWS> &rows, Shared &shared,
                                            Asked<Tile::KEYS_OF_TILE, ROWS, WARP_SIZE> &asked,
                                            const Problem &problem, const DecodeTensors &t,
                                            const RowGroup &group, const Scales &scales, int length,
                                            int tile, int end) {
  constexpr int TILE = Tile::KEYS_OF_TILE;
  static_assert(decltype(Shared::ring)::SLOTS % 2 == 0, "the slot of a K is that of the next K");
  const int first = tiles_of_sequence(problem, length, TILE).first;
  // That all queries attend to; needs_mask() would load parameters for each tile.
  const KeyRange all = {keys_of_query(problem, length, problem.q_len - 1).begin,
                        keys_of_query(problem, length, 0).end};
  for (; tile < end; tile += MMA_WARPS) {
    const int key = (first + tile) * TILE;
    float s[TILE / 8][4] = {};
    uint32_t probs[ROWS / 8][TILE / 8];
    Tile k_or_v;
    const uint4 *item = wait_for_item(shared.ring, asked);
    read_k(k_or_v, item);
    multiply_qk(s, rows, k_or_v);
    shared.ring.leave();  // the slot of K is free
    ask(shared.ring, asked, problem, t, false);
    if (key < all.begin || key + TILE > all.end) {
      mask_scores<ROWS, TILE>(s, problem, group, row_of_lane(threadIdx.x % WARP_SIZE), length, key);
    }
    add_scores<typename Tile::Prob, HEAD_DIM, ROWS, TILE>(probs, rows, s, scales.scores_log2);
    item = wait_for_item(shared.ring, asked);
    read_v(k_or_v, item);
    multiply_pv(rows, probs, k_or_v);
    shared.ring.leave();  // the slot of V is free
    ask(shared.ring, asked, problem, t, true);
  }
}

/** This block's share. All of it is asked for at once, because fields that are loaded where they
 * are needed come one after the other. A branch right behind this would undo it: nvcc then moves
 * the loads that the branch does not need behind it. */
__device__ __forceinline__ Share load_share(const DecodeTensors &t) {
  const uint4 *const from = (const uint4 *)((const Share *)t.schedule + blockIdx.x);
  uint4 words[sizeof(Share) / sizeof(uint4)];
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Share) / sizeof(uint4)); i++) words[i] = load_once_16(from + i);
  Share share;
  memcpy(&share, words, sizeof share);
  return share;
}

/** Stores zeros where this block will send messages. The pass before has left zeros there, but L2
 * may have dropped them since, so the first block that polls would wait for device memory. */
template <int HEAD_DIM, typename Place>
__device__ __forceinline__ void touch_places(const Share &share, Place place) {
  constexpr int WORDS = HEAD_DIM / MESSAGE_COLUMNS * (int)(sizeof(Message) / sizeof(float4));
  const bool begins = share.parts > 1 && share.begin == (int)blockIdx.x, ends = share.first > 0;
  for (int i = threadIdx.x; i < (share.last.end - share.last.first) * WORDS; i += MMA_THREADS) {
    if (begins) store_relaxed((float4 *)place(blockIdx.x, true) + i, {});
    if (ends) store_relaxed((float4 *)place(blockIdx.x, false) + i, {});
  }
}

/** Goes through the row groups of a share. attend() computes this worker's tiles of one, from its
 * first to the end; end() gets the row group, whether the block has all of its tiles, whether the
 * first is among them, whether the share goes on, and with which row group. attend() gets these
 * two, too, if they are looked up `EARLY`: while K and V come, and not between two row groups. */
template <int TILE, int ROWS, int WORKER, bool EARLY, typename Attend, typename End>
__device__ __forceinline__ void each_group(const Problem &problem, const DecodeTensors &t,
                                           const Share &share, Attend attend, End end) {
  RowGroup group = share.rows;
  int length = share.length, first = share.first;
  for (int left = share.tiles; left > 0; first = 0) {
    const int all = tiles_of_sequence(problem, length, TILE).count, count = min(all - first, left);
    const int own = own_tile<WORKER>(share.tiles - left);
    left -= count;
    RowGroup next = group;
    int next_length = 0;
    const auto find_following = [&] {
      if (left == 0) return;
      next = next_rows<ROWS>(problem, group, share.stride);
      next_length = t.lengths[next.batch];
    };
    if (EARLY) find_following();
    attend(group, length, first + own, first + count, left > 0, next);
    if (!EARLY) find_following();
    end(group, count == all, first == 0, left > 0, next);
    group = next, length = next_length;
  }
}

/** The same for a worker that asks for its tiles itself: attend() gets what it has asked for, the
 * row group and its tiles. load_q() is called when the first K is asked for, and begun() when the
 * first V is. */
template <int TILE, int ROWS, typename SomeRing, typename LoadQ, typename Attend, typename End,
          typename Begun = void (*)()>
__device__ __forceinline__ void attend_groups(const Problem &problem, const DecodeTensors &t,
                                              const Share &share, SomeRing &ring, LoadQ load_q,
                                              Attend attend, End end, Begun begun = {}) {
  // Warpgroups, and with 16 rows warps, would lose more by the registers that this takes.
  constexpr bool OF_WARPS = SomeRing::WORKER == WARP_SIZE, EARLY = OF_WARPS && ROWS == 8;
  FirstTile<TILE> tile = {};
  if (OF_WARPS) tile = find_first<TILE>(problem, t, share);
  if (tile.whole) ask_whole(ring, 0, tile, problem.k_strides, t.k);
  if (share.tiles == 0) return;  // any earlier, and the other words of the share come behind it
  if (OF_WARPS) load_q();
  if (tile.whole) ask_whole(ring, 1, tile, problem.v_strides, t.v);
  if constexpr (OF_WARPS) begun();
  auto asked = begin_share<TILE, ROWS, SomeRing::WORKER>(problem, t, share, tile.whole, ring.SLOTS);
  if (!OF_WARPS) ask(ring, asked, problem, t, false, true), load_q();
#pragma unroll 1
  for (int slot = OF_WARPS ? 2 * tile.whole : 1; slot < ring.AHEAD; slot++) {
    ask(ring, asked, problem, t, slot % 2, !OF_WARPS);
  }
  each_group<TILE, ROWS, SomeRing::WORKER, EARLY>(
      problem, t, share,
      [&](const RowGroup &group, int length, int first, int end_tile, bool, const RowGroup &) {
        attend(asked, group, length, first, end_tile);
      },
      [&](const RowGroup &group, bool whole, bool begins, bool goes_on, const RowGroup &next) {
        if (!goes_on) cp_async_wait<0>();  // a warpgroup without a tile has asked for zeros
        end(group, whole, begins, goes_on, next);
      });
}

/** Merges the parts of a row group, and sends to place() what the block does not have `whole`. */
template <typename T, int HEAD_DIM, typename Parts, typename Place>
__device__ __forceinline__ void send_parts(const Problem &problem, const DecodeTensors &t,
                                           const Parts &parts, const RowGroup &group, bool whole,
                                           bool begins, Place place) {
  merge_parts<T>(problem, t, parts, group, whole, begins,
                 [&](bool, int row, int column, const ColumnSum &part) {
                   send(place(blockIdx.x, begins) + row * HEAD_DIM / MESSAGE_COLUMNS, column, part);
                 });
}

/** What a tile with a begin_rows() of its own still does when Q is there. */
template <typename Tile, typename Rows>
__device__ __forceinline__ void finish_rows(const Tile &, Rows &, Scales &) {}

/** Computes a share of all tiles, as attend_share() does. merge() merges the parts of the warps of
 * a row group; it gets the row group, whether the block has all of its tiles, whether the first is
 * among them, and whether the share goes on. begun() is that of attend_groups(). */
template <typename T, typename Tile, int HEAD_DIM, int ROWS, typename Shared, typename Merge,
          typename Begun>
__device__ __forceinline__ void attend_ring(const Problem &problem, const DecodeTensors &t,
                                            const Share &share, Shared &shared, Merge merge,
                                            Begun begun) {
  MmaRows<HEAD_DIM, ROWS> rows;
  Scales scales;
  const auto load_q = [&](const RowGroup &group) {
    scales = begin_rows(Tile(), (const T *)t.q, rows, problem, t, group);
  };
  attend_groups<Tile::KEYS_OF_TILE, ROWS>(
      problem, t, share, shared.ring, [&] { load_q(share.rows); },
      [&](auto &asked, const RowGroup &group, int length, int tile, int end) {
        finish_rows(Tile(), rows, scales);
        attend_rows<Tile>(rows, shared, asked, problem, t, group, scales, length, tile, end);
      },
      [&](const RowGroup &group, bool whole, bool begins, bool goes_on, const RowGroup &next) {
        store_rows(shared.parts, rows, group.end - group.first, scales.o);
        if (goes_on) load_q(next);  // it comes while the parts are merged
        __syncthreads();            // the parts of all warps are there
        merge(group, whole, begins, goes_on);
        if (goes_on) __syncthreads();  // they have been read and can be overwritten
      },
      begun);
}

/** The same; what the block does not finish alone is sent to place(). */
template <typename T, typename Tile, int HEAD_DIM, int ROWS, typename Shared, typename Place>
__device__ __forceinline__ void attend_ring(const Problem &problem, const DecodeTensors &t,
                                            const Share &share, Shared &shared, Place place) {
  attend_ring<T, Tile, HEAD_DIM, ROWS>(
      problem, t, share, shared,
      [&](const RowGroup &group, bool whole, bool begins, bool) {
        send_parts<T, HEAD_DIM>(problem, t, shared.parts, group, whole, begins, place);
      },
      [&] { touch_places<HEAD_DIM>(share, place); });
}

/** Step::supports: no GPU before Hopper has enough shared memory for all of CONFIGS, nor have all
 * later ones; wgmma runs on no other. */
template <const auto &CONFIGS, bool WGMMA>
static bool supports_ring(const Problem *problem, char *why, size_t why_size) {
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  const int minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  if (WGMMA ? major == 9 : major >= 9) return supports_mma<CONFIGS>(problem, why, why_size);
  snprintf(why, why_size, "this GPU has compute capability %d.%d: %s needs 9.0%s", major, minor,
           step.name, WGMMA ? " (Hopper)" : "");
  return false;
}

/** Step::describe */
template <const auto &CONFIGS>
static void describe_ring(const Problem *problem, int heads, Description *description) {
  describe_mma<CONFIGS>(problem, heads, description);
  description->compute_capability = 90;
}

#endif
