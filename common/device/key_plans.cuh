/**
 * @file
 * Plans of a mask for a backward pass: for each block of keys, the tiles of queries that attend to
 * some of its keys. Small kernels make them once per mask, from the span of keys of each query.
 */
#ifndef DEVICE_KEY_PLANS_CUH
#define DEVICE_KEY_PLANS_CUH

#include "attention.h"
#include "block_mask.h"
#include "device/backward_launch.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"

constexpr int PLAN_THREADS = 128; /**< of a block of the kernels that have a thread for each */

/** A tile of queries in the list of a block of keys. */
struct alignas(8) MarkedTile {
  int head;  /**< query head, counted from the first that reads these keys */
  int entry; /**< the first query, a multiple of 64, plus 1 << i if consumer i masks elements */

  /** The first query. */
  __device__ __forceinline__ int first_q() const { return entry & ~63; }
  /** Does a consumer mask elements? */
  __device__ __forceinline__ bool masked(int consumer) const { return entry >> consumer & 1; }
};

/** The work of a thread block that owns keys. */
struct KeyPlan {
  int block;   /**< of the keys of a head */
  int tiles;   /**< in its list */
  int skipped; /**< bit i: consumer i has no element in the first tile; bit 2 + i: in the last */
};

/** The plans of a mask, in device memory. Key/value heads with the same masks share them: these
 * are a group of lists. */
struct KeyPlans {
  int block_m, block_n;    /**< of the kernel's tiles */
  int q_tiles, key_blocks; /**< of a head */
  int batches, heads;      /**< distinct masks, as in BlockMask */
  int kv_heads;            /**< groups of lists of a batch entry: key/value heads, or 1 */
  int q_heads;             /**< query heads that read the same keys */
  KeySpan *spans;          /**< [batches * heads][q_tiles * block_m]: {0, 0} without a key */
  MarkedTile *lists;       /**< [batches * kv_heads][key_blocks][q_heads * q_tiles] */
  KeyPlan *unsorted;       /**< [batches * kv_heads][key_blocks] */
  KeyPlan *plans;          /**< the same, those of a head with the most tiles first */
  size_t bytes;            /**< of all of them */
};

/** The plans of a mask, laid out from `memory` on, which is aligned as by cudaMalloc. */
static KeyPlans lay_out_key_plans(const Problem *problem, const BlockMask *m,
                                  const BackwardConfig *config, void *memory) {
  KeyPlans plans = {config->block_m, config->block_n};
  plans.q_tiles = (problem->q_len + plans.block_m - 1) / plans.block_m;
  plans.key_blocks = (problem->kv_len + plans.block_n - 1) / plans.block_n;
  plans.batches = m->batches;
  plans.heads = m->heads;
  plans.kv_heads = m->heads == 1 ? 1 : problem->kv_heads;
  plans.q_heads = group_size(problem);
  const auto take = [&](int64_t elements, size_t size) {
    char *const start = (char *)memory + plans.bytes;
    plans.bytes += (elements * size + 255) / 256 * 256;
    return (void *)start;
  };
  const int64_t masks = (int64_t)plans.batches * plans.heads;
  const int64_t blocks = (int64_t)plans.batches * plans.kv_heads * plans.key_blocks;
  plans.spans = (KeySpan *)take(masks * plans.q_tiles * plans.block_m, sizeof(KeySpan));
  plans.lists = (MarkedTile *)take(blocks * plans.q_heads * plans.q_tiles, sizeof(MarkedTile));
  plans.unsorted = (KeyPlan *)take(blocks, sizeof(KeyPlan));
  plans.plans = (KeyPlan *)take(blocks, sizeof(KeyPlan));
  return plans;
}

/** The number of the mask of a query head of a batch entry. */
__device__ __forceinline__ int mask_of_head(const KeyPlans &plans, int batch, int head) {
  return batch % plans.batches * plans.heads + head % plans.heads;
}

/** The list of block `block` of the keys of a group of lists. */
__device__ __forceinline__ MarkedTile *list_of_block(const KeyPlans &plans, int group, int block) {
  return plans.lists + ((int64_t)group * plans.key_blocks + block) * plans.q_heads * plans.q_tiles;
}

