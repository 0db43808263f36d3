/**
 * @file
 * Step 17d: waits that stay in their places.
 *
 * The idea: in step 17c the wait for dK stands behind the exponentials, so that they run beside dK.
 * ptxas moves it in front of them, because within a basic block it may. Here nothing waits for dK
 * alone: the wait for dP^T of the next tile, behind another barrier, is for dK as well.
 *
 * What changed since step 17c:
 * - The wait for dK is part of that for dP^T of the next tile. So dP^T and dV are issued while dK
 *   may still run.
 * - At D = 128 there are three stages of dS^T, because consumers may be further ahead of dQ.
 *
 * What to look at: the order of WARPGROUP.DEPBAR and MUFU.EX2 in `make sass STEP=17d`; which
 * registers and which tiles dK reads, and until when.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_dq_group.cuh"
#include "device/backward_fours.cuh"
#include "device/backward_groups.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_order.cuh"
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
  static constexpr int STAGES = 3;                           // tiles of Q and dO
  static constexpr int DS_STAGES = HEAD_DIM <= 64 ? 2 : 3;   // tiles of dS^T
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
  uint64_t kv_full;                                  // K and V have arrived
  uint64_t q_full[STAGES], do_full[STAGES];          // Q and LSE have; dO and D have
  uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES];  // dS^T has been written; read
};

/** What a consumer does: dV and dK of its 64 keys, and their dS^T. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                        const Problem &problem, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, int consumer) {
  constexpr int N = BLOCK_M / MMA_N;
  const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE % 4, 0);
  const int row = 64 * consumer + 16 * warp;  // of S^T: the first of this warp
  const float scale_log2 = problem.scale * LOG2_E;
  float dv[1][HEAD_DIM / MMA_N][4] = {}, dk[1][HEAD_DIM / MMA_N][4] = {};
  uint32_t p[N / 2][4];  // P^T of a tile, rounded
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  const auto start_s = [&](float(&s)[1][N][4]) {
    mbarrier_wait(&shared.q_full[state.index()], state.phase());
    wgmma_fence();  // other instructions have used these registers
    start_qk<T, HEAD_DIM, BLOCK_M>(s[0], shared.k[consumer], shared.q[state.index()]);
  };
  const auto finish_s = [&](float(&s)[1][N][4]) {
    if (block.first_key + 64 * (consumer + 1) > attended_keys(problem, tile.first_q)) {
      mask_transposed(s, problem, block.first_key + row, tile.first_q);
    }
    to_p<T>(s[0], shared.lse_log2[state.index()], scale_log2);
    pack_probs<T>(p, s[0]);
  };
  mbarrier_wait(&shared.kv_full, 0);
  if (tiles.count > 0) {
    float s[1][N][4];
    start_s(s);
    wgmma_wait<0>(s[0]);
    finish_s(s);
  }
  // [loop]
  for (int i = 0; i < tiles.count; i++) {
    const PipelineState<Tiles<HEAD_DIM>::DS_STAGES> ds_state = {state.count};
    const int stage = state.index(), ds_stage = ds_state.index();
    float dp[N][4], next_s[1][N][4];  // dP^T, then dS^T; S^T of the next tile
    uint32_t ds[N / 2][4];
    mbarrier_wait(&shared.do_full[stage], state.phase());
    wgmma_fence();  // P^T is in its registers
    start_qk<T, HEAD_DIM, BLOCK_M>(dp, shared.v[consumer], shared.d_o[stage]);
    start_pv<T, HEAD_DIM, BLOCK_M>(dv[0], p, shared.d_o[stage]);  // dV += P^T dO
    wgmma_wait<1>(dk[0], dp);  // and dK of the tile before; dV may still run
    to_ds<T>(dp, p, shared.d[stage]);
    pack_probs<T>(ds, dp);
    mbarrier_wait(&shared.ds_empty[ds_stage], ds_state.phase() ^ 1);
    write_ds(shared.ds[ds_stage], ds, row, &shared.ds_full[ds_stage]);
    if (i + 1 < tiles.count) ++state, tile = tiles.next(tile);
    start_s(next_s);  // after the last tile once more the same
    start_dk<T, HEAD_DIM, BLOCK_M>(dk[0], ds, shared.ds[ds_stage], 64 * consumer, shared.q[stage],
                                   1 + consumer);
    wgmma_wait<1>(dv[0], next_s[0]);  // dK may still run
    finish_s(next_s);
  }
  wgmma_wait<0>(dk[0]);
  // [loop]
  store_by_tma(shared, maps, problem, block, consumer, warp, dv[0], dk[0]);
}

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
    mbarrier_init(&shared.kv_full, 1);
    for (int i = 0; i < Tiles<HEAD_DIM>::STAGES; i++) {  // two loads: of a tile and its numbers
      mbarrier_init(&shared.q_full[i], 2), mbarrier_init(&shared.do_full[i], 2);
    }
    init_barriers(shared.ds_full, CONSUMER_WARPS, shared.ds_empty, 4);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<DQ_REGISTERS>();
    compute_dq(shared, maps, problem, t.workspace, heads, block, tiles);
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    consume(shared, maps, problem, block, tiles, warpgroup - 1);
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
    .name = "step17d",
    .after = "step17c",
    .title = "Waits in their places",
    .idea = "Nothing waits for dK alone, so exponentials, dP^T and dV run beside it.",
    .head_dims = "D = 64 or 128",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
