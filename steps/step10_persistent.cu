/**
 * @file
 * Step 10: persistent thread blocks.
 *
 * The idea: between two tiles of queries the tensor cores idle, while O is stored, the block ends,
 * another starts and waits for its first Q and K. So each multiprocessor gets one thread block for
 * good, which takes one tile of queries after the other. The producer runs ahead into the next
 * tile, and TMA stores O while the next tile is computed.
 *
 * What changed since step 09:
 * - A loop over tiles of queries is around everything. A counter in device memory deals the tiles
 *   out, those with the most work first. The producer writes what the next tile is to shared
 *   memory. O leaves through shared memory.
 * - Each consumer has barriers of its own for Q, so the first may begin the next tile of queries
 *   while the others finish this one. It skips the tiles of keys that its rows do not attend.
 * - Three consumers up to D = 128, with smaller tiles of keys. Nobody waits for a turn: with three,
 *   one has a product to do whenever others compute a softmax.
 * - The maximum m of a row is rarely updated, as in step 06b. P is computed with the old m. If a sum
 *   of P exceeds MOST_SUM, S is computed again, m is raised and O is rescaled.
 *
 * What it costs: barriers whose phases go on from tile to tile, shared memory for O, and a second
 * way to compute S that hardly ever runs.
 *
 * What to look at: what the producer waits for before it touches a buffer of the next tile.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
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
  static constexpr int CONSUMERS = HEAD_DIM <= 128 ? 3 : 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int GROUP_M = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * GROUP_M;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 128 : HEAD_DIM <= 128 ? 64 : 80;
  static constexpr int TAIL_N = HEAD_DIM <= 128 ? BLOCK_N : 64;  // keys of a short last tile
  // Tiles of K, and of V, in flight.
  static constexpr int STAGES = HEAD_DIM <= 64 ? 3 : HEAD_DIM <= 128 ? 4 : 2;
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  static constexpr bool O_IN_V = HEAD_DIM > 128;  // O takes a place of V: there is no more room
  static constexpr int Q_BYTES = 2 * GROUP_M * HEAD_DIM;  // of a consumer
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;
  static constexpr int BARRIERS = 4 + 2 * CONSUMERS + 4 * STAGES;
  static constexpr int SHARED_BYTES = (O_IN_V ? 1 : 2) * CONSUMERS * Q_BYTES +
                                      2 * STAGES * KV_BYTES + 8 * BARRIERS + 2 * sizeof(QueryWork);
  static_assert(BARRIERS % 2 == 0, "`work`, which is behind them, is aligned to 16 bytes");
  static_assert(!O_IN_V || (CONSUMERS <= STAGES && Q_BYTES <= KV_BYTES), "O must fit");
};
// [tiles]

/** The tensor maps of a pass; `o` has boxes of 16 rows, those of a warp. */
struct AllMaps {
  TensorMaps in;
  CUtensorMap o;
};

/** How the tiles of queries are dealt out. */
struct Schedule {
  int tiles;          // of queries, of all heads
  int q_tiles;        // of one head
  int group_heads;    // query heads whose K and V fit the L2 cache together
  int rows;           // tiles of a head that follow each other, with the same K and V
  unsigned *counter;  // numbers that were taken; 0 between passes
};

/** Shared memory of a thread block. */
template <typename T>
struct Shared {
  T *q, *o;                                      /**< BLOCK_M rows each; no `o` if O_IN_V */
  T *k_ring, *v_ring;                            /**< STAGES tiles each */
  uint64_t *q_full, *q_empty;                    /**< by consumer: Q has arrived; was read */
  uint64_t *work_full, *work_empty;              /**< the same for `work` */
  uint64_t *k_full, *v_full, *k_empty, *v_empty; /**< by stage */
  QueryWork *work;                               /**< this tile of queries and the next one */
};

/** Keys that some of the queries `first_q` to `first_q` + `rows` - 1 attend. */
__device__ __forceinline__ int keys_of_rows(const Problem &problem, int first_q, int rows) {
  return first_q < problem.q_len ? attended_keys(problem, min(first_q + rows, problem.q_len) - 1)
                                 : 0;
}

