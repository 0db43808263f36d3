/**
 * @file
 * From a block mask to what a kernel wants to read: for each tile of queries the list of
 * key/value tiles that it attends, without holes, and the partial tiles as bits. Made once per mask
 * by three small kernels, launched by the step.
 *
 * A mask block spans several of the kernel's tiles. Each is looked at on its own: a tile wholly on
 * one side of the diagonal, or of one value in a PARTIAL block, needs no mask code or no visit.
 */
#ifndef DEVICE_TILE_LIST_CUH
#define DEVICE_TILE_LIST_CUH

#include <cuda_runtime.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/warp.cuh"

/** What hides entries of a tile. From 0 on, the number of a partial tile: its bits, and the end. */
enum TileMask : int { ALL_ATTENDED = -1, PAST_THE_END = -2, CAUSAL_RULE = -3, NONE_ATTENDED = -4 };

/** One key/value tile that a tile of queries attends, one load. */
struct alignas(8) KeyTile {
  int first_key;
  int mask; /**< TileMask */
};

/** A tile of queries: all that a thread block wants to know first, in one load. */
struct alignas(16) QueryTile {
  int q_tile;
  int tile_count;
  KeyTile first; /**< of its list */
};

/** K and V of so many bytes find room in the L2 cache of an H200, beside all else that is there.
 * The best of four sizes that were tried; where the cache is smaller, K and V come from memory more
 * often. */
constexpr int64_t CACHED_BYTES = 16 << 20;

/** Everything about one mask, in device memory. */
struct TileLists {
  int q_rows, kv_rows;   /**< of the kernel's tiles */
  int q_tiles;           /**< tiles of queries in a head */
  int heads_together;    /**< heads whose rows are dealt out together, see row_of_block() */
  int most_tiles;        /**< room in each list */
  int batches, heads;    /**< lists are shared like the masks */
  int *counts;           /**< [batches * heads][q_tiles]: length of each list */
  QueryTile *order;      /**< [batches * heads][q_tiles], longest list first */
  KeyTile *tiles;        /**< [batches * heads][q_tiles][most_tiles] */
  int64_t partial_tiles; /**< of q_rows x kv_rows, cut from the tiles of the mask's blocks */
  uint32_t *bits;        /**< [partial_tiles][q_rows][kv_rows / 32] */
};

/** Number of the list of tiles that a query head uses. */
__device__ __forceinline__ int list_of_head(const TileLists &lists, int batch, int head) {
  return batch % lists.batches * lists.heads + head % lists.heads;
}

/** What a thread block works on: an entry of the order of one head. */
struct BlockRow {
  int head; /**< counted through the whole batch */
  int entry;
};

/**
 * Several heads at a time, the longest rows of all of them first: so the grid ends with short rows,
 * and no multiprocessor is left alone with a long one. Only so many heads that K and V of all of
 * them stay in the L2 cache.
 */
__device__ __forceinline__ BlockRow row_of_block(const Problem &p, const TileLists &lists,
                                                 int block) {
  const int rows = lists.heads_together * lists.q_tiles;
  const int first_head = block / rows * lists.heads_together;
  const int heads = min(lists.heads_together, p.batch * p.q_heads - first_head);
  return {first_head + block % rows % heads, block % rows / heads};
}

/** Lays the lists out from `memory` on, aligned as cudaMalloc aligns; returns the bytes it takes.
 */
