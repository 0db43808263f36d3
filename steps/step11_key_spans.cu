/**
 * @file
 * Step 11: masks that are one span of keys for each query.
 *
 * The idea: the producer decides which tiles of keys are loaded. So it follows a plan of the mask,
 * instead of going on up to the diagonal. The consumers follow it, and need mask code only where a
 * query attends to a part of a tile. Most masks in use are simple: a window, documents, a prefix.
 * There a query attends to keys from one number up to another. These two numbers say everything,
 * where step 05 needs a list of tiles and a bit for each pair of query and key.
 *
 * What changed since step 10c:
 * - Small kernels make the plans once per mask (device/span_plans.cuh), one for each tile of
 *   queries: where its tiles of keys begin, how many there are, and which of them each consumer
 *   needs. The first tile begins at the first unmasked key.
 * - A consumer has two loops: one for tiles in which nothing is masked for its queries, and one for
 *   tiles that need mask code. There a span becomes a word of bits for 32 keys.
 * - The producer knows nothing of a tile of queries before its plan has arrived. So it copies the
 *   next plan early, and Q is loaded by threads of their own (device/planned_tiles.cuh). Plans are
 *   sorted, the longest first.
 * - D = 256, as in step 10d, but without a short last tile.
 *
 * What it costs: 8 bytes for each query and a copy of them, and two plans of 64 bytes for each tile
 * of queries.
 *
 * Longer than other steps: the kernels in device/span_plans.cuh make the plans for this step alone.
 * They run once per mask and can be read apart from the pass.
 *
 * What to look at: the two loops, and what a tile without a mask runs. And documents of 512 keys,
 * where a tile of queries is so short that the next one must have begun before it ends.
 */
#include "attention.h"
#include "block_mask.h"
#include "device/key_bits.cuh"
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

// [apply_spans]
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
// [apply_spans]

/** The loop over the tiles of keys that a consumer's queries attend to: O, m and l of its rows.
 * `state` is that of the first tile of the plan, and afterwards the one after the last tile of this
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
    wgmma_wait<1>(s);  // S of this tile is complete; P V of the previous one may still run
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

  const auto skip = [&] {  // a tile that only other consumers need
    skip_tile(shared.k_full, shared.k_empty, state);
    skip_tile(shared.v_full, shared.v_empty, v_state<HEAD_DIM>(state, work_count));
    ++state;
  };

  // [loops]
  int tile = 0;
  // skip() waits for V, and V waits until these slots are released.
  if (own.begin > 0 || own.begin == own.end) release_o_slots(shared, state, work_count);
  for (; tile < own.begin; tile++) skip();
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
  fence_proxy_async();  // these loads of spans come before TMA writes the next ones
  __syncwarp();         // all lanes have read them and, without a tile, have seen that Q has come
  // All products with Q are complete: the next Q may come, with spans.
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&shared.q_empty[consumer]);
  if (own.begin < own.end) {
    start_pv_of(o, probs, shared, v_before());
    wgmma_wait<0>(o);  // O is complete
    release(shared.v_empty, v_before());
  }
  for (; tile < plan.tile_count; tile++) skip();
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
    const int consumer = warpgroup - 1;
    const float scale_log2 = problem.scale * LOG2_E;
    consume(
        shared, maps.o, problem, t, consumer,
        [&](const QueryPlan &plan, uint32_t work_count, auto &state, auto &o, auto &m, auto &l) {
          attend(shared, plan, consumer, scale_log2, work_count, state, o, m, l);
        });
    return;
  }
  setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
  const int consumer = (int)threadIdx.x / WARP_SIZE - 1;  // that this warp loads Q for
  if (threadIdx.x == 0) {
    // The tiles of a plan follow each other from its first key on.
    const auto list_of = [](const PlannedTile &work) { return &work.plan; };
    const auto first_key_of = [](const QueryPlan *plan, int tile) {
      return plan->first_key + tile * Tile::BLOCK_N;
    };
    produce_kv(shared, maps.in.v, problem, scheduler, plans, list_of, first_key_of,
               [&](PipelineState<Tile::STAGES> k, const QueryPlan *plan, int tile, int kv_head,
                   int batch) {
                 load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.in.k, shared.k_full,
                                                    shared.k_empty, k, first_key_of(plan, tile),
                                                    kv_head, batch);
               });
  } else if (threadIdx.x % WARP_SIZE == 0 && consumer < Tile::CONSUMERS) {
    const auto load_spans = [&](uint64_t *full, int plan) {
      tma_load(shared.spans[consumer], maps.spans, full, 0, plan * Tile::CONSUMERS + consumer, 0,
               0);
    };
    produce_q(shared, maps.in.q, consumer, sizeof shared.spans[consumer], load_spans);
  }
  // [roles]
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  sizeof(Shared<T, HEAD_DIM>),
                                                                  USES_WGMMA);

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
    .after = "step10c",
    .title = "Masks of one span of keys",
    .idea =
        "The producer follows a plan of the mask; two numbers for each query say which keys it "
        "attends to.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
