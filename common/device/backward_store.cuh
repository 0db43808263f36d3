/**
 * @file
 * What step 17c introduces: TMA stores dV and dK.
 */
#ifndef DEVICE_BACKWARD_STORE_CUH
#define DEVICE_BACKWARD_STORE_CUH

#include "device/backward_groups.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_tile.cuh"
#include "device/store_tile.cuh"
#include "device/wgmma_tile.cuh"

// As in steps/step17c_short_ends.cu:

/** Multiplies the sums of dV and dK of a warp of a consumer by their factors, and has TMA store
 * them. Their 16 rows go through the place of those of V. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void store_by_tma(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                             const Problem &problem, const KeyBlock &block,
                                             int consumer, int warp,
                                             float (&dv)[HEAD_DIM / MMA_N][4],
                                             float (&dk)[HEAD_DIM / MMA_N][4]) {
  const int key = block.first_key + 64 * consumer + 16 * warp;  // the first of this warp
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  const int kv_head = head / (problem.q_heads / problem.kv_heads);
#pragma unroll
  for (int j = 0; j < HEAD_DIM / 2; j++) {
    dv[j / 4][j % 4] *= 1.0f / (1 << P_SHIFT<T>);
    dk[j / 4][j % 4] *= problem.scale;
  }
  named_barrier_sync<WARPGROUP_THREADS>(1 + consumer);  // all warps have done with V
  if (key >= problem.kv_len) return;
  T *const own = shared.v[consumer] + 16 * warp * HEAD_DIM;
  store_tile<HEAD_DIM>(dv, own, maps.d_v, key, kv_head, batch);
  store_tile<HEAD_DIM>(dk, own, maps.d_k, key, kv_head, batch);
  if (threadIdx.x % WARP_SIZE == 0) tma_store_wait<0>();  // shared memory must stay until then
}

#endif
