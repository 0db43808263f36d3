/**
 * @file
 * What step 10d introduces: where shared memory has no room for O, it takes slots of V. The
 * pipeline of V is ahead of that of K then: each tile of queries ends with a slot for each
 * consumer's O.
 */
#ifndef DEVICE_O_SLOTS_CUH
#define DEVICE_O_SLOTS_CUH

#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"

/** The state of V's pipeline for the tile whose K has `state`, in the thread block's tile of
 * queries number `number`. */
template <typename Tile>
__device__ __forceinline__ PipelineState<Tile::STAGES> v_state_of(PipelineState<Tile::STAGES> state,
                                                                  uint32_t number) {
  return {state.count + (Tile::O_IN_V ? Tile::CONSUMERS * number : 0)};
}

/**
 * Grants each consumer a slot of V for its O of the tile of queries before. The producer calls it
 * while `state` is that of the first K of tile of queries `number`: the slots come right before its
 * V.
 */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void grant_o_slots(Shared<T, HEAD_DIM> &shared,
                                              PipelineState<Tiles<HEAD_DIM>::STAGES> state,
                                              uint32_t number) {
  using Tile = Tiles<HEAD_DIM>;
  if (!Tile::O_IN_V || number == 0) return;
  auto slot = v_state_of<Tile>(state, number - 1);
  for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++, ++slot) {
    mbarrier_wait(&shared.v_empty[slot.index()], slot.phase() ^ 1);  // no product reads V
    mbarrier_arrive(&shared.v_full[slot.index()]);
  }
}

/**
 * Releases the slots of V that were granted. Each consumer releases all of them: its own when its O
 * of the tile of queries before has been read, the others as soon as they have been granted. To be
 * called while `state` is that of the first K of tile of queries `number`.
 */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void release_o_slots(Shared<T, HEAD_DIM> &shared,
                                                PipelineState<Tiles<HEAD_DIM>::STAGES> state,
                                                uint32_t number) {
  using Tile = Tiles<HEAD_DIM>;
  if (!Tile::O_IN_V || number == 0) return;
  auto slot = v_state_of<Tile>(state, number - 1);
  if (threadIdx.x % WARP_SIZE == 0) tma_store_wait<0>();
  for (int other = 0; other < Tile::CONSUMERS; other++, ++slot) {
    mbarrier_wait(&shared.v_full[slot.index()], slot.phase());
    __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
    release(shared.v_empty, slot);
  }
}

/** Where a consumer writes its O: a place of its own, or the slot of V that was granted to it. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ T *o_slot(Shared<T, HEAD_DIM> &shared, int consumer,
                                     PipelineState<Tiles<HEAD_DIM>::STAGES> state,
                                     uint32_t number) {
  using Tile = Tiles<HEAD_DIM>;
  if (!Tile::O_IN_V) return shared.o[consumer];
  const PipelineState<Tile::STAGES> slot = {v_state_of<Tile>(state, number).count + consumer};
  mbarrier_wait(&shared.v_full[slot.index()], slot.phase());  // no product reads V there
  return shared.v[slot.index()];
}

#endif
