/**
 * @file
 * Step 17c: shorter ends, of each block and of the grid.
 *
 * The idea: a block occupies an SM alone. While it stores dV and dK, the tensor cores of this SM
 * wait, and when there are no more blocks, those of other SMs do.
 *
 * What changed since step 17b:
 * - Each warp writes dV and dK to shared memory, where V was, and TMA stores them in whole lines.
 * - Under the causal mask the longest blocks of several heads come first, so that short ones are
 *   left for the end.
 *
 * What to look at: when V may be overwritten; why not all heads are sorted together.
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
#include "device/backward_tile.cuh"
#include "device/dq_sums.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/store_tile.cuh"
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

// [store]
/** Multiplies the sums of dV and dK of a warp of a consumer by their factors, and has TMA store
 * them. Their 16 rows go through the place of those of V. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void store_by_tma(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                             const Problem &problem, const KeyBlock &block,
                                             int consumer, int warp,
                                             float (&dv)[HEAD_DIM / MMA_N][4],
                                             float (&dk)[HEAD_DIM / MMA_N][4]) {
  const int key = block.first_key + 64 * consumer + 16 * warp;  // the first of this warp
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  const int kv_head = head / (problem.q_heads / problem.kv_heads);
#pragma unroll
  for (int j = 0; j < HEAD_DIM / 2; j++) {
    dv[j / 4][j % 4] *= 1.0f / (1 << P_SHIFT<T>);
    dk[j / 4][j % 4] *= problem.scale;
  }
  named_barrier_sync<WARPGROUP_THREADS>(1 + consumer);  // all warps have done with V
  if (key >= problem.kv_len) return;
  T *const own = shared.v[consumer] + 16 * warp * HEAD_DIM;
  store_tile<HEAD_DIM>(dv, own, maps.d_v, key, kv_head, batch);
  store_tile<HEAD_DIM>(dk, own, maps.d_k, key, kv_head, batch);
  if (threadIdx.x % WARP_SIZE == 0) tma_store_wait<0>();  // shared memory must stay until then
}
// [store]

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

// [order]
/** As key_block(), but under the causal mask the longest blocks of several heads come first. Of
 * these heads Q, dO and the sums of dQ, 8 bytes an element, fit the L2 cache together. */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ KeyBlock long_block_first(const Problem &problem, PassHeads heads,
                                                     int number) {
  constexpr int CACHED_ELEMENTS = (32 << 20) / 8;
  if (problem.mask != MASK_CAUSAL) return key_block<BLOCK_N>(problem, heads, number);
  const int group = problem.q_heads / problem.kv_heads, kv_heads = heads.count / group;
  const int tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int fit = CACHED_ELEMENTS / HEAD_DIM / problem.q_len / group;
  const int section = max(1, min(fit, kv_heads)), first = number / (section * tiles) * section;
  const int size = min(section, kv_heads - first), rest = number - first * tiles;
  return {rest / size * BLOCK_N, heads.first + (first + rest % size) * group};
}
// [order]

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
    .name = "step17c",
    .after = "step17b",
    .title = "Short ends",
    .idea = "TMA stores dV and dK; under the causal mask the longest blocks come first.",
    .head_dims = "D = 64 or 128",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