// [schedule]
/**
 * Tile number `index`. Heads follow each other in groups. Within a group the last rows of all its
 * heads come first, because under the causal mask they have the most work: `rows` tiles of each
 * head at a time.
 */
template <int HEAD_DIM>
__device__ __forceinline__ QueryWork work_of(const Problem &problem, const Schedule &s, int index) {
  using Tile = Tiles<HEAD_DIM>;
  const int first_head = index / (s.q_tiles * s.group_heads) * s.group_heads;
  const int heads = min(s.group_heads, problem.batch * problem.q_heads - first_head);
  const int in_group = index - first_head * s.q_tiles;
  const int passed = in_group / (heads * s.rows) * s.rows;  // tiles of each head
  const int rows = min(s.rows, s.q_tiles - passed), rest = in_group - passed * heads;
  const int first_q = (s.q_tiles - 1 - passed - rest % rows) * Tile::BLOCK_M;
  const int head_index = first_head + rest / rows;
  const int keys = keys_of_rows(problem, first_q, Tile::BLOCK_M);
  return {first_q, head_index % problem.q_heads, head_index / problem.q_heads,
          (keys + Tile::BLOCK_N - 1) / Tile::BLOCK_N};
}

/** The number of the next tile that nobody has. The first of each block is that of the block. A
 * block takes a number for each tile that it has worked on, so a pass takes as many as there are
 * tiles, and the counter is 0 again at its end. */
__device__ __forceinline__ int take_next(const Schedule &schedule) {
  return gridDim.x + atomicInc(schedule.counter, schedule.tiles - 1);
}
// [schedule]

// [ring]
/** Use number `number` of a ring of stages, which begins again at stage 0 after the last. With 3
 * stages the number must stay below 2^32, which 3 does not divide. A tile of keys takes at least
 * 0.4 us, so a thread block would get there after half an hour in one launch. */
template <int STAGES>
struct RingUse {
  uint32_t number = 0;

  __device__ __forceinline__ int stage() const { return number % STAGES; }
  /** Of the phase of this stage's barriers. */
  __device__ __forceinline__ uint32_t parity() const { return number / STAGES % 2; }
};
// [ring]

// [o_in_v]
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
// [o_in_v]

