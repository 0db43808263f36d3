/**
 * @file
 * What step 10 introduces: persistent thread blocks, to which a counter deals out tiles of queries;
 * stages that are counted through all of them; O stored by tensor copies, from places of V where
 * there is no more room; and S computed again where a maximum was too small. Step 10 itself has all
 * of this in its source.
 */
#ifndef DEVICE_PERSISTENT_CUH
#define DEVICE_PERSISTENT_CUH

#include "attention.h"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** How the tiles of queries are dealt out. */
struct Schedule {
  int tiles;         /**< of queries, of all heads */
  int q_tiles;       /**< of one head */
  int group_heads;   /**< query heads whose K and V fit the L2 cache together */
  int rows;          /**< tiles of a head that follow each other, with the same K and V */
  unsigned *counter; /**< numbers that were taken; 0 between passes */
};

/** The schedule of a step whose tiles of queries have `block_m` rows. */
static Schedule make_schedule(const Problem *problem, int block_m, void *counter) {
  const int64_t l2_bytes = device_attribute(cudaDevAttrL2CacheSize) / 3 * 2;  // the rest is for Q
  const int heads = problem->batch * problem->kv_heads,
            sharing = problem->q_heads / problem->kv_heads;
  const int64_t row_bytes =
      2ll * problem->head_dim * (problem->dtype == DTYPE_E4M3 ? 1 : 2);  // of K and V
  const int64_t fit = l2_bytes / (problem->kv_len * row_bytes);
  const int groups = fit < 1 ? heads : (int)((heads + fit - 1) / fit);
  Schedule schedule;
  schedule.q_tiles = (problem->q_len + block_m - 1) / block_m;
  schedule.tiles = schedule.q_tiles * problem->batch * problem->q_heads;
  schedule.group_heads = (heads + groups - 1) / groups * sharing;
  schedule.rows = problem->mask == MASK_FULL ? schedule.q_tiles : 3;
  schedule.counter = (unsigned *)counter;
  return schedule;
}

/** A tile of queries, as a number. */
struct DealtTile {
  int head; /**< query head, counted through the whole batch */
  int rank; /**< of the tiles of this head, which are in the order of their work, most first */
};

/**
 * Tile number `index`. Heads follow each other in groups. Within a group the tiles with the most
 * work come first: `rows` tiles of each head at a time.
 */
__device__ __forceinline__ DealtTile dealt_tile(const Problem &problem, const Schedule &s,
                                                int index) {
  const int first_head = index / (s.q_tiles * s.group_heads) * s.group_heads;
  const int heads = min(s.group_heads, problem.batch * problem.q_heads - first_head);
  const int in_group = index - first_head * s.q_tiles;
  const int passed = in_group / (heads * s.rows) * s.rows;  // tiles of each head
  const int rows = min(s.rows, s.q_tiles - passed), rest = in_group - passed * heads;
  return {first_head + rest / rows, passed + rest % rows};
}

/** The number of the next tile that nobody has. The first of each block is that of the block. A
 * block takes a number for each tile that it has worked on, so a pass takes as many as there are
 * tiles, and the counter is 0 again at its end. */
__device__ __forceinline__ int take_next(const Schedule &schedule) {
  return gridDim.x + atomicInc(schedule.counter, schedule.tiles - 1);
}

/** Use number `number` of a ring of stages, which begins again at stage 0 after the last. With 3
 * stages the number must stay below 2^32, which 3 does not divide. A tile of keys takes at least
 * 0.4 us, so a thread block would get there after half an hour in one launch. */
template <int STAGES>
struct RingUse {
  uint32_t number = 0; /**< from 0 on, never begun anew */

  /** Where it is in the ring. */
  __device__ __forceinline__ int stage() const { return number % STAGES; }
  /** Of the phase of this stage's barriers. */
  __device__ __forceinline__ uint32_t parity() const { return number / STAGES % 2; }
};

/**
 * The use of V's ring for the tile whose K has `use`, in the thread block's tile of queries number
 * `number`. If O takes places of V, the ring of V is ahead of that of K: each tile of queries ends
 * with one more use for each consumer's O.
 */
template <typename Tile>
__device__ __forceinline__ RingUse<Tile::STAGES> use_of_v(RingUse<Tile::STAGES> use,
                                                          uint32_t number) {
  return {use.number + (Tile::O_IN_V ? Tile::CONSUMERS * number : 0)};
}

/**
 * Gives each consumer a place of V for its O of the tile of queries before, if O takes places of V.
 * The producer calls it while `use` is that of the first K of tile of queries `number`: the places
 * come right before its V.
 */
template <typename Tile>
__device__ __forceinline__ void give_places(uint64_t *v_full, uint64_t *v_empty,
                                            RingUse<Tile::STAGES> use, uint32_t number) {
  if (!Tile::O_IN_V || number == 0) return;
  auto place = use_of_v<Tile>(use, number - 1);
  for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++, place.number++) {
    mbarrier_wait(&v_empty[place.stage()], place.parity() ^ 1);  // no product reads V
    mbarrier_arrive(&v_full[place.stage()]);
  }
}

