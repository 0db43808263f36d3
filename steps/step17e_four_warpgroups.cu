/**
 * @file
 * Step 17e: D = 256 with a warpgroup each for dV, dK and dQ.
 *
 * The idea: in step 16b the consumers wait for each other twice in every tile, and then for the
 * additions to dQ. Here consumer 0 leaves P^T in shared memory and consumer 1 dS^T, and both go on.
 * A third warpgroup computes dQ and adds it to the sums, as in step 17.
 *
 * What changed since step 16b:
 * - dS^T replaces P^T, in 16 bits and in the same place. There are two of these tiles, so consumer
 *   0 may be a tile ahead of consumer 1, and consumer 1 a tile ahead of dQ.
 * - Q and dO are loaded in halves of their columns, each by a thread of its own: the sooner a half
 *   has been read, the sooner the next one is asked for. P^T leaves room for a fifth half of Q.
 * - As in steps 17b and 17c: LSE and D are loaded four at a time, TMA stores dV and dK, and under
 *   the causal mask the longest blocks come first.
 *
 * What it costs: with 512 threads ptxas refuses instructions that need more than 128 registers. A
 * wgmma of 256 columns does, so dV and dK are computed in halves, too.
 *
 * What to look at: what a warpgroup has in flight, and what makes the tensor cores busy all the
 * same; which barrier makes it safe to overwrite P^T.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_fours.cuh"
#include "device/backward_groups.cuh"
#include "device/backward_halves.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_order.cuh"
#include "device/backward_rows.cuh"
#include "device/backward_tile.cuh"
#include "device/dq_sums.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

constexpr int CONSUMERS = 2, CONSUMER_WARPS = 4 * CONSUMERS;
constexpr int THREADS = (2 + CONSUMERS) * WARPGROUP_THREADS;
// Registers of each thread. All together are at most 65536.
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 208, DQ_REGISTERS = 72;
static_assert(PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS + DQ_REGISTERS <= 65536 / 128);

/** Sizes of the tiles. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int BLOCK_M = 64;                 // queries
  static constexpr int BLOCK_N = 64;                 // keys
  static constexpr int STAGES = 2;                   // tiles of dS^T
  static constexpr int Q_HALVES = 5, DO_HALVES = 4;  // of tiles
};

/** Shared memory of a thread block. Tiles that are swizzled begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  static constexpr int STAGES = Tile::STAGES, HALF = Tile::BLOCK_M * HEAD_DIM / 2;
  static constexpr int Q_HALVES = Tile::Q_HALVES, DO_HALVES = Tile::DO_HALVES;
  alignas(1024) T k[Tile::BLOCK_N * HEAD_DIM], v[Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T q[Q_HALVES][HALF], d_o[DO_HALVES][HALF];
  alignas(1024) T ds[STAGES][Tile::BLOCK_N * Tile::BLOCK_M];  // P^T, then dS^T
  alignas(128) float lse_log2[Q_HALVES][Tile::BLOCK_M], d[DO_HALVES][Tile::BLOCK_M];
  uint64_t kv_full[2];                               // K has arrived; V has
  uint64_t q_full[Q_HALVES], q_empty[Q_HALVES];      // Q and LSE have arrived; have been read
  uint64_t do_full[DO_HALVES], do_empty[DO_HALVES];  // the same of dO and D
  uint64_t p_full[STAGES];                           // P^T has been written
  uint64_t ds_full[STAGES], ds_empty[STAGES];        // dS^T has been written; has been read
};

/** What a consumer does: dV (consumer 0) or dK (consumer 1) of all keys. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                        const Problem &problem, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, bool has_p) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int N = BLOCK_M / MMA_N, HALF = HEAD_DIM / 2;
  const int row = threadIdx.x % WARPGROUP_THREADS / WARP_SIZE * 16;
  // S^T = K Q^T and dV += P^T dO, or dP^T = V dO^T and dK += dS^T Q.
  const T *const keys = has_p ? shared.k : shared.v;
  const auto q = halves_of(shared.q, shared.q_full, shared.q_empty);
  const auto d_o = halves_of(shared.d_o, shared.do_full, shared.do_empty);
  auto queries = has_p ? q : d_o, others = has_p ? d_o : q;
  float sums[2][HALF / MMA_N][4] = {};
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tile::STAGES> state;
  float s[1][N][4];      // S^T, then P^T; or dP^T, then dS^T
  uint32_t a[N / 2][4];  // the same, rounded
  const auto start_scores = [&](int half) {
    start_half<T, HALF>(s[0], keys + half * 64 * HALF, queries.take(), half > 0);
  };
  const auto start_gradient = [&] {
#pragma unroll
    for (int half = 0; half < 2; half++) start_pv<T, HALF, BLOCK_M>(sums[half], a, others.take());
  };
  // [scores]
  const auto finish_scores = [&] {
    const int stage = state.index(), numbers = queries.unread.index;
    if (has_p) {
      make_p<T>(a, s, problem, block, row, tile.first_q, shared.lse_log2[numbers]);
      mbarrier_wait(&shared.ds_empty[stage], state.phase() ^ 1);
      write_operands<false>(shared.ds[stage], a, row, &shared.p_full[stage]);
    } else {
      mbarrier_wait(&shared.p_full[stage], state.phase());
      read_operands(a, shared.ds[stage], row);
      to_ds<T>(s[0], a, shared.d[numbers]);
      pack_probs<T>(a, s[0]);
      write_operands<true>(shared.ds[stage], a, row, &shared.ds_full[stage]);
    }
    queries.release(2);
  };
  // [scores]
  mbarrier_wait(&shared.kv_full[has_p ? 0 : 1], 0);
  // [loop]
  if (tiles.count > 0) {
    start_scores(0);
    start_scores(1);
    wgmma_wait<0>(s[0]);
  }
  for (int i = 1; i < tiles.count; i++) {
    finish_scores();
    start_gradient();
    ++state, tile = tiles.next(tile);
    wgmma_wait<1>(sums[0]);
    others.release();
    start_scores(0);  // of the next tile
    wgmma_wait<1>(sums[1]);
    others.release();
    start_scores(1);
    wgmma_wait<0>(s[0]);
  }
  if (tiles.count > 0) {
    finish_scores();
    start_gradient();
    wgmma_wait<0>(sums[0], sums[1]);
    others.release(2);
  }
  // [loop]
  store_sums<HEAD_DIM>(sums, has_p ? 1.0f / (1 << P_SHIFT<T>) : problem.scale, others,
                       has_p ? maps.d_v : maps.d_k, problem, block, row);
}

// [dq]
/** What the third warpgroup does: dQ of all tiles, in parts of 64 columns. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void compute_dq(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                           void *workspace, PassHeads heads, KeyBlock block,
                                           const QueryTiles<BLOCK_M> &tiles) {
  const int warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  mbarrier_wait(&shared.kv_full[0], 0);
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), first_q = tile.first_q + 16 * warp;
    float *const sums = dq_sums(problem, workspace, heads.count, tile.head - heads.first) +
                        first_q * HEAD_DIM + lane * 4;
    mbarrier_wait(&shared.ds_full[stage], state.phase());
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += 64) {
      float dq[1][64 / MMA_N][4];
      wgmma_fence();
      start_dq<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(dq[0], shared.ds[stage],
                                                      shared.k + 64 * column);
      wgmma_wait<0>(dq[0]);
      if (column + 64 == HEAD_DIM) release(shared.ds_empty, state);
      add_to_sums<HEAD_DIM / 8>(sums + column * 16, dq, problem.q_len - first_q);
    }
  }
}
// [dq]

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads,
                    const __grid_constant__ BackwardMaps maps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;
  const KeyBlock block =
      long_block_first<HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(problem, heads, blockIdx.x);
  const QueryTiles<Tiles<HEAD_DIM>::BLOCK_M> tiles(problem, block.first_key);

  if (threadIdx.x == 0) {
    // What is loaded is announced by the thread that asks for it, and read by all consumer warps.
    init_barriers(shared.q_full, 1, shared.q_empty, CONSUMER_WARPS);
    init_barriers(shared.do_full, 1, shared.do_empty, CONSUMER_WARPS);
    init_barriers(shared.ds_full, 4, shared.ds_empty, 4);  // the warps of one warpgroup
    for (uint64_t &barrier : shared.kv_full) mbarrier_init(&barrier, 1);
    for (uint64_t &barrier : shared.p_full) mbarrier_init(&barrier, 4);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0 || threadIdx.x == WARP_SIZE) {
      produce_halves(shared, maps, problem, heads, block, tiles, threadIdx.x == 0);
    }
  } else if (warpgroup <= CONSUMERS) {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    consume(shared, maps, problem, block, tiles, warpgroup == 1);
  } else {
    setmaxnreg_dec<DQ_REGISTERS>();
    compute_dq(shared, problem, t.workspace, heads, block, tiles);
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

static constexpr BackwardConfig CONFIGS[] = {CONFIG<__half, 256>, CONFIG<__nv_bfloat16, 256>};

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
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch, clear_dq_sums);
}

const Step step = {
    .name = "step17e",
    .after = "step16b",
    .title = "D = 256: four warpgroups",
    .idea = "A warpgroup each for dV, dK and dQ; tiles of queries come in halves.",
    .head_dims = "D = 256",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
