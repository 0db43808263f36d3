/**
 * @file
 * The plans of a mask: which tiles of keys a tile of queries visits. Small kernels make them once
 * per mask, one plan for each tile of queries. What a plan says of its tiles of keys depends on the
 * form of the mask: see span_plans.cuh and list_plans.cuh. Here is what both have in common, the
 * order of the plans above all.
 */
#ifndef DEVICE_MASK_PLANS_CUH
#define DEVICE_MASK_PLANS_CUH

#include "attention.h"
#include "block_mask.h"
#include "device/warp.cuh"

constexpr int CONSUMER_ROWS = 64; /**< queries of a consumer */
constexpr int MOST_CONSUMERS = 3; /**< of a thread block */
constexpr int TILES_PER_TURN = 3; /**< of queries of a head, if plans are uneven */
constexpr int SHORT_PLAN = 12;    /**< tiles of keys; see sort_plans_kernel() */

/** Tiles of keys of a consumer, counted from the first one of its tile of queries. */
struct alignas(16) ConsumerTiles {
  int begin;     /**< the first that some of its queries attend to */
  int all_begin; /**< the first that is unmasked for all its queries */
  int all_end;   /**< the end of those */
  int end;       /**< one past the last that some of its queries attend to */
};

/** What a thread block needs to know of a tile of queries. */
struct alignas(16) QueryPlan {
  int number;                              /**< of this plan, in the order of `unsorted` */
  int first_q;                             /**< the first query */
  int tile_count;                          /**< tiles of keys; negative: there is no more work */
  int first_key;                           /**< of the first tile, if the mask is spans */
  ConsumerTiles consumers[MOST_CONSUMERS]; /**< what each needs of them, if the mask is spans */
};

/** The plans of one mask, in device memory. */
struct MaskPlans {
  int q_tiles;         /**< tiles of queries in a head */
  int batches, heads;  /**< distinct masks, as in BlockMask */
  int64_t plan_count;  /**< batches * heads * q_tiles */
  QueryPlan *unsorted; /**< [batches * heads][q_tiles] */
  QueryPlan *plans;    /**< the same, each head in the order of sort_plans_kernel() */
  int *uneven;         /**< 1 if in some head most plans are shorter than the longest */
  size_t bytes;        /**< that were taken with take_bytes() */
};

/** Takes `bytes` from `memory`, which is aligned as by cudaMalloc, after what was taken before. */
static inline void *take_bytes(MaskPlans *plans, void *memory, size_t bytes) {
  char *start = (char *)memory + plans->bytes;
  plans->bytes += (bytes + 255) / 256 * 256;
  return start;
}

/** Room for the plans of a mask for tiles of `block_m` queries, at the start of `memory`. */
static MaskPlans lay_out_plans(const Problem *problem, const BlockMask *m, int block_m,
                               void *memory) {
  MaskPlans plans = {};
  plans.q_tiles = (problem->q_len + block_m - 1) / block_m;
  plans.batches = m->batches;
  plans.heads = m->heads;
  plans.plan_count = (int64_t)m->batches * m->heads * plans.q_tiles;
  const size_t bytes = plans.plan_count * sizeof(QueryPlan);
  plans.unsorted = (QueryPlan *)take_bytes(&plans, memory, bytes);
  plans.plans = (QueryPlan *)take_bytes(&plans, memory, bytes);
  plans.uneven = (int *)take_bytes(&plans, memory, sizeof *plans.uneven);
  return plans;
}

/** Number of the first plan of a query head. */
__device__ __forceinline__ int64_t plan_of_head(const MaskPlans &plans, int batch, int head) {
  return (int64_t)(batch % plans.batches * plans.heads + head % plans.heads) * plans.q_tiles;
}

/**
 * Sorts the plans of a head, those with the most tiles of keys first; of equal ones the last first.
 * Short plans count as equal: at the end of a pass no block waits long for them, and sorted they
 * were slower (docs/step11-tried.md). One thread per plan: its rank is the number of plans before
 * it. The plans are uneven if most of a head have less than 7/8 of the tiles of the longest,
 * however short that is: this decides about the order of heads only.
 */
static __global__ void sort_plans_kernel(MaskPlans plans) {
  const int64_t number = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= plans.plan_count) return;
  const int q_tile = (int)(number % plans.q_tiles);
  const QueryPlan *others = plans.unsorted + (number - q_tile);
  const int count = max(others[q_tile].tile_count, SHORT_PLAN);
  int rank = 0, longest = 0;
  for (int other = 0; other < plans.q_tiles; other++) {
    const int difference = max(others[other].tile_count, SHORT_PLAN) - count;
    rank += difference > 0 || (difference == 0 && other > q_tile);
    longest = max(longest, others[other].tile_count);
  }
  plans.plans[number - q_tile + rank] = others[q_tile];
  if (q_tile > 0) return;
  int long_plans = 0;
  for (int other = 0; other < plans.q_tiles; other++) {
    long_plans += 8 * others[other].tile_count >= 7 * longest;
  }
  if (2 * long_plans < plans.q_tiles) atomicMax(plans.uneven, 1);
}

#endif
