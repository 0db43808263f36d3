/**
 * @file
 * Thread blocks that follow the plans of a mask: who finds the plan of the next tile of queries,
 * who loads what for it, and where a consumer gets its work and leaves its O. What K comes with,
 * and what a consumer does with the tiles of keys, is up to the form of the mask.
 */
#ifndef DEVICE_PLANNED_TILES_CUH
#define DEVICE_PLANNED_TILES_CUH

#include <float.h>

#include "attention.h"
#include "device/mask_plans.cuh"
#include "device/o_slots.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
#include "device/store_tile.cuh"
#include "device/wgmma_tile.cuh"

/** Tiles of queries that a thread block knows at a time. Two are enough for a right answer, but
 * then the next plan would go where that of the previous tile is. The producer would wait until the
 * slowest consumer has left that tile, and the last V of this tile would wait with it. */
constexpr int WORK_SLOTS = 4;

/** What a thread block knows of a tile of queries. */
struct alignas(16) PlannedTile {
  QueryPlan plan;  /**< of its queries */
  int head, batch; /**< whose queries they are */
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
                                          int consumer, int more_bytes, LoadMore load_more) {
  for (PipelineState<WORK_SLOTS> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const PlannedTile &work = shared.work[work_state.index()];
    if (work.plan.tile_count < 0) break;
    const int number = work.plan.number, first_q = work.plan.first_q;
    const int head = work.head, batch = work.batch;
    uint64_t *full = &shared.q_full[consumer];
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_empty[consumer], q_state.phase() ^ 1);  // no product reads Q
    // `work` is not read from here on. The consumer waits for Q before it arrives at work_empty, so
    // that barrier need not count this thread.
    mbarrier_arrive_expect(full, sizeof shared.q[consumer] + more_bytes);
    load_rows<HEAD_DIM, CONSUMER_ROWS>(shared.q[consumer], q_map, full,
                                       first_q + consumer * CONSUMER_ROWS, head, batch);
    load_more(full, number);
  }
}
// [produce_q]

// [produce_kv]
/**
 * Run by one thread: finds the tiles of queries, and loads K and V for them. list_of(work) is
 * where its tiles of keys are listed, first_key_of(list, tile) the first key of one of them, and
 * load_k(state, list, tile, kv_head, batch) loads its K.
 */
template <typename T, int HEAD_DIM, typename ListOf, typename FirstKeyOf, typename LoadK>
__device__ __forceinline__ void produce_kv(Shared<T, HEAD_DIM> &shared, const CUtensorMap &v_map,
                                           const Problem &problem, TileScheduler scheduler,
                                           const MaskPlans &plans, ListOf list_of,
                                           FirstKeyOf first_key_of, LoadK load_k) {
  using Tile = Tiles<HEAD_DIM>;
  scheduler.tiles_per_turn = *plans.uneven ? TILES_PER_TURN : plans.q_tiles;
  PipelineState<Tile::STAGES> state;  // of the next tile of K
  PipelineState<WORK_SLOTS> work_state;
  find_plan(shared, work_state, problem, scheduler, plans, blockIdx.x);
  for (;; ++work_state) {
    cp_async_wait<0>();  // the plan has arrived
    mbarrier_arrive(&shared.work_full[work_state.index()]);
    const PlannedTile &work = shared.work[work_state.index()];
    const int tile_count = work.plan.tile_count;
    if (tile_count < 0) break;
    const int batch = work.batch, kv_head = work.head / (problem.q_heads / problem.kv_heads);
    const auto list = list_of(work);
    int index = 0;  // of the next tile of queries
    for (int tile = 0; tile < tile_count; tile++, ++state) {
      // Not earlier: a late block would hold a tile that a free one could take. Not later: it takes
      // hundreds of cycles.
      if (tile + 1 == tile_count) index = take_next(scheduler);
      if (Tile::O_SLOTS == 0 || tile == 0) load_k(state, list, tile, kv_head, batch);
      if (Tile::O_SLOTS > 0) {  // V waits for O, so the next K comes first
        if (tile + 1 < tile_count) load_k({state.count + 1}, list, tile + 1, kv_head, batch);
        if (tile == 0) grant_o_slots(shared, state, work_state.count);
      }
      if (tile + 1 == tile_count) {  // its plan is copied while V waits for room
        find_plan(shared, {work_state.count + 1}, problem, scheduler, plans, index);
      }
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, v_map, shared.v_full, shared.v_empty,
                                         v_state<HEAD_DIM>(state, work_state.count),
                                         first_key_of(list, tile), kv_head, batch);
    }
    if (tile_count == 0) {
      grant_o_slots(shared, state, work_state.count);
      find_plan(shared, {work_state.count + 1}, problem, scheduler, plans, take_next(scheduler));
    }
  }
  grant_o_slots(shared, state, work_state.count);  // for the last O
}
// [produce_kv]

// [consume]
/** What a consumer does, tile after tile of queries. attend(plan, work count, state, o, m, l) goes
 * through the tiles of keys of a plan and releases Q. */
template <typename T, int HEAD_DIM, typename Attend>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const CUtensorMap &o_map,
                                        const Problem &problem, const Tensors &t, int consumer,
                                        Attend attend) {
  using Tile = Tiles<HEAD_DIM>;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  const int row_in_tile = consumer * CONSUMER_ROWS + 16 * warp;  // of the first row of this warp
  PipelineState<Tile::STAGES> state;                             // of the next tile of K
  for (PipelineState<WORK_SLOTS> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const PlannedTile &work = shared.work[work_state.index()];
    if (work.plan.tile_count < 0) break;
    // [0] belongs to row lane / 4 of this warp, [1] to the row 8 below.
    float m[2] = {-FLT_MAX, -FLT_MAX};  // maximum of score * scale * log2(e) over some of the keys
    float l[2] = {};                    // running sum of this lane's probabilities
    float o[HEAD_DIM / MMA_N][4] = {};
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[consumer], q_state.phase());  // Q and its masks have arrived
    attend(work.plan, work_state.count, state, o, m, l);

    const int first_row = work.plan.first_q + row_in_tile;
    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    finish_rows(o, m, l, t.lse + head_index * problem.q_len, first_row, problem.q_len);
    T *o_consumer = shared.o[consumer];
    if (Tile::O_SLOTS > 0) {
      const uint32_t first_slot = v_state<HEAD_DIM>(state, work_state.count).count;
      const PipelineState<Tile::STAGES> o_slot = {first_slot + consumer};
      mbarrier_wait(&shared.v_full[o_slot.index()], o_slot.phase());  // no product reads V there
      o_consumer = shared.v[o_slot.index()];
    }
    store_tile<HEAD_DIM>(o, o_consumer + 16 * warp * HEAD_DIM, o_map, first_row, work.head,
                         work.batch);
    release(shared.work_empty, work_state);  // all lanes have read `work` before __syncwarp()
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until TMA has read it
}
// [consume]

#endif
