/**
 * @file
 * What step 08 introduces: tiles that go through a pipeline of stages, from the thread that loads
 * them to the warps that multiply them.
 */
#ifndef DEVICE_PIPELINE_CUH
#define DEVICE_PIPELINE_CUH

#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** One thread sets up the barriers of STAGES stages. A phase of a full barrier ends after `fills`
 * arrivals and the bytes that they announce, one of an empty barrier after `reads` arrivals. */
template <int STAGES>
__device__ __forceinline__ void init_barriers(uint64_t (&full)[STAGES], int fills,
                                              uint64_t (&empty)[STAGES], int reads) {
  for (int stage = 0; stage < STAGES; stage++) {
    mbarrier_init(&full[stage], fills);
    mbarrier_init(&empty[stage], reads);
  }
}

// As in steps/step08_warp_specialised.cu:

/** How many tiles have gone through a pipeline of STAGES stages: so tile `count` is the next. */
template <int STAGES>
struct PipelineState {
  uint32_t count = 0; /**< of tiles before the next */

  /** The stage of this tile. */
  __device__ __forceinline__ int index() const { return count % STAGES; }
  /** The parity of the phase of this stage's barriers. It changes when a stage is used again. */
  __device__ __forceinline__ uint32_t phase() const { return count / STAGES % 2; }
  /** The state of the previous tile. */
  __device__ __forceinline__ PipelineState previous() const { return {count - 1}; }
  /** Goes on to the next tile. */
  __device__ __forceinline__ void operator++() { count++; }
};

/** This warp has read the tile in a stage: one of its threads arrives for all. */
template <int STAGES>
__device__ __forceinline__ void release(uint64_t (&empty)[STAGES], PipelineState<STAGES> state) {
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&empty[state.index()]);
}

/** Asks for ROWS rows of K or V, from row `row` on, as soon as the stage is empty. */
template <int HEAD_DIM, int ROWS, typename T, int STAGES>
__device__ __forceinline__ void load_tile(T (&tiles)[STAGES][ROWS * HEAD_DIM],
                                          const CUtensorMap &map, uint64_t (&full)[STAGES],
                                          uint64_t (&empty)[STAGES], PipelineState<STAGES> state,
                                          int row, int kv_head, int batch) {
  const int stage = state.index();
  mbarrier_wait(&empty[stage], state.phase() ^ 1);  // all have read what was there
  mbarrier_arrive_expect(&full[stage], sizeof *tiles);
  load_rows<HEAD_DIM, ROWS>(tiles[stage], map, &full[stage], row, kv_head, batch);
}

/** What the one producing thread does: it asks for Q, then for all tiles of K and V in the order of
 * their use. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                        int first_q, int tile_count, int head, int kv_head,
                                        int batch) {
  using Tile = Tiles<HEAD_DIM>;
  mbarrier_arrive_expect(&shared.q_full, 2 * Tile::BLOCK_M * HEAD_DIM);
  for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
    load_rows<HEAD_DIM, Tile::CONSUMER_ROWS>(shared.q[consumer], maps.q, &shared.q_full,
                                             first_q + consumer * Tile::CONSUMER_ROWS, head, batch);
  }
  PipelineState<Tile::STAGES> state;
  for (int tile = 0; tile < tile_count; tile++, ++state) {
    const int first_key = tile * Tile::BLOCK_N;
    load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, state,
                                       first_key, kv_head, batch);
    load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty, state,
                                       first_key, kv_head, batch);
  }
}

#endif
