/**
 * @file
 * Step 12: fp8.
 *
 * The idea: the tensor cores multiply numbers of 8 bits twice as fast as numbers of 16, and half as
 * many bytes move. So Q, K and V are e4m3, each with scales, and P is rounded to e4m3, too.
 *
 * What changed since step 10:
 * - wgmma cannot transpose bytes. V must lie with its keys side by side, so the three warps beside
 *   the producer turn each tile of V around, from one buffer to another.
 * - A register of S holds other keys than a register of P must. Instead of moving P between lanes,
 *   V gets the order of keys that P has.
 * - With e4m3, tensor cores keep only 13 bits behind the leading one of a sum. So P V of each tile
 *   begins at 0, and is added to O in fp32.
 * - A consumer has one product in flight at a time, because S and P V share registers. The other
 *   two consumers fill the gaps.
 * - As in step 10, m is raised only if P becomes too large. Here this is 448, the largest number of
 *   e4m3. So a new m leaves P room to grow. How much depends on the row, so that small P keep their
 *   bits: see softmax_with_new_m().
 * - P of e4m3 takes few registers, so S stays beside it. A new m needs no second Q K^T, and K is
 *   released before the softmax.
 *
 * What it costs: only 3 bits of mantissa are left in Q, K, V and P. And a second pass of V through
 * shared memory.
 *
 * What to look at: transpose_v(), and who waits for whom.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/persistent.cuh"
#include "device/ptx_hopper.cuh"
#include "device/split_softmax.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** A tile of queries. */
struct __align__(16) QueryWork {
  int first_q, head, batch;
  int tile_count; /**< tiles of keys; negative: there is no more work */
};

// [tiles]
/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = 3;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int TRANSPOSERS = 3;                // warps, of the producer's warpgroup
  static constexpr int GROUP_M = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * GROUP_M;  // rows of Q
  static constexpr int BLOCK_N = 128;                  // keys: a row of V transposed has 128 bytes
  static constexpr int STAGES = 3;                     // tiles of K, and of V transposed
  static constexpr int V_STAGES = 2;                   // tiles of V as they arrive
  static constexpr int PRODUCER_REGISTERS = 32;
  static constexpr int CONSUMER_REGISTERS = 160;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  static constexpr int Q_BYTES = GROUP_M * HEAD_DIM;   // of a consumer
  static constexpr int KV_BYTES = BLOCK_N * HEAD_DIM;  // of a tile of K or V, also transposed
  static constexpr int BARRIERS = 4 + 2 * CONSUMERS + 4 * STAGES + 2 * V_STAGES;
  static_assert(BARRIERS % 2 == 0, "`work`, which is behind them, is aligned to 16 bytes");
  static constexpr int SHARED_BYTES = 3 * CONSUMERS * Q_BYTES + (2 * STAGES + V_STAGES) * KV_BYTES +
                                      8 * BARRIERS + 2 * sizeof(QueryWork);
};
// [tiles]

constexpr int AHEAD = 2;  // times that a warp loads 32 keys before it stores the first of them
// Sums of P of a row in a lane. 448 is the largest e4m3, and no P exceeds the sum.
constexpr float MOST_P_SUM = 448;
// How much lower than the maximum a new m is, in powers of two: at least 3, and more while the sum
// stays at 100 or below, so that P has room to grow. If one or two keys have nearly all of the sum,
// it may be 448: then all other P are small, and must not become 0.
constexpr int LEAST_SHIFT = 3;
constexpr float NEW_P_SUM = 100, SUM_OF_TWO = 2.25f;

/** The tensor maps of a pass; `o` has boxes of 16 rows, those of a warp. */
struct AllMaps {
  TensorMaps in;
  CUtensorMap o;
};

