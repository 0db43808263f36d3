/**
 * @file
 * Step 17h: the same bits every time, on Hopper.
 *
 * The idea: as in step 15b, blocks take turns at 128 rows of dQ. Here a warpgroup that has little
 * time to spare adds to dQ, so it passes a turn on and takes the next during a product.
 *
 * What changed since step 17c:
 * - Each warp of this warpgroup has turns of its own, for its rows, and waits for no other warp.
 * - Blocks of the first keys start first and add first. All blocks of a head start at its last
 *   queries and end at the first ones that they need, each a little behind the block before it.
 * - Blocks of several heads start alternately, because those of one head follow each other slowly.
 *
 * What it costs: a fence for each turn, and blocks wait where others are late.
 *
 * What to look at: why additions are counted so late, and the next count is read so early.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_consumer.cuh"
#include "device/backward_dq_group.cuh"
#include "device/backward_fours.cuh"
#include "device/backward_groups.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_rows.cuh"
#include "device/backward_store.cuh"
#include "device/backward_tile.cuh"
#include "device/dq_sums.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

constexpr int CONSUMERS = 2, CONSUMER_WARPS = 4 * CONSUMERS;
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
// Registers of each thread. All together are at most 65536.
constexpr int DQ_REGISTERS = 72, CONSUMER_REGISTERS = 216;
static_assert(registers_suffice<CONSUMERS, DQ_REGISTERS, CONSUMER_REGISTERS>());

/** Sizes of the tiles. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int BLOCK_M = HEAD_DIM <= 64 ? 128 : 64;  // queries
  static constexpr int BLOCK_N = CONSUMERS * 64;             // keys, 64 of each consumer
  static constexpr int STAGES = 3, DS_STAGES = 2;            // tiles of Q and dO; of dS^T
  // Of the BLOCK_M / 16 fragments of dS^T, those that dK takes from registers.
  static constexpr int DS_IN_REGISTERS = BLOCK_M / 16 * 3 / 4;
};

/** Shared memory of a thread block. Tiles that are swizzled begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  static constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  static constexpr int STAGES = Tiles<HEAD_DIM>::STAGES, DS_STAGES = Tiles<HEAD_DIM>::DS_STAGES;
  alignas(1024) T k[BLOCK_N / 64][64 * HEAD_DIM], v[BLOCK_N / 64][64 * HEAD_DIM];
  alignas(1024) T q[STAGES][BLOCK_M * HEAD_DIM], d_o[STAGES][BLOCK_M * HEAD_DIM];
  alignas(1024) T ds[DS_STAGES][BLOCK_M / 64][BLOCK_N * 64];  // dS^T, in panels of 64 queries
  alignas(128) float lse_log2[STAGES][BLOCK_M], d[STAGES][BLOCK_M];
  KeyBlock block;                                    // the work of this thread block
  uint64_t kv_full;                                  // K and V have arrived
  uint64_t q_full[STAGES], do_full[STAGES];          // Q and LSE have; dO and D have
  uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES];  // dS^T has been written; read
};

/** What a consumer does: dV and dK of its 64 keys, and their dS^T. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                        const Problem &problem, const KeyBlock &block,
                                        const QueryTiles<BLOCK_M> &tiles, int consumer) {
  float dv[1][HEAD_DIM / MMA_N][4] = {}, dk[1][HEAD_DIM / MMA_N][4] = {};
  sum_gradients(shared, problem, block, tiles, consumer, dv, dk);
  const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE % 4, 0);
  store_by_tma(shared, maps, problem, block, consumer, warp, dv[0], dk[0]);
}

// [turns]
/** The turns of a pass: how many thread blocks have started, then for each head, TURN_QUERIES rows
 * and warp how many have added. They lie behind the sums. */
constexpr int TURN_QUERIES = 128;
/** Those of a head of the pass. */
__host__ __device__ inline uint32_t *turns_of(const Problem &problem, void *workspace, int heads,
                                              int head) {
  return (uint32_t *)dq_sums(problem, workspace, heads, heads) + 1 +
         (int64_t)head * (padded_rows(problem) / TURN_QUERIES * 4);
}

