/**
 * @file
 * The loop over tiles of keys of step 09, with products that overlap the softmax, in turns.
 */
#ifndef DEVICE_ATTEND_CUH
#define DEVICE_ATTEND_CUH

#include "device/overlap.cuh"
#include "device/turns.cuh"

// As in steps/step09_overlap.cu:

/** The loop over the tiles of keys 0 to `key_end` - 1: O, m and l of a consumer's rows. `state` is
 * that of the first tile, and afterwards the one after the last. This, and the release of the last
 * V, are for step 10, where a thread block goes on to other queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       int consumer, int first_row, int key_end,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N, CONSUMERS = Tile::CONSUMERS;
  const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N, last = tile_count - 1;
  const int unmasked_end = attended_keys(problem, first_row);
  const float scale_log2 = problem.scale * LOG2_E;
  uint32_t probs[BLOCK_N / MMA_K][4];
  float rescale[2];

  const auto softmax = [&](auto &s, int tile) {
    mask_tile(s, problem, first_row, tile * BLOCK_N, unmasked_end);
    softmax_of_tile(s[0], m, l, rescale, scale_log2);
  };

  if (tile_count > 0) {
    float s[1][BLOCK_N / MMA_N][4];
    start_qk_of(s[0], shared, consumer, state);
    wgmma_wait<0>(s[0]);
    release(shared.k_empty, state);
    softmax(s, 0);  // O is still 0
    pack_probs<T>(probs, s[0]);
    ++state;
  }
  // The first turn is passed only if somebody will wait for it.
  if (Tile::TURNS && last > 0 && consumer == CONSUMERS - 1) pass_turn<CONSUMERS>(consumer);

  // Q K^T of a tile and P V of the previous one, which runs beside the softmax of this one.
  const auto overlap = [&](auto &s, int tile) {
    if (Tile::TURNS) wait_for_turn(consumer);
    start_qk_of(s[0], shared, consumer, state);
    start_pv_of(o, probs, shared, state.previous());
    // The last turn of all is not passed on: nobody waits for it.
    if (Tile::TURNS && (tile < last || consumer < CONSUMERS - 1)) pass_turn<CONSUMERS>(consumer);
    wgmma_wait<1>(s[0]);  // S of this tile is complete; P V of the previous one may still run
    release(shared.k_empty, state);
    softmax(s, tile);
    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
    release(shared.v_empty, state.previous());
    rescale_rows(o, rescale);
    ++state;
  };

  const bool short_tail =
      Tile::TAIL_N < BLOCK_N && last > 0 && key_end - last * BLOCK_N <= Tile::TAIL_N;
  for (int tile = 1; tile < tile_count - short_tail; tile++) {
    float s[1][BLOCK_N / MMA_N][4];
    overlap(s, tile);
    pack_probs<T>(probs, s[0]);
  }
  if (short_tail) {
    float s[1][Tile::TAIL_N / MMA_N][4];
    uint32_t tail_probs[Tile::TAIL_N / MMA_K][4];
    overlap(s, last);
    pack_probs<T>(tail_probs, s[0]);
    start_pv_of(o, tail_probs, shared, state.previous());
  } else if (tile_count > 0) {
    start_pv_of(o, probs, shared, state.previous());
  }
  wgmma_wait<0>(o);  // O is complete
  if (tile_count > 0) release(shared.v_empty, state.previous());
}

#endif
