/**
 * @file
 * From the plans of a mask to the work of a thread block: the plan of the next tile of queries is
 * copied while the last tile of keys of this one is on its way.
 */
#ifndef DEVICE_PLANNED_TILES_CUH
#define DEVICE_PLANNED_TILES_CUH

#include "attention.h"
#include "device/mask_plans.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"

/** Tiles of queries that a thread block knows at a time. Two are enough for a right answer, but
 * then the next plan would go where that of the tile before is. The producer would wait until the
 * slowest consumer has left that tile, and the last V of this tile would wait with it. */
constexpr int WORK_SLOTS = 4;

/** What a thread block knows of a tile of queries. */
struct alignas(16) PlannedTile {
  QueryPlan plan;
  int head, batch;
};

// [find_plan]
/** Begins to write what tile of queries number `index` is. The plan comes by cp.async, for which
 * the caller waits. From scheduler.tiles on there is no tile. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void find_plan(Shared<T, HEAD_DIM> &shared,
                                          PipelineState<WORK_SLOTS> work_state,
                                          const Problem &problem, const TileScheduler &scheduler,
                                          const MaskPlans &plans, int index) {
  PlannedTile &work = shared.work[work_state.index()];
  // All consumers have left the tile of queries that was there.
  mbarrier_wait(&shared.work_empty[work_state.index()], work_state.phase() ^ 1);
  if (index >= scheduler.tiles) {
    work.plan.tile_count = -1;
    return;
  }
  const ScheduledTile tile = scheduled_tile(problem, scheduler, index);
  work.head = tile.head % problem.q_heads;
  work.batch = tile.head / problem.q_heads;
  const QueryPlan *plan = &plans.plans[plan_of_head(plans, work.batch, work.head) + tile.rank];
  for (int byte = 0; byte < (int)sizeof *plan; byte += 16) {
    cp_async_16((char *)&work.plan + byte, (const char *)plan + byte, true);
  }
  cp_async_commit();
}
// [find_plan]

// [produce_q]
/** Run by one thread for each consumer: loads its Q. What belongs to it beside Q has `more_bytes`,
 * and load_more(barrier, number of the plan) loads it. */
template <typename T, int HEAD_DIM, typename LoadMore>
__device__ __forceinline__ void produce_q(Shared<T, HEAD_DIM> &shared, const CUtensorMap &q_map,
                                          const MaskPlans &plans, int consumer, int more_bytes,
                                          LoadMore load_more) {
  for (PipelineState<WORK_SLOTS> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const PlannedTile &work = shared.work[work_state.index()];
    if (work.plan.tile_count < 0) break;
    const int first_q = work.plan.first_q, head = work.head, batch = work.batch;
    uint64_t *full = &shared.q_full[consumer];
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_empty[consumer], q_state.phase() ^ 1);  // no product reads Q
    // `work` is not read from here on. The consumer waits for Q before it arrives at work_empty, so
    // that barrier need not count this thread.
    mbarrier_arrive_expect(full, sizeof shared.q[consumer] + more_bytes);
    load_rows<HEAD_DIM, CONSUMER_ROWS>(shared.q[consumer], q_map, full,
                                       first_q + consumer * CONSUMER_ROWS, head, batch);
    load_more(full, (int)plan_of_head(plans, batch, head) + first_q / Tiles<HEAD_DIM>::BLOCK_M);
  }
}
// [produce_q]

#endif
