/**
 * @file
 * Step 11b: any block mask on Hopper.
 *
 * The idea: a plan can have a list of tiles of keys instead of a range. Then the mask may come in
 * blocks, as in step 05. Each entry of the list says how each consumer's queries are masked in a
 * tile. Where this differs from key to key, there is a bit for each pair of query and key, and TMA
 * loads these bits with the tile of K.
 *
 * What changed since step 11:
 * - Small kernels make the lists from the blocks of the mask, and bits from its PARTIAL blocks,
 * once per mask (device/list_plans.cuh).
 * - The producer reads the list. It shows each entry to the consumers in shared memory; K, entry
 * and bits have one barrier.
 * - A tile whose entry says ALL_ATTENDED needs no mask code. Otherwise the word of bits for 32 keys
 *   comes from a rule for the whole tile, and from the bits where there are any.
 * - All consumers compute all tiles of the list, so nobody skips a tile.
 *
 * What it costs: 16 bytes for each tile of keys in each list, and 512 bytes for each tile with
 * bits. There are two consumers, because the bits of four stages leave no room for a third with 128
 * columns. So where each query attends to one span of keys, step 11 is faster.
 *
 * Longer than other steps: the kernels in device/list_plans.cuh make the lists for this step alone.
 * They run once per mask and can be read apart from the pass.
 *
 * What to look at: what comes between reading an entry with its bits, and the copy of the next.
 */
#include "attention.h"
#include "block_mask.h"
#include "device/heads.cuh"
#include "device/key_bits.cuh"
#include "device/launch.cuh"
#include "device/lazy_softmax.cuh"
#include "device/list_plans.cuh"
#include "device/o_slots.cuh"
#include "device/pipeline.cuh"
#include "device/planned_tiles.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
#include "device/store_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/wgmma_tile.cuh"

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = LISTED_KEYS;
  static constexpr int STAGES = HEAD_DIM <= 128 ? 4 : 2;  // of K, and of V
  static constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  // At D = 256 there is no room for O: it goes through the pipeline of V, as in step 10d.
  static constexpr int O_SLOTS = HEAD_DIM > 128 ? CONSUMERS : 0;
  static constexpr int O_ELEMENTS = O_SLOTS > 0 ? 1 : CONSUMER_ROWS *HEAD_DIM;  // of a consumer
  static constexpr int WORDS = BLOCK_N / 32;                                    // of bits of a row
};

/** Shared memory of a thread block. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::CONSUMERS][CONSUMER_ROWS * HEAD_DIM];
  alignas(Tile::O_SLOTS > 0 ? 16 : 1024) T o[Tile::CONSUMERS][Tile::O_ELEMENTS];
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(128) uint32_t bits[Tile::STAGES][Tile::CONSUMERS][CONSUMER_ROWS][Tile::WORDS];
  ListedTile listed[Tile::STAGES];  // how the tile in this stage of K is masked
  PlannedTile work[WORK_SLOTS];
  uint64_t work_full[WORK_SLOTS], work_empty[WORK_SLOTS];
  uint64_t q_full[Tile::CONSUMERS], q_empty[Tile::CONSUMERS];
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];  // of K, of the entry and of its bits
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

/** The tensor maps of a pass. */
struct ListMaps : ForwardMaps {
  CUtensorMap bits; /**< boxes of the bits of one tile and consumer */
};

