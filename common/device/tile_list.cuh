/**
 * @file
 * From a block mask to what a kernel reads: for each tile of queries the list of key/value tiles
 * that it attends to, without gaps. Small kernels make the lists once per mask, after the bits of
 * the PARTIAL tiles.
 */
#ifndef DEVICE_TILE_LIST_CUH
#define DEVICE_TILE_LIST_CUH

#include <cuda_runtime.h>

#include "block_mask.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/partial_tiles.cuh"
#include "device/warp.cuh"

/** One key/value tile that a tile of queries attends to; read by one load. */
struct alignas(8) KeyTile {
  int first_key; /**< its keys are first_key to first_key + block_n - 1 */
  int mask;      /**< TileMask */
};

/** What a thread block needs to know of its tile of queries first; read by one load. */
struct alignas(16) QueryList {
  int q_tile;     /**< its queries begin at q_tile * block_m */
  int tile_count; /**< length of its list */
  KeyTile first;  /**< the first tile of its list */
};

/** Everything about one mask, in device memory: its PARTIAL tiles, and the lists. */
struct TileLists : PartialTiles {
  int q_tiles;        /**< tiles of queries in a head */
  int heads_per_wave; /**< heads whose rows are interleaved, see row_of_block() */
  int most_tiles;     /**< room in each list */
  int batches, heads; /**< lists are shared like the masks */
  int64_t rows;       /**< batches * heads * q_tiles, the number of lists */
  int *counts;        /**< [batches * heads][q_tiles]: length of each list */
  QueryList *order;   /**< [batches * heads][q_tiles], longest list first */
  KeyTile *tiles;     /**< [batches * heads][q_tiles][most_tiles] */
  size_t bytes;       /**< of these arrays and the bits */
};

/** Number of the list of tiles that a query head uses. */
__device__ __forceinline__ int list_of_head(const TileLists &lists, int batch, int head) {
  return batch % lists.batches * lists.heads + head % lists.heads;
}

/** What a thread block computes: a tile of queries of one head. */
struct BlockWork {
  int head;             /**< counted through the whole batch */
  QueryList own;        /**< its tile of queries */
  const KeyTile *tiles; /**< [own.tile_count + 1] */
};

/** The tiles of queries with the longest lists start first. */
__device__ __forceinline__ BlockWork work_of_block(const Problem &problem, const TileLists &lists,
                                                   int block) {
  const BlockRow row = row_of_block(problem, lists.heads_per_wave, lists.q_tiles, block);
  const int batch = row.head / problem.q_heads, head = row.head % problem.q_heads;
  const int list = list_of_head(lists, batch, head) * lists.q_tiles;
  const QueryList own = lists.order[list + row.entry];
  return {row.head, own, lists.tiles + (int64_t)(list + own.q_tile) * lists.most_tiles};
}

/** The tile lists of a mask for a kernel configuration, laid out from `memory` on, which is aligned
 * as by cudaMalloc; `bytes` says how much they take. */
template <typename Config>
static TileLists lay_out_tile_lists(const Problem *problem, const BlockMask *m,
                                    const Config *config, void *memory) {
  TileLists lists = {};
  lists.block_m = config->block_m;
  lists.block_n = config->block_n;
  lists.q_tiles = (problem->q_len + lists.block_m - 1) / lists.block_m;
  lists.heads_per_wave = heads_per_wave(*problem);
  // A row has each block once, apart from MASKED slots; of the last block all tiles have room.
  const int kv_blocks = (problem->kv_len - 1) / m->kv_block_size + 1;
  const int blocks = m->max_slots < kv_blocks ? m->max_slots : kv_blocks;
  lists.most_tiles = blocks * (m->kv_block_size / lists.block_n) + 1;  // and the end of the list
  lists.batches = m->batches;
  lists.heads = m->heads;
  lists.partial_tiles = count_partial_tiles(*m, lists.block_m, lists.block_n);
  lists.rows = (int64_t)m->batches * m->heads * lists.q_tiles;
  const auto reserve = [&](size_t bytes) {
    char *start = (char *)memory + lists.bytes;
    lists.bytes += (bytes + 255) / 256 * 256;
    return start;
  };
  lists.counts = (int *)reserve(lists.rows * sizeof *lists.counts);
  lists.order = (QueryList *)reserve(lists.rows * sizeof *lists.order);
  lists.tiles = (KeyTile *)reserve((size_t)lists.rows * lists.most_tiles * sizeof *lists.tiles);
  lists.bits = (uint32_t *)reserve(bytes_of_bits(lists));
  return lists;
}

/**
 * Writes the list of one tile of queries; one warp per list. Each lane takes one slot of the row
 * and counts its attended tiles; a prefix sum over the lanes says where in the list they go.
 */
static __global__ void __launch_bounds__(WARP_SIZE)
    list_tiles_kernel(Problem problem, BlockMask m, TileLists lists) {
  const int q_tile = blockIdx.x % lists.q_tiles;
  const int list = blockIdx.x / lists.q_tiles;
  const int64_t batch = list / lists.heads, head = list % lists.heads;
  const int first_q = q_tile * lists.block_m;
  const int last_q = min(first_q + lists.block_m, problem.q_len) - 1;
  const int64_t q_block = first_q / m.q_block_size;
  const int lane = threadIdx.x;
  const int tiles_per_block = m.kv_block_size / lists.block_n;
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
      partial =
          (tile * m.q_block_size + first_q % m.q_block_size) / lists.block_m * tiles_per_block;
    }
    const auto tile_of = [&](int i) {
      const int key = (int)first_key + i * lists.block_n;
      const int mask = type == BLOCK_MASKED
                           ? (int)NONE_ATTENDED
                           : classify_tile(problem, lists, type, partial + i, first_q, last_q, key);
      return KeyTile{key, mask};
    };
    int mine = 0;
    for (int i = 0; i < tiles_per_block; i++) mine += tile_of(i).mask != NONE_ATTENDED;
    int end = mine;  // after the prefix sum: the end of this lane's tiles in the list
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
    tiles[count] = {problem.kv_len,
                    ALL_ATTENDED};  // the end: it has no keys, so its copy writes zeros
  }
}

/** Sorts the tiles of queries by the length of their lists, longest first; of equal ones the last
 * first. One thread per tile: its rank is the number of tiles before it. */
static __global__ void order_rows_kernel(TileLists lists) {
  const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= lists.rows) return;
  const int q_tile = (int)(row % lists.q_tiles);
  const int *counts = lists.counts + (row - q_tile);
  int rank = 0;
  for (int other = 0; other < lists.q_tiles; other++) {
    const int difference = counts[other] - counts[q_tile];
    rank += difference > 0 || (difference == 0 && other > q_tile);
  }
  lists.order[row - q_tile + rank] = {q_tile, counts[q_tile], lists.tiles[row * lists.most_tiles]};
}

/** BlockMaskSupport::prepared_bytes of such a step. */
template <const auto &CONFIGS>
static size_t tile_list_bytes(const Problem *problem, const BlockMask *mask) {
  return lay_out_tile_lists(problem, mask, find_config<CONFIGS>(problem), NULL).bytes;
}

#endif
