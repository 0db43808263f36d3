/**
 * @file
 * What steps 17e and 17f share: tiles of queries that come in halves of their columns, and one
 * gradient of 64 keys with D = 256 columns.
 */
#ifndef DEVICE_BACKWARD_HALVES_CUH
#define DEVICE_BACKWARD_HALVES_CUH

#include "device/backward_fours.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_tile.cuh"
#include "device/pipeline.cuh"
#include "device/store_tile.cuh"

/** The state of a pipeline of `stages` stages: as PipelineState, for a number that differs between
 * warpgroups. */
struct StageState {
  int stages;         /**< how many there are */
  int index = 0;      /**< the next one */
  uint32_t phase = 0; /**< the parity of its barriers' phase */

  /** Goes on to the next stage. */
  __device__ __forceinline__ void operator++() {
    if (++index == stages) index = 0, phase ^= 1;
  }
  /** The one before. */
  __device__ __forceinline__ StageState previous() const {
    return index > 0 ? StageState{stages, index - 1, phase}
                     : StageState{stages, stages - 1, phase ^ 1};
  }
};

/** Halves of tiles of Q or dO as a consumer reads them, one after the other. */
template <typename T, int ELEMENTS>
struct Halves {
  T (*stages)[ELEMENTS]; /**< where they lie */
  uint64_t *full;        /**< a half has arrived */
  uint64_t *empty;       /**< all consumer warps have read it */
  StageState next;       /**< the next half */
  StageState unread;     /**< the first one that this warp has not released */

  /** Waits for the next half, which a wgmma is to read. */
  __device__ __forceinline__ const T *take() {
    mbarrier_wait(&full[next.index], next.phase);
    wgmma_fence();  // other instructions have used the registers of the wgmma
    const T *const half = stages[next.index];
    ++next;
    return half;
  }
  /** This warp has read the first `count` halves that it has not released. */
  __device__ __forceinline__ void release(int count = 1) {
    for (int i = 0; i < count; i++, ++unread) {
      if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&empty[unread.index]);
    }
  }
  /** Waits until all warps have read all halves. */
  __device__ __forceinline__ void wait_for_all() const {
    const StageState last = unread.previous();
    mbarrier_wait(&empty[last.index], last.phase);
  }
};

/** Those in these stages. */
template <typename T, int STAGES, int ELEMENTS>
__device__ __forceinline__ Halves<T, ELEMENTS> halves_of(T (&stages)[STAGES][ELEMENTS],
                                                         uint64_t (&full)[STAGES],
                                                         uint64_t (&empty)[STAGES]) {
  return {stages, full, empty, {STAGES}, {STAGES}};
}

/** Asks for all tiles of Q or dO, half by half. LSE or D of a tile, row `number` of the two, comes
 * with its first half. */
template <int HEAD_DIM, int BLOCK_M, typename T, int STAGES, int ELEMENTS>
__device__ __forceinline__ void load_halves(T (&halves)[STAGES][ELEMENTS],
                                            float (&numbers)[STAGES][BLOCK_M],
                                            uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES],
                                            const CUtensorMap &map, const CUtensorMap &numbers_map,
                                            int number, const Problem &problem, PassHeads heads,
                                            KeyBlock block, const QueryTiles<BLOCK_M> &tiles) {
  const int batch = block.first_head / problem.q_heads;
  QueryTile tile = {block.first_head, tiles.first_q};
  StageState state = {STAGES};
  for (int i = 0; i < tiles.count; i++, tile = tiles.next(tile)) {
    for (int half = 0; half < 2; half++, ++state) {
      uint64_t *const barrier = &full[state.index];
      mbarrier_wait(&empty[state.index], state.phase ^ 1);  // all have read what was there
      mbarrier_arrive_expect(barrier, sizeof *halves + (half == 0 ? sizeof *numbers : 0));
      if (half == 0) {
        const int row = 2 * (tile.head - heads.first) + number;
        tma_load(numbers[state.index], numbers_map, barrier, tile.first_q, row, 0, 0);
      }
      for (int column = 0; column < HEAD_DIM / 2; column += 64) {
        tma_load(halves[state.index] + BLOCK_M * column, map, barrier, half * HEAD_DIM / 2 + column,
                 tile.first_q, tile.head - batch * problem.q_heads, batch);
      }
    }
  }
}