// [producer]
/** What the one producing thread does, tile after tile of queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(const Shared<T> &shared, const TensorMaps &maps,
                                        const Problem &problem, const Schedule &schedule) {
  using Tile = Tiles<HEAD_DIM>;
  RingUse<Tile::STAGES> use;
  RingUse<2> slot;  // of `work`
  for (int index = blockIdx.x;; slot.number++) {
    const bool more = index < schedule.tiles;
    const QueryWork work =
        more ? work_of<HEAD_DIM>(problem, schedule, index) : QueryWork{0, 0, 0, -1};
    mbarrier_wait(&shared.work_empty[slot.stage()], slot.parity() ^ 1);  // all have read it
    shared.work[slot.stage()] = work;
    mbarrier_arrive(&shared.work_full[slot.stage()]);

    // Gives each consumer a place of V for its O of the tile of queries before. To be called while
    // `use` is that of the first K: the places come right before its V.
    const auto give_places = [&] {
      if (!Tile::O_IN_V || slot.number == 0) return;
      auto place = use_of_v<Tile>(use, slot.number - 1);
      for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++, place.number++) {
        mbarrier_wait(&shared.v_empty[place.stage()], place.parity() ^ 1);  // no product reads V
        mbarrier_arrive(&shared.v_full[place.stage()]);
      }
    };
    if (!more) {
      give_places();
      break;
    }
    const int kv_head = work.head / (problem.q_heads / problem.kv_heads);
    const uint32_t parity = slot.stage();  // of Q, which has one buffer: 0, 1, 0 and so on

    const auto load_q = [&](int consumer) {
      mbarrier_wait(&shared.q_empty[consumer], parity ^ 1);  // no product reads the Q before
      mbarrier_arrive_expect(&shared.q_full[consumer], Tile::Q_BYTES);
      load_rows<HEAD_DIM, Tile::GROUP_M>(
          shared.q + consumer * Tile::GROUP_M * HEAD_DIM, maps.q, &shared.q_full[consumer],
          work.first_q + consumer * Tile::GROUP_M, work.head, work.batch);
    };
    const auto load_tile = [&](T *ring, const CUtensorMap &map, uint64_t *full, uint64_t *empty,
                               RingUse<Tile::STAGES> use, int tile) {
      const int stage = use.stage();
      mbarrier_wait(&empty[stage], use.parity() ^ 1);  // all consumers have read it
      mbarrier_arrive_expect(&full[stage], Tile::KV_BYTES);
      load_rows<HEAD_DIM, Tile::BLOCK_N>(ring + stage * Tile::BLOCK_N * HEAD_DIM, map, &full[stage],
                                         tile * Tile::BLOCK_N, kv_head, work.batch);
    };
    const auto load_k = [&](RingUse<Tile::STAGES> use, int tile) {
      load_tile(shared.k_ring, maps.k, shared.k_full, shared.k_empty, use, tile);
    };
    const auto load_v = [&](RingUse<Tile::STAGES> use, int tile) {
      load_tile(shared.v_ring, maps.v, shared.v_full, shared.v_empty, use, tile);
    };
    // The first consumer can begin while others are still busy with the tile before.
    load_q(0);
    for (int tile = 0; tile < work.tile_count; tile++, use.number++) {
      // Not earlier: a block that is late must not take the next tile from one that is free.
      if (tile + 1 == work.tile_count) index = take_next(schedule);
      if (!Tile::O_IN_V || tile == 0) load_k(use, tile);
      for (int consumer = 1; tile == 0 && consumer < Tile::CONSUMERS; consumer++) load_q(consumer);
      if (Tile::O_IN_V) {  // V waits for O, so the next K comes first
        if (tile + 1 < work.tile_count) load_k({use.number + 1}, tile + 1);
        if (tile == 0) give_places();
      }
      load_v(use_of_v<Tile>(use, slot.number), tile);
    }
    if (work.tile_count == 0) {
      for (int consumer = 1; consumer < Tile::CONSUMERS; consumer++) load_q(consumer);
      give_places();
      index = take_next(schedule);
    }
  }
}
// [producer]

/** The byte of element (row, column) in swizzled panels of ROWS rows, as tensor copies lay them. */
template <int HEAD_DIM, int ROWS>
__device__ __forceinline__ int swizzled_byte(int row, int column) {
  constexpr int COLUMNS = PANEL<HEAD_DIM>;
  const int chunk = column % COLUMNS / CHUNK;
  const int swizzle = COLUMNS == 64 ? row % 8 : row / 2 % 4;
  return column / COLUMNS * ROWS * 2 * COLUMNS + row * 2 * COLUMNS + (chunk ^ swizzle) * 16 +
         column % CHUNK * 2;
}

