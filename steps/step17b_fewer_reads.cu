/**
 * @file
 * Step 17b: fewer reads of shared memory.
 *
 * The idea: in step 17 shared memory is busier than the tensor cores. So this step reads less of
 * it, though it saves no instruction of the tensor cores. With D = 64 that makes it faster. With
 * 128 other limits are nearly as tight, so it gives nothing alone.
 *
 * What changed since step 17:
 * - Three quarters of dS^T are operand A of dK in registers, as all of it was in step 16. For the
 *   last quarter there is no room beside S^T of the next tile.
 * - LSE and D lie in the order in which lanes read them, so that a load brings four numbers instead
 *   of two.
 *
 * What to look at: which reads are left, and what it would take to save them.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_dq_group.cuh"
#include "device/backward_groups.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_maps.cuh"
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
  uint64_t kv_full;                                  // K and V have arrived
  uint64_t q_full[STAGES], do_full[STAGES];          // Q and LSE have; dO and D have
  uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES];  // dS^T has been written; read
};

// [numbers]
/** Loads LSE or D of the columns of this lane, which lie together for each 16 columns. */
template <int N>
__device__ __forceinline__ void load_fours(float (&pairs)[N][2], const float *numbers) {
  const int first = fresh_lane() % 4 * 4;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    const float4 four = *(const float4 *)&numbers[8 * n + first];
    pairs[n][0] = four.x, pairs[n][1] = four.y;
    pairs[n + 1][0] = four.z, pairs[n + 1][1] = four.w;
  }
}

/** Replaces S^T by 2^P_SHIFT P^T. */
template <typename T, int N>
__device__ __forceinline__ void to_p(float (&s)[N][4], const float *lse, float scale_log2) {
  float lse_log2[N][2];
  load_fours(lse_log2, lse);
#pragma unroll
  for (int j = 0; j < 4 * N; j++) {
    float &x = s[j / 4][j % 4];
    x = exp2_approx(fmaf(x, scale_log2, -lse_log2[j / 4][j % 2]));
  }
}

/** Replaces dP^T by dS^T = P^T o (dP^T - D), given 2^P_SHIFT P^T as operand A. */
template <typename T, int N>
__device__ __forceinline__ void to_ds(float (&dp)[N][4], const uint32_t (&p)[N / 2][4],
                                      const float *d) {
  constexpr float FACTOR = 1.0f / (1 << P_SHIFT<T>);
  float d_row[N][2];
  load_fours(d_row, d);
#pragma unroll
  for (int j = 0; j < 4 * N; j += 2) {
    const int n = j / 4;
    const float2 pair =
        to_float2(*(const typename PairOf<T>::type *)&p[n / 2][n % 2 * 2 + j % 4 / 2]);
    dp[n][j % 4] = pair.x * fmaf(FACTOR, dp[n][j % 4], -FACTOR * d_row[n][0]);
    dp[n][j % 4 + 1] = pair.y * fmaf(FACTOR, dp[n][j % 4 + 1], -FACTOR * d_row[n][1]);
  }
}
// [numbers]

// [dk]
/** Starts dK += dS^T Q for the 64 keys of this consumer. The first fragments of dS^T come from
 * registers, the others from shared memory, where `first_row` is that of the consumer. */
template <typename T, int HEAD_DIM, int BLOCK_M, int PANELS, int ELEMENTS>
__device__ __forceinline__ void start_dk(float (&dk)[HEAD_DIM / MMA_N][4],
                                         const uint32_t (&fragments)[BLOCK_M / 16][4],
                                         const T (&ds)[PANELS][ELEMENTS], int first_row,
                                         const T *q_tile, int barrier) {
  constexpr int SPLIT = Tiles<HEAD_DIM>::DS_IN_REGISTERS;
  const uint64_t a = wgmma_descriptor<64>(ds[0] + 64 * first_row, 0);
  const uint64_t q = wgmma_descriptor<HEAD_DIM>(q_tile, 2 * BLOCK_M * 64);
#pragma unroll
  for (int i = 0; i < SPLIT; i++)
    wgmma<T, true>(dk, fragments[i], q + units(2 * 16 * i * 64), true);
  named_barrier_sync<WARPGROUP_THREADS>(barrier);  // all warps of the consumer have written dS^T
#pragma unroll
  for (int i = SPLIT; i < BLOCK_M / 16; i++) {
    const int column = i / 4 * ELEMENTS + i % 4 * 16;
    wgmma<T, true>(dk, a + units(2 * column), q + units(2 * 16 * i * 64), true);
  }
  wgmma_commit();
}
// [dk]

/** Adds up dV and dK of the 64 keys of a consumer, from 0 on, and writes their dS^T. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void sum_gradients(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                              const KeyBlock &block,
                                              const QueryTiles<BLOCK_M> &tiles, int consumer,
                                              float (&dv)[1][HEAD_DIM / MMA_N][4],
                                              float (&dk)[1][HEAD_DIM / MMA_N][4]) {
  constexpr int N = BLOCK_M / MMA_N;
  const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE % 4, 0);
  const int row = 64 * consumer + 16 * warp;  // of S^T: the first of this warp
  const float scale_log2 = problem.scale * LOG2_E;
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
    wgmma_wait<1>(dp);                                            // dV may still run
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
    wgmma_wait<0>(dk[0]);
  }
  // [loop]
}

/** What a consumer does: dV and dK of its 64 keys, and their dS^T. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                        const BackwardTensors &t, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, int consumer) {
  float dv[1][HEAD_DIM / MMA_N][4] = {}, dk[1][HEAD_DIM / MMA_N][4] = {};
  sum_gradients(shared, problem, block, tiles, consumer, dv, dk);
  const int key = block.first_key + 64 * consumer + 16 * (threadIdx.x / WARP_SIZE % 4);
  store_keys(dv, 1.0f / (1 << P_SHIFT<T>), (T *)t.d_v, problem.v_strides, problem, block, key);
  store_keys(dk, problem.scale, (T *)t.d_k, problem.k_strides, problem, block, key);
}

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads,
                    const __grid_constant__ BackwardMaps maps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;
  const KeyBlock block = key_block<Tiles<HEAD_DIM>::BLOCK_N>(problem, heads, blockIdx.x);
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
    consume(shared, problem, t, block, tiles, warpgroup - 1);
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
    .name = "step17b",
    .after = "step17",
    .title = "Fewer reads of shared memory",
    .idea = "dK takes most of dS^T from registers, and a load brings four of LSE or D.",
    .head_dims = "D = 64 or 128",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
