/**
 * @file
 * Step 11: block masks on Hopper.
 *
 * The idea: the producer of step 10 decides which tiles of keys there are. So a mask is a matter of
 * the producer, which walks a plan instead of counting up to the diagonal, and the consumers
 * follow. Most masks in use let a query attend one span of keys: a window, a document, a prefix.
 * Two numbers per query say this, where step 05 needs a list and a bit for each pair.
 *
 * What changed since step 10:
 * - Plans, made once per mask by device/key_spans.cuh, say which tiles of keys a tile of queries
 *   visits. Of spans that is a range, and it begins at the first key that is attended. Other masks
 *   have a list; its entries, and the bits of PARTIAL tiles, arrive with the tile of keys.
 * - Each consumer has two loops: one for tiles of which its queries attend all keys, one for tiles
 *   that need mask code. Spans become bits there, so that both kinds of masks share it.
 * - The tiles of queries with the longest plans are dealt out first. If most plans of a head are
 *   shorter than its longest, the heads take turns; else one head follows the other.
 * - K and V of the next tile of queries must wait for its plan. So the producer has the plan copied
 *   before it loads the last V of this tile. And they need not wait for Q: each consumer's Q is
 *   loaded by a thread of its own, with the spans of its queries.
 *
 * What it costs: two plans of 64 bytes for each tile of queries, sorted and not, and for spans 8
 * bytes for each query, for lists 16 bytes for each tile of keys.
 *
 * What to look at: the two loops, and what a tile without a mask runs. And documents of 512 keys,
 * where a tile of queries is so short that the next one must have begun before it ends.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mask_plans.cuh"
#include "device/persistent.cuh"
#include "device/ptx.cuh"
#include "device/ptx_hopper.cuh"
#include "device/span_plans.cuh"
#include "device/split_softmax.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** Tiles of queries that a thread block knows at a time. With two, as in step 10, the next plan
 * would go where that of the tile before is, and wait until the slowest consumer has left it. */
constexpr int WORKS = 4;

/** What a thread block knows of a tile of queries: its plan, and whose it is. */
struct __align__(16) QueryWork {
  QueryPlan plan;
  int head, batch;
};

// [tiles]
/** Sizes of the tiles, by head dimension. Where the mask is in blocks, tiles have LISTED_KEYS keys,
 * and at D = 128 a third consumer would leave no room for bits. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = HEAD_DIM <= 128 ? 3 : 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 128 : HEAD_DIM <= 128 ? 64 : 80;
  // Tiles of K, and of V, in flight.
  static constexpr int STAGES = HEAD_DIM > 128 ? 2 : BLOCK_N == 128 ? 3 : 4;
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  static constexpr bool O_IN_V = HEAD_DIM > 128;  // O takes a place of V: there is no more room
  static constexpr int Q_BYTES = 2 * CONSUMER_ROWS * HEAD_DIM;  // of a consumer
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;
  static constexpr int SPAN_BYTES = CONSUMER_ROWS * sizeof(KeySpan);  // of a consumer
  static constexpr int BARRIERS = 2 * WORKS + 2 * CONSUMERS + 4 * STAGES;
  static constexpr int SHARED_BYTES = (O_IN_V ? 1 : 2) * CONSUMERS * Q_BYTES +
                                      2 * STAGES * KV_BYTES + CONSUMERS * SPAN_BYTES +
                                      8 * BARRIERS + WORKS * sizeof(QueryWork);
  static_assert(!O_IN_V || (CONSUMERS <= STAGES && Q_BYTES <= KV_BYTES), "O must fit");
};
// [tiles]

/** The tensor maps of a pass; `o` has boxes of 16 rows, those of a warp, and `spans` of the spans
 * of a consumer. */
struct AllMaps {
  TensorMaps in;
  CUtensorMap o, spans;
};

