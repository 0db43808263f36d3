/**
 * @file
 * Step 17: a warpgroup of its own for dQ.
 *
 * The idea: the consumers of step 16 wait for each other in every tile, because dQ needs the dS of
 * both, and then for the additions to dQ. Here they leave dS^T in shared memory and go on. A third
 * warpgroup computes dQ of the tile while they are at the next one, adds it to the sums, and asks
 * for tiles of queries besides.
 *
 * What changed since step 16:
 * - The third warpgroup needs registers, so consumers have 216 instead of 240. P^T is rounded at
 *   once, and dS^T is computed from the rounded P^T. So S^T and dP^T need registers one after the
 *   other.
 * - S^T of the next tile is issued before dK of this one: while it becomes P^T, dK is computed.
 * - There are not enough registers for dS^T while S^T of the next tile is computed. So dK takes it
 *   from shared memory, where it is for dQ.
 *
 * What it costs: dQ is computed in parts of 64 x 64, for which dS or K is read twice.
 *
 * What to look at: what runs beside what; why no stage of Q and dO has an empty barrier.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
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

// [dq]
/** Asks for Q, dO and their numbers of a tile of a batch entry. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_queries(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                             const Problem &problem, PassHeads heads, int batch,
                                             QueryTile tile, int stage) {
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  const int q = tile.first_q, q_head = tile.head - batch * problem.q_heads;
  const int row = 2 * (tile.head - heads.first);
  uint64_t *const q_full = &shared.q_full[stage], *const do_full = &shared.do_full[stage];
  load_numbers(shared.lse_log2[stage], maps.numbers, q_full, row, q);
  mbarrier_arrive_expect(q_full, sizeof *shared.q);
  load_rows<HEAD_DIM, BLOCK_M>(shared.q[stage], maps.q, q_full, q, q_head, batch);
  load_numbers(shared.d[stage], maps.numbers, do_full, row + 1, q);
  mbarrier_arrive_expect(do_full, sizeof *shared.d_o);
  load_rows<HEAD_DIM, BLOCK_M>(shared.d_o[stage], maps.d_o, do_full, q, q_head, batch);
}

/** What the third warpgroup does: dQ of all tiles, and all loads. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void compute_dq(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                           const Problem &problem, void *workspace, PassHeads heads,
                                           KeyBlock block, const QueryTiles<BLOCK_M> &tiles) {
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
  mbarrier_wait(&shared.kv_full, 0);
  PipelineState<Tiles<HEAD_DIM>::DS_STAGES> state;
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), first_q = tile.first_q + 16 * warp;
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
      wgmma_wait<0>(dq[0]);
      if (part == 1) release(shared.ds_empty, state);
      add_to_sums<HEAD_DIM / 8>(sums + row * HEAD_DIM + column * 16, dq,
                                problem.q_len - first_q - row);
    }
  }
}
// [dq]

// [ds]
/** Replaces dP^T by dS^T = P^T o (dP^T - D), given 2^P_SHIFT P^T as operand A; `d` is D of the
 * query of column 0. */
template <typename T, int N>
__device__ __forceinline__ void to_ds(float (&dp)[N][4], const uint32_t (&p)[N / 2][4],
                                      const float *d) {
  constexpr float FACTOR = 1.0f / (1 << P_SHIFT<T>);
  d += fresh_lane() % 4 * 2;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 d_pair = *(const float2 *)&d[8 * n];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 pair =
          to_float2(*(const typename PairOf<T>::type *)&p[n / 2][n % 2 * 2 + i / 2]);
      dp[n][i] = pair.x * fmaf(FACTOR, dp[n][i], -FACTOR * d_pair.x);
      dp[n][i + 1] = pair.y * fmaf(FACTOR, dp[n][i + 1], -FACTOR * d_pair.y);
    }
  }
}
// [ds]

// [dk]
/** Starts dK += dS^T Q for 64 keys: `ds` is their first row, in the first of panels of 64 queries,
 * which have BLOCK_N rows. */
template <typename T, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int N>
__device__ __forceinline__ void start_dk(float (&dk)[N][4], const T *ds, const T *q_tile) {
  const uint64_t a = wgmma_descriptor<64>(ds, 0);
  const uint64_t b = wgmma_descriptor<HEAD_DIM>(q_tile, 2 * BLOCK_M * 64);
#pragma unroll
  for (int q = 0; q < BLOCK_M; q += 16) {
    wgmma<T, true>(dk, a + units(2 * (q / 64 * BLOCK_N * 64 + q % 64)), b + units(2 * q * 64),
                   true);
  }
  wgmma_commit();
}
// [dk]

/** What a consumer does: dV and dK of its 64 keys, and their dS^T. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                        const BackwardTensors &t, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, int consumer) {
  constexpr int N = BLOCK_M / MMA_N, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
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
  const auto to_p = [&](float(&s)[1][N][4]) {
    if (block.first_key + 64 * (consumer + 1) > attended_keys(problem, tile.first_q)) {
      mask_transposed(s, problem, block.first_key + row, tile.first_q);
    }
    to_probabilities(s, shared.lse_log2[state.index()], scale_log2);
    pack_probs<T>(p, s[0]);
  };
  mbarrier_wait(&shared.kv_full, 0);
  if (tiles.count > 0) {
    float s[1][N][4];
    start_s(s);
    wgmma_wait<0>(s[0]);
    to_p(s);
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
    start_s(next_s);                                      // after the last tile once more the same
    named_barrier_sync<WARPGROUP_THREADS>(1 + consumer);  // dS^T of all its warps is there
    start_dk<T, HEAD_DIM, BLOCK_M, BLOCK_N>(dk[0], shared.ds[ds_stage][0] + 64 * 64 * consumer,
                                            shared.q[stage]);
    wgmma_wait<1>(dv[0], next_s[0]);  // dK may still run
    to_p(next_s);
    wgmma_wait<0>(dk[0]);
  }
  // [loop]
  const int key = block.first_key + row;
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
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM, P_SHIFT<T>>, SHARE_ROWS, 0, ROWS_THREADS, 0},
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
    .name = "step17",
    .after = "step16",
    .title = "A warpgroup of its own for dQ",
    .idea =
        "Consumers leave dS^T to a third warpgroup and go on: dQ of a tile beside the next tile.",
    .head_dims = "D = 64 or 128",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