/** Copies the spans of all queries; one thread for each query of whole tiles. TMA needs the copy,
 * whose rows begin at multiples of 16 bytes. */
static __global__ void copy_spans_kernel(Problem problem, BlockMask m, KeyPlans plans) {
  const int rows = plans.q_tiles * plans.block_m;
  const int64_t number = (int64_t)blockIdx.x * PLAN_THREADS + threadIdx.x;
  if (number >= (int64_t)plans.batches * plans.heads * rows) return;
  const int mask = (int)(number / rows), q = (int)(number % rows);
  KeySpan span = {0, 0};
  if (q < problem.q_len) {
    span = m.row_spans[mask / m.heads * m.span_strides[0] + mask % m.heads * m.span_strides[1] + q];
  }
  plans.spans[number] = span.first < span.end ? span : KeySpan{0, 0};
}

// [list]
/** Lists the tiles of queries of one block of keys; one warp for each. A query without a key needs
 * no mask code, because its P is 0: see RowNumbers. */
static __global__ void __launch_bounds__(WARP_SIZE) list_tiles_kernel(KeyPlans plans) {
  const int group = blockIdx.x / plans.key_blocks, block = blockIdx.x % plans.key_blocks;
  const int first_key = block * plans.block_n;
  MarkedTile *const list = list_of_block(plans, group, block);
  int count = 0, skipped = 0;
  for (int i = 0; i < plans.q_heads * plans.q_tiles; i++) {
    const int head = i / plans.q_tiles, first_q = i % plans.q_tiles * plans.block_m;
    const int mask =
        mask_of_head(plans, group / plans.kv_heads, group % plans.kv_heads * plans.q_heads + head);
    const KeySpan *const spans =
        plans.spans + (int64_t)mask * plans.q_tiles * plans.block_m + first_q;
    bool some[2] = {}, masked[2] = {};  // any element of a consumer; not all of them
    for (int row = threadIdx.x; row < plans.block_m; row += WARP_SIZE) {
      const KeySpan span = spans[row];
      if (span.first == span.end) continue;
      for (int consumer = 0; consumer < 2; consumer++) {
        const int first = first_key + 64 * consumer;
        some[consumer] |= span.first < first + 64 && span.end > first;
        masked[consumer] |= span.first > first || span.end < first + 64;
      }
    }
    int bits = 0, none = 0;
    for (int consumer = 0; consumer < 2; consumer++) {
      bits |= (int)__any_sync(FULL_WARP, masked[consumer]) << consumer;
      none |= (int)!__any_sync(FULL_WARP, some[consumer]) << consumer;
    }
    if (none == 3) continue;
    skipped = count == 0 ? none : (skipped & 3) | none << 2;
    if (threadIdx.x == 0) list[count] = {head, first_q | bits};
    count++;
  }
  if (threadIdx.x == 0) plans.unsorted[blockIdx.x] = {block, count, skipped};
}
// [list]

/** Sorts the plans of each head; one thread for each: its rank is the number of plans with more
 * tiles, and of those before it with as many. */
static __global__ void sort_plans_kernel(KeyPlans plans) {
  const int64_t number = (int64_t)blockIdx.x * PLAN_THREADS + threadIdx.x;
  if (number >= (int64_t)plans.batches * plans.kv_heads * plans.key_blocks) return;
  const KeyPlan plan = plans.unsorted[number];
  const int64_t first = number - plan.block;
  int rank = 0;
  for (int other = 0; other < plans.key_blocks; other++) {
    const int difference = plans.unsorted[first + other].tiles - plan.tiles;
    rank += difference > 0 || (difference == 0 && other < plan.block);
  }
  plans.plans[first + rank] = plan;
}

/** Thread blocks of PLAN_THREADS threads for so many threads. */
static unsigned plan_blocks(int64_t threads) {
  return (unsigned)((threads + PLAN_THREADS - 1) / PLAN_THREADS);
}

/** The map of the spans: a box has those of a tile of queries. */
static cudaError_t make_key_spans_map(CUtensorMap *map, const KeyPlans &plans) {
  const int words = plans.block_m * (int)sizeof(KeySpan) / 4;
  const int64_t rows = (int64_t)plans.batches * plans.heads * plans.q_tiles;
  return make_words_map(map, plans.spans, words, rows, words);
}

#endif
