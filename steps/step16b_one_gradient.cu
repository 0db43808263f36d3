/**
 * @file
 * Step 16b: D = 256, where each of the two consumers has one gradient.
 *
 * The idea: at D = 256 dV and dK of 64 keys would take 256 registers of each thread of a consumer.
 * So consumer 0 has S^T and dV, and consumer 1 dP^T and dK, both for the same 64 keys.
 *
 * What changed since step 16:
 * - dS^T = P^T o (dP^T - D) needs both: consumer 0 hands P^T over in fp32, through shared memory. A
 *   thread of consumer 1 has the same elements as that thread of consumer 0, so each reads what one
 *   thread has written, 16 bytes at a time.
 * - Consumer 1 writes dS^T; both wait for it.
 * - A consumer has 128 columns of dQ, in two halves: the left one is added to its sums while the
 *   right one is computed.
 *
 * What it costs: with 64 keys instead of 128, a block adds twice as much to dQ for each score.
 *
 * What to look at: what makes it safe to overwrite P^T, which has no barrier of its own for that.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
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
constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

/** Sizes of the tiles. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int BLOCK_M = 64;  // queries
  static constexpr int BLOCK_N = 64;  // keys
  static constexpr int STAGES = 2;    // tiles of Q, dO and dS^T
};

/** Shared memory of a thread block. Tiles that are swizzled begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  static constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  static constexpr int STAGES = Tiles<HEAD_DIM>::STAGES;
  alignas(1024) T k[BLOCK_N / 64][64 * HEAD_DIM], v[BLOCK_N / 64][64 * HEAD_DIM];
  alignas(1024) T q[STAGES][BLOCK_M * HEAD_DIM], d_o[STAGES][BLOCK_M * HEAD_DIM];
  alignas(1024) T ds[STAGES][BLOCK_M / 64][BLOCK_N * 64];    // dS^T, in panels of 64 queries
  alignas(16) float4 p[BLOCK_M / MMA_N][WARPGROUP_THREADS];  // P^T, fragment by fragment
  alignas(128) float lse_log2[STAGES][BLOCK_M], d[STAGES][BLOCK_M];
  uint64_t kv_full;                            // K and V have arrived
  uint64_t q_full[STAGES], q_empty[STAGES];    // Q and LSE have arrived; have been read
  uint64_t do_full[STAGES], do_empty[STAGES];  // the same of dO and D
  uint64_t p_full, ds_full;                    // P^T has been written; dS^T has
};

/** What a consumer does: dV (consumer 0) or dK (consumer 1) of all keys, and half of each row of
 * dQ. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                        const BackwardTensors &t, PassHeads heads, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, int consumer) {
  constexpr int N = BLOCK_M / MMA_N, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  const bool has_p = consumer == 0;
  const int thread = threadIdx.x % WARPGROUP_THREADS, row = thread / WARP_SIZE * 16;
  const int column = HEAD_DIM / 2 * consumer;  // of dQ
  const float scale_log2 = problem.scale * LOG2_E;
  // S^T = K Q^T and dV += P^T dO, or dP^T = V dO^T and dK += dS^T Q.
  auto &keys = has_p ? shared.k : shared.v;
  auto &queries = has_p ? shared.q : shared.d_o, &others = has_p ? shared.d_o : shared.q;
  auto &full = has_p ? shared.q_full : shared.do_full;
  auto &others_full = has_p ? shared.do_full : shared.q_full;
  float sum[1][HEAD_DIM / MMA_N][4] = {};
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  mbarrier_wait(&shared.kv_full, 0);
  // [loop]
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index();
    alignas(16) float s[1][N][4], p[N][4];  // S^T, then P^T; or dP^T, then dS^T, and P^T
    uint32_t a[N / 2][4];
    mbarrier_wait(&full[stage], state.phase());
    wgmma_fence();  // other instructions have used these registers
    start_qk<T, HEAD_DIM, BLOCK_M>(s[0], keys[0], queries[stage]);
    wgmma_wait<0>(s[0]);
    if (has_p) {
      if (block.first_key + BLOCK_N > attended_keys(problem, tile.first_q)) {
        mask_transposed(s, problem, block.first_key + row, tile.first_q);
      }
      to_probabilities(s, shared.lse_log2[stage], scale_log2);
      // Consumer 1 has read P^T of the tile before: else its dS^T would not have been complete.
#pragma unroll
      for (int n = 0; n < N; n++) shared.p[n][thread] = *(const float4 *)s[0][n];
      __syncwarp();  // all lanes have written
      if (thread % WARP_SIZE == 0) mbarrier_arrive(&shared.p_full);
    } else {
      mbarrier_wait(&shared.p_full, i % 2);
#pragma unroll
      for (int n = 0; n < N; n++) *(float4 *)p[n] = shared.p[n][thread];
      to_ds(s[0], p, shared.d[stage]);
    }
    pack_probs<T>(a, s[0]);
    if (!has_p) write_ds(shared.ds[stage], a, row, &shared.ds_full);
    mbarrier_wait(&others_full[stage], state.phase());
    wgmma_fence();  // P^T or dS^T is in its registers
    start_pv<T, HEAD_DIM, BLOCK_M>(sum[0], a, others[stage]);

    mbarrier_wait(&shared.ds_full, i % 2);
    float left[1][64 / MMA_N][4], right[1][64 / MMA_N][4];  // dQ
    const T *const k = shared.k[0] + 64 * column;
    start_dq<T, HEAD_DIM, BLOCK_N>(left[0], shared.ds[stage][0], k);
    start_dq<T, HEAD_DIM, BLOCK_N>(right[0], shared.ds[stage][0], k + 64 * 64);
    wgmma_wait<1>(sum[0], left[0]);  // the right half of dQ may still run
    release(shared.q_empty, state);
    release(shared.do_empty, state);
    const int q = tile.first_q + row;
    float *const sums = dq_sums(problem, t.workspace, heads.count, tile.head - heads.first) +
                        q * HEAD_DIM + column * 16 + thread % WARP_SIZE * 4;
    add_to_sums<HEAD_DIM / 8>(sums, left, problem.q_len - q);
    wgmma_wait<0>(right[0]);
    add_to_sums<HEAD_DIM / 8>(sums + 64 * 16, right, problem.q_len - q);
  }
  // [loop]
  store_keys(sum, has_p ? 1.0f : problem.scale, (T *)(has_p ? t.d_v : t.d_k),
             has_p ? problem.v_strides : problem.k_strides, problem, block, block.first_key + row);
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
    // A stage is filled by two loads, of a tile and of its numbers, and read by all consumer warps.
    init_barriers(shared.q_full, 2, shared.q_empty, CONSUMER_WARPS);
    init_barriers(shared.do_full, 2, shared.do_empty, CONSUMER_WARPS);
    mbarrier_init(&shared.p_full, 4);  // the warps of one consumer
    mbarrier_init(&shared.ds_full, 4);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(shared, maps, problem, heads, block, tiles);
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    consume(shared, problem, t, heads, block, tiles, warpgroup - 1);
  }
}

template <typename T, int HEAD_DIM, typename Tile = Tiles<HEAD_DIM>>
constexpr BackwardConfig CONFIG = {
    DTYPE_OF<T>,
    HEAD_DIM,
    Tile::BLOCK_M,
    Tile::BLOCK_N,
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM>, SHARE_ROWS, 0, ROWS_THREADS, 0},
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
    .name = "step16b",
    .after = "step16",
    .title = "D = 256: a consumer for each gradient",
    .idea = "One consumer has S and dV, the other dP and dK; P goes through shared memory.",
    .head_dims = "D = 256",
    .nondeterministic = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
