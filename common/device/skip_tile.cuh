/**
 * @file
 * What step 10c introduces for consumers that need other tiles of keys than their neighbours.
 */
#ifndef DEVICE_SKIP_TILE_CUH
#define DEVICE_SKIP_TILE_CUH

#include "device/pipeline.cuh"

// As in steps/step10c_lazy_max.cu:

/** Waits for a tile that only other consumers need, and releases it: its barriers count this
 * consumer, too. Without the wait this could be a second arrival in the previous phase. */
template <int STAGES>
__device__ __forceinline__ void skip_tile(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES],
                                          PipelineState<STAGES> state) {
  mbarrier_wait(&full[state.index()], state.phase());
  __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
  release(empty, state);
}

#endif
