/**
 * @file
 * What step 10 introduces: a tile scheduler for persistent thread blocks, and the work tiles that
 * the producer of a block hands over to its consumers.
 */
#ifndef DEVICE_SCHEDULER_CUH
#define DEVICE_SCHEDULER_CUH

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/pipeline.cuh"

// As in steps/step10_persistent.cu:

/** A tile of queries, and the keys that some of these queries attend to. */
struct alignas(16) WorkTile {
  int first_q, head, batch; /**< its first query, and whose it is */
  int key_end;              /**< keys 0 to key_end - 1; negative: there is no more work */
};

/** The order of all tiles of queries, and how many of them have been taken. */
struct TileScheduler {
  int tiles;          /**< of queries, of all heads */
  int q_tiles;        /**< of one head */
  int heads_per_wave; /**< query heads that are computed together: their K and V fit L2 */
  int tiles_per_turn; /**< of one head, before the next head of the wave has its turn */
  unsigned *counter;  /**< numbers that were taken; 0 between passes */
};

/** What number `index` of the order is. */
struct ScheduledTile {
  int head; /**< query head, counted through the whole batch */
  int rank; /**< of the tiles of this head, which are in the order of their work, most first */
};

/**
 * Tile number `index`. One wave of heads follows the other. Within a wave the tiles with the most
 * work come first: `tiles_per_turn` tiles of each head, then the next ones of each head.
 */
__device__ __forceinline__ ScheduledTile scheduled_tile(const Problem &problem,
                                                        const TileScheduler &s, int index) {
  const int first_head = index / (s.q_tiles * s.heads_per_wave) * s.heads_per_wave;
  const int heads = min(s.heads_per_wave, problem.batch * problem.q_heads - first_head);
  const int in_wave = index - first_head * s.q_tiles;
  const int passed = in_wave / (heads * s.tiles_per_turn) * s.tiles_per_turn;  // of each head
  const int in_turn = min(s.tiles_per_turn, s.q_tiles - passed), rest = in_wave - passed * heads;
  return {first_head + rest / in_turn, passed + rest % in_turn};
}

/** The number of the next tile that no block has. The first tile of each block has the number of
 * the block, so the counter begins after those. A block takes one number for each tile that it
 * computes: a pass takes as many as there are tiles, and atomicInc() leaves the counter at 0. */
__device__ __forceinline__ int take_next(const TileScheduler &scheduler) {
  return gridDim.x + atomicInc(scheduler.counter, scheduler.tiles - 1);
}

/** The work of tile number `index`. Under the causal mask the last rows have the most. */
template <int HEAD_DIM>
__device__ __forceinline__ WorkTile find_work(const Problem &problem,
                                              const TileScheduler &scheduler, int index) {
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  if (index >= scheduler.tiles) return {0, 0, 0, -1};
  const ScheduledTile tile = scheduled_tile(problem, scheduler, index);
  const int first_q = (scheduler.q_tiles - 1 - tile.rank) * BLOCK_M;
  return {first_q, tile.head % problem.q_heads, tile.head / problem.q_heads,
          keys_of_rows(problem, first_q, BLOCK_M)};
}

/** A scheduler for tiles of `block_m` queries. K and V of a wave fill two thirds of L2 at most; the
 * rest is for Q. All waves have about as many heads. */
static TileScheduler make_scheduler(const Problem *problem, int block_m, int element_bytes,
                                    void *counter) {
  const int64_t l2_bytes = device_attribute(cudaDevAttrL2CacheSize) / 3 * 2;
  const int heads = problem->batch * problem->kv_heads;
  const int64_t fit = l2_bytes / (2ll * problem->kv_len * problem->head_dim * element_bytes);
  const int waves = fit < 1 ? heads : (int)((heads + fit - 1) / fit);
  const int q_tiles = (problem->q_len + block_m - 1) / block_m;
  return {.tiles = q_tiles * problem->batch * problem->q_heads,
          .q_tiles = q_tiles,
          .heads_per_wave = (heads + waves - 1) / waves * (problem->q_heads / problem->kv_heads),
          .tiles_per_turn = problem->mask == MASK_FULL ? q_tiles : 3,
          .counter = (unsigned *)counter};
}

#endif