/** The turns of one warp. */
struct Turns {
  const uint32_t before; /**< how many blocks add before this one, the same for all turns */
  uint32_t *at = NULL;   /**< the turn that this warp has */
  uint32_t seen = 0;     /**< how many had added when the next turn was read */

  /** Passes the turn on. */
  __device__ __forceinline__ void pass() const {
    __syncwarp();  // all lanes have added
    if (at != NULL && threadIdx.x % WARP_SIZE == 0) reduce_add_release(at, 1);
  }
  /** Reads early how many have added where the next turn is counted. */
  __device__ __forceinline__ void look_at(const uint32_t *next) {
    if (threadIdx.x % WARP_SIZE == 0) seen = load_acquire(next);
  }
  /** Passes the turn on, and waits for the next. */
  __device__ __forceinline__ void take(uint32_t *next) {
    pass();
    while (threadIdx.x % WARP_SIZE == 0 && seen < before) seen = load_acquire(next);
    __syncwarp();  // no lane adds before
    at = next;
  }
};

/** The work of block `number`: the first keys of `most` heads, then the keys after them. */
template <int BLOCK_N>
__device__ __forceinline__ KeyBlock ordered_block(const Problem &problem, PassHeads heads, int most,
                                                  int number) {
  const int tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int group = problem.q_heads / problem.kv_heads, all = heads.count / group;
  const int section = min(all, most), first = number / (section * tiles) * section;
  const int together = min(section, all - first), rest = number - first * tiles;
  return {rest / together * BLOCK_N, heads.first + (first + rest % together) * group};
}
// [turns]

