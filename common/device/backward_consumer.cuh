/**
 * @file
 * What step 17b introduces: a consumer whose dS^T is in registers and in shared memory.
 */
#ifndef DEVICE_BACKWARD_CONSUMER_CUH
#define DEVICE_BACKWARD_CONSUMER_CUH

#include "device/backward_fours.cuh"
#include "device/backward_hopper.cuh"

// As in steps/step17b_fewer_reads.cu:

/** Adds up dV and dK of the 64 keys of a consumer, from 0 on, and writes their dS^T. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void sum_gradients(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                              const KeyBlock &block,
                                              const QueryTiles<BLOCK_M> &tiles, int consumer,
                                              float (&dv)[1][HEAD_DIM / MMA_N][4],
                                              float (&dk)[1][HEAD_DIM / MMA_N][4]) {
  constexpr int N = BLOCK_M / MMA_N;
  const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE % 4, 0);
  const int row = 64 * consumer + 16 * warp;  // of S^T: the first of this warp
  const float scale_log2 = problem.scale * LOG2_E;
  uint32_t p[N / 2][4];  // P^T of a tile, rounded
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  const auto start_s = [&](float(&s)[1][N][4]) {
    mbarrier_wait(&shared.q_full[state.index()], state.phase());
    wgmma_fence();  // other instructions have used these registers
    start_qk<T, HEAD_DIM, BLOCK_M>(s[0], shared.k[consumer], shared.q[state.index()]);
  };
  const auto finish_s = [&](float(&s)[1][N][4]) {
    if (block.first_key + 64 * (consumer + 1) > attended_keys(problem, tile.first_q)) {
      mask_transposed(s, problem, block.first_key + row, tile.first_q);
    }
    to_p<T>(s[0], shared.lse_log2[state.index()], scale_log2);
    pack_probs<T>(p, s[0]);
  };
  mbarrier_wait(&shared.kv_full, 0);
  if (tiles.count > 0) {
    float s[1][N][4];
    start_s(s);
    wgmma_wait<0>(s[0]);
    finish_s(s);
  }
  for (int i = 0; i < tiles.count; i++) {
    const PipelineState<Tiles<HEAD_DIM>::DS_STAGES> ds_state = {state.count};
    const int stage = state.index(), ds_stage = ds_state.index();
    float dp[N][4], next_s[1][N][4];  // dP^T, then dS^T; S^T of the next tile
    uint32_t ds[N / 2][4];
    mbarrier_wait(&shared.do_full[stage], state.phase());
    wgmma_fence();  // P^T is in its registers
    start_qk<T, HEAD_DIM, BLOCK_M>(dp, shared.v[consumer], shared.d_o[stage]);
    start_pv<T, HEAD_DIM, BLOCK_M>(dv[0], p, shared.d_o[stage]);  // dV += P^T dO
    wgmma_wait<1>(dp);                                            // dV may still run
    to_ds<T>(dp, p, shared.d[stage]);
    pack_probs<T>(ds, dp);
    mbarrier_wait(&shared.ds_empty[ds_stage], ds_state.phase() ^ 1);
    write_ds(shared.ds[ds_stage], ds, row, &shared.ds_full[ds_stage]);
    if (i + 1 < tiles.count) ++state, tile = tiles.next(tile);
    start_s(next_s);  // after the last tile once more the same
    start_dk<T, HEAD_DIM, BLOCK_M>(dk[0], ds, shared.ds[ds_stage], 64 * consumer, shared.q[stage],
                                   1 + consumer);
    wgmma_wait<1>(dv[0], next_s[0]);  // dK may still run
    finish_s(next_s);
    wgmma_wait<0>(dk[0]);
  }
}

#endif