/** Shared memory of a thread block. */
template <typename T>
struct Shared {
  uint8_t *q;                                    /**< BLOCK_M rows */
  T *o;                                          /**< the same */
  uint8_t *k_ring, *v_ring;                      /**< tiles of K, and of V as they arrive */
  uint8_t *vt_ring;                              /**< tiles of V transposed: row d is column d */
  uint64_t *q_full, *q_empty;                    /**< by consumer: Q has arrived; was read */
  uint64_t *work_full, *work_empty;              /**< the same for `work` */
  uint64_t *k_full, *k_empty, *v_full, *v_empty; /**< by stage */
  uint64_t *vt_full, *vt_empty;                  /**< by stage */
  QueryWork *work;                               /**< this tile of queries and the next one */
};

/** Tiles of keys that some of the queries `first_q` to `first_q` + `rows` - 1 attend. */
template <int BLOCK_N>
__device__ __forceinline__ int key_tiles(const Problem &problem, int first_q, int rows) {
  if (first_q >= problem.q_len) return 0;
  return (attended_keys(problem, min(first_q + rows, problem.q_len) - 1) + BLOCK_N - 1) / BLOCK_N;
}

/** Tile number `index`. */
template <int HEAD_DIM>
__device__ __forceinline__ QueryWork work_of(const Problem &problem, const Schedule &s, int index) {
  using Tile = Tiles<HEAD_DIM>;
  const DealtTile dealt = dealt_tile(problem, s, index);
  const int first_q = (s.q_tiles - 1 - dealt.rank) * Tile::BLOCK_M;
  return {first_q, dealt.head % problem.q_heads, dealt.head / problem.q_heads,
          key_tiles<Tile::BLOCK_N>(problem, first_q, Tile::BLOCK_M)};
}

// [producer]
/** What the one producing thread does, tile after tile of queries: as in step 10. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(const Shared<T> &shared, const TensorMaps &maps,
                                        const Problem &problem, const Schedule &schedule) {
  using Tile = Tiles<HEAD_DIM>;
  RingUse<Tile::STAGES> k_use;
  RingUse<Tile::V_STAGES> v_use;
  RingUse<2> slot;  // of `work`
  for (int index = blockIdx.x;; slot.number++) {
    const bool more = index < schedule.tiles;
    const QueryWork work =
        more ? work_of<HEAD_DIM>(problem, schedule, index) : QueryWork{0, 0, 0, -1};
    mbarrier_wait(&shared.work_empty[slot.stage()], slot.parity() ^ 1);  // all have read it
    shared.work[slot.stage()] = work;
    mbarrier_arrive(&shared.work_full[slot.stage()]);
    if (!more) break;
    const int kv_head = work.head / (problem.q_heads / problem.kv_heads);
    const uint32_t parity = slot.stage();  // of Q, which has one buffer: 0, 1, 0 and so on

    const auto load_q = [&](int consumer) {
      mbarrier_wait(&shared.q_empty[consumer], parity ^ 1);  // no product reads the Q before
      mbarrier_arrive_expect(&shared.q_full[consumer], Tile::Q_BYTES);
      tma_load(shared.q + consumer * Tile::Q_BYTES, maps.q, &shared.q_full[consumer], 0,
               work.first_q + consumer * Tile::GROUP_M, work.head, work.batch);
    };
    const auto load_tile = [&](uint8_t *ring, const CUtensorMap &map, uint64_t *full,
                               uint64_t *empty, auto use, int tile) {
      const int stage = use.stage();
      mbarrier_wait(&empty[stage], use.parity() ^ 1);  // all have read it
      mbarrier_arrive_expect(&full[stage], Tile::KV_BYTES);
      tma_load(ring + stage * Tile::KV_BYTES, map, &full[stage], 0, tile * Tile::BLOCK_N, kv_head,
               work.batch);
    };
    // The first consumer can begin while others are still busy with the tile before.
    load_q(0);
    for (int tile = 0; tile < work.tile_count; tile++, k_use.number++, v_use.number++) {
      // Not earlier: a block that is late must not take the next tile from one that is free.
      if (tile + 1 == work.tile_count) index = take_next(schedule);
      load_tile(shared.k_ring, maps.k, shared.k_full, shared.k_empty, k_use, tile);
      for (int consumer = 1; tile == 0 && consumer < Tile::CONSUMERS; consumer++) load_q(consumer);
      load_tile(shared.v_ring, maps.v, shared.v_full, shared.v_empty, v_use, tile);
    }
    if (work.tile_count == 0) {
      for (int consumer = 1; consumer < Tile::CONSUMERS; consumer++) load_q(consumer);
      index = take_next(schedule);
    }
  }
}
// [producer]

/** Where a swizzled tile with rows of ROW_BYTES has a chunk of 16 bytes. */
template <int ROW_BYTES>
__device__ __forceinline__ unsigned chunk_byte(unsigned row, unsigned chunk) {
  return row * ROW_BYTES + (chunk ^ (ROW_BYTES == 128 ? row % 8 : row / 2 % 4)) * 16;
}