/** As compute_dq(), but each warp adds to a tile when it is its turn. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void compute_dq_in_turns(Shared<T, HEAD_DIM> &shared,
                                                    const BackwardMaps &maps,
                                                    const Problem &problem, void *workspace,
                                                    PassHeads heads, const KeyBlock &block,
                                                    const QueryTiles<BLOCK_M> &tiles) {
  constexpr int STAGES = Tiles<HEAD_DIM>::STAGES, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int batch = block.first_head / problem.q_heads;
  QueryTile tile = {block.first_head, tiles.first_q}, ahead = tile;
  PipelineState<STAGES> loaded;
  const auto load_next = [&]() {
    load_queries(shared, maps, problem, heads, batch, ahead, loaded.index());
    ahead = tiles.next(ahead);
    ++loaded;
  };
  if (threadIdx.x == 0) {
    load_keys(shared, maps, problem, block);
    for (int i = 0; i < STAGES && i < tiles.count; i++) load_next();
  }
  const auto turn_at = [&](QueryTile of) {
    return turns_of(problem, workspace, heads.count, of.head - heads.first) +
           of.first_q / TURN_QUERIES * 4 + warp;
  };
  Turns turns = {(uint32_t)block.first_key / BLOCK_N};
  mbarrier_wait(&shared.kv_full, 0);
  PipelineState<Tiles<HEAD_DIM>::DS_STAGES> state;
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), first_q = tile.first_q + 16 * warp;
    const bool turn_begins =
        tile.first_q == tiles.first_q || (tile.first_q + BLOCK_M) % TURN_QUERIES == 0;
    if (turn_begins) turns.look_at(turn_at(tile));
    float *const sums = dq_sums(problem, workspace, heads.count, tile.head - heads.first) +
                        first_q * HEAD_DIM + lane * 4;
    mbarrier_wait(&shared.ds_full[stage], state.phase());
    // All consumers have written dS^T of this tile, so they have done with the tile before.
    if (threadIdx.x == 0 && i > 0 && i + STAGES - 1 < tiles.count) load_next();
#pragma unroll
    for (int part = 0; part < 2; part++) {  // at D = 64 of the rows, at D = 128 of the columns
      const int row = BLOCK_M > 64 ? 64 * part : 0, column = BLOCK_M > 64 ? 0 : 64 * part;
      float dq[1][64 / MMA_N][4];
      wgmma_fence();
      start_dq<T, HEAD_DIM, BLOCK_N>(dq[0], shared.ds[stage][row / 64], shared.k[0] + 64 * column);
      if (part == 0 && turn_begins) turns.take(turn_at(tile));
      wgmma_wait<0>(dq[0]);
      if (part == 1) release(shared.ds_empty, state);
      add_to_sums<HEAD_DIM / 8>(sums + row * HEAD_DIM + column * 16, dq,
                                problem.q_len - first_q - row);
    }
  }
  turns.pass();
}

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads,
                    const __grid_constant__ BackwardMaps maps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;
  // A block waits only for blocks with smaller numbers, and these have started.
  if (threadIdx.x == WARP_SIZE) {
    const int number = atomicAdd(turns_of(problem, t.workspace, heads.count, 0) - 1, 1);
    // A head lets one block after the other pass. Under the causal mask blocks have half the tiles,
    // so twice as many heads must be interleaved. Elements: of Q of these heads.
    const int twice = problem.mask == MASK_CAUSAL ? 2 : 1, elements = twice << 22;
    const int fit = elements / HEAD_DIM / problem.q_len / (problem.q_heads / problem.kv_heads);
    shared.block =
        ordered_block<Tiles<HEAD_DIM>::BLOCK_N>(problem, heads, max(4 * twice, fit), number);
  }
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.kv_full, 1);
    for (int i = 0; i < Tiles<HEAD_DIM>::STAGES; i++) {  // two loads: of a tile and its numbers
      mbarrier_init(&shared.q_full[i], 2), mbarrier_init(&shared.do_full[i], 2);
    }
    init_barriers(shared.ds_full, CONSUMER_WARPS, shared.ds_empty, 4);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers and the work
  QueryTiles<Tiles<HEAD_DIM>::BLOCK_M> tiles(problem, shared.block.first_key);
  tiles.reverse();

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<DQ_REGISTERS>();
    compute_dq_in_turns(shared, maps, problem, t.workspace, heads, shared.block, tiles);
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    consume(shared, maps, problem, shared.block, tiles, warpgroup - 1);
  }
}

template <typename T, int HEAD_DIM, typename Tile = Tiles<HEAD_DIM>>
constexpr BackwardConfig CONFIG = {
    DTYPE_OF<T>,
    HEAD_DIM,
    Tile::BLOCK_M,
    Tile::BLOCK_N,
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM, P_SHIFT<T>, true>, SHARE_ROWS, 0, ROWS_THREADS,
      0},
     {"backward", NULL, SHARE_KEYS, Tile::BLOCK_N, THREADS, sizeof(Shared<T, HEAD_DIM>),
      backward_kernel<T, HEAD_DIM>},
     {"convert_dq", convert_dq_kernel<T, HEAD_DIM>, SHARE_SUMS, 0, ROWS_THREADS, 0}}};

static constexpr BackwardConfig CONFIGS[] = {CONFIG<__half, 64>, CONFIG<__half, 128>,
                                             CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>};

/** Sums and turns. */
static cudaError_t clear(const Problem &problem, void *workspace, int heads, cudaStream_t stream) {
  const char *const first = (const char *)dq_sums(problem, workspace, heads, 0);
  const char *const end = (const char *)turns_of(problem, workspace, heads, heads);
  return cudaMemsetAsync((void *)first, 0, end - first, stream);
}

/** For each head. The count of blocks that have started is needed once only. */
static size_t workspace_bytes(const Problem *problem) {
  return dq_workspace_bytes(problem) +
         sizeof(uint32_t) * (1 + padded_rows(*problem) / TURN_QUERIES * 4);
}

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  BackwardMaps maps;
  const int block_m = find_backward<CONFIGS>(problem)->block_m;
  const cudaError_t error = make_backward_maps(&maps, problem, t, heads, block_m, 64);
  if (error != cudaSuccess) return error;
  const auto launch = [&](const KernelLaunch &l, PassHeads pass) {
    if (l.dynamic_shared_bytes > 0) {
      const auto kernel = (TmaKernel)l.kernel;
      kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass, maps);
    } else {
      const auto kernel = (BackwardKernel)l.kernel;
      kernel<<<l.grid, l.block, 0, stream>>>(*problem, *t, pass);
    }
  };
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch, clear);
}

const Step step = {
    .name = "step17h",
    .after = "step17c",
    .title = "The same bits every time, on Hopper",
    .idea = "Warps that add to dQ take turns; they pass a turn on during the next product.",
    .head_dims = "D = 64 or 128",
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