/**
 * Releases the places of V that were given. Each consumer releases all of them: its own when its O
 * of the tile of queries before has been read, the others as soon as they have been given. To be
 * called while `use` is that of the first K of tile of queries `number`.
 */
template <typename Tile>
__device__ __forceinline__ void return_places(uint64_t *v_full, uint64_t *v_empty,
                                              RingUse<Tile::STAGES> use, uint32_t number) {
  if (!Tile::O_IN_V || number == 0) return;
  auto place = use_of_v<Tile>(use, number - 1);
  const bool first_lane = threadIdx.x % WARP_SIZE == 0;
  if (first_lane) tma_store_wait<0>();
  for (int other = 0; other < Tile::CONSUMERS; other++, place.number++) {
    mbarrier_wait(&v_full[place.stage()], place.parity());
    __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
    if (first_lane) mbarrier_arrive(&v_empty[place.stage()]);
  }
}

/** The byte of element (row, column) in swizzled panels of ROWS rows, as tensor copies lay them. */
template <int HEAD_DIM, int ROWS>
__device__ __forceinline__ int swizzled_byte(int row, int column) {
  constexpr int COLUMNS = PANEL<HEAD_DIM>;
  const int chunk = column % COLUMNS / CHUNK;
  const int swizzle = COLUMNS == 64 ? row % 8 : row / 2 % 4;
  return column / COLUMNS * ROWS * 2 * COLUMNS + row * 2 * COLUMNS + (chunk ^ swizzle) * 16 +
         column % CHUNK * 2;
}

/** S = Q K^T of this warp's 16 rows once more, by mma.sync: what P was computed from is gone. */
template <typename T, int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void multiply_qk_again(float (&s)[BLOCK_N / MMA_N][4], const T *q_group,
                                                  const T *k_tile) {
  const int lane = threadIdx.x % WARP_SIZE, first_row = threadIdx.x / WARP_SIZE % 4 * 16;
#pragma unroll
  for (int n = 0; n < BLOCK_N / MMA_N; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) s[n][c] = 0.0f;
  }
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d += 16) {
    uint32_t a[4];
    ldmatrix_x4(a, (const char *)q_group +
                       swizzled_byte<HEAD_DIM, 64>(first_row + lane % 16, d + lane / 16 * 8));
#pragma unroll
    for (int n = 0; n < BLOCK_N; n += 16) {
      uint32_t b[4];
      ldmatrix_x4(
          b, (const char *)k_tile + swizzled_byte<HEAD_DIM, BLOCK_N>(n + lane / 16 * 8 + lane % 8,
                                                                     d + lane / 8 % 2 * 8));
      mma_m16n8k16<T>(s[n / MMA_N], a, b[0], b[1]);
      mma_m16n8k16<T>(s[n / MMA_N + 1], a, b[2], b[3]);
    }
  }
  fence_proxy_async();  // these loads come before the tensor copy of the next tile
  __syncwarp();
}

/** Divides O by l and multiplies it by `v_scale`, writes this warp's 16 rows to `o_warp`, and has
 * them stored from there. LSE goes to memory directly. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void store_tile(float (&o)[HEAD_DIM / MMA_N][4], const float (&m)[2],
                                           const float (&l)[2], T *o_warp, const CUtensorMap &map,
                                           float *lse_global, int first_row, int rows, int head,
                                           int batch, float v_scale = 1.0f) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = lane / 4 + 8 * half;
    const float sum = lanes_reduce_sum<4>(l[half]);
    float factor = sum == 0.0f ? 0.0f : __fdividef(v_scale, sum);
    // [v_scale]
    if (v_scale < 0x1p-96f) {  // v_scale / l could be subnormal, and no P V is that small
      factor = sum == 0.0f ? 0.0f : __fdividef(v_scale * 0x1p32f, sum);
#pragma unroll
      for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
        o[n][2 * half] *= 0x1p-32f;
        o[n][2 * half + 1] *= 0x1p-32f;
      }
    }
    // [v_scale]
#pragma unroll
    for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
      const int at = swizzled_byte<HEAD_DIM, 16>(row, 8 * n + lane % 4 * 2);
      *(uint32_t *)((char *)o_warp + at) =
          pack<T>(o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
    }
    // A row that attends nothing has m = -inf and sum = 0, and log2(0) is -inf too.
    if (lane % 4 == 0 && first_row + row < rows) {
      lse_global[first_row + row] = (m[half] + log2_approx(sum)) * LN_2;
    }
  }
  fence_proxy_async();  // each lane's stores are visible to TMA
  __syncwarp();         // those of all lanes
  if (lane == 0) {
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += PANEL<HEAD_DIM>) {
      tma_store(map, o_warp + 16 * column, column, first_row, head, batch);
    }
    tma_store_commit();
  }
}

#endif