// [transpose]
/**
 * Writes columns of V as rows. A warp turns around 16 columns of 32 keys with one ldmatrix and one
 * stmatrix, AHEAD times at a time.
 *
 * ldmatrix.trans moves pairs of bytes: a lane gets columns 2c and 2c + 1 (c = lane / 4) of keys 2t
 * and 2t + 1 (t = lane % 4), and with the next register of keys 8 + 2t and 9 + 2t. Two byte
 * permutations part the columns: one register has four keys of column 2c, the other of 2c + 1.
 *
 * Then keys lie in the order 0, 1, 8, 9, 2, 3, 10, 11 and so on, which is the order that a lane
 * holds P in: see pack_probs_e4m3(). Lanes with c >= 4 store the odd column first, so that the 8
 * rows of each matrix lie in different banks.
 */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void transpose_v(uint8_t *vt_tile, const uint8_t *v_tile, int part,
                                            int parts) {
  static_assert(BLOCK_N == 128 && 4 % AHEAD == 0, "rows of V transposed have 128 bytes");
  constexpr unsigned BLOCKS = HEAD_DIM / 16;  // of 16 columns
  const unsigned lane = threadIdx.x % WARP_SIZE, row = lane % 8, matrix = lane / 8;
  const uint32_t even = 0x6420, odd = 0x7531;
  const uint32_t first = lane / 4 < 4 ? even : odd, second = first ^ even ^ odd;
#pragma unroll 1
  for (unsigned i = part; i < BLOCKS * (BLOCK_N / 32 / AHEAD); i += parts) {
    const unsigned columns = i % BLOCKS, first_key = i / BLOCKS * 32 * AHEAD;
    const unsigned column = 16 * columns + 2 * row + ((row >= 4) ^ matrix % 2);
    const unsigned chunk = first_key / 16 + matrix / 2;  // of 16 keys
    const uint8_t *from = v_tile + chunk_byte<HEAD_DIM>(first_key + 8 * matrix + row, columns);
    const unsigned to = chunk_byte<128>(column, chunk);
    uint32_t pairs[AHEAD][4];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) ldmatrix_x4_trans(pairs[j], from + 32 * j * HEAD_DIM);
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const uint32_t fours[4] = {select_bytes(pairs[j][0], pairs[j][1], first),
                                 select_bytes(pairs[j][0], pairs[j][1], second),
                                 select_bytes(pairs[j][2], pairs[j][3], first),
                                 select_bytes(pairs[j][2], pairs[j][3], second)};
      stmatrix_x4(vt_tile + (to ^ 32 * j), fours);
    }
  }
}