/** What a producing thread does: it asks for K and Q, or for V and dO. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void produce_halves(Shared<T, HEAD_DIM> &shared,
                                               const BackwardMaps &maps, const Problem &problem,
                                               PassHeads heads, KeyBlock block,
                                               const QueryTiles<BLOCK_M> &tiles, bool has_q) {
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  uint64_t *const keys_full = &shared.kv_full[has_q ? 0 : 1];
  mbarrier_arrive_expect(keys_full, sizeof shared.k);
  load_rows<HEAD_DIM, 64>(has_q ? shared.k : shared.v, has_q ? maps.k : maps.v, keys_full,
                          block.first_key, head / (problem.q_heads / problem.kv_heads), batch);
  if (has_q) {
    load_halves<HEAD_DIM>(shared.q, shared.lse_log2, shared.q_full, shared.q_empty, maps.q,
                          maps.numbers, 0, problem, heads, block, tiles);
  } else {
    load_halves<HEAD_DIM>(shared.d_o, shared.d, shared.do_full, shared.do_empty, maps.d_o,
                          maps.numbers, 1, problem, heads, block, tiles);
  }
}

/** Starts C += A B^T for COLUMNS columns of both, which lie in panels of 64 rows and 64 columns;
 * unless it `adds`, C = A B^T. */
template <typename T, int COLUMNS, int N>
__device__ __forceinline__ void start_half(float (&c)[N][4], const T *a_panels, const T *b_panels,
                                           bool adds) {
  const uint64_t a = wgmma_descriptor<64>(a_panels, 0), b = wgmma_descriptor<64>(b_panels, 0);
#pragma unroll
  for (int d = 0; d < COLUMNS; d += 16) {
    const uint64_t moved = units(2 * (d / 64 * 64 * 64 + d % 64));
    wgmma<T, false>(c, a + moved, b + moved, adds || d > 0);
  }
  wgmma_commit();
}

/** P^T, rounded, from S^T of this warp: keys from `row` on, queries from `first_q` on. */
template <typename T, int N>
__device__ __forceinline__ void make_p(uint32_t (&p)[N / 2][4], float (&s)[1][N][4],
                                       const Problem &problem, KeyBlock block, int row, int first_q,
                                       const float *lse_log2) {
  if (block.first_key + 64 > attended_keys(problem, first_q)) {
    mask_transposed(s, problem, block.first_key + row, first_q);
  }
  to_p<T>(s[0], lse_log2, problem.scale * LOG2_E);
  pack_probs<T>(p, s[0]);
}

/** Writes 16 rows of P^T or dS^T, operands A, from row `first` of a panel on, and arrives at a
 * barrier unless it is NULL. With FENCE, wgmma and copies see the rows as well. */
template <bool FENCE, typename T, int K>
__device__ __forceinline__ void write_operands(T *panel, const uint32_t (&a)[K][4], int first,
                                               uint64_t *full) {
  const int lane = fresh_lane();
  const uint32_t target = shared_address(panel) + chunk_offset<64>(first + lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < K; k++) stmatrix_x4(shared_pointer(more_chunks<64>(target, 2 * k)), a[k]);
  if (FENCE) fence_proxy_async();  // what this lane has written,
  __syncwarp();                    // and what all lanes have
  if (full != NULL && threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(full);
}

/** Reads what write_operands() has written. */
template <typename T, int K>
__device__ __forceinline__ void read_operands(uint32_t (&a)[K][4], const T *panel, int first) {
  const int lane = fresh_lane();
  const uint32_t source = shared_address(panel) + chunk_offset<64>(first + lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < K; k++) ldmatrix_x4(a[k], shared_pointer(more_chunks<64>(source, 2 * k)));
}

/** Multiplies the sums of dV or dK by `factor`, and has TMA store those of this warp, whose first
 * row in the block is `row`. They go through the first stages of `halves`, when all has been read.
 */
template <int HEAD_DIM, typename T, int ELEMENTS>
__device__ __forceinline__ void store_sums(float (&sum_halves)[2][HEAD_DIM / 2 / MMA_N][4],
                                           float factor, const Halves<T, ELEMENTS> &halves,
                                           const CUtensorMap &map, const Problem &problem,
                                           KeyBlock block, int row) {
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  auto &sums = *(float(*)[HEAD_DIM / MMA_N][4]) sum_halves;
#pragma unroll
  for (int j = 0; j < HEAD_DIM / 2; j++) sums[j / 4][j % 4] *= factor;
  halves.wait_for_all();
  if (block.first_key + row >= problem.kv_len) return;
  store_tile<HEAD_DIM>(sums, halves.stages[0] + row * HEAD_DIM, map, block.first_key + row,
                       head / (problem.q_heads / problem.kv_heads), batch);
  if (threadIdx.x % WARP_SIZE == 0) tma_store_wait<0>();  // shared memory must stay until then
}

#endif
