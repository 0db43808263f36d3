/**
 * @file
 * From a mask to what step 11 reads. A small kernel makes, once per mask, a plan of each tile of
 * queries: which tiles of keys to visit, and which of them need mask code.
 *
 * Where every query attends one span of keys, a plan is a range of tiles of keys. It begins at the
 * first key that any of the queries attends, whatever the size of a tile. Other masks come in
 * blocks, and have a list of tiles of keys as in tile_list.cuh.
 */
#ifndef DEVICE_KEY_SPANS_CUH
#define DEVICE_KEY_SPANS_CUH

#include "attention.h"
#include "device/heads.cuh"
#include "device/tile_list.cuh"
#include "device/warp.cuh"

constexpr int GROUP_ROWS = 64;    /**< queries of a consumer */
constexpr int MOST_CONSUMERS = 3; /**< of a thread block */
constexpr int LISTED_KEYS = 64;   /**< keys of a tile in a list */
constexpr int SHORT_PLAN = 12;    /**< tiles of keys; see sort_plans_kernel() */
constexpr int TILES_IN_TURN = 3;  /**< of queries of a head, if plans are uneven */

/** Tiles of keys of a consumer, counted from the first one of its tile of queries. */
struct alignas(16) ConsumerTiles {
  int begin;     /**< the first that some of its queries attend */
  int all_begin; /**< the first of which all its queries attend all keys */
  int all_end;   /**< the end of those */
  int end;       /**< one past the last that some of its queries attend */
};

/** What a thread block needs to know of a tile of queries. */
struct alignas(16) QueryPlan {
  int first_q;                             /**< the first query */
  int tile_count;                          /**< tiles of keys; negative: there is no more work */
  int first_key;                           /**< of the first tile, if the mask is spans */
  int unused;                              /**< so that the rest is aligned */
  ConsumerTiles consumers[MOST_CONSUMERS]; /**< what each consumer needs of them */
};

/** A tile of keys in a list. */
struct alignas(16) ListedTile {
  int first_key;            /**< the first key */
  int mask[MOST_CONSUMERS]; /**< TileMask, by consumer */
};

/** Everything about one mask, in device memory. */
struct MaskPlans {
  int q_tiles;             /**< tiles of queries in a head */
  int batches, heads;      /**< distinct masks, as in BlockMask */
  int64_t rows;            /**< batches * heads * q_tiles, the number of plans */
  QueryPlan *unsorted;     /**< [batches * heads][q_tiles] */
  QueryPlan *plans;        /**< the same, each head in the order of sort_plans_kernel() */
  int *uneven;             /**< 1 if in some head most plans are shorter than the longest */
  const KeySpan *spans;    /**< BlockMask::row_spans, or NULL */
  int64_t span_strides[2]; /**< of `spans`: batch, head */
  KeySpan *group_spans;    /**< [rows][consumers][GROUP_ROWS], rows as in `unsorted` */
  ListedTile *tiles;       /**< [batches * heads][q_tiles][most_tiles], if there are no spans */
  int most_tiles;          /**< room in each list */
  int64_t
      partial_tiles; /**< of GROUP_ROWS x LISTED_KEYS, cut from the tiles of the mask's blocks */
  uint32_t *bits;    /**< [partial_tiles][GROUP_ROWS][LISTED_KEYS / 32] */
  size_t bytes;      /**< of all arrays but `spans` */
};

/** The plans of a mask for tiles of `block_m` queries, laid out from `memory` on, which is aligned
 * as by cudaMalloc; `bytes` says how much they take. */
static MaskPlans lay_out_plans(const Problem *problem, const BlockMask *m, int block_m,
                               void *memory) {
  MaskPlans plans = {};
  plans.q_tiles = (problem->q_len + block_m - 1) / block_m;
  plans.batches = m->batches;
  plans.heads = m->heads;
  plans.rows = (int64_t)m->batches * m->heads * plans.q_tiles;
  plans.spans = m->row_spans;
  plans.span_strides[0] = m->span_strides[0];
  plans.span_strides[1] = m->span_strides[1];
  const auto reserve = [&](size_t bytes) {
    char *start = (char *)memory + plans.bytes;
    plans.bytes += (bytes + 255) / 256 * 256;
    return start;
  };
  plans.unsorted = (QueryPlan *)reserve(plans.rows * sizeof *plans.unsorted);
  plans.plans = (QueryPlan *)reserve(plans.rows * sizeof *plans.plans);
  plans.uneven = (int *)reserve(sizeof *plans.uneven);
  if (plans.spans != NULL) {
    plans.group_spans = (KeySpan *)reserve(plans.rows * block_m * sizeof *plans.group_spans);
  } else {
    plans.most_tiles = (problem->kv_len + LISTED_KEYS - 1) / LISTED_KEYS;
    plans.tiles =
        (ListedTile *)reserve((size_t)plans.rows * plans.most_tiles * sizeof *plans.tiles);
    plans.partial_tiles =
        (int64_t)m->tile_count * (m->q_block_size / GROUP_ROWS) * (m->kv_block_size / LISTED_KEYS);
    plans.bits = (uint32_t *)reserve(plans.partial_tiles * (GROUP_ROWS * LISTED_KEYS / 8) + 1);
  }
  return plans;
}