/** What a warp that transposes V does. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void transpose(const Shared<T> &shared, int part) {
  using Tile = Tiles<HEAD_DIM>;
  const int lane = threadIdx.x % WARP_SIZE;
  RingUse<Tile::V_STAGES> v_use;
  RingUse<Tile::STAGES> vt_use;
  for (RingUse<2> slot;; slot.number++) {
    mbarrier_wait(&shared.work_full[slot.stage()], slot.parity());  // the producer has written it
    const int tile_count = shared.work[slot.stage()].tile_count;
    if (tile_count < 0) break;
    __syncwarp();  // all lanes have read it
    if (lane == 0) mbarrier_arrive(&shared.work_empty[slot.stage()]);
    for (int tile = 0; tile < tile_count; tile++, v_use.number++, vt_use.number++) {
      mbarrier_wait(&shared.v_full[v_use.stage()], v_use.parity());          // V has arrived
      mbarrier_wait(&shared.vt_empty[vt_use.stage()], vt_use.parity() ^ 1);  // no product reads it
      transpose_v<HEAD_DIM, Tile::BLOCK_N>(shared.vt_ring + vt_use.stage() * Tile::KV_BYTES,
                                           shared.v_ring + v_use.stage() * Tile::KV_BYTES, part,
                                           Tile::TRANSPOSERS);
      fence_proxy_async();  // wgmma sees the stores; the next tensor copy comes after the loads
      __syncwarp();         // all lanes have stored, and passed their fence
      if (lane == 0) {
        mbarrier_arrive(&shared.vt_full[vt_use.stage()]);
        mbarrier_arrive(&shared.v_empty[v_use.stage()]);
      }
    }
  }
}
// [transpose]

/** Starts S = Q K^T for 64 rows of Q. Of both operands 32 columns at a time are described. */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void start_qk_e4m3(float (&s)[BLOCK_N / MMA_N][4],
                                              const uint8_t *q_group, const uint8_t *k_tile) {
  const uint64_t q = descriptor_of_rows<HEAD_DIM>(q_group, 0);
  const uint64_t k = descriptor_of_rows<HEAD_DIM>(k_tile, 0);
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 32) wgmma_e4m3(s, q + units(d), k + units(d), d > 0);
  wgmma_commit();
}

// [pv]
/** Starts PV = P V for a tile of keys. The order of keys is that of both P and V transposed. */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void start_pv_e4m3(float (&pv)[HEAD_DIM / MMA_N][4],
                                              const uint32_t (&probs)[BLOCK_N / 32][4],
                                              const uint8_t *vt_tile) {
  const uint64_t v = descriptor_of_rows<128>(vt_tile, 0);
#pragma unroll
  for (int key = 0; key < BLOCK_N; key += 32) {
    wgmma_e4m3(pv, probs[key / 32], v + units(key), key > 0);
  }
  wgmma_commit();
}

/** P in e4m3: what a lane holds of two neighbouring tiles of S becomes one register, four keys in
 * the order 2t, 2t + 1, 8 + 2t, 9 + 2t. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void pack_probs_e4m3(uint32_t (&probs)[N_FRAGMENTS / 4][4],
                                                const float (&s)[N_FRAGMENTS][4]) {
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      probs[n / 4][n / 2 % 2 * 2 + half] =
          pack_e4m3(s[n][2 * half], s[n][2 * half + 1], s[n + 1][2 * half], s[n + 1][2 * half + 1]);
    }
  }
}

/** O += PV: the sum over tiles of keys is in fp32. */
template <int O_FRAGMENTS>
__device__ __forceinline__ void add_rows(float (&o)[O_FRAGMENTS][4],
                                         const float (&pv)[O_FRAGMENTS][4]) {
#pragma unroll
  for (int n = 0; n < O_FRAGMENTS; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) o[n][c] += pv[n][c];
  }
}
// [pv]

// [exponentiate]
/** P of a tile of scores with the m of the tiles before, packed; `sums` is what they add to l.
 * Returns whether m is too small for a row of this lane: then a P may be too large for e4m3, and
 * the scores, which stay, are needed again. */
template <int N_FRAGMENTS>
__device__ __forceinline__ bool exponentiate_e4m3(uint32_t (&probs)[N_FRAGMENTS / 4][4],
                                                  float (&sums)[2],
                                                  const float (&s)[N_FRAGMENTS][4],
                                                  const float (&m)[2], float scale_log2) {
  float p_of_tile[N_FRAGMENTS][4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        p_of_tile[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, -m[half]));
        sum += p_of_tile[n][c];
      }
    }
    sums[half] = sum;
  }
  pack_probs_e4m3(probs, p_of_tile);
  return !(sums[0] <= MOST_P_SUM && sums[1] <= MOST_P_SUM);
}
// [exponentiate]