/** Shared memory of a thread block. */
template <typename T>
struct Shared {
  T *q, *o;                                      /**< BLOCK_M rows each; no `o` if O_IN_V */
  T *k_ring, *v_ring;                            /**< STAGES tiles each */
  KeySpan *spans;                                /**< CONSUMER_ROWS for each consumer */
  uint64_t *q_full, *q_empty;                    /**< by consumer: Q has arrived; was read */
  uint64_t *work_full, *work_empty;              /**< the same for `work` */
  uint64_t *k_full, *v_full, *k_empty, *v_empty; /**< by stage */
  QueryWork *work;                               /**< WORKS tiles of queries */
};

// [work]
/** Begins to write to `work` what tile of queries number `index` is. The plan comes by cp.async,
 * for which the caller waits. From schedule.tiles on there is no tile. */
__device__ __forceinline__ void find_work(QueryWork &work, const Problem &problem,
                                          const Schedule &schedule, const MaskPlans &plans,
                                          int index) {
  if (index >= schedule.tiles) {
    work.plan.tile_count = -1;
    return;
  }
  const DealtTile tile = dealt_tile(problem, schedule, index);
  work.head = tile.head % problem.q_heads;
  work.batch = tile.head / problem.q_heads;
  const QueryPlan *plan = &plans.plans[plan_of_head(plans, work.batch, work.head) + tile.rank];
  for (int byte = 0; byte < (int)sizeof *plan; byte += 16) {
    cp_async_16((char *)&work.plan + byte, (const char *)plan + byte, true);
  }
  cp_async_commit();
}
// [work]