/** Number of the first plan of a query head. */
__device__ __forceinline__ int64_t plan_of_head(const MaskPlans &plans, int batch, int head) {
  return (int64_t)(batch % plans.batches * plans.heads + head % plans.heads) * plans.q_tiles;
}

/** Minimum over the lanes of a warp. */
__device__ __forceinline__ int warp_minimum(int x) {
  for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
    x = min(x, __shfl_xor_sync(FULL_WARP, x, distance));
  }
  return x;
}

/**
 * Copies the spans of the `rows` queries of plan number `plan` to plans.group_spans, by one warp. A
 * query past the last one has an empty span there. A tensor copy needs this: it must begin at a
 * multiple of 16 bytes, which a head with an odd number of queries breaks, and the last box of a
 * head would reach into the next one. Returns where the spans of the head are.
 */
__device__ __forceinline__ const KeySpan *copy_spans(const Problem &problem, const MaskPlans &plans,
                                                     int64_t plan, int rows) {
  const int list = (int)(plan / plans.q_tiles), first_q = (int)(plan % plans.q_tiles) * rows;
  const KeySpan *spans = plans.spans + list / plans.heads * plans.span_strides[0] +
                         list % plans.heads * plans.span_strides[1];
  for (int row = threadIdx.x; row < rows; row += WARP_SIZE) {
    const int q = first_q + row;
    plans.group_spans[plan * rows + row] = q < problem.q_len ? spans[q] : KeySpan{0, 0};
  }
  return spans;
}

/** Makes the plan of one tile of `consumers` * GROUP_ROWS queries whose mask is spans, and copies
 * these spans; one warp per plan. */
static __global__ void __launch_bounds__(WARP_SIZE)
    plan_spans_kernel(Problem problem, MaskPlans plans, int consumers, int block_n) {
  const int lane = threadIdx.x, rows = consumers * GROUP_ROWS;
  const int first_q = blockIdx.x % plans.q_tiles * rows;
  const KeySpan *spans = copy_spans(problem, plans, blockIdx.x, rows);
  // Of each consumer, in keys: some of its queries attend first to end - 1, all of them all_first
  // to all_end - 1.
  int first[MOST_CONSUMERS], end[MOST_CONSUMERS], all_first[MOST_CONSUMERS],
      all_end[MOST_CONSUMERS];
  int first_key = problem.kv_len, last_end = 0;
  for (int consumer = 0; consumer < consumers; consumer++) {
    int lowest = problem.kv_len, highest = 0, all_from = 0, all_to = problem.kv_len;
    for (int row = lane; row < GROUP_ROWS; row += WARP_SIZE) {
      const int q = first_q + consumer * GROUP_ROWS + row;
      if (q >= problem.q_len) continue;
      const KeySpan span = spans[q];
      all_from = max(all_from, span.first);
      all_to = min(all_to, span.end);
      if (span.first >= span.end) continue;
      lowest = min(lowest, span.first);
      highest = max(highest, span.end);
    }
    first[consumer] = warp_minimum(lowest);
    end[consumer] = -warp_minimum(-highest);
    all_first[consumer] = -warp_minimum(-all_from);
    all_end[consumer] = warp_minimum(all_to);
    first_key = min(first_key, first[consumer]);
    last_end = max(last_end, end[consumer]);
  }
  if (lane != 0) return;
  QueryPlan plan = {};
  plan.first_q = first_q;
  plan.first_key = first_key;
  if (first_key < last_end) plan.tile_count = (last_end - first_key + block_n - 1) / block_n;
  for (int consumer = 0; consumer < consumers; consumer++) {
    if (first[consumer] >= end[consumer]) continue;  // these queries attend nothing
    ConsumerTiles &tiles = plan.consumers[consumer];
    tiles.begin = (first[consumer] - first_key) / block_n;
    tiles.end = (end[consumer] - first_key + block_n - 1) / block_n;
    tiles.all_begin = (all_first[consumer] - first_key + block_n - 1) / block_n;
    tiles.all_end = max(all_end[consumer] - first_key, 0) / block_n;
  }
  plans.unsorted[blockIdx.x] = plan;
}

/** What classify_tile() and pack_bits_kernel() need to know of tiles in lists. */
static __host__ __device__ inline TileLists listed_tiles(const MaskPlans &plans) {
  TileLists lists = {};
  lists.block_m = GROUP_ROWS;
  lists.block_n = LISTED_KEYS;
  lists.partial_tiles = plans.partial_tiles;
  lists.bits = plans.bits;
  return lists;
}

