/**
 * @file
 * Step 10: persistent thread blocks.
 *
 * The idea: between two tiles of queries the tensor cores idle, because a thread block ends there
 * and another one starts, sets up its barriers and waits for its first Q and K. So each SM gets one
 * thread block for good, which computes one tile of queries after the other. The producer finds the
 * next tile while the consumers finish this one, and asks for its Q, K and V when O is stored.
 *
 * What changed since step 09:
 * - A tile scheduler says which tile of queries is next. An atomic counter in device memory numbers
 *   the tiles, so a block that is done early takes more of them. Tiles with the most work come
 *   first, and heads whose K and V fit the L2 cache together are computed together.
 * - The producer asks the scheduler, and hands the work tile over to the consumers in shared
 *   memory, as it hands over K and V: with a full and an empty barrier.
 * - The loop over tiles of queries is around everything, in the producer and in the consumers. The
 *   pipelines of K and V go on from one tile of queries to the next.
 * - At D = 96 and 128 there are three stages of 128 keys instead of two of 192, and up to D = 128
 *   no short last tile: at D = 64, and with 192 keys at D = 128, its code has too few registers.
 *
 * What it costs: barriers that are never set up again, so every path must leave each of them in the
 * phase that the next tile of queries expects; and a counter that each pass must leave at 0.
 *
 * What to look at: when the producer takes the next number, and what it waits for before it
 * overwrites something of the tile of queries before.
 */
#include <math.h>

#include "attention.h"
#include "device/attend.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/mma_tile.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = HEAD_DIM <= 64 ? 3 : 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int CONSUMER_ROWS = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM > 128 ? 80 : 128;
  static constexpr int TAIL_N = HEAD_DIM > 128 ? 64 : BLOCK_N;  // keys of a short last tile
  static constexpr bool TURNS = HEAD_DIM <= 128;  // one consumer multiplies, another waits
  // Tiles of K, and of V, in flight.
  static constexpr int STAGES = HEAD_DIM > 64 && HEAD_DIM <= 128 ? 3 : 2;
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  // O of a consumer is collected in the place of Q, in padded rows: in so many elements.
  static constexpr int Q_ELEMENTS = (CONSUMER_ROWS * SMEM_STRIDE<HEAD_DIM> + 511) / 512 * 512;
};

// [work]
/** A tile of queries, and the keys that some of these queries attend to. */
struct alignas(16) WorkTile {
  int first_q, head, batch; /**< its first query, and whose it is */
  int key_end;              /**< keys 0 to key_end - 1; negative: there is no more work */
};
// [work]

/** Shared memory of a thread block. Tiles that TMA swizzles begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::CONSUMERS][Tile::Q_ELEMENTS];
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  WorkTile work[2];                                      // this tile of queries and the next one
  uint64_t work_full[2], work_empty[2];                  // it has been written; has been read
  uint64_t q_full[1], q_empty[1];                        // Q has arrived; its place is free
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];  // a tile has arrived; has been read
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

// [scheduler]
/** The order of all tiles of queries, and how many of them have been taken. */
struct TileScheduler {
  int tiles;          /**< of queries, of all heads */
  int q_tiles;        /**< of one head */
  int heads_per_wave; /**< query heads that are computed together: their K and V fit L2 */
  int tiles_per_turn; /**< of one head in a row, before tiles of the next head of the wave */
  unsigned *counter;  /**< numbers that were taken; 0 between passes */
};

/** What number `index` of the order is. */
struct ScheduledTile {
  int head; /**< query head, counted through the whole batch */
  int rank; /**< of the tiles of this head, which are in the order of their work, most first */
};

/**
 * Tile number `index`. One wave of heads follows the other. Within a wave the tiles with the most
 * work come first: `tiles_per_turn` tiles of each head, then the next ones of each head.
 */