// [load_q]
/** Run by one thread for each consumer: loads its Q, and the spans of its queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce_q(const Shared<T> &shared, const AllMaps &maps,
                                          const MaskPlans &plans, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  for (RingUse<WORKS> slot;; slot.number++) {
    mbarrier_wait(&shared.work_full[slot.stage()], slot.parity());
    const QueryWork &work = shared.work[slot.stage()];
    if (work.plan.tile_count < 0) break;
    const int first_q = work.plan.first_q, head = work.head, batch = work.batch;
    uint64_t *full = &shared.q_full[consumer];
    // Q has one buffer, whose parity changes with each tile of queries. (In step 10 it is that of
    // slot.stage(), with two slots.)
    mbarrier_wait(&shared.q_empty[consumer], slot.number % 2 ^ 1);  // no product reads the Q before
    // `work` is not read from here on. The consumer waits for Q before it arrives at work_empty, so
    // that barrier need not count this thread.
    mbarrier_arrive_expect(full, Tile::Q_BYTES + Tile::SPAN_BYTES);
    load_rows<HEAD_DIM, CONSUMER_ROWS>(shared.q + consumer * CONSUMER_ROWS * HEAD_DIM, maps.in.q,
                                       full, first_q + consumer * CONSUMER_ROWS, head, batch);
    const int64_t plan = plan_of_head(plans, batch, head) + first_q / Tile::BLOCK_M;
    tma_load(shared.spans + consumer * CONSUMER_ROWS, maps.spans, full, 0,
             (int)plan * Tile::CONSUMERS + consumer, 0, 0);
  }
}
// [load_q]

// [producer]
/** Run by one thread: finds the tiles of queries, and loads K and V for them. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce_kv(const Shared<T> &shared, const AllMaps &maps,
                                           const Problem &problem, Schedule schedule,
                                           const MaskPlans &plans) {
  using Tile = Tiles<HEAD_DIM>;
  schedule.rows = *plans.uneven ? TILES_PER_TURN : plans.q_tiles;
  RingUse<Tile::STAGES> use;
  RingUse<WORKS> slot;
  const auto find = [&](RingUse<WORKS> place, int index) {
    // All consumers have left the tile of queries that was there.
    mbarrier_wait(&shared.work_empty[place.stage()], place.parity() ^ 1);
    find_work(shared.work[place.stage()], problem, schedule, plans, index);
  };
  find(slot, blockIdx.x);
  for (;; slot.number++) {
    cp_async_wait<0>();  // the plan has arrived
    mbarrier_arrive(&shared.work_full[slot.stage()]);
    const QueryWork &work = shared.work[slot.stage()];
    const QueryPlan &plan = work.plan;
    const int tile_count = plan.tile_count;
    const RingUse<WORKS> next = {slot.number + 1};

    if (tile_count < 0) {
      give_places<Tile>(shared.v_full, shared.v_empty, use, slot.number);
      break;
    }
    const int batch = work.batch, kv_head = work.head / (problem.q_heads / problem.kv_heads);
    const auto first_key_of = [&](int tile) { return plan.first_key + tile * Tile::BLOCK_N; };
    const auto load_k = [&](RingUse<Tile::STAGES> use, int tile) {
      const int stage = use.stage();
      mbarrier_wait(&shared.k_empty[stage], use.parity() ^ 1);  // all consumers have read it
      mbarrier_arrive_expect(&shared.k_full[stage], Tile::KV_BYTES);
      load_rows<HEAD_DIM, Tile::BLOCK_N>(shared.k_ring + stage * Tile::BLOCK_N * HEAD_DIM,
                                         maps.in.k, &shared.k_full[stage], first_key_of(tile),
                                         kv_head, batch);
    };
    const auto load_v = [&](RingUse<Tile::STAGES> use, int tile) {
      const int stage = use.stage();
      mbarrier_wait(&shared.v_empty[stage], use.parity() ^ 1);
      mbarrier_arrive_expect(&shared.v_full[stage], Tile::KV_BYTES);
      load_rows<HEAD_DIM, Tile::BLOCK_N>(shared.v_ring + stage * Tile::BLOCK_N * HEAD_DIM,
                                         maps.in.v, &shared.v_full[stage], first_key_of(tile),
                                         kv_head, batch);
    };
    int index = 0;  // of the next tile of queries
    for (int tile = 0; tile < tile_count; tile++, use.number++) {
      // Not earlier: a late block would hold a tile that a free one could take. Not later: it takes
      // hundreds of cycles.
      if (tile + 1 == tile_count) index = take_next(schedule);
      if (!Tile::O_IN_V || tile == 0) load_k(use, tile);
      if (Tile::O_IN_V) {  // V waits for O, so the next K comes first
        if (tile + 1 < tile_count) load_k({use.number + 1}, tile + 1);
        if (tile == 0) give_places<Tile>(shared.v_full, shared.v_empty, use, slot.number);
      }
      if (tile + 1 == tile_count) find(next, index);  // copies its plan while V waits for room
      load_v(use_of_v<Tile>(use, slot.number), tile);
    }
    if (tile_count == 0) {
      give_places<Tile>(shared.v_full, shared.v_empty, use, slot.number);
      find(next, take_next(schedule));
    }
  }
}
// [producer]

// [bits]
/** Which of the 32 keys from `first_key` on lie in a span, the first in the lowest bit. */
__device__ __forceinline__ uint32_t bits_of_span(const KeySpan &span, int first_key) {
  const int begin = max(span.first - first_key, 0), end = min(span.end - first_key, 32);
  if (begin >= end) return 0;
  return ~0u >> (32 - (end - begin)) << begin;
}

/** Sets the scores of keys that are not attended to -inf: bit j of word w of a row is key 32 w + j
 * of the tile. */
template <int N_FRAGMENTS, int WORDS>
__device__ __forceinline__ void apply_bits(float (&s)[N_FRAGMENTS][4],
                                           const uint32_t (&words)[2][WORDS]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      const uint32_t own = words[half][n / 4] >> lane % 4 * 2;  // bit 0 is this lane's first key
#pragma unroll
      for (int c = 0; c < 2; c++) {
        if ((own & 1u << (n % 4 * 8 + c)) == 0) s[n][2 * half + c] = -INFINITY;
      }
    }
  }
}
// [bits]

