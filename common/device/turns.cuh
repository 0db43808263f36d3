/**
 * @file
 * What step 08 introduces: consumers that multiply in turns (ping-pong).
 */
#ifndef DEVICE_TURNS_CUH
#define DEVICE_TURNS_CUH

#include "device/ptx_hopper.cuh"

// As in steps/step08_warp_specialised.cu:

/** Waits until it is the turn of this consumer: barrier 1 + consumer, at which its own threads wait
 * and those of the consumer before it arrive. */
__device__ __forceinline__ void wait_for_turn(int consumer) {
  named_barrier_sync<2 * WARPGROUP_THREADS>(1 + consumer);
}

/** Passes the turn on to the next consumer. */
template <int CONSUMERS>
__device__ __forceinline__ void pass_turn(int consumer) {
  named_barrier_arrive<2 * WARPGROUP_THREADS>(1 + (consumer + 1) % CONSUMERS);
}

#endif