/**
 * Makes the plan and the list of one tile of `consumers` * GROUP_ROWS queries; one warp per plan.
 * The list first has all tiles of keys; each slot of a mask block writes to its own. Then those
 * that no query attends are taken out.
 */
static __global__ void __launch_bounds__(WARP_SIZE)
    plan_blocks_kernel(Problem problem, BlockMask m, MaskPlans plans, int consumers) {
  const TileLists lists = listed_tiles(plans);
  const int list = blockIdx.x / plans.q_tiles, lane = threadIdx.x;
  const int64_t batch = list / plans.heads, head = list % plans.heads;
  const int plan_q = blockIdx.x % plans.q_tiles * consumers * GROUP_ROWS;
  const int tiles_per_block = m.kv_block_size / LISTED_KEYS;
  ListedTile *tiles = plans.tiles + (int64_t)blockIdx.x * plans.most_tiles;
  for (int tile = lane; tile < plans.most_tiles; tile += WARP_SIZE) {
    tiles[tile] = {tile * LISTED_KEYS, {NONE_ATTENDED, NONE_ATTENDED, NONE_ATTENDED}};
  }
  __syncwarp();

  for (int consumer = 0; consumer < consumers; consumer++) {
    const int first_q = plan_q + consumer * GROUP_ROWS;
    const int last_q = min(first_q + GROUP_ROWS, problem.q_len) - 1;
    if (first_q > last_q) break;
    const int64_t q_block = first_q / m.q_block_size;
    const auto row_of = [=](const int32_t *tensor, const int64_t(&strides)[4]) {
      return tensor + batch * strides[0] + head * strides[1] + q_block * strides[2];
    };
    const int32_t *indices = row_of(m.kv_indices, m.index_strides);
    const int32_t *types = row_of(m.block_mask_types, m.type_strides);
    const int32_t *partials = row_of(m.partial_block_mask_indices, m.partial_strides);
    const int slots = m.kv_num_blocks[batch * m.num_strides[0] + head * m.num_strides[1] +
                                      q_block * m.num_strides[2]];
    for (int64_t slot = lane; slot < slots; slot += WARP_SIZE) {
      const int type = types[slot * m.type_strides[3]];
      if (type == BLOCK_MASKED) continue;
      const int first_tile = indices[slot * m.index_strides[3]] * tiles_per_block;
      int64_t partial = 0;
      if (type == BLOCK_PARTIAL) {
        const int64_t tile = partials[slot * m.partial_strides[3]];
        partial = (tile * m.q_block_size + first_q % m.q_block_size) / GROUP_ROWS * tiles_per_block;
      }
      for (int i = 0; i < tiles_per_block && first_tile + i < plans.most_tiles; i++) {
        tiles[first_tile + i].mask[consumer] = classify_tile(
            problem, lists, type, partial + i, first_q, last_q, (first_tile + i) * LISTED_KEYS);
      }
    }
  }
  __syncwarp();

  int count = 0;
  for (int first = 0; first < plans.most_tiles; first += WARP_SIZE) {
    ListedTile tile = {};
    bool attended = false;
    if (first + lane < plans.most_tiles) {
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
  if (lane == 0) {
    QueryPlan plan = {};
    plan.first_q = plan_q;
    plan.tile_count = count;
    plans.unsorted[blockIdx.x] = plan;
  }
}

/**
 * Sorts the plans of a head, those with the most tiles of keys first; of equal ones the last first.
 * Short plans count as equal: at the end of a pass they keep nobody waiting, and sorted they were
 * slower (docs/step11-tried.md). One thread per plan: its rank is the number of plans before it.
 * The plans are uneven if most of a head have less than 7/8 of the tiles of the longest, however
 * short that is: this decides about the order of heads only.
 */
static __global__ void sort_plans_kernel(MaskPlans plans) {
  const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= plans.rows) return;
  const int q_tile = (int)(row % plans.q_tiles);
  const QueryPlan *others = plans.unsorted + (row - q_tile);
  const int count = max(others[q_tile].tile_count, SHORT_PLAN);
  int rank = 0, longest = 0;
  for (int other = 0; other < plans.q_tiles; other++) {
    const int difference = max(others[other].tile_count, SHORT_PLAN) - count;
    rank += difference > 0 || (difference == 0 && other > q_tile);
    longest = max(longest, others[other].tile_count);
  }
  plans.plans[row - q_tile + rank] = others[q_tile];
  if (q_tile > 0) return;
  int long_plans = 0;
  for (int other = 0; other < plans.q_tiles; other++) {
    long_plans += 8 * others[other].tile_count >= 7 * longest;
  }
  if (2 * long_plans < plans.q_tiles) atomicMax(plans.uneven, 1);
}

#endif