// [shift]
/** Replaces scores by unnormalised probabilities with a new m, and updates l. `rescale` is what the
 * rows of O are to be multiplied by. With the exact maximum, P is at most 1, and P below 2^-6 lose
 * bits in e4m3. So m is lower than the maximum, by as much as the sum of P in each lane allows: by
 * 8 in a row with one large P, by 3 in a row whose P are all alike. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void softmax_with_new_m(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                                   float (&l)[2], float (&rescale)[2],
                                                   float scale_log2) {
  static_assert((2 * N_FRAGMENTS << LEAST_SHIFT) <= (int)MOST_P_SUM, "equal scores do not raise m");
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float row_max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      row_max = fmaxf(row_max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    row_max = lanes_reduce_max<4>(row_max) * scale_log2;
    const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        s[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, -safe_max));
        sum += s[n][c];
      }
    }
    const float most = lanes_reduce_max<4>(sum);
    const float wanted = most <= SUM_OF_TWO ? MOST_P_SUM : NEW_P_SUM;
    // An integer, so that the largest P is a power of two, which e4m3 has exactly.
    const float shift = fmaxf(LEAST_SHIFT, floorf(log2_approx(__fdividef(wanted, most))));
    const float new_m = fmaxf(m[half], row_max - shift);  // m never falls
    const float factor = exp2_approx(row_max - new_m);
    rescale[half] = exp2_approx(m[half] - new_m);
    m[half] = new_m;
    l[half] = l[half] * rescale[half] + sum * factor;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) s[n][c] *= factor;
    }
  }
}
// [shift]

// [product]
/** The product of three positive numbers, as the normal float that is next to it: with 0, a masked
 * score of -inf would become NaN. The least times the largest lies between the two if 1 does. If
 * not, the third number makes a product that is too small or too large even more so. */
__device__ __forceinline__ float product_of_scales(float a, float b, float c) {
  const float least = fminf(fminf(a, b), c), largest = fmaxf(fmaxf(a, b), c);
  const float middle = fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
  return fminf(fmaxf(least * largest * middle, FLT_MIN), FLT_MAX);
}
// [product]

