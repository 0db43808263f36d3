/**
 * @file
 * What step 17 introduces: a warpgroup that computes dQ and loads.
 */
#ifndef DEVICE_BACKWARD_DQ_GROUP_CUH
#define DEVICE_BACKWARD_DQ_GROUP_CUH

#include "device/add_dq.cuh"
#include "device/backward_hopper.cuh"

// As in steps/step17_dq_warpgroup.cu:

/** Asks for Q, dO and their numbers of a tile of a batch entry. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_queries(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                             const Problem &problem, PassHeads heads, int batch,
                                             QueryTile tile, int stage) {
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  const int q = tile.first_q, q_head = tile.head - batch * problem.q_heads;
  const int row = 2 * (tile.head - heads.first);
  uint64_t *const q_full = &shared.q_full[stage], *const do_full = &shared.do_full[stage];
  load_numbers(shared.lse_log2[stage], maps.numbers, q_full, row, q);
  mbarrier_arrive_expect(q_full, sizeof *shared.q);
  load_rows<HEAD_DIM, BLOCK_M>(shared.q[stage], maps.q, q_full, q, q_head, batch);
  load_numbers(shared.d[stage], maps.numbers, do_full, row + 1, q);
  mbarrier_arrive_expect(do_full, sizeof *shared.d_o);
  load_rows<HEAD_DIM, BLOCK_M>(shared.d_o[stage], maps.d_o, do_full, q, q_head, batch);
}

/** What the third warpgroup does: dQ of all tiles, and all loads. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void compute_dq(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                           const Problem &problem, void *workspace, PassHeads heads,
                                           KeyBlock block, const QueryTiles<BLOCK_M> &tiles) {
  constexpr int STAGES = Tiles<HEAD_DIM>::STAGES, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int batch = block.first_head / problem.q_heads;
  QueryTile tile = {block.first_head, tiles.first_q}, ahead = tile;
  PipelineState<STAGES> loaded;
  const auto load_next = [&]() {
    load_queries(shared, maps, problem, heads, batch, ahead, loaded.index());
    ahead = tiles.next(ahead);
    ++loaded;
  };
  if (threadIdx.x == 0) {
    load_keys(shared, maps, problem, block);
    for (int i = 0; i < STAGES && i < tiles.count; i++) load_next();
  }
  mbarrier_wait(&shared.kv_full, 0);
  PipelineState<Tiles<HEAD_DIM>::DS_STAGES> state;
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), first_q = tile.first_q + 16 * warp;
    float *const sums = dq_sums(problem, workspace, heads.count, tile.head - heads.first) +
                        first_q * HEAD_DIM + lane * 4;
    mbarrier_wait(&shared.ds_full[stage], state.phase());
    // All consumers have written dS^T of this tile, so they have done with the tile before.
    if (threadIdx.x == 0 && i > 0 && i + STAGES - 1 < tiles.count) load_next();
#pragma unroll
    for (int part = 0; part < 2; part++) {  // at D = 64 of the rows, at D = 128 of the columns
      const int row = BLOCK_M > 64 ? 64 * part : 0, column = BLOCK_M > 64 ? 0 : 64 * part;
      float dq[1][64 / MMA_N][4];
      wgmma_fence();
      start_dq<T, HEAD_DIM, BLOCK_N>(dq[0], shared.ds[stage][row / 64], shared.k[0] + 64 * column);
      wgmma_wait<0>(dq[0]);
      if (part == 1) release(shared.ds_empty, state);
      add_to_sums<HEAD_DIM / 8>(sums + row * HEAD_DIM + column * 16, dq,
                                problem.q_len - first_q - row);
    }
  }
}

#endif