__device__ __forceinline__ ScheduledTile scheduled_tile(const Problem &problem,
                                                        const TileScheduler &s, int index) {
  const int first_head = index / (s.q_tiles * s.heads_per_wave) * s.heads_per_wave;
  const int heads = min(s.heads_per_wave, problem.batch * problem.q_heads - first_head);
  const int in_wave = index - first_head * s.q_tiles;
  const int passed = in_wave / (heads * s.tiles_per_turn) * s.tiles_per_turn;  // of each head
  const int in_turn = min(s.tiles_per_turn, s.q_tiles - passed), rest = in_wave - passed * heads;
  return {first_head + rest / in_turn, passed + rest % in_turn};
}

/** The number of the next tile that no block has. The first tile of each block has the number of
 * the block, so the counter begins after those. A block takes one number for each tile that it
 * computes: a pass takes as many as there are tiles, and atomicInc() leaves the counter at 0. */
__device__ __forceinline__ int take_next(const TileScheduler &scheduler) {
  return gridDim.x + atomicInc(scheduler.counter, scheduler.tiles - 1);
}

/** The work of tile number `index`. Under the causal mask the last rows have the most. */
template <int HEAD_DIM>
__device__ __forceinline__ WorkTile find_work(const Problem &problem,
                                              const TileScheduler &scheduler, int index) {
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  if (index >= scheduler.tiles) return {0, 0, 0, -1};
  const ScheduledTile tile = scheduled_tile(problem, scheduler, index);
  const int first_q = (scheduler.q_tiles - 1 - tile.rank) * BLOCK_M;
  return {first_q, tile.head % problem.q_heads, tile.head / problem.q_heads,
          keys_of_rows(problem, first_q, BLOCK_M)};
}
// [scheduler]

