/**
 * @file
 * Step 11: masks that are one span of keys for each query.
 *
 * The idea: the producer alone decides which tiles of keys there are, so a mask is a matter of the
 * producer. It follows a plan of the mask, instead of going on up to the diagonal, and the
 * consumers follow the producer. Most masks in use are simple: a window, documents, a prefix. There
 * a query attends the keys from one number up to another. These two numbers say everything, where
 * step 05 needs a list of tiles and a bit for each pair of query and key.
 *
 * What changed since step 10c:
 * - Small kernels make the plans once per mask (device/span_plans.cuh), one for each tile of
 *   queries: where its tiles of keys begin, how many there are, and which of them each consumer
 *   needs. The first tile begins at the first key that is attended.
 * - Each consumer has two loops: one for tiles of which its queries attend all keys, and one for
 *   tiles that need mask code.
 * - The scheduler's numbers stand for plans, the longest of a head first. If most plans of a head
 *   are much shorter than its longest, the heads take turns. Else one head follows the other.
 * - A block needs the plan before it can load anything of a tile of queries. So the producer copies
 *   the next plan before it loads the last V of this tile, and a thread of its own for each
 * consumer loads Q, with the spans of its queries (device/planned_tiles.cuh).
 *
 * What it costs: 8 bytes for each query, and two plans of 64 bytes for each tile of queries, one in
 * the order of the queries and one sorted.
 *
 * What to look at: the two loops, and what a tile without a mask runs. And documents of 512 keys,
 * where a tile of queries is so short that the next one must have begun before it ends.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "block_mask.h"
#include "device/launch.cuh"
#include "device/lazy_softmax.cuh"
#include "device/o_slots.cuh"
#include "device/pipeline.cuh"
#include "device/planned_tiles.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
#include "device/skip_tile.cuh"
#include "device/span_plans.cuh"
#include "device/store_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/wgmma_tile.cuh"

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = HEAD_DIM <= 128 ? 3 : 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 128 : HEAD_DIM <= 128 ? 64 : 80;
  static constexpr int STAGES = HEAD_DIM <= 64 ? 3 : HEAD_DIM <= 128 ? 4 : 2;  // of K, and of V
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  // At D = 256 there is no room for O: it goes through the pipeline of V, as in step 10d.
  static constexpr int O_SLOTS = HEAD_DIM > 128 ? CONSUMERS : 0;
  static constexpr int O_ELEMENTS = O_SLOTS > 0 ? 1 : CONSUMER_ROWS *HEAD_DIM;  // of a consumer
};

/** Shared memory of a thread block. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::CONSUMERS][CONSUMER_ROWS * HEAD_DIM];
  alignas(Tile::O_SLOTS > 0 ? 16 : 1024) T o[Tile::CONSUMERS][Tile::O_ELEMENTS];
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(128) KeySpan spans[Tile::CONSUMERS][CONSUMER_ROWS];
  PlannedTile work[WORK_SLOTS];
  uint64_t work_full[WORK_SLOTS], work_empty[WORK_SLOTS];
  uint64_t q_full[Tile::CONSUMERS], q_empty[Tile::CONSUMERS];  // of Q and the spans
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

/** The tensor maps of a pass. */
struct SpanMaps : ForwardMaps {
  CUtensorMap spans; /**< boxes of the spans of a consumer */
};

