/**
 * @file
 * What step 17f introduces: two blocks of a cluster that exchange dS.
 */
#ifndef DEVICE_BACKWARD_CLUSTER_CUH
#define DEVICE_BACKWARD_CLUSTER_CUH

#include "device/backward_fours.cuh"
#include "device/backward_halves.cuh"
#include "device/ptx_cluster.cuh"

// As in steps/step17f_cluster.cu:

/** Sends 16 rows of dS^T of a warp to the other block, and expects as many from there. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void exchange_rows(Shared<T, HEAD_DIM> &shared, int stage, int row) {
  constexpr int BYTES = 16 * Tiles<HEAD_DIM>::BLOCK_M * sizeof(T);
  const int first = row * Tiles<HEAD_DIM>::BLOCK_M;
  bulk_send(shared.other_ds[stage] + first, shared.ds[stage] + first, BYTES, &shared.ds_full[stage],
            cluster_rank() ^ 1);
  mbarrier_arrive_expect(&shared.ds_full[stage], BYTES);
}

/** What a consumer does: dV (consumer 0) or dK (consumer 1) of all keys. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                        const Problem &problem, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, bool has_p) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int N = BLOCK_M / MMA_N, HALF = HEAD_DIM / 2;
  const int row = threadIdx.x % WARPGROUP_THREADS / WARP_SIZE * 16;
  // S^T = K Q^T and dV += P^T dO, or dP^T = V dO^T and dK += dS^T Q.
  const T *const keys = has_p ? shared.k : shared.v;
  const auto q = halves_of(shared.q, shared.q_full, shared.q_empty);
  const auto d_o = halves_of(shared.d_o, shared.do_full, shared.do_empty);
  auto queries = has_p ? q : d_o, others = has_p ? d_o : q;
  float sums[2][HALF / MMA_N][4] = {};
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tile::STAGES> state;
  float s[1][N][4];      // S^T, then P^T; or dP^T, then dS^T
  uint32_t a[N / 2][4];  // the same, rounded
  const auto start_scores = [&](int half) {
    start_half<T, HALF>(s[0], keys + half * 64 * HALF, queries.take(), half > 0);
  };
  const auto start_gradient = [&] {
#pragma unroll
    for (int half = 0; half < 2; half++) start_pv<T, HALF, BLOCK_M>(sums[half], a, others.take());
  };
  const auto finish_scores = [&] {
    const int stage = state.index(), numbers = queries.unread.index;
    if (has_p) {
      make_p<T>(a, s, problem, block, row, tile.first_q, shared.lse_log2[numbers]);
      mbarrier_wait_cluster(&shared.ds_empty[stage], state.phase() ^ 1);
      write_operands<false>(shared.ds[stage], a, row, &shared.p_full[stage]);
    } else {
      mbarrier_wait(&shared.p_full[stage], state.phase());
      read_operands(a, shared.ds[stage], row);
      to_ds<T>(s[0], a, shared.d[numbers]);
      pack_probs<T>(a, s[0]);
      write_operands<true>(shared.ds[stage], a, row, NULL);
      if (threadIdx.x % WARP_SIZE == 0) exchange_rows(shared, stage, row);
    }
    queries.release(2);
  };
  mbarrier_wait(&shared.kv_full[has_p ? 0 : 1], 0);
  if (tiles.count > 0) {
    start_scores(0);
    start_scores(1);
    wgmma_wait<0>(s[0]);
  }
  for (int i = 1; i < tiles.count; i++) {
    finish_scores();
    start_gradient();
    ++state, tile = tiles.next(tile);
    wgmma_wait<1>(sums[0]);
    others.release();
    start_scores(0);  // of the next tile
    wgmma_wait<1>(sums[1]);
    others.release();
    start_scores(1);
    wgmma_wait<0>(s[0]);
  }
  if (tiles.count > 0) {
    finish_scores();
    start_gradient();
    wgmma_wait<0>(sums[0], sums[1]);
    others.release(2);
  }
  store_sums<HEAD_DIM>(sums, has_p ? 1.0f / (1 << P_SHIFT<T>) : problem.scale, others,
                       has_p ? maps.d_v : maps.d_k, problem, block, row);
}

/** Asks for K of the other block's keys, in the columns for which this block computes dQ. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_other_k(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                             const Problem &problem, KeyBlock block) {
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  const int rank = cluster_rank();
  mbarrier_arrive_expect(&shared.other_k_full, sizeof shared.other_k);
  for (int column = 0; column < HEAD_DIM / 2; column += 64) {
    tma_load(shared.other_k + 64 * column, maps.k, &shared.other_k_full,
             rank * HEAD_DIM / 2 + column, block.first_key + (rank == 0 ? 64 : -64),
             head / (problem.q_heads / problem.kv_heads), batch);
  }
}

#endif