// [again]
/** S = Q K^T of this warp's 16 rows once more, by mma.sync: what P was computed from is gone. */
template <typename T, int HEAD_DIM, int BLOCK_N, int TILES>
__device__ __forceinline__ void multiply_qk_again(float (&s)[TILES][4], const T *q_group,
                                                  const T *k_tile) {
  const int lane = threadIdx.x % WARP_SIZE, first_row = threadIdx.x / WARP_SIZE % 4 * 16;
#pragma unroll
  for (int n = 0; n < TILES; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) s[n][c] = 0.0f;
  }
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d += 16) {
    uint32_t a[4];
    ldmatrix_x4(a, (const char *)q_group +
                       swizzled_byte<HEAD_DIM, 64>(first_row + lane % 16, d + lane / 16 * 8));
#pragma unroll
    for (int n = 0; n < 8 * TILES; n += 16) {
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
// [again]

// [store]
/** Divides O by l, writes this warp's 16 rows to `o_warp`, and has them stored from there. LSE goes
 * to memory directly. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void store_tile(const float (&o)[HEAD_DIM / MMA_N][4],
                                           const float (&m)[2], const float (&l)[2], T *o_warp,
                                           const CUtensorMap &map, float *lse_global, int first_row,
                                           int rows, int head, int batch) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = lane / 4 + 8 * half;
    const float sum = lanes_reduce_sum<4>(l[half]);
    const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
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
// [store]

/** What a consumer does, tile after tile of queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(const Shared<T> &shared, const AllMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N, STAGES = Tile::STAGES;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  const T *q_group = shared.q + consumer * Tile::GROUP_M * HEAD_DIM;
  const float scale_log2 = problem.scale * LOG2_E;
  RingUse<STAGES> use;  // of the next tile of K

  for (RingUse<2> slot;; slot.number++) {
    // [work]
    mbarrier_wait(&shared.work_full[slot.stage()], slot.parity());  // the producer has written it
    const QueryWork &work = shared.work[slot.stage()];
    if (work.tile_count < 0) break;
    const int first_q = work.first_q + consumer * Tile::GROUP_M;  // of this consumer
    const int first_row = first_q + 16 * warp;                    // of this warp
    const int key_end = keys_of_rows(problem, first_q, Tile::GROUP_M);
    const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N;
    // [work]
    const int unmasked_end = attended_keys(problem, first_row);
    float m[2] = {-INFINITY, -INFINITY};  // running maximum of score * scale * log2(e)
    float l[2] = {};                      // running sum of this lane's probabilities
    float rescale[2];
    float o[HEAD_DIM / MMA_N][4] = {};
    uint32_t probs[BLOCK_N / MMA_K][4];

    const auto start_qk_of = [&](RingUse<STAGES> use, auto &s) {
      mbarrier_wait(&shared.k_full[use.stage()], use.parity());  // K has arrived
      wgmma_fence();  // the last softmax has read and written S
      start_qk<T, HEAD_DIM, BLOCK_N>(s, q_group, shared.k_ring + use.stage() * BLOCK_N * HEAD_DIM);
    };
    const auto start_pv_of = [&](RingUse<STAGES> use, const auto &probs) {
      use = use_of_v<Tile>(use, slot.number);
      mbarrier_wait(&shared.v_full[use.stage()], use.parity());  // V has arrived
      wgmma_fence();
      start_pv<T, HEAD_DIM, BLOCK_N>(o, probs, shared.v_ring + use.stage() * BLOCK_N * HEAD_DIM);
    };
    const auto release = [&](uint64_t *empty, RingUse<STAGES> use) {
      if (lane == 0) mbarrier_arrive(&empty[use.stage()]);
    };
    const auto release_v = [&](RingUse<STAGES> use) {
      release(shared.v_empty, use_of_v<Tile>(use, slot.number));
    };
    // [places]
    // The O of the tile of queries before took places of V. Each consumer releases all of them: its
    // own when O has been read, the others as soon as they have been given. To be called while
    // `use` is that of the first K.
    const auto return_places = [&] {
      if (!Tile::O_IN_V || slot.number == 0) return;
      auto place = use_of_v<Tile>(use, slot.number - 1);
      if (lane == 0) tma_store_wait<0>();
      for (int other = 0; other < Tile::CONSUMERS; other++, place.number++) {
        mbarrier_wait(&shared.v_full[place.stage()], place.parity());
        __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
        release(shared.v_empty, place);
      }
    };
    // [places]
    const auto before = [](RingUse<STAGES> use) { return RingUse<STAGES>{use.number - 1}; };
    const auto mask_tile = [&](auto &s, int tile) {
      if ((tile + 1) * BLOCK_N > unmasked_end) {
        apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, tile * BLOCK_N);
      }
    };

    mbarrier_wait(&shared.q_full[consumer],
                  (uint32_t)slot.stage());  // its Q of this tile has arrived
    if (tile_count > 0) {
      float s[1][BLOCK_N / MMA_N][4];
      start_qk_of(use, s[0]);
      return_places();
      wgmma_wait<0>(s[0]);
      release(shared.k_empty, use);
      use.number++;
      mask_tile(s, 0);
      softmax_of_tile(s[0], m, l, rescale, scale_log2);  // O is still 0
      pack_probs<T>(probs, s[0]);
    } else {
      return_places();
    }
    // Q K^T of a tile and P V of the one before, which runs beside the softmax of this one.
    const auto overlap = [&](auto &s, int tile) {
      start_qk_of(use, s[0]);
      start_pv_of(before(use), probs);
      wgmma_wait<1>(s[0]);  // S of this tile is complete; P V of the one before may still run
      mask_tile(s, tile);
      // [maximum]
      float sums[2];
      const bool raise = __any_sync(FULL_WARP, exponentiate(s[0], sums, m, scale_log2));
      if (raise) {  // rarely
        multiply_qk_again<T, HEAD_DIM, BLOCK_N>(s[0], q_group,
                                                shared.k_ring + use.stage() * BLOCK_N * HEAD_DIM);
        mask_tile(s, tile);
        softmax_of_tile(s[0], m, l, rescale, scale_log2);
      } else {
        l[0] += sums[0], l[1] += sums[1];
      }
      release(shared.k_empty, use);
      // [maximum]
      wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
      release_v(before(use));
      if (raise) rescale_rows(o, rescale);
      use.number++;
    };
    const int last = tile_count - 1;
    const bool short_tail =
        Tile::TAIL_N < BLOCK_N && tile_count > 1 && key_end - last * BLOCK_N <= Tile::TAIL_N;
    for (int tile = 1; tile < tile_count - short_tail; tile++) {
      float s[1][BLOCK_N / MMA_N][4];
      overlap(s, tile);
      pack_probs<T>(probs, s[0]);
    }
    uint32_t tail_probs[Tile::TAIL_N / MMA_K][4];
    if (short_tail) {
      float s[1][Tile::TAIL_N / MMA_N][4];
      overlap(s, last);
      pack_probs<T>(tail_probs, s[0]);
    }
    // [epilogue]
    // All products with Q are complete: the next Q may come.
    __syncwarp();  // if there was no tile: all lanes have seen that this Q has come
    if (lane == 0) mbarrier_arrive(&shared.q_empty[consumer]);
    if (tile_count > 0) {
      if (short_tail) {
        start_pv_of(before(use), tail_probs);
      } else {
        start_pv_of(before(use), probs);
      }
      wgmma_wait<0>(o);  // O is complete
      release_v(before(use));
    }
    // Tiles that other consumers need. Released before they have come, they would count as released
    // in the use of their place before.
    for (int tile = tile_count; tile < work.tile_count; tile++, use.number++) {
      mbarrier_wait(&shared.k_full[use.stage()], use.parity());
      __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
      release(shared.k_empty, use);
      const auto v = use_of_v<Tile>(use, slot.number);
      mbarrier_wait(&shared.v_full[v.stage()], v.parity());
      __syncwarp();
      release_v(use);
    }
    T *o_group = shared.o + consumer * Tile::GROUP_M * HEAD_DIM;
    if (Tile::O_IN_V) {
      const RingUse<STAGES> place = {use_of_v<Tile>(use, slot.number).number + consumer};
      mbarrier_wait(&shared.v_full[place.stage()], place.parity());  // no product reads V there
      o_group = shared.v_ring + place.stage() * BLOCK_N * HEAD_DIM;
    }
    if (lane == 0) tma_store_wait<0>();  // the O before has been read
    __syncwarp();                        // all lanes may write the next
    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    store_tile<T, HEAD_DIM>(o, m, l, o_group + 16 * warp * HEAD_DIM, maps.o,
                            t.lse + head_index * problem.q_len, first_row, problem.q_len, work.head,
                            work.batch);
    // All lanes have read `work` before the __syncwarp() in store_tile().
    if (lane == 0) mbarrier_arrive(&shared.work_empty[slot.stage()]);
    // [epilogue]
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until it has been read
}

/** The whole forward pass: one thread block for each multiprocessor. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ AllMaps maps,
                     Schedule schedule) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int STAGES = Tile::STAGES, KV_ELEMENTS = Tile::BLOCK_N * HEAD_DIM;

  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T> shared;
  shared.q = (T *)smem;
  shared.o = shared.q + Tile::BLOCK_M * HEAD_DIM;
  shared.k_ring = Tile::O_IN_V ? shared.o : shared.o + Tile::BLOCK_M * HEAD_DIM;
  shared.v_ring = shared.k_ring + STAGES * KV_ELEMENTS;
  shared.q_full = (uint64_t *)(shared.v_ring + STAGES * KV_ELEMENTS);
  shared.q_empty = shared.q_full + Tile::CONSUMERS;
  shared.work_full = shared.q_empty + Tile::CONSUMERS, shared.work_empty = shared.work_full + 2;
  shared.k_full = shared.work_empty + 2, shared.k_empty = shared.k_full + STAGES;
  shared.v_full = shared.k_empty + STAGES, shared.v_empty = shared.v_full + STAGES;
  shared.work = (QueryWork *)(shared.v_empty + STAGES);

  if (threadIdx.x == 0) {
    for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
      mbarrier_init(&shared.q_full[consumer], 1);
      mbarrier_init(&shared.q_empty[consumer], 4);  // one thread of each warp
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(&shared.work_full[i], 1);
      mbarrier_init(&shared.work_empty[i], 4 * Tile::CONSUMERS);  // one thread of each warp
    }
    for (int stage = 0; stage < STAGES; stage++) {
      mbarrier_init(&shared.k_full[stage], 1);
      mbarrier_init(&shared.v_full[stage], 1);
      mbarrier_init(&shared.k_empty[stage], 4 * Tile::CONSUMERS);  // one thread of each warp
      mbarrier_init(&shared.v_empty[stage], 4 * Tile::CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (group == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce<T, HEAD_DIM>(shared, maps.in, problem, schedule);
  } else {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume<T, HEAD_DIM>(shared, maps, problem, t, group - 1);
  }
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  Tiles<HEAD_DIM>::SHARED_BYTES,
                                                                  CEILING_WGMMA);

static constexpr KernelConfig<AllMaps, Schedule> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

// [forward]
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
  const int64_t l2_bytes = device_attribute(cudaDevAttrL2CacheSize) / 3 * 2;  // the rest is for Q
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  AllMaps maps;
  cudaError_t error = make_tensor_maps(&maps.in, problem, t, 64, config->block_n);
  if (error == cudaSuccess) {
    error = make_tensor_map(&maps.o, t->o, problem, problem->o_strides, problem->q_len,
                            problem->q_heads, 16, problem->o_dtype);
  }
  if (error != cudaSuccess) return error;
  const int heads = problem->batch * problem->kv_heads,
            sharing = problem->q_heads / problem->kv_heads;
  const int64_t fit = l2_bytes / (4ll * problem->kv_len * problem->head_dim);  // K and V of 2 bytes
  const int groups = fit < 1 ? heads : (int)((heads + fit - 1) / fit);
  Schedule schedule;
  schedule.tiles = (int)grid_size(config, problem);
  schedule.q_tiles = (problem->q_len + config->block_m - 1) / config->block_m;
  schedule.group_heads = (heads + groups - 1) / groups * sharing;
  schedule.rows = problem->mask == MASK_CAUSAL ? 3 : schedule.q_tiles;
  schedule.counter = (unsigned *)t->workspace;
  config->kernel<<<block_count(problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, schedule);
  return cudaGetLastError();
}
// [forward]

const Step step = {
    .name = "step10",
    .after = "step09",
    .title = "Persistent thread blocks with a schedule",
    .idea = "A thread block takes one tile of queries after the other; O is stored meanwhile.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe,
    .forward = forward,
};