static inline size_t lay_out_tile_lists(const Problem *p, const BlockMask *m, int q_rows,
                                        int kv_rows, void *memory, TileLists *lists) {
  const auto align = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  *lists = {};
  lists->q_rows = q_rows;
  lists->kv_rows = kv_rows;
  lists->q_tiles = (p->q_len + q_rows - 1) / q_rows;
  const int64_t head_bytes = (int64_t)p->kv_len * p->head_dim * 2 * 2;  // of K and V
  const int64_t heads = (int64_t)p->batch * p->q_heads;
  const int64_t together = CACHED_BYTES / head_bytes;
  lists->heads_together = (int)(together < 1 ? 1 : together < heads ? together : heads);
  // MASKED slots aside, a row has each block once; of the last there is room for all of its tiles.
  const int kv_blocks = (p->kv_len - 1) / m->kv_block_size + 1;
  lists->most_tiles =
      (m->max_slots < kv_blocks ? m->max_slots : kv_blocks) * (m->kv_block_size / kv_rows) +
      1;  // and the end
  lists->batches = m->batches;
  lists->heads = m->heads;
  lists->partial_tiles =
      (int64_t)m->tile_count * (m->q_block_size / q_rows) * (m->kv_block_size / kv_rows);
  const size_t rows = (size_t)m->batches * m->heads * lists->q_tiles;
  size_t used = 0;
  lists->counts = (int *)((char *)memory + used);
  used += align(rows * sizeof *lists->counts);
  lists->order = (QueryTile *)((char *)memory + used);
  used += align(rows * sizeof *lists->order);
  lists->tiles = (KeyTile *)((char *)memory + used);
  used += align(rows * lists->most_tiles * sizeof *lists->tiles);
  lists->bits = (uint32_t *)((char *)memory + used);
  used += align((size_t)lists->partial_tiles * q_rows * (kv_rows / 8));
  return used;
}

/** The bits of a partial tile, of which there may be more than 2^31 words. */
__device__ __forceinline__ uint32_t *bits_of_tile(const TileLists &lists, int64_t tile) {
  return lists.bits + tile * lists.q_rows * (lists.kv_rows / 32);
}

/**
 * Packs the tiles of the mask's blocks, a byte an entry, into bits, the first of 32 keys into the
 * lowest bit: one thread block for each of the kernel's tiles.
 */
static __global__ void pack_bits_kernel(BlockMask m, TileLists lists) {
  const int tiles_per_block = m.kv_block_size / lists.kv_rows, words = lists.kv_rows / 32;
  const int64_t first_row = (int64_t)(blockIdx.x / tiles_per_block) * lists.q_rows;
  const int first_key = blockIdx.x % tiles_per_block * lists.kv_rows;
  for (int i = threadIdx.x; i < lists.q_rows * words; i += blockDim.x) {
    const uint8_t *bytes = m.partial_block_masks + (first_row + i / words) * m.kv_block_size +
                           first_key + i % words * 32;
    uint32_t word = 0;
    for (int j = 0; j < 32; j++) word |= (uint32_t)(bytes[j] != 0) << j;
    bits_of_tile(lists, blockIdx.x)[i] = word;
  }
}

/** What a tile inside a mask block needs. Its queries are first_q .. last_q. */
static __device__ int classify_tile(const Problem &p, const TileLists &lists, int type,
                                    int64_t partial, int first_q, int last_q, int first_key) {
  if (first_key >= p.kv_len) return NONE_ATTENDED;
  if (type == BLOCK_CAUSAL) {
    if (first_key >= causal_keys(p, last_q)) return NONE_ATTENDED;
    return first_key + lists.kv_rows <= causal_keys(p, first_q) ? ALL_ATTENDED : CAUSAL_RULE;
  }
  const bool ends_here = first_key + lists.kv_rows > p.kv_len;
  if (type == BLOCK_FULL) return ends_here ? PAST_THE_END : ALL_ATTENDED;
  const uint32_t *row = bits_of_tile(lists, partial);
  uint32_t any = 0, all = ~0u;
  for (int q = 0; q < lists.q_rows; q++) {
    if (first_q + q > last_q) break;
    for (int word = 0; word < lists.kv_rows / 32; word++) {
      const uint32_t bits = *row++;
      any |= bits;
      all &= bits;
    }
  }
  if (any == 0) return NONE_ATTENDED;
  return all == ~0u && !ends_here ? ALL_ATTENDED : (int)partial;
}

/**
 * Writes the list of one tile of queries: one warp each. Every lane takes a slot of the row, counts
 * the tiles in it that are attended, and learns from the lanes before it where they go.
 */
