/**
 * @file
 * What step 16 introduces: the producer of a backward pass, and dS^T that wgmma reads from shared
 * memory.
 */
#ifndef DEVICE_BACKWARD_HOPPER_CUH
#define DEVICE_BACKWARD_HOPPER_CUH

#include "device/backward_maps.cuh"
#include "device/backward_tile.cuh"
#include "device/pipeline.cuh"

// As in steps/step16_hopper_backward.cu:

/** Asks for LSE or D of a tile of queries: row `row` of all numbers, from query `q` on. */
template <int ROWS>
__device__ __forceinline__ void load_numbers(float (&target)[ROWS], const CUtensorMap &map,
                                             uint64_t *full, int row, int q) {
  mbarrier_arrive_expect(full, sizeof target);
  tma_load(target, map, full, q, row, 0, 0);
}

/** Asks for K and V of a block, which stay. They lie in parts of 64 rows. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_keys(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                          const Problem &problem, KeyBlock block) {
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  const int kv_head = head / (problem.q_heads / problem.kv_heads);
  mbarrier_arrive_expect(&shared.kv_full, sizeof shared.k + sizeof shared.v);
  for (int i = 0; i < Tiles<HEAD_DIM>::BLOCK_N / 64; i++) {
    const int key = block.first_key + 64 * i;
    load_rows<HEAD_DIM, 64>(shared.k[i], maps.k, &shared.kv_full, key, kv_head, batch);
    load_rows<HEAD_DIM, 64>(shared.v[i], maps.v, &shared.kv_full, key, kv_head, batch);
  }
}

/** What the one producing thread does: it asks for K and V, then for all tiles of queries. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void produce(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                        const Problem &problem, PassHeads heads, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles) {
  const int batch = block.first_head / problem.q_heads;
  load_keys(shared, maps, problem, block);
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), q = tile.first_q, q_head = tile.head - batch * problem.q_heads;
    const int row = 2 * (tile.head - heads.first);
    load_tile<HEAD_DIM, BLOCK_M>(shared.q, maps.q, shared.q_full, shared.q_empty, state, q, q_head,
                                 batch);
    load_numbers(shared.lse_log2[stage], maps.numbers, &shared.q_full[stage], row, q);
    load_tile<HEAD_DIM, BLOCK_M>(shared.d_o, maps.d_o, shared.do_full, shared.do_empty, state, q,
                                 q_head, batch);
    load_numbers(shared.d[stage], maps.numbers, &shared.do_full[stage], row + 1, q);
  }
}

/** Replaces dP^T by dS^T = P^T o (dP^T - D); `d` is D of the query of column 0. */
template <int N>
__device__ __forceinline__ void to_ds(float (&dp)[N][4], const float (&p)[N][4], const float *d) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&d[8 * n + threadIdx.x % 4 * 2];
#pragma unroll
    for (int j = 0; j < 4; j++) dp[n][j] = p[n][j] * (dp[n][j] - (j % 2 == 0 ? pair.x : pair.y));
  }
}

/** Writes this warp's 16 rows of dS^T, from row `first` on, and arrives at `full`. */
template <typename T, int PANELS, int ELEMENTS, int K>
__device__ __forceinline__ void write_ds(T (&panels)[PANELS][ELEMENTS], const uint32_t (&ds)[K][4],
                                         int first, uint64_t *full) {
  const int lane = threadIdx.x % WARP_SIZE;
  const uint32_t target = shared_address(panels) + chunk_offset<64>(first + lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < K; k++) {
    const uint32_t panel = k / 4 * sizeof panels[0];
    stmatrix_x4(shared_pointer(more_chunks<64>(target, 2 * k % 8) + panel), ds[k]);
  }
  fence_proxy_async();  // wgmma sees what this lane has written,
  __syncwarp();         // and what all lanes have
  if (lane == 0) mbarrier_arrive(full);
}

/** Starts dQ = dS K for the 64 queries of a panel of dS^T, and 8 N columns. `k` is the first row of
 * K in the first of these columns; K lies in parts of 64 rows. Both operands are transposed. */
template <typename T, int HEAD_DIM, int BLOCK_N, int N>
__device__ __forceinline__ void start_dq(float (&dq)[N][4], const T *ds_panel, const T *k) {
  const uint64_t a = wgmma_descriptor<64>(ds_panel, 0);
  const uint64_t b = wgmma_descriptor<HEAD_DIM>(k, 2 * 64 * 64);
#pragma unroll
  for (int key = 0; key < BLOCK_N; key += 16) {
    const int b_row = key / 64 * 64 * HEAD_DIM + key % 64 * 64;
    wgmma<T, true, true>(dq, a + units(2 * key * 64), b + units(2 * b_row), key > 0);
  }
  wgmma_commit();
}

#endif