// [producer]
/** What the one producing thread does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                        const Problem &problem, const TileScheduler &scheduler) {
  using Tile = Tiles<HEAD_DIM>;
  // Counts all tiles of K that this block loads. At 2^32 it would wrap to 0, and stage 0 of 3 would
  // come twice in a row. At 0.4 us for each tile, that would take half an hour in one launch.
  PipelineState<Tile::STAGES> state;
  PipelineState<2> work_state;
  for (int index = blockIdx.x;; ++work_state) {
    const WorkTile work = find_work<HEAD_DIM>(problem, scheduler, index);
    mbarrier_wait(&shared.work_empty[work_state.index()], work_state.phase() ^ 1);  // all read it
    shared.work[work_state.index()] = work;
    mbarrier_arrive(&shared.work_full[work_state.index()]);
    if (work.key_end < 0) break;

    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_empty[0], q_state.phase() ^ 1);  // the previous O has been stored
    mbarrier_arrive_expect(&shared.q_full[0], 2 * Tile::BLOCK_M * HEAD_DIM);
    for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
      load_rows<HEAD_DIM, Tile::CONSUMER_ROWS>(shared.q[consumer], maps.q, &shared.q_full[0],
                                               work.first_q + consumer * Tile::CONSUMER_ROWS,
                                               work.head, work.batch);
    }
    const int kv_head = work.head / (problem.q_heads / problem.kv_heads);
    for (int first_key = 0; first_key < work.key_end; first_key += Tile::BLOCK_N, ++state) {
      // Not earlier: a block that is late must not take a tile that a free one could begin.
      if (first_key + Tile::BLOCK_N >= work.key_end) index = take_next(scheduler);
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, state,
                                         first_key, kv_head, work.batch);
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty, state,
                                         first_key, kv_head, work.batch);
    }
    if (work.key_end == 0) index = take_next(scheduler);
  }
}
// [producer]

// [consumer_loop]
/** What a consumer does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                        const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  const int warp = threadIdx.x / WARP_SIZE % 4;
  PipelineState<Tile::STAGES> state;  // of the next tile of K and V
  for (PipelineState<2> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const WorkTile &work = shared.work[work_state.index()];
    if (work.key_end < 0) break;
    const int first_row = work.first_q + consumer * Tile::CONSUMER_ROWS + 16 * warp;
    // [0][0] belongs to row lane / 4 of this warp, [0][1] to the row 8 below.
    float m[1][2] = {{-INFINITY, -INFINITY}};  // running maximum of score * scale * log2(e)
    float l[1][2] = {};                        // running sum of this lane's probabilities
    float o[1][HEAD_DIM / MMA_N][4] = {};
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[0], q_state.phase());  // Q has arrived
    attend(shared, problem, consumer, first_row, work.key_end, state, o[0], m[0], l[0]);

    // Each warp has waited for its products. When all four have, nothing reads their Q any more.
    named_barrier_sync<WARPGROUP_THREADS>(1 + Tile::CONSUMERS + consumer);
    const HeadOffsets offset = head_offsets(problem, work.batch * problem.q_heads + work.head);
    store_rows<T, HEAD_DIM>(o, m, l, shared.q[consumer] + 16 * warp * SMEM_STRIDE<HEAD_DIM>,
                            (T *)t.o + offset.o, problem.o_strides.row, t.lse + offset.lse,
                            first_row, problem.q_len);
    fence_proxy_async();  // this lane's loads and stores there come before the load of the next Q
    __syncwarp();         // all lanes have passed their fence, and have read `work`
    release(shared.q_empty, q_state);
    release(shared.work_empty, work_state);
  }
}
// [consumer_loop]

/** The whole forward pass: one thread block for each SM. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ TensorMaps maps,
                     TileScheduler scheduler) {
  using Tile = Tiles<HEAD_DIM>;
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;

  if (threadIdx.x == 0) {
    constexpr int READS = 4 * Tile::CONSUMERS;  // one thread of each warp
    init_barriers(shared.work_full, 1, shared.work_empty, READS);
    init_barriers(shared.q_full, 1, shared.q_empty, READS);
    init_barriers(shared.k_full, 1, shared.k_empty, READS);
    init_barriers(shared.v_full, 1, shared.v_empty, READS);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(shared, maps, problem, scheduler);
  } else {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume(shared, problem, t, warpgroup - 1);
  }
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  sizeof(Shared<T, HEAD_DIM>),
                                                                  USES_WGMMA);

static constexpr KernelConfig<TensorMaps, TileScheduler> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

// [forward]
/** A scheduler for tiles of `block_m` queries. K and V of a wave fill two thirds of L2 at most; the
 * rest is for Q. All waves have about as many heads. */
static TileScheduler make_scheduler(const Problem *problem, int block_m, int element_bytes,
                                    void *counter) {
  const int64_t l2_bytes = device_attribute(cudaDevAttrL2CacheSize) / 3 * 2;
  const int heads = problem->batch * problem->kv_heads;
  const int64_t fit = l2_bytes / (2ll * problem->kv_len * problem->head_dim * element_bytes);
  const int waves = fit < 1 ? heads : (int)((heads + fit - 1) / fit);
  const int q_tiles = (problem->q_len + block_m - 1) / block_m;
  return {.tiles = q_tiles * problem->batch * problem->q_heads,
          .q_tiles = q_tiles,
          .heads_per_wave = (heads + waves - 1) / waves * (problem->q_heads / problem->kv_heads),
          .tiles_per_turn = problem->mask == MASK_FULL ? q_tiles : 3,
          .counter = (unsigned *)counter};
}

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  TensorMaps maps;
  if (const cudaError_t error = make_tensor_maps(&maps, problem, t, 64, config->block_n))
    return error;
  const TileScheduler scheduler = make_scheduler(problem, config->block_m, 2, t->workspace);
  config->kernel<<<block_count(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, scheduler);
  return cudaGetLastError();
}
// [forward]

const Step step = {
    .name = "step10",
    .after = "step09",
    .title = "Persistent thread blocks with a tile scheduler",
    .idea = "A thread block takes one tile of queries after the other, as a counter numbers them.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
};
