/**
 * @file
 * Step 17i: D = 256, the same bits every time.
 *
 * The idea: the clusters of step 17f take turns at dQ as the blocks of step 17h do. The two blocks
 * of a cluster add to different columns, so each of them has its own turns, but both must have the
 * same place in the order.
 *
 * What changed since step 17f:
 * - A warp of the third warpgroup adds to a tile when it is its turn, and passes the turn on during
 *   the next product.
 * - A cluster takes one number when it starts. The block of rank 0 takes it, and the other one
 *   reads it from the shared memory of that block. So K is asked for only when both have started.
 * - All go from the last queries to the first, and clusters of the first keys come first.
 *
 * What it costs: a fence for each turn, and clusters wait where others are late.
 *
 * What to look at: why two blocks may not take two numbers; what keeps the number there until the
 * other block has read it.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_cluster.cuh"
#include "device/backward_fours.cuh"
#include "device/backward_groups.cuh"
#include "device/backward_halves.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_rows.cuh"
#include "device/backward_tile.cuh"
#include "device/backward_turns.cuh"
#include "device/dq_sums.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

constexpr int CONSUMERS = 2, CONSUMER_WARPS = 4 * CONSUMERS;
constexpr int THREADS = (2 + CONSUMERS) * WARPGROUP_THREADS;
// Registers of each thread. All together are at most 65536.
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 208, DQ_REGISTERS = 72;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS + DQ_REGISTERS <= 65536 / 128);

constexpr int INTERLEAVED = 16;  // heads whose clusters start by turns

/** Sizes of the tiles. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int BLOCK_M = 64;                 // queries
  static constexpr int BLOCK_N = 64;                 // keys of a block; a cluster has 128
  static constexpr int STAGES = 2;                   // tiles of dS^T
  static constexpr int Q_HALVES = 4, DO_HALVES = 3;  // of tiles
};

/** Shared memory of a thread block. Tiles that are swizzled begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  static constexpr int STAGES = Tile::STAGES, HALF = Tile::BLOCK_M * HEAD_DIM / 2;
  static constexpr int Q_HALVES = Tile::Q_HALVES, DO_HALVES = Tile::DO_HALVES;
  alignas(1024) T k[Tile::BLOCK_N * HEAD_DIM], v[Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T other_k[Tile::BLOCK_N * HEAD_DIM / 2];  // half of the columns
  alignas(1024) T q[Q_HALVES][HALF], d_o[DO_HALVES][HALF];
  alignas(1024) T ds[STAGES][Tile::BLOCK_N * Tile::BLOCK_M];  // P^T, then dS^T
  alignas(1024) T other_ds[STAGES][Tile::BLOCK_N * Tile::BLOCK_M];
  alignas(128) float lse_log2[Q_HALVES][Tile::BLOCK_M], d[DO_HALVES][Tile::BLOCK_M];
  uint64_t kv_full[2], other_k_full;                 // K has arrived, V has; other K has
  uint64_t q_full[Q_HALVES], q_empty[Q_HALVES];      // Q and LSE have arrived; have been read
  uint64_t do_full[DO_HALVES], do_empty[DO_HALVES];  // the same of dO and D
  uint64_t p_full[STAGES];                           // P^T has been written
  uint64_t ds_full[STAGES];   // dS^T has, and that of the other block has arrived
  uint64_t ds_empty[STAGES];  // both blocks have read dS^T
  int number;                 // of this cluster; the block of rank 0 has it
};

// [dq]
/** As compute_dq(), but each warp adds to a tile when it is its turn. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void compute_dq_in_turns(Shared<T, HEAD_DIM> &shared,
                                                    const Problem &problem, void *workspace,
                                                    PassHeads heads, KeyBlock block,
                                                    const QueryTiles<BLOCK_M> &tiles) {
  const int warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  const auto turn_at = [&](QueryTile of) {
    const int head = 2 * (of.head - heads.first) + cluster_rank();
    return turns_of(problem, workspace, heads.count, head) + of.first_q / TURN_QUERIES * 4 + warp;
  };
  Turns turns = {(uint32_t)block.first_key / (2 * Tiles<HEAD_DIM>::BLOCK_N)};
  mbarrier_wait(&shared.kv_full[0], 0);
  mbarrier_wait(&shared.other_k_full, 0);
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), first_q = tile.first_q + 16 * warp;
    const bool turn_begins =
        tile.first_q == tiles.first_q || (tile.first_q + BLOCK_M) % TURN_QUERIES == 0;
    if (turn_begins) turns.look_at(turn_at(tile));
    float *const sums = dq_sums(problem, workspace, heads.count, tile.head - heads.first) +
                        first_q * HEAD_DIM + lane * 4;
    mbarrier_wait(&shared.ds_full[stage], state.phase());
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const int column = HEAD_DIM / 2 * cluster_rank() + 64 * part;
      float dq[1][64 / MMA_N][4];
      const auto add_keys = [&](const T *ds, const T *k, bool adds) {
        const uint64_t a = wgmma_descriptor<64>(ds, 0), b = wgmma_descriptor<64>(k, 0);
#pragma unroll
        for (int key = 0; key < 64; key += 16) {
          const uint64_t moved = units(2 * key * 64);
          wgmma<T, true, true>(dq[0], a + moved, b + moved, adds || key > 0);
        }
      };
      wgmma_fence();
      add_keys(shared.ds[stage], shared.k + 64 * column, false);
      add_keys(shared.other_ds[stage], shared.other_k + 64 * 64 * part, true);
      wgmma_commit();
      if (part == 0 && turn_begins) turns.take(turn_at(tile));
      wgmma_wait<0>(dq[0]);
      if (part == 1 && lane < 2) mbarrier_arrive_at_relaxed(&shared.ds_empty[stage], lane);
      add_to_sums<HEAD_DIM / 8>(sums + column * 16, dq, problem.q_len - first_q);
    }
  }
  turns.pass();
  // The block must not end before the last arrivals of the other one.
  for (int i = 0; i < Tiles<HEAD_DIM>::STAGES; i++, ++state)
    mbarrier_wait_cluster(&shared.ds_empty[state.index()], state.phase() ^ 1);
}
// [dq]

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads,
                    const __grid_constant__ BackwardMaps maps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;
  constexpr int BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  // [number]
  if (threadIdx.x == 0) {
    // A cluster waits only for clusters with smaller numbers, and these have started.
    if (cluster_rank() == 0)
      shared.number = atomicAdd(turns_of(problem, t.workspace, heads.count, 0) - 1, 1);
    // What is loaded is announced by the thread that asks for it, and read by all consumer warps.
    init_barriers(shared.q_full, 1, shared.q_empty, CONSUMER_WARPS);
    init_barriers(shared.do_full, 1, shared.do_empty, CONSUMER_WARPS);
    init_barriers(shared.ds_full, 4, shared.ds_empty, 2 * 4);  // warps of both blocks read
    for (uint64_t &barrier : shared.kv_full) mbarrier_init(&barrier, 1);
    mbarrier_init(&shared.other_k_full, 1);
    for (uint64_t &barrier : shared.p_full) mbarrier_init(&barrier, 4);
    fence_mbarrier_init();
  }
  __syncthreads();  // enough for this block, and what racecheck knows
  cluster_sync();   // all threads of both blocks see the barriers and the number
  const int number = *cluster_map(&shared.number, 0);
  cluster_arrive();  // this thread has read it
  KeyBlock block = ordered_block<2 * BLOCK_N>(problem, heads, INTERLEAVED, number);
  QueryTiles<Tiles<HEAD_DIM>::BLOCK_M> tiles(problem, block.first_key);  // of both blocks
  tiles.reverse();
  block.first_key += BLOCK_N * cluster_rank();
  // [number]

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0 || threadIdx.x == WARP_SIZE) {
      produce_halves(shared, maps, problem, heads, block, tiles, threadIdx.x == 0);
    } else if (threadIdx.x == 2 * WARP_SIZE) {
      load_other_k(shared, maps, problem, block);
    }
  } else if (warpgroup <= CONSUMERS) {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    consume(shared, maps, problem, block, tiles, warpgroup == 1);
  } else {
    setmaxnreg_dec<DQ_REGISTERS>();
    compute_dq_in_turns(shared, problem, t.workspace, heads, block, tiles);
  }
  cluster_wait();  // shared memory of rank 0 must stay until the other block has read the number
}

template <typename T, int HEAD_DIM, typename Tile = Tiles<HEAD_DIM>>
constexpr BackwardConfig CONFIG = {
    DTYPE_OF<T>,
    HEAD_DIM,
    Tile::BLOCK_M,
    Tile::BLOCK_N,
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM, P_SHIFT<T>, true>, SHARE_ROWS, 0, ROWS_THREADS,
      0},
     {"backward", NULL, SHARE_KEY_PAIRS, Tile::BLOCK_N, THREADS, sizeof(Shared<T, HEAD_DIM>),
      backward_kernel<T, HEAD_DIM>},
     {"convert_dq", convert_dq_kernel<T, HEAD_DIM>, SHARE_SUMS, 0, ROWS_THREADS, 0}}};

static constexpr BackwardConfig CONFIGS[] = {CONFIG<__half, 256>, CONFIG<__nv_bfloat16, 256>};

/** Sums and turns. */
static cudaError_t clear(const Problem &problem, void *workspace, int heads, cudaStream_t stream) {
  const char *const first = (const char *)dq_sums(problem, workspace, heads, 0);
  const char *const end = (const char *)turns_of(problem, workspace, heads, 2 * heads);
  return cudaMemsetAsync((void *)first, 0, end - first, stream);
}

static size_t workspace_bytes(const Problem *problem) {
  return dq_workspace_bytes(problem) +
         sizeof(uint32_t) * (4 + 2 * padded_rows(*problem) / TURN_QUERIES * 4);
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
    .name = "step17i",
    .after = "step17f",
    .title = "D = 256: the same bits every time",
    .idea = "Clusters take turns at dQ: both blocks have one number, and each its own turns.",
    .head_dims = "D = 256",
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