/** What a consumer does, tile after tile of queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(const Shared<T> &shared, const AllMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N, STAGES = Tile::STAGES, WORDS = (BLOCK_N + 31) / 32;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  const T *q_group = shared.q + consumer * CONSUMER_ROWS * HEAD_DIM;
  const int row_in_tile = consumer * CONSUMER_ROWS + 16 * warp;  // of the first row of this warp
  const float scale_log2 = problem.scale * LOG2_E;
  RingUse<STAGES> use;  // of the next tile of K

  for (RingUse<WORKS> slot;; slot.number++) {
    // [plan]
    mbarrier_wait(&shared.work_full[slot.stage()], slot.parity());  // the producer has written it
    const QueryWork &work = shared.work[slot.stage()];
    const int tile_count = work.plan.tile_count;
    if (tile_count < 0) break;
    const int first_row = work.plan.first_q + row_in_tile;  // of this warp
    const ConsumerTiles own = work.plan.consumers[consumer];
    // [plan]
    float m[2] = {-INFINITY, -INFINITY};  // running maximum of score * scale * log2(e)
    float l[2] = {};                      // running sum of this lane's probabilities
    float rescale[2];
    float o[HEAD_DIM / MMA_N][4] = {};
    uint32_t probs[BLOCK_N / MMA_K][4];

    const auto start_qk_of = [&](RingUse<STAGES> use, float(&s)[BLOCK_N / MMA_N][4]) {
      mbarrier_wait(&shared.k_full[use.stage()], use.parity());  // K has arrived
      wgmma_fence();  // the last softmax has read and written S
      start_qk<T, HEAD_DIM, BLOCK_N>(s, q_group, shared.k_ring + use.stage() * BLOCK_N * HEAD_DIM);
    };
    const auto start_pv_of = [&](RingUse<STAGES> use) {
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
    const auto return_all_places = [&] {
      return_places<Tile>(shared.v_full, shared.v_empty, use, slot.number);
    };
    const auto before = [](RingUse<STAGES> use) { return RingUse<STAGES>{use.number - 1}; };
    // A tile that only other consumers need.
    const auto skip = [&](RingUse<STAGES> use) {
      mbarrier_wait(&shared.k_full[use.stage()], use.parity());
      __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
      release(shared.k_empty, use);
      const auto v = use_of_v<Tile>(use, slot.number);
      mbarrier_wait(&shared.v_full[v.stage()], v.parity());
      __syncwarp();
      release_v(use);
    };
    // [mask_of]
    // Do the queries of this consumer attend all keys of the tile?
    const auto all_attended = [&](int tile) { return tile >= own.all_begin && tile < own.all_end; };
    const auto mask_tile = [&](float(&s)[BLOCK_N / MMA_N][4], int tile) {
      const int first_key = work.plan.first_key + tile * BLOCK_N;
      const KeySpan *spans = shared.spans + consumer * CONSUMER_ROWS;
      uint32_t words[2][WORDS];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const KeySpan span = spans[16 * warp + 8 * half + lane / 4];
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
          words[half][word] = bits_of_span(span, first_key + 32 * word);
        }
      }
      apply_bits(s, words);
    };
    // [mask_of]

    // Waits for S of a tile; P V of the one before runs meanwhile.
    const auto next_tile = [&](int tile, bool masked) {
      float s[BLOCK_N / MMA_N][4];
      start_qk_of(use, s);
      start_pv_of(before(use));
      wgmma_wait<1>(s);  // S of this tile is complete; P V of the one before may still run
      if (masked) mask_tile(s, tile);
      float sums[2];
      const bool raise = __any_sync(FULL_WARP, exponentiate(s, sums, m, scale_log2));
      if (raise) {  // rarely
        multiply_qk_again<T, HEAD_DIM, BLOCK_N>(s, q_group,
                                                shared.k_ring + use.stage() * BLOCK_N * HEAD_DIM);
        if (masked) mask_tile(s, tile);
        softmax_of_tile(s, m, l, rescale, scale_log2);
      } else {
        l[0] += sums[0], l[1] += sums[1];
      }
      release(shared.k_empty, use);
      wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
      release_v(before(use));
      if (raise) rescale_rows(o, rescale);
      pack_probs<T>(probs, s);
      use.number++;
    };

    mbarrier_wait(&shared.q_full[consumer],
                  slot.number % 2);  // its Q of this tile has arrived, and the spans
    // [loops]
    int tile = 0;
    // skip() waits for V, and V waits until these places are returned.
    if (own.begin > 0 || own.begin == own.end) return_all_places();
    for (; tile < own.begin; tile++, use.number++) skip(use);
    if (tile < own.end) {
      float s[BLOCK_N / MMA_N][4];
      start_qk_of(use, s);
      if (tile == 0) return_all_places();
      wgmma_wait<0>(s);
      if (!all_attended(tile)) mask_tile(s, tile);
      release(shared.k_empty, use);
      use.number++;
      tile++;
      softmax_of_tile(s, m, l, rescale, scale_log2);  // O is still 0
      pack_probs<T>(probs, s);
    }
    while (tile < own.end) {
      for (; tile < own.end && all_attended(tile); tile++) next_tile(tile, false);
      for (; tile < own.end && !all_attended(tile); tile++) next_tile(tile, true);
    }
    // [loops]
    fence_proxy_async();  // these loads of spans come before the copy of the next ones
    __syncwarp();  // all lanes have read them and, if there was no tile, have seen that Q has come
    // All products with Q are complete: the next Q may come, with spans.
    if (lane == 0) mbarrier_arrive(&shared.q_empty[consumer]);
    if (own.begin < own.end) {
      start_pv_of(before(use));
      wgmma_wait<0>(o);  // O is complete
      release_v(before(use));
    }
    for (; tile < tile_count; tile++, use.number++) skip(use);

    T *o_group = shared.o + consumer * CONSUMER_ROWS * HEAD_DIM;
    if (Tile::O_IN_V) {
      const RingUse<STAGES> place = {use_of_v<Tile>(use, slot.number).number + consumer};
      mbarrier_wait(&shared.v_full[place.stage()], place.parity());  // no product reads V there
      o_group = shared.v_ring + place.stage() * BLOCK_N * HEAD_DIM;
    }
    if (lane == 0) tma_store_wait<0>();  // the O before has been read
    __syncwarp();
    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    store_tile<T, HEAD_DIM>(o, m, l, o_group + 16 * warp * HEAD_DIM, maps.o,
                            t.lse + head_index * problem.q_len, first_row, problem.q_len, work.head,
                            work.batch);
    // All lanes have read `work` before the __syncwarp() in store_tile().
    if (lane == 0) mbarrier_arrive(&shared.work_empty[slot.stage()]);
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until it has been read
}

/** The whole forward pass: one thread block for each multiprocessor. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ AllMaps maps,
                     Schedule schedule, MaskPlans plans) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int STAGES = Tile::STAGES, KV_ELEMENTS = Tile::BLOCK_N * HEAD_DIM;

  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T> shared;
  shared.q = (T *)smem;
  shared.o = shared.q + Tile::BLOCK_M * HEAD_DIM;
  shared.k_ring = Tile::O_IN_V ? shared.o : shared.o + Tile::BLOCK_M * HEAD_DIM;
  shared.v_ring = shared.k_ring + STAGES * KV_ELEMENTS;
  shared.spans = (KeySpan *)(shared.v_ring + STAGES * KV_ELEMENTS);
  shared.work = (QueryWork *)(shared.spans + Tile::BLOCK_M);
  shared.q_full = (uint64_t *)(shared.work + WORKS);
  shared.q_empty = shared.q_full + Tile::CONSUMERS;
  shared.work_full = shared.q_empty + Tile::CONSUMERS;
  shared.work_empty = shared.work_full + WORKS;
  shared.k_full = shared.work_empty + WORKS, shared.k_empty = shared.k_full + STAGES;
  shared.v_full = shared.k_empty + STAGES, shared.v_empty = shared.v_full + STAGES;

  if (threadIdx.x == 0) {
    for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
      mbarrier_init(&shared.q_full[consumer], 1);
      mbarrier_init(&shared.q_empty[consumer], 4);  // one thread of each warp
    }
    for (int i = 0; i < WORKS; i++) {
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
    const int warp = threadIdx.x / WARP_SIZE;
    if (threadIdx.x == 0) {
      produce_kv<T, HEAD_DIM>(shared, maps, problem, schedule, plans);
    } else if (threadIdx.x % WARP_SIZE == 0 && warp <= Tile::CONSUMERS) {
      produce_q<T, HEAD_DIM>(shared, maps, plans, warp - 1);
    }
  } else {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume<T, HEAD_DIM>(shared, maps, problem, t, group - 1);
  }
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = [] {
  using Tile = Tiles<HEAD_DIM>;
  auto config = make_config<T, HEAD_DIM, Tile>(attention_kernel<T, HEAD_DIM>, Tile::THREADS,
                                               Tile::SHARED_BYTES, CEILING_WGMMA);
  config.mask_rows = 0;  // it has no blocks
  return config;
}();

static constexpr KernelConfig<AllMaps, Schedule, MaskPlans> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

// [prepare]
static cudaError_t prepare(const Problem *problem, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  const SpanPlans plans = lay_out_span_plans(problem, mask, config->block_m, prepared);
  const int consumers = config->block_m / CONSUMER_ROWS, threads = WARPGROUP_THREADS;
  if (const cudaError_t error = cudaMemsetAsync(plans.uneven, 0, sizeof(int), stream)) return error;
  plan_spans_kernel<<<plans.plan_count, WARP_SIZE, 0, stream>>>(*problem, plans, consumers,
                                                                config->block_n);
  sort_plans_kernel<<<(plans.plan_count + threads - 1) / threads, threads, 0, stream>>>(plans);
  return cudaGetLastError();
}
// [prepare]

/** Thread blocks: one for each multiprocessor, if there are as many tiles. */
static int block_count(const Problem *problem) {
  const int64_t tiles = grid_size(find_config<CONFIGS>(problem), problem);
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
  const SpanPlans plans = lay_out_span_plans(problem, t->block_mask, config->block_m, t->prepared);
  AllMaps maps = {};
  cudaError_t error = make_tensor_maps(&maps.in, problem, t, CONSUMER_ROWS, config->block_n);
  if (error == cudaSuccess) {
    error = make_tensor_map(&maps.o, t->o, problem, problem->o_strides, problem->q_len,
                            problem->q_heads, 16, problem->o_dtype);
  }
  if (error == cudaSuccess) {
    error = make_words_map(&maps.spans, (const uint32_t *)plans.consumer_spans,
                           Tiles<64>::SPAN_BYTES / 4,
                           plans.plan_count * (config->block_m / CONSUMER_ROWS));
  }
  if (error != cudaSuccess) return error;
  const Schedule schedule = make_schedule(problem, config->block_m, t->workspace);
  config->kernel<<<block_count(problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, schedule, plans);
  return cudaGetLastError();
}

static const BlockMaskSupport BLOCK_MASKS = {
    .prepared_bytes =
        [](const Problem *problem, const BlockMask *mask) {
          return lay_out_span_plans(problem, mask, find_config<CONFIGS>(problem)->block_m, NULL)
              .bytes;
        },
    .prepare = prepare,
    .takes_spans = true,
};

const Step step = {
    .name = "step11",
    .after = "step10",
    .title = "Block masks on Hopper",
    .idea = "The producer walks a plan of the mask; spans of keys replace lists and bits.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