// [load_listed]
/** Loads the K of an entry of a list, and the bits of those consumers for which it is PARTIAL;
 * shows the entry itself to the consumers. All is there when K is. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_listed(Shared<T, HEAD_DIM> &shared, const ListMaps &maps,
                                            PipelineState<Tiles<HEAD_DIM>::STAGES> k,
                                            const ListedTile &tile, int kv_head, int batch) {
  using Tile = Tiles<HEAD_DIM>;
  const int stage = k.index();
  uint64_t *full = &shared.k_full[stage];
  mbarrier_wait(&shared.k_empty[stage], k.phase() ^ 1);  // all consumers have read what was there
  shared.listed[stage] = tile;
  int bytes = sizeof shared.k[stage];
  for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
    if (tile.mask[consumer] >= 0) bytes += sizeof shared.bits[stage][consumer];
  }
  mbarrier_arrive_expect(full, bytes);
  for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
    if (tile.mask[consumer] < 0) continue;
    tma_load(shared.bits[stage][consumer], maps.bits, full, 0, tile.mask[consumer], 0, 0);
  }
  load_rows<HEAD_DIM, Tile::BLOCK_N>(shared.k[stage], maps.in.k, full, tile.first_key, kv_head,
                                     batch);
}
// [load_listed]

// [mask_listed]
/** Masks the scores of a tile. `first_q` is the first query of this consumer, and `bits` are those
 * of its queries. */
template <int WORDS, int N_FRAGMENTS>
__device__ __forceinline__ void mask_listed(float (&s)[N_FRAGMENTS][4],
                                            const uint32_t (&bits)[CONSUMER_ROWS][WORDS],
                                            const ListedTile &tile, int consumer,
                                            const Problem &problem, int first_q) {
  const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE % 4;
  const int mask = tile.mask[consumer];
  uint32_t words[2][WORDS];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = 16 * warp + 8 * half + lane / 4;
    const KeySpan keys = {0, mask == NONE_ATTENDED ? 0
                             : mask == CAUSAL_RULE ? causal_keys(problem, first_q + row)
                                                   : problem.kv_len};
#pragma unroll
    for (int word = 0; word < WORDS; word++) {
      words[half][word] = bits_of_span(keys, tile.first_key + 32 * word);
      if (mask >= 0) words[half][word] &= bits[row][word];
    }
  }
  fence_proxy_async();  // these loads come before the copy of the next bits
  apply_bits(s, words);
}
// [mask_listed]