// [producer]
/** Run by one thread: finds the tiles of queries, and loads K and V for them. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce_kv(Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                           const Problem &problem, TileScheduler scheduler,
                                           const MaskPlans &plans) {
  using Tile = Tiles<HEAD_DIM>;
  scheduler.tiles_per_turn = *plans.uneven ? TILES_PER_TURN : plans.q_tiles;
  PipelineState<Tile::STAGES> state;  // of the next tile of K
  PipelineState<WORK_SLOTS> work_state;
  find_plan(shared, work_state, problem, scheduler, plans, blockIdx.x);
  for (;; ++work_state) {
    cp_async_wait<0>();  // the plan has arrived
    mbarrier_arrive(&shared.work_full[work_state.index()]);
    const PlannedTile &work = shared.work[work_state.index()];
    const int tile_count = work.plan.tile_count;
    if (tile_count < 0) break;
    const int batch = work.batch, kv_head = work.head / (problem.q_heads / problem.kv_heads);
    const auto find_next = [&](int index) {
      find_plan(shared, {work_state.count + 1}, problem, scheduler, plans, index);
    };
    const auto load_k = [&](PipelineState<Tile::STAGES> k, int tile) {
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, k,
                                         work.plan.first_key + tile * Tile::BLOCK_N, kv_head,
                                         batch);
    };
    int index = 0;  // of the next tile of queries
    for (int tile = 0; tile < tile_count; tile++, ++state) {
      // Not earlier: a late block would hold a tile that a free one could take. Not later: it takes
      // hundreds of cycles.
      if (tile + 1 == tile_count) index = take_next(scheduler);
      if (Tile::O_SLOTS == 0 || tile == 0) load_k(state, tile);
      if (Tile::O_SLOTS > 0) {  // V waits for O, so the next K comes first
        if (tile + 1 < tile_count) load_k({state.count + 1}, tile + 1);
        if (tile == 0) grant_o_slots(shared, state, work_state.count);
      }
      if (tile + 1 == tile_count) find_next(index);  // its plan is copied while V waits for room
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty,
                                         v_state<HEAD_DIM>(state, work_state.count),
                                         work.plan.first_key + tile * Tile::BLOCK_N, kv_head,
                                         batch);
    }
    if (tile_count == 0) {
      grant_o_slots(shared, state, work_state.count);
      find_next(take_next(scheduler));
    }
  }
  grant_o_slots(shared, state, work_state.count);  // for the last O
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

/** Masks the scores of the keys from `first_key` on. `spans` are those of this consumer's rows. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void apply_spans(float (&s)[N_FRAGMENTS][4], const KeySpan *spans,
                                            int first_key) {
  constexpr int WORDS = (N_FRAGMENTS + 3) / 4;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
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
}
// [bits]

/** The loop over the tiles of keys that a consumer's queries attend: O, m and l of its rows.
 * `state` is that of the first tile of the plan, and afterwards that behind the last one of this
 * consumer. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const QueryPlan &plan,
                                       int consumer, float scale_log2, uint32_t work_count,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  const ConsumerTiles own = plan.consumers[consumer];
  uint32_t probs[BLOCK_N / MMA_K][4];
  float rescale[2];
  const auto mask = [&](auto &s, int tile) {
    apply_spans(s, shared.spans[consumer], plan.first_key + tile * BLOCK_N);
  };
  const auto all_attended = [&](int tile) { return tile >= own.all_begin && tile < own.all_end; };
  const auto v_before = [&] { return v_state<HEAD_DIM>(state.previous(), work_count); };
  const auto next_tile = [&](int tile, bool masked) {
    float s[BLOCK_N / MMA_N][4];
    start_qk_of(s, shared, consumer, state);
    start_pv_of(o, probs, shared, v_before());
    wgmma_wait<1>(s);  // S of this tile is complete; P V of the one before may still run
    const bool raised = lazy_softmax<T, HEAD_DIM, BLOCK_N>(
        s, m, l, rescale, scale_log2, shared.q[consumer], shared.k[state.index()], [&] {
          if (masked) mask(s, tile);
        });
    release(shared.k_empty, state);
    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
    release(shared.v_empty, v_before());
    if (raised) rescale_rows(o, rescale);
    ++state;
    pack_probs<T>(probs, s);
  };

  // [loops]
  int tile = 0;
  // skip_tile() waits for V, and V waits until these slots are released.
  if (own.begin > 0 || own.begin == own.end) release_o_slots(shared, state, work_count);
  for (; tile < own.begin; tile++, ++state) {
    skip_tile(shared.k_full, shared.k_empty, state);
    skip_tile(shared.v_full, shared.v_empty, v_state<HEAD_DIM>(state, work_count));
  }
  if (tile < own.end) {
    float s[BLOCK_N / MMA_N][4];
    start_qk_of(s, shared, consumer, state);
    if (tile == 0) release_o_slots(shared, state, work_count);
    wgmma_wait<0>(s);
    if (!all_attended(tile)) mask(s, tile);
    release(shared.k_empty, state);
    ++state;
    tile++;
    softmax_of_tile(s, m, l, rescale, scale_log2);  // O is still 0
    pack_probs<T>(probs, s);
  }
  while (tile < own.end) {
    const int end = tile < own.all_begin ? min(own.all_begin, own.end) : own.end;
    if (!all_attended(tile)) {
      for (; tile < end; tile++) next_tile(tile, true);
    } else {
      for (; tile < own.all_end; tile++) next_tile(tile, false);
    }
  }
  // [loops]
  fence_proxy_async();  // these loads of spans come before the copy of the next ones
  __syncwarp();  // all lanes have read them and, if there was no tile, have seen that Q has come
  // All products with Q are complete: the next Q may come, with spans.
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&shared.q_empty[consumer]);
  if (own.begin < own.end) {
    start_pv_of(o, probs, shared, v_before());
    wgmma_wait<0>(o);  // O is complete
    release(shared.v_empty, v_before());
  }
}

/** What a consumer does, tile after tile of queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const SpanMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  const int row_in_tile = consumer * CONSUMER_ROWS + 16 * warp;  // of the first row of this warp
  const float scale_log2 = problem.scale * LOG2_E;
  PipelineState<Tile::STAGES> state;  // of the next tile of K

  for (PipelineState<WORK_SLOTS> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const PlannedTile &work = shared.work[work_state.index()];
    const int tile_count = work.plan.tile_count;
    if (tile_count < 0) break;
    float m[2] = {-FLT_MAX, -FLT_MAX};  // running maximum of score * scale * log2(e)
    float l[2] = {};                    // running sum of this lane's probabilities
    float o[HEAD_DIM / MMA_N][4] = {};
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[consumer], q_state.phase());  // Q and the spans have arrived
    attend(shared, work.plan, consumer, scale_log2, work_state.count, state, o, m, l);
    for (int tile = work.plan.consumers[consumer].end; tile < tile_count; tile++, ++state) {
      skip_tile(shared.k_full, shared.k_empty, state);
      skip_tile(shared.v_full, shared.v_empty, v_state<HEAD_DIM>(state, work_state.count));
    }

    const int first_row = work.plan.first_q + row_in_tile;  // of this warp
    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    finish_rows(o, m, l, 1.0f, t.lse + head_index * problem.q_len, first_row, problem.q_len);
    T *o_consumer = shared.o[consumer];
    if (Tile::O_SLOTS > 0) {
      const uint32_t first_slot = v_state<HEAD_DIM>(state, work_state.count).count;
      const PipelineState<Tile::STAGES> o_slot = {first_slot + consumer};
      mbarrier_wait(&shared.v_full[o_slot.index()], o_slot.phase());  // no product reads V there
      o_consumer = shared.v[o_slot.index()];
    }
    store_tile<HEAD_DIM>(o, o_consumer + 16 * warp * HEAD_DIM, maps.o, first_row, work.head,
                         work.batch);
    release(shared.work_empty, work_state);  // all lanes have read `work` before __syncwarp()
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until it has been read
}

/** The whole forward pass: one thread block for each SM. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ SpanMaps maps,
                     TileScheduler scheduler, MaskPlans plans) {
  using Tile = Tiles<HEAD_DIM>;
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;
  if (threadIdx.x == 0) {
    constexpr int READS = 4 * Tile::CONSUMERS;  // one thread of each warp
    init_barriers(shared.q_full, 1, shared.q_empty, 4);
    init_barriers(shared.work_full, 1, shared.work_empty, READS);
    init_barriers(shared.k_full, 1, shared.k_empty, READS);
    init_barriers(shared.v_full, 1, shared.v_empty, READS);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // [roles]
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup > 0) {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume(shared, maps, problem, t, warpgroup - 1);
    return;
  }
  setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
  const int consumer = (int)threadIdx.x / WARP_SIZE - 1;  // that this warp loads Q for
  if (threadIdx.x == 0) {
    produce_kv(shared, maps.in, problem, scheduler, plans);
  } else if (threadIdx.x % WARP_SIZE == 0 && consumer < Tile::CONSUMERS) {
    const auto load_spans = [&](uint64_t *full, int plan) {
      tma_load(shared.spans[consumer], maps.spans, full, 0, plan * Tile::CONSUMERS + consumer, 0,
               0);
    };
    produce_q(shared, maps.in.q, plans, consumer, sizeof shared.spans[consumer], load_spans);
  }
  // [roles]
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  sizeof(Shared<T, HEAD_DIM>),
                                                                  CEILING_WGMMA);

static constexpr KernelConfig<SpanMaps, TileScheduler, MaskPlans> CONFIGS[] = {
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

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  const SpanPlans plans = lay_out_span_plans(problem, t->block_mask, config->block_m, t->prepared);
  SpanMaps maps;
  cudaError_t error = make_forward_maps(&maps, problem, t, config->block_n);
  if (error == cudaSuccess) error = make_spans_map(&maps.spans, plans, config->block_m);
  if (error != cudaSuccess) return error;
  const TileScheduler scheduler = make_scheduler(problem, config->block_m, 2, t->workspace);
  config->kernel<<<block_count(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, scheduler, plans);
  return cudaGetLastError();
}

static const BlockMaskSupport BLOCK_MASKS = {
    .prepared_bytes = span_plan_bytes<CONFIGS>, .prepare = prepare, .takes_spans = true};

const Step step = {
    .name = "step11",
    .after = "step10",
    .title = "Masks of one span of keys",
    .idea =
        "The producer follows a plan of the mask; two numbers for each query say which keys it "
        "attends.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