static __global__ void __launch_bounds__(WARP_SIZE)
    list_tiles_kernel(Problem p, BlockMask m, TileLists lists) {
  const int q_tile = blockIdx.x % lists.q_tiles;
  const int list = blockIdx.x / lists.q_tiles;
  const int64_t batch = list / lists.heads, head = list % lists.heads;
  const int first_q = q_tile * lists.q_rows;
  const int last_q = min(first_q + lists.q_rows, p.q_len) - 1;
  const int64_t q_block = first_q / m.q_block_size;
  const int lane = threadIdx.x;
  const int tiles_per_block = m.kv_block_size / lists.kv_rows;
  KeyTile *tiles = lists.tiles + (int64_t)blockIdx.x * lists.most_tiles;

  const int64_t at_row = batch * m.num_strides[0] + head * m.num_strides[1];
  const int slots = m.kv_num_blocks[at_row + q_block * m.num_strides[2]];
  // Each tensor of slots has strides of its own.
  const auto row_of = [=](const int32_t *tensor, const int64_t(&strides)[4]) {
    return tensor + batch * strides[0] + head * strides[1] + q_block * strides[2];
  };
  const int32_t *indices = row_of(m.kv_indices, m.index_strides);
  const int32_t *types = row_of(m.block_mask_types, m.type_strides);
  const int32_t *partials = row_of(m.partial_block_mask_indices, m.partial_strides);

  int count = 0;
  for (int64_t first_slot = 0; first_slot < slots; first_slot += WARP_SIZE) {
    const int64_t slot = first_slot + lane;
    const int type = slot < slots ? types[slot * m.type_strides[3]] : (int)BLOCK_MASKED;
    int64_t first_key = 0, partial = 0;
    if (type != BLOCK_MASKED)
      first_key = (int64_t)indices[slot * m.index_strides[3]] * m.kv_block_size;
    if (type == BLOCK_PARTIAL) {
      const int64_t tile = partials[slot * m.partial_strides[3]];
      partial = (tile * m.q_block_size + first_q % m.q_block_size) / lists.q_rows * tiles_per_block;
    }
    const auto tile_of = [&](int i) {
      const int key = (int)first_key + i * lists.kv_rows;
      const int mask = type == BLOCK_MASKED
                           ? (int)NONE_ATTENDED
                           : classify_tile(p, lists, type, partial + i, first_q, last_q, key);
      return KeyTile{key, mask};
    };
    int mine = 0;
    for (int i = 0; i < tiles_per_block; i++) mine += tile_of(i).mask != NONE_ATTENDED;
    int end = mine;  // after the scan: of this lane's tiles in the list
    for (int distance = 1; distance < WARP_SIZE; distance *= 2) {
      const int before = __shfl_up_sync(FULL_WARP, end, distance);
      if (lane >= distance) end += before;
    }
    int at = count + end - mine;
    for (int i = 0; i < tiles_per_block; i++) {
      const KeyTile tile = tile_of(i);
      if (tile.mask != NONE_ATTENDED) tiles[at++] = tile;
    }
    count += __shfl_sync(FULL_WARP, end, WARP_SIZE - 1);
  }
  if (lane == 0) {
    lists.counts[blockIdx.x] = count;
    tiles[count] = {p.kv_len, ALL_ATTENDED};  // the end: no keys, so that its copy is all zeros
  }
}

/** Sorts the tiles of queries by the length of their lists, the last of equals first: a thread
 * each. */
static __global__ void order_rows_kernel(TileLists lists, int64_t rows) {
  const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int q_tile = (int)(row % lists.q_tiles);
  const int *counts = lists.counts + (row - q_tile);
  int rank = 0;
  for (int other = 0; other < lists.q_tiles; other++) {
    const int difference = counts[other] - counts[q_tile];
    rank += difference > 0 || (difference == 0 && other > q_tile);
  }
  lists.order[row - q_tile + rank] = {q_tile, counts[q_tile], lists.tiles[row * lists.most_tiles]};
}

#endif
