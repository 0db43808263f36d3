/**
 * @file
 * Plans of a mask in which each query attends to one span of keys. The tiles of keys of such a plan
 * follow each other without a gap, and the first one begins at the first key that any of the
 * queries attends to, whatever the size of a tile.
 */
#ifndef DEVICE_SPAN_PLANS_CUH
#define DEVICE_SPAN_PLANS_CUH

#include "attention.h"
#include "block_mask.h"
#include "device/launch.cuh"
#include "device/mask_plans.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"

/** The plans of a mask of spans, and the spans themselves, in device memory. */
struct SpanPlans : MaskPlans {
  const KeySpan *spans;    /**< BlockMask::row_spans */
  int64_t span_strides[2]; /**< of `spans`: batch, head */
  KeySpan
      *consumer_spans; /**< [plan_count][consumers][CONSUMER_ROWS], in the order of `unsorted` */
};

/** The plans of a mask for tiles of `block_m` queries, laid out from `memory` on, which is aligned
 * as by cudaMalloc; `bytes` says how much they take. */
static SpanPlans lay_out_span_plans(const Problem *problem, const BlockMask *m, int block_m,
                                    void *memory) {
  SpanPlans plans = {lay_out_plans(problem, m, block_m, memory)};
  plans.spans = m->row_spans;
  plans.span_strides[0] = m->span_strides[0];
  plans.span_strides[1] = m->span_strides[1];
  plans.consumer_spans = (KeySpan *)take_bytes(
      &plans, memory, plans.plan_count * block_m * sizeof *plans.consumer_spans);
  return plans;
}

/** Minimum over the lanes of a warp. */
__device__ __forceinline__ int warp_minimum(int x) {
  for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
    x = min(x, __shfl_xor_sync(FULL_WARP, x, distance));
  }
  return x;
}

/**
 * Copies the spans of the `rows` queries of plan number `plan` to plans.consumer_spans, by one
 * warp. A query past the last one has an empty span there. TMA needs this copy: a box must begin at
 * a multiple of 16 bytes, but a span has 8, so a head with an odd number of queries would break
 * that. And the last box of a head would reach into the next head. Returns where the spans of the
 * head are.
 */
__device__ __forceinline__ const KeySpan *copy_spans(const Problem &problem, const SpanPlans &plans,
                                                     int64_t plan, int rows) {
  const int list = (int)(plan / plans.q_tiles), first_q = (int)(plan % plans.q_tiles) * rows;
  const KeySpan *spans = plans.spans + list / plans.heads * plans.span_strides[0] +
                         list % plans.heads * plans.span_strides[1];
  for (int row = threadIdx.x; row < rows; row += WARP_SIZE) {
    const int q = first_q + row;
    plans.consumer_spans[plan * rows + row] = q < problem.q_len ? spans[q] : KeySpan{0, 0};
  }
  return spans;
}

/** Makes the plan of one tile of `consumers` * CONSUMER_ROWS queries, and copies their spans; one
 * warp per plan. */
static __global__ void __launch_bounds__(WARP_SIZE)
    plan_spans_kernel(Problem problem, SpanPlans plans, int consumers, int block_n) {
  const int lane = threadIdx.x, rows = consumers * CONSUMER_ROWS;
  const int first_q = blockIdx.x % plans.q_tiles * rows;
  const KeySpan *spans = copy_spans(problem, plans, blockIdx.x, rows);
  // Of each consumer, in keys: some of its queries attend to keys first to end - 1, all of them to
  // keys all_first to all_end - 1.
  int first[MOST_CONSUMERS], end[MOST_CONSUMERS], all_first[MOST_CONSUMERS],
      all_end[MOST_CONSUMERS];
  int first_key = problem.kv_len, last_end = 0;
  for (int consumer = 0; consumer < consumers; consumer++) {
    int lowest = problem.kv_len, highest = 0, all_from = 0, all_to = problem.kv_len;
    for (int row = lane; row < CONSUMER_ROWS; row += WARP_SIZE) {
      const int q = first_q + consumer * CONSUMER_ROWS + row;
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
  plan.number = blockIdx.x;
  plan.first_q = first_q;
  plan.first_key = first_key;
  if (first_key < last_end) plan.tile_count = (last_end - first_key + block_n - 1) / block_n;
  for (int consumer = 0; consumer < consumers; consumer++) {
    if (first[consumer] >= end[consumer]) continue;  // these queries are fully masked
    ConsumerTiles &tiles = plan.consumers[consumer];
    tiles.begin = (first[consumer] - first_key) / block_n;
    tiles.end = (end[consumer] - first_key + block_n - 1) / block_n;
    tiles.all_begin = (all_first[consumer] - first_key + block_n - 1) / block_n;
    tiles.all_end = max(all_end[consumer] - first_key, 0) / block_n;
  }
  plans.unsorted[blockIdx.x] = plan;
}

/** The map of the spans that plan_spans_kernel() copies: a box has those of one consumer. */
static cudaError_t make_spans_map(CUtensorMap *map, const SpanPlans &plans, int block_m) {
  constexpr int WORDS = CONSUMER_ROWS * sizeof(KeySpan) / 4;
  return make_words_map(map, plans.consumer_spans, WORDS,
                        plans.plan_count * (block_m / CONSUMER_ROWS), WORDS);
}

/** BlockMaskSupport::prepared_bytes of such a step. */
template <const auto &CONFIGS>
static size_t span_plan_bytes(const Problem *problem, const BlockMask *mask) {
  return lay_out_span_plans(problem, mask, find_config<CONFIGS>(problem)->block_m, NULL).bytes;
}

#endif
