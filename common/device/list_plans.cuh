/**
 * @file
 * Plans of a mask in blocks. Such a plan has a list of tiles of keys, without fully masked ones.
 * The list says how each consumer's queries are masked in a tile.
 */
#ifndef DEVICE_LIST_PLANS_CUH
#define DEVICE_LIST_PLANS_CUH

#include "attention.h"
#include "block_mask.h"
#include "device/launch.cuh"
#include "device/mask_plans.cuh"
#include "device/partial_tiles.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"

constexpr int LISTED_KEYS = 64; /**< keys of a tile in a list */

/** A tile of keys in a list. */
struct alignas(16) ListedTile {
  int first_key;            /**< the first key */
  int mask[MOST_CONSUMERS]; /**< TileMask, by consumer */
};

/** The plans of a mask in blocks, and their lists, in device memory. */
struct ListPlans : MaskPlans {
  ListedTile *tiles;    /**< [batches * heads][q_tiles][most_tiles] */
  int most_tiles;       /**< room in each list: all tiles of keys */
  PartialTiles partial; /**< of CONSUMER_ROWS x LISTED_KEYS */
};

/** The plans of a mask for tiles of `block_m` queries, laid out from `memory` on, which is aligned
 * as by cudaMalloc; `bytes` says how much they take. */
static ListPlans lay_out_list_plans(const Problem *problem, const BlockMask *m, int block_m,
                                    void *memory) {
  ListPlans plans = {lay_out_plans(problem, m, block_m, memory)};
  plans.most_tiles = (problem->kv_len + LISTED_KEYS - 1) / LISTED_KEYS;
  plans.tiles = (ListedTile *)take_bytes(
      &plans, memory, (size_t)plans.plan_count * plans.most_tiles * sizeof *plans.tiles);
  plans.partial = {CONSUMER_ROWS, LISTED_KEYS, count_partial_tiles(*m, CONSUMER_ROWS, LISTED_KEYS)};
  plans.partial.bits = (uint32_t *)take_bytes(&plans, memory, bytes_of_bits(plans.partial) + 1);
  return plans;
}

/** Writes how one tile of queries of a consumer, first_q to last_q, is masked in each of its tiles
 * of keys: each lane takes one slot of the row of mask blocks. */
__device__ __forceinline__ void classify_row(const Problem &problem, const BlockMask &m,
                                             const ListPlans &plans, ListedTile *tiles,
                                             int consumer, int first_q, int last_q) {
  const int list = blockIdx.x / plans.q_tiles;
  const int64_t batch = list / plans.heads, head = list % plans.heads;
  const int64_t q_block = first_q / m.q_block_size;
  const int tiles_per_block = m.kv_block_size / LISTED_KEYS;
  const auto row_of = [=](const int32_t *tensor, const int64_t(&strides)[4]) {
    return tensor + batch * strides[0] + head * strides[1] + q_block * strides[2];
  };
  const int32_t *indices = row_of(m.kv_indices, m.index_strides);
  const int32_t *types = row_of(m.block_mask_types, m.type_strides);
  const int32_t *partials = row_of(m.partial_block_mask_indices, m.partial_strides);
  const int slots = m.kv_num_blocks[batch * m.num_strides[0] + head * m.num_strides[1] +
                                    q_block * m.num_strides[2]];
  for (int64_t slot = threadIdx.x; slot < slots; slot += WARP_SIZE) {
    const int type = types[slot * m.type_strides[3]];
    if (type == BLOCK_MASKED) continue;
    const int first_tile = indices[slot * m.index_strides[3]] * tiles_per_block;
    int64_t partial = 0;
    if (type == BLOCK_PARTIAL) {
      const int64_t tile = partials[slot * m.partial_strides[3]];
      partial =
          (tile * m.q_block_size + first_q % m.q_block_size) / CONSUMER_ROWS * tiles_per_block;
    }
    for (int i = 0; i < tiles_per_block && first_tile + i < plans.most_tiles; i++) {
      tiles[first_tile + i].mask[consumer] =
          classify_tile(problem, plans.partial, type, partial + i, first_q, last_q,
                        (first_tile + i) * LISTED_KEYS);
    }
  }
}

/** Takes the fully masked tiles out of a list of `most_tiles`; returns how many are left.
 */
__device__ __forceinline__ int keep_attended(ListedTile *tiles, int most_tiles, int consumers) {
  const int lane = threadIdx.x;
  int count = 0;
  for (int first = 0; first < most_tiles; first += WARP_SIZE) {
    ListedTile tile = {};
    bool attended = false;
    if (first + lane < most_tiles) {
      tile = tiles[first + lane];
      for (int consumer = 0; consumer < consumers; consumer++) {
        attended |= tile.mask[consumer] != NONE_ATTENDED;
      }
    }
    const unsigned lanes = __ballot_sync(FULL_WARP, attended);
    __syncwarp();  // all lanes have read theirs, so another may write there; no vote orders that
    if (attended) tiles[count + __popc(lanes & ((1u << lane) - 1))] = tile;
    count += __popc(lanes);
  }
  return count;
}

/**
 * Makes the plan and the list of one tile of `consumers` * CONSUMER_ROWS queries; one warp per
 * plan. At first the list has all tiles of keys, as not attended to. Each slot of the row of mask
 * blocks writes to its own; then the fully masked ones are taken out.
 */
static __global__ void __launch_bounds__(WARP_SIZE)
    plan_blocks_kernel(Problem problem, BlockMask m, ListPlans plans, int consumers) {
  const int plan_q = blockIdx.x % plans.q_tiles * consumers * CONSUMER_ROWS;
  ListedTile *tiles = plans.tiles + (int64_t)blockIdx.x * plans.most_tiles;
  for (int tile = threadIdx.x; tile < plans.most_tiles; tile += WARP_SIZE) {
    tiles[tile] = {tile * LISTED_KEYS, {NONE_ATTENDED, NONE_ATTENDED, NONE_ATTENDED}};
  }
  __syncwarp();
  for (int consumer = 0; consumer < consumers; consumer++) {
    const int first_q = plan_q + consumer * CONSUMER_ROWS;
    const int last_q = min(first_q + CONSUMER_ROWS, problem.q_len) - 1;
    if (first_q > last_q) break;
    classify_row(problem, m, plans, tiles, consumer, first_q, last_q);
  }
  __syncwarp();
  const int count = keep_attended(tiles, plans.most_tiles, consumers);
  if (threadIdx.x > 0) return;
  QueryPlan plan = {};
  plan.number = blockIdx.x;
  plan.first_q = plan_q;
  plan.tile_count = count;
  plans.unsorted[blockIdx.x] = plan;
}

/** The map of the bits of PARTIAL tiles, if there are any: a box has those of one tile. */
static cudaError_t make_bits_map(CUtensorMap *map, const PartialTiles &partial) {
  if (partial.partial_tiles == 0) return cudaSuccess;
  constexpr int WORDS = CONSUMER_ROWS * LISTED_KEYS / 32;
  return make_words_map(map, partial.bits, WORDS, partial.partial_tiles, WORDS);
}

/** BlockMaskSupport::prepared_bytes of such a step. */
template <const auto &CONFIGS>
static size_t list_plan_bytes(const Problem *problem, const BlockMask *mask) {
  return lay_out_list_plans(problem, mask, find_config<CONFIGS>(problem)->block_m, NULL).bytes;
}

#endif