/** What a consumer does, tile after tile of queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(const Shared<T> &shared, const AllMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N, STAGES = Tile::STAGES;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  const uint8_t *q_group = shared.q + consumer * Tile::Q_BYTES;
  const int row_in_tile = consumer * Tile::GROUP_M + 16 * warp;  // of the first row of this warp
  T *o_warp = shared.o + row_in_tile * HEAD_DIM;
  RingUse<STAGES> use;  // of this tile of K and of V transposed

  for (RingUse<2> slot;; slot.number++) {
    mbarrier_wait(&shared.work_full[slot.stage()], slot.parity());  // the producer has written it
    const QueryWork &work = shared.work[slot.stage()];
    if (work.tile_count < 0) break;
    const int first_row = work.first_q + row_in_tile;  // of this warp
    const int tile_count =
        key_tiles<BLOCK_N>(problem, work.first_q + consumer * Tile::GROUP_M, Tile::GROUP_M);
    const int unmasked_end = attended_keys(problem, first_row);
    // [scales]
    const int kv_index =
        work.batch * problem.kv_heads + work.head / (problem.q_heads / problem.kv_heads);
    const float scale_log2 =
        product_of_scales(problem.scale * LOG2_E, t.q_scales[kv_index], t.k_scales[kv_index]);
    // [scales]
    // P is exp2(score * log2(e) - m). Finite: where all scores are -inf, P is 0 and not NaN.
    float m[2] = {-FLT_MAX, -FLT_MAX};
    float l[2] = {};  // running sum of this lane's P
    float o[HEAD_DIM / MMA_N][4] = {};
    float pv[HEAD_DIM / MMA_N][4];  // P V of one tile of keys
    uint32_t probs[BLOCK_N / 32][4];

    const auto start_qk_of = [&](RingUse<STAGES> use, float(&s)[BLOCK_N / MMA_N][4]) {
      mbarrier_wait(&shared.k_full[use.stage()], use.parity());  // K has arrived
      wgmma_fence();  // P V was read from the registers that S takes
      start_qk_e4m3<HEAD_DIM, BLOCK_N>(s, q_group, shared.k_ring + use.stage() * Tile::KV_BYTES);
    };
    const auto start_pv_of = [&](RingUse<STAGES> use) {
      mbarrier_wait(&shared.vt_full[use.stage()], use.parity());  // V is transposed
      wgmma_fence();                                              // P was written, and S was read
      start_pv_e4m3<HEAD_DIM, BLOCK_N>(pv, probs, shared.vt_ring + use.stage() * Tile::KV_BYTES);
    };
    const auto release = [&](uint64_t *empty, RingUse<STAGES> use) {
      if (lane == 0) mbarrier_arrive(&empty[use.stage()]);
    };

    // [softmax]
    // Makes P of S. With the m of the tiles before, this takes no maximum.
    const auto softmax = [&](float(&s)[BLOCK_N / MMA_N][4], int tile) {
      if (tile > 0) {
        float sums[2];
        const bool too_small = exponentiate_e4m3(probs, sums, s, m, scale_log2);
        if (!__any_sync(FULL_WARP, too_small)) {
          l[0] += sums[0], l[1] += sums[1];
          return;
        }
      }
      float rescale[2];
      softmax_with_new_m(s, m, l, rescale, scale_log2);
      rescale_rows(o, rescale);
      pack_probs_e4m3(probs, s);
    };
    // [softmax]

    mbarrier_wait(&shared.q_full[consumer],
                  (uint32_t)slot.stage());  // its Q of this tile has arrived
    // [loop]
    for (int tile = 0; tile < tile_count; tile++, use.number++) {
      {
        float s[1][BLOCK_N / MMA_N][4];
        start_qk_of(use, s[0]);
        wgmma_wait<0>(s[0]);           // S is complete
        release(shared.k_empty, use);  // nothing reads this K any more
        if ((tile + 1) * BLOCK_N > unmasked_end) {
          apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, tile * BLOCK_N);
        }
        softmax(s[0], tile);
      }
      start_pv_of(use);   // into the registers of S
      wgmma_wait<0>(pv);  // P V is complete, and nothing reads P any more
      release(shared.vt_empty, use);
      add_rows(o, pv);
    }
    // All products with Q are complete: the next Q may come.
    __syncwarp();  // if there was no tile: all lanes have seen that this Q has come
    if (lane == 0) mbarrier_arrive(&shared.q_empty[consumer]);
    // [loop]
    // Tiles that other consumers need. Released before they have come, they would count as released
    // in the use of their place before.
    for (int tile = tile_count; tile < work.tile_count; tile++, use.number++) {
      mbarrier_wait(&shared.k_full[use.stage()], use.parity());
      __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
      release(shared.k_empty, use);
      mbarrier_wait(&shared.vt_full[use.stage()], use.parity());
      __syncwarp();
      release(shared.vt_empty, use);
    }
    if (lane == 0) tma_store_wait<0>();  // the O before has been read
    __syncwarp();                        // all lanes may write the next
    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    store_tile<T, HEAD_DIM>(o, m, l, o_warp, maps.o, t.lse + head_index * problem.q_len, first_row,
                            problem.q_len, work.head, work.batch, t.v_scales[kv_index]);
    // All lanes have read `work` before the __syncwarp() in store_tile().
    if (lane == 0) mbarrier_arrive(&shared.work_empty[slot.stage()]);
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until it has been read
}

/** The whole forward pass: one thread block for each multiprocessor. T is the type of O. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ AllMaps maps,
                     Schedule schedule) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int STAGES = Tile::STAGES, V_STAGES = Tile::V_STAGES;

  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T> shared;
  shared.q = smem;
  shared.o = (T *)(shared.q + Tile::CONSUMERS * Tile::Q_BYTES);
  shared.k_ring = (uint8_t *)(shared.o + Tile::BLOCK_M * HEAD_DIM);
  shared.v_ring = shared.k_ring + STAGES * Tile::KV_BYTES;
  shared.vt_ring = shared.v_ring + V_STAGES * Tile::KV_BYTES;
  shared.q_full = (uint64_t *)(shared.vt_ring + STAGES * Tile::KV_BYTES);
  shared.q_empty = shared.q_full + Tile::CONSUMERS;
  shared.work_full = shared.q_empty + Tile::CONSUMERS, shared.work_empty = shared.work_full + 2;
  shared.k_full = shared.work_empty + 2, shared.k_empty = shared.k_full + STAGES;
  shared.vt_full = shared.k_empty + STAGES, shared.vt_empty = shared.vt_full + STAGES;
  shared.v_full = shared.vt_empty + STAGES, shared.v_empty = shared.v_full + V_STAGES;
  shared.work = (QueryWork *)(shared.v_empty + V_STAGES);

  if (threadIdx.x == 0) {
    const auto init_ring = [](uint64_t *full, int fills, uint64_t *empty, int reads, int stages) {
      for (int stage = 0; stage < stages; stage++) {
        mbarrier_init(&full[stage], fills);
        mbarrier_init(&empty[stage], reads);
      }
    };
    constexpr int READERS = 4 * Tile::CONSUMERS;  // one thread of each warp
    init_ring(shared.q_full, 1, shared.q_empty, 4, Tile::CONSUMERS);
    init_ring(shared.work_full, 1, shared.work_empty, READERS + Tile::TRANSPOSERS, 2);
    init_ring(shared.k_full, 1, shared.k_empty, READERS, STAGES);
    init_ring(shared.v_full, 1, shared.v_empty, Tile::TRANSPOSERS, V_STAGES);
    init_ring(shared.vt_full, Tile::TRANSPOSERS, shared.vt_empty, READERS, STAGES);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // [roles]
  const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (group == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE, 0);
    if (threadIdx.x == 0) produce<T, HEAD_DIM>(shared, maps.in, problem, schedule);
    if (warp >= 1 && warp <= Tile::TRANSPOSERS) transpose<T, HEAD_DIM>(shared, warp - 1);
  } else {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume<T, HEAD_DIM>(shared, maps, problem, t, group - 1);
  }
  // [roles]
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  Tiles<HEAD_DIM>::SHARED_BYTES,
                                                                  CEILING_WGMMA_FP8);

static constexpr KernelConfig<AllMaps, Schedule> CONFIGS[] = {
    CONFIG<__half, 64>, CONFIG<__half, 128>, CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>};

/** Thread blocks: one for each multiprocessor, if there are as many tiles. */
static int block_count(const Problem *problem) {
  const auto *config = find_config<CONFIGS>(problem);
  const int64_t tiles = grid_size(config, problem);
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  return tiles < multiprocessors ? (int)tiles : multiprocessors;
}

static void describe(const Problem *problem, int heads, Description *description) {
  describe_config<CONFIGS>(problem, heads, description);
  description->launches[0].grid = dim3(block_count(problem));
}

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  AllMaps maps;
  cudaError_t error = make_tensor_maps(&maps.in, problem, t, 64, config->block_n);
  if (error == cudaSuccess) {
    error = make_tensor_map(&maps.o, t->o, problem, problem->o_strides, problem->q_len,
                            problem->q_heads, 16, problem->o_dtype);
  }
  if (error != cudaSuccess) return error;
  const Schedule schedule = make_schedule(problem, config->block_m, t->workspace);
  config->kernel<<<block_count(problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, schedule);
  return cudaGetLastError();
}

const Step step = {
    .name = "step12",
    .after = "step10",
    .title = "fp8: Q, K, V and P in e4m3",
    .idea = "Tensor cores multiply bytes twice as fast; V is transposed on the way.",
    .head_dims = "D = 64 or 128",
    .fp8 = true,
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe,
    .forward = forward,
};