/** The loop over the tiles of keys of a list: O, m and l of a consumer's rows. `state` is that of
 * the first tile, and afterwards the one after the last. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       const QueryPlan &plan, int consumer, float scale_log2,
                                       uint32_t work_count,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  const int tile_count = plan.tile_count;
  uint32_t probs[BLOCK_N / MMA_K][4];
  const auto all_attended = [&] {
    mbarrier_wait(&shared.k_full[state.index()], state.phase());  // the entry has arrived
    return shared.listed[state.index()].mask[consumer] == ALL_ATTENDED;
  };
  float rescale[2];
  const auto mask = [&](auto &s, bool masked) {
    const int stage = state.index(), first_q = plan.first_q + consumer * CONSUMER_ROWS;
    const ListedTile &listed = shared.listed[stage];
    if (masked) mask_listed(s, shared.bits[stage][consumer], listed, consumer, problem, first_q);
    __syncwarp();  // all lanes have read the entry and the bits; a vote does not say so
  };
  const auto v_before = [&] { return v_state<HEAD_DIM>(state.previous(), work_count); };
  const auto next_tile = [&](bool masked) {
    float s[BLOCK_N / MMA_N][4];
    start_qk_of(s, shared, consumer, state);
    start_pv_of(o, probs, shared, v_before());
    wgmma_wait<1>(s);  // S of this tile is complete; P V of the previous one may still run
    const bool raised =
        lazy_softmax<T, HEAD_DIM, BLOCK_N>(s, m, l, rescale, scale_log2, shared.q[consumer],
                                           shared.k[state.index()], [&] { mask(s, masked); });
    release(shared.k_empty, state);
    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
    release(shared.v_empty, v_before());
    if (raised) rescale_rows(o, rescale);
    ++state;
    pack_probs<T>(probs, s);
  };

  // [loops]
  int tile = 0;
  if (tile_count > 0) {
    float s[BLOCK_N / MMA_N][4];
    start_qk_of(s, shared, consumer, state);
    release_o_slots(shared, state, work_count);
    wgmma_wait<0>(s);
    mask(s, !all_attended());
    release(shared.k_empty, state);
    ++state;
    tile++;
    softmax_of_tile(s, m, l, rescale, scale_log2);  // O is still 0
    pack_probs<T>(probs, s);
  } else {
    release_o_slots(shared, state, work_count);
  }
  while (tile < tile_count) {
    for (; tile < tile_count && all_attended(); tile++) next_tile(false);
    for (; tile < tile_count && !all_attended(); tile++) next_tile(true);
  }
  // [loops]
  __syncwarp();  // if there was no tile, all lanes have seen that Q has come
  // All products with Q are complete: the next Q may come.
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&shared.q_empty[consumer]);
  if (tile_count > 0) {
    start_pv_of(o, probs, shared, v_before());
    wgmma_wait<0>(o);  // O is complete
    release(shared.v_empty, v_before());
  }
}

/** The whole forward pass: one thread block for each SM. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ ListMaps maps,
                     TileScheduler scheduler, ListPlans plans) {
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
          attend(shared, problem, plan, consumer, scale_log2, work_count, state, o, m, l);
        });
    return;
  }
  setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
  const int consumer = (int)threadIdx.x / WARP_SIZE - 1;  // that this warp loads Q for
  if (threadIdx.x == 0) {
    const auto list_of = [&](const PlannedTile &work) -> const ListedTile * {
      return plans.tiles + (int64_t)work.plan.number * plans.most_tiles;
    };
    const auto first_key_of = [](const ListedTile *list, int tile) { return list[tile].first_key; };
    produce_kv(shared, maps.in.v, problem, scheduler, plans, list_of, first_key_of,
               [&](PipelineState<Tile::STAGES> k, const ListedTile *list, int tile, int kv_head,
                   int batch) { load_listed(shared, maps, k, list[tile], kv_head, batch); });
  } else if (threadIdx.x % WARP_SIZE == 0 && consumer < Tile::CONSUMERS) {
    produce_q(shared, maps.in.q, consumer, 0, [](uint64_t *, int) {});
  }
  // [roles]
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = [] {
  auto config = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                          Tiles<HEAD_DIM>::THREADS,
                                                          sizeof(Shared<T, HEAD_DIM>), USES_WGMMA);
  config.mask_rows = CONSUMER_ROWS;  // half of a tile of queries may be in another block
  return config;
}();

static constexpr KernelConfig<ListMaps, TileScheduler, ListPlans> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

// [prepare]
static cudaError_t prepare(const Problem *problem, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  const ListPlans plans = lay_out_list_plans(problem, mask, config->block_m, prepared);
  const PartialTiles &partial = plans.partial;
  const int consumers = config->block_m / CONSUMER_ROWS, threads = WARPGROUP_THREADS;
  if (const cudaError_t error = cudaMemsetAsync(plans.uneven, 0, sizeof(int), stream)) return error;
  if (partial.partial_tiles > 0) {
    pack_bits_kernel<<<(unsigned)partial.partial_tiles, threads, 0, stream>>>(*mask, partial);
  }
  plan_blocks_kernel<<<plans.plan_count, WARP_SIZE, 0, stream>>>(*problem, *mask, plans, consumers);
  sort_plans_kernel<<<(plans.plan_count + threads - 1) / threads, threads, 0, stream>>>(plans);
  return cudaGetLastError();
}
// [prepare]

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  const ListPlans plans = lay_out_list_plans(problem, t->block_mask, config->block_m, t->prepared);
  ListMaps maps = {};
  cudaError_t error = make_forward_maps(&maps, problem, t, config->block_n);
  if (error == cudaSuccess) error = make_bits_map(&maps.bits, plans.partial);
  if (error != cudaSuccess) return error;
  const TileScheduler scheduler = make_scheduler(problem, config->block_m, 2, t->workspace);
  config->kernel<<<block_count(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, scheduler, plans);
  return cudaGetLastError();
}

static const BlockMaskSupport BLOCK_MASKS = {.prepared_bytes = list_plan_bytes<CONFIGS>,
                                             .prepare = prepare};

const Step step = {
    .name = "step11b",
    .after = "step11",
    .title = "Any block mask on Hopper",
    .idea = "A plan has a list of tiles of keys; the bits of a mixed tile arrive with its K.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
