/**
 * @file
 * What step 10d introduces: O that goes through the pipeline of V, where shared memory is full.
 */
#ifndef DEVICE_O_SLOTS_CUH
#define DEVICE_O_SLOTS_CUH

#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/skip_tile.cuh"
#include "device/warp.cuh"

// As in steps/step10d_o_in_v.cu:

/** The state of V for a tile whose K has the state `k`, in work tile number `work_count` of this
 * block: each work tile before has put the O of all consumers through the pipeline of V, too. */
template <int HEAD_DIM>
__device__ __forceinline__ PipelineState<Tiles<HEAD_DIM>::STAGES> v_state(
    PipelineState<Tiles<HEAD_DIM>::STAGES> k, uint32_t work_count) {
  return {k.count + Tiles<HEAD_DIM>::O_SLOTS * work_count};
}

/** The producer grants each consumer a slot for its O of work tile `work_count` - 1: these slots
 * come right before the first V of work tile `work_count`, whose first K has the state `k`. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void grant_o_slots(Shared<T, HEAD_DIM> &shared,
                                              PipelineState<Tiles<HEAD_DIM>::STAGES> k,
                                              uint32_t work_count) {
  if (work_count == 0) return;
  auto o_slot = v_state<HEAD_DIM>(k, work_count - 1);
  for (int i = 0; i < Tiles<HEAD_DIM>::O_SLOTS; i++, ++o_slot) {
    mbarrier_wait(&shared.v_empty[o_slot.index()], o_slot.phase() ^ 1);  // no product reads V
    mbarrier_arrive(&shared.v_full[o_slot.index()]);
  }
}

/** A consumer releases the slots that were granted for the O of work tile `work_count` - 1, when
 * TMA has read its own O: those of the others, too, because the empty barriers count all consumers.
 * `k` and `work_count` as above. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void release_o_slots(Shared<T, HEAD_DIM> &shared,
                                                PipelineState<Tiles<HEAD_DIM>::STAGES> k,
                                                uint32_t work_count) {
  if (work_count == 0) return;
  auto o_slot = v_state<HEAD_DIM>(k, work_count - 1);
  for (int i = 0; i < Tiles<HEAD_DIM>::O_SLOTS; i++, ++o_slot) {
    if (threadIdx.x % WARP_SIZE == 0) tma_store_wait<0>();
    skip_tile(shared.v_full, shared.v_empty, o_slot);
  }
}

#endif
