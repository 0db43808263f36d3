/**
 * @file
 * The producer of step 10b, for persistent blocks whose consumers each have their own Q.
 */
#ifndef DEVICE_PRODUCER_CUH
#define DEVICE_PRODUCER_CUH

#include "device/pipeline.cuh"
#include "device/scheduler.cuh"

// As in steps/step10b_tma_store.cu:

/** Asks for the Q of a consumer, as soon as it has no product with the previous Q left to do.
 * `work_count` is the number of the work tile in this block. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_q(Shared<T, HEAD_DIM> &shared, const CUtensorMap &map,
                                       int consumer, const WorkTile &work, uint32_t work_count) {
  constexpr int ROWS = Tiles<HEAD_DIM>::CONSUMER_ROWS;
  const PipelineState<1> q_state = {work_count};
  mbarrier_wait(&shared.q_empty[consumer], q_state.phase() ^ 1);
  mbarrier_arrive_expect(&shared.q_full[consumer], sizeof *shared.q);
  load_rows<HEAD_DIM, ROWS>(shared.q[consumer], map, &shared.q_full[consumer],
                            work.first_q + consumer * ROWS, work.head, work.batch);
}

/** What the one producing thread does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                        const Problem &problem, const TileScheduler &scheduler) {
  using Tile = Tiles<HEAD_DIM>;
  // Counts all tiles of K that this block loads. With 3 stages it must stay below 2^32, which 3
  // does not divide: at 0.4 us for each tile, that is half an hour in one launch.
  PipelineState<Tile::STAGES> state;
  PipelineState<2> work_state;
  for (int index = blockIdx.x;; ++work_state) {
    const WorkTile work = find_work<HEAD_DIM>(problem, scheduler, index);
    mbarrier_wait(&shared.work_empty[work_state.index()], work_state.phase() ^ 1);  // all read it
    shared.work[work_state.index()] = work;
    mbarrier_arrive(&shared.work_full[work_state.index()]);
    if (work.key_end < 0) break;

    const int kv_head = work.head / (problem.q_heads / problem.kv_heads);
    load_q(shared, maps.q, 0, work, work_state.count);
    for (int first_key = 0; first_key < work.key_end; first_key += Tile::BLOCK_N, ++state) {
      // Not earlier: a block that is late must not take a tile that a free one could begin.
      if (first_key + Tile::BLOCK_N >= work.key_end) index = take_next(scheduler);
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, state,
                                         first_key, kv_head, work.batch);
      for (int c = 1; first_key == 0 && c < Tile::CONSUMERS; c++) {
        load_q(shared, maps.q, c, work, work_state.count);
      }
      // V may have another number of stages than K: it has the same count.
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty,
                                         {state.count}, first_key, kv_head, work.batch);
    }
    if (work.key_end == 0) {
      for (int c = 1; c < Tile::CONSUMERS; c++) {
        load_q(shared, maps.q, c, work, work_state.count);
      }
      index = take_next(scheduler);
    }
  }
}

#endif
