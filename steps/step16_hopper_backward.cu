/**
 * @file
 * Step 16: the backward pass with wgmma and TMA. It opens a chapter: the steps from here on run on
 * Hopper alone. D = 256 has a step of its own, 16b.
 *
 * The idea: the loop of step 15 with the producer and the consumers of step 08. K and V of a block
 * stay in shared memory; Q, dO and their numbers come through a pipeline of two stages. wgmma takes
 * operand A from registers, and the accumulators S^T and dP^T are there. So P^T and dS^T, rounded,
 * are operands of dV and dK where they are. Only dQ, a sum over the keys of all consumers, needs
 * dS^T in shared memory.
 *
 * What changed since step 15:
 * - A consumer is a warpgroup with 64 keys. All four of its matrices are accumulators: S^T, dP^T,
 *   dV and dK.
 * - Products are only started. While S^T becomes P^T, dP^T is computed, and while dQ is added to
 *   its sums, dK is.
 * - Barriers of the whole block are gone. A consumer waits for tiles, for its own products, and
 *   once for each tile for the dS^T of the other consumer.
 *
 * What it costs: the four accumulators take 192 of 240 registers, and decide the sizes of the
 * tiles.
 *
 * What to look at: what each wait leaves in flight, and what may be overwritten after it.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
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
  static constexpr int BLOCK_M = HEAD_DIM <= 64 ? 128 : 64;  // queries
  static constexpr int BLOCK_N = CONSUMERS * 64;             // keys, 64 of each consumer
  static constexpr int STAGES = 2;                           // tiles of Q, dO and dS^T
};

/** Shared memory of a thread block. Tiles that are swizzled begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  static constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  static constexpr int STAGES = Tiles<HEAD_DIM>::STAGES;
  alignas(1024) T k[BLOCK_N / 64][64 * HEAD_DIM], v[BLOCK_N / 64][64 * HEAD_DIM];
  alignas(1024) T q[STAGES][BLOCK_M * HEAD_DIM], d_o[STAGES][BLOCK_M * HEAD_DIM];
  alignas(1024) T ds[STAGES][BLOCK_M / 64][BLOCK_N * 64];  // dS^T, in panels of 64 queries
  alignas(128) float lse_log2[STAGES][BLOCK_M], d[STAGES][BLOCK_M];
  uint64_t kv_full;                            // K and V have arrived
  uint64_t q_full[STAGES], q_empty[STAGES];    // Q and LSE have arrived; have been read
  uint64_t do_full[STAGES], do_empty[STAGES];  // the same of dO and D
  uint64_t ds_full;                            // all of dS^T has been written
};

// [producer]
/** Asks for LSE or D of a tile of queries: row `row` of all numbers, from query `q` on. */
template <int ROWS>
__device__ __forceinline__ void load_numbers(float (&target)[ROWS], const CUtensorMap &map,
                                             uint64_t *full, int row, int q) {
  mbarrier_arrive_expect(full, sizeof target);
  tma_load(target, map, full, q, row, 0, 0);
}

/** Asks for K and V of a block, which stay. They lie in parts of 64 rows. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_keys(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                          const Problem &problem, KeyBlock block) {
  const int batch = block.first_head / problem.q_heads, head = block.first_head % problem.q_heads;
  const int kv_head = head / (problem.q_heads / problem.kv_heads);
  mbarrier_arrive_expect(&shared.kv_full, sizeof shared.k + sizeof shared.v);
  for (int i = 0; i < Tiles<HEAD_DIM>::BLOCK_N / 64; i++) {
    const int key = block.first_key + 64 * i;
    load_rows<HEAD_DIM, 64>(shared.k[i], maps.k, &shared.kv_full, key, kv_head, batch);
    load_rows<HEAD_DIM, 64>(shared.v[i], maps.v, &shared.kv_full, key, kv_head, batch);
  }
}

/** What the one producing thread does: it asks for K and V, then for all tiles of queries. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void produce(Shared<T, HEAD_DIM> &shared, const BackwardMaps &maps,
                                        const Problem &problem, PassHeads heads, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles) {
  const int batch = block.first_head / problem.q_heads;
  load_keys(shared, maps, problem, block);
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index(), q = tile.first_q, q_head = tile.head - batch * problem.q_heads;
    const int row = 2 * (tile.head - heads.first);
    load_tile<HEAD_DIM, BLOCK_M>(shared.q, maps.q, shared.q_full, shared.q_empty, state, q, q_head,
                                 batch);
    load_numbers(shared.lse_log2[stage], maps.numbers, &shared.q_full[stage], row, q);
    load_tile<HEAD_DIM, BLOCK_M>(shared.d_o, maps.d_o, shared.do_full, shared.do_empty, state, q,
                                 q_head, batch);
    load_numbers(shared.d[stage], maps.numbers, &shared.do_full[stage], row + 1, q);
  }
}
// [producer]

// [ds]
/** Replaces dP^T by dS^T = P^T o (dP^T - D); `d` is D of the query of column 0. */
template <int N>
__device__ __forceinline__ void to_ds(float (&dp)[N][4], const float (&p)[N][4], const float *d) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&d[8 * n + threadIdx.x % 4 * 2];
#pragma unroll
    for (int j = 0; j < 4; j++) dp[n][j] = p[n][j] * (dp[n][j] - (j % 2 == 0 ? pair.x : pair.y));
  }
}

/** Writes this warp's 16 rows of dS^T, from row `first` on, and arrives at `full`. */
template <typename T, int PANELS, int ELEMENTS, int K>
__device__ __forceinline__ void write_ds(T (&panels)[PANELS][ELEMENTS], const uint32_t (&ds)[K][4],
                                         int first, uint64_t *full) {
  const int lane = threadIdx.x % WARP_SIZE;
  const uint32_t target = shared_address(panels) + chunk_offset<64>(first + lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < K; k++) {
    const uint32_t panel = k / 4 * sizeof panels[0];
    stmatrix_x4(shared_pointer(more_chunks<64>(target, 2 * k % 8) + panel), ds[k]);
  }
  fence_proxy_async();  // wgmma sees what this lane has written,
  __syncwarp();         // and what all lanes have
  if (lane == 0) mbarrier_arrive(full);
}

/** Starts dQ = dS K for the 64 queries of a panel of dS^T, and 8 N columns. `k` is the first row of
 * K in the first of these columns; K lies in parts of 64 rows. Both operands are transposed. */
template <typename T, int HEAD_DIM, int BLOCK_N, int N>
__device__ __forceinline__ void start_dq(float (&dq)[N][4], const T *ds_panel, const T *k) {
  const uint64_t a = wgmma_descriptor<64>(ds_panel, 0);
  const uint64_t b = wgmma_descriptor<HEAD_DIM>(k, 2 * 64 * 64);
#pragma unroll
  for (int key = 0; key < BLOCK_N; key += 16) {
    const int b_row = key / 64 * 64 * HEAD_DIM + key % 64 * 64;
    wgmma<T, true, true>(dq, a + units(2 * key * 64), b + units(2 * b_row), key > 0);
  }
  wgmma_commit();
}
// [ds]

/** What a consumer does: dV and dK of its 64 keys, and 64 x 64 elements of each tile of dQ. */
template <typename T, int HEAD_DIM, int BLOCK_M>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                        const BackwardTensors &t, PassHeads heads, KeyBlock block,
                                        const QueryTiles<BLOCK_M> &tiles, int consumer) {
  constexpr int N = BLOCK_M / MMA_N, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  const int warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
  const int row = 64 * consumer + 16 * warp;  // of S^T: the first of this warp
  // Of a tile of dQ, consumers share the rows if there are 128, or else the columns.
  const int dq_panel = BLOCK_M > 64 ? consumer : 0, dq_row = 64 * dq_panel + 16 * warp;
  const int dq_column = BLOCK_M > 64 ? 0 : 64 * consumer;
  const float scale_log2 = problem.scale * LOG2_E;
  float dv[1][HEAD_DIM / MMA_N][4] = {}, dk[1][HEAD_DIM / MMA_N][4] = {};
  QueryTile tile = {block.first_head, tiles.first_q};
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  mbarrier_wait(&shared.kv_full, 0);
  // [loop]
  for (int i = 0; i < tiles.count; i++, ++state, tile = tiles.next(tile)) {
    const int stage = state.index();
    float s[1][N][4], dp[N][4];  // S^T, then P^T; dP^T, then dS^T
    uint32_t p[N / 2][4], ds[N / 2][4];
    mbarrier_wait(&shared.q_full[stage], state.phase());
    wgmma_fence();  // other instructions have used the registers of S^T and dP^T
    start_qk<T, HEAD_DIM, BLOCK_M>(s[0], shared.k[consumer], shared.q[stage]);
    mbarrier_wait(&shared.do_full[stage], state.phase());
    start_qk<T, HEAD_DIM, BLOCK_M>(dp, shared.v[consumer], shared.d_o[stage]);
    wgmma_wait<1>(s[0]);  // S^T is complete; dP^T may still run
    if (block.first_key + 64 * (consumer + 1) > attended_keys(problem, tile.first_q)) {
      mask_transposed(s, problem, block.first_key + row, tile.first_q);
    }
    to_probabilities(s, shared.lse_log2[stage], scale_log2);
    pack_probs<T>(p, s[0]);
    wgmma_wait<0>(dp);  // dP^T is complete
    to_ds(dp, s[0], shared.d[stage]);
    pack_probs<T>(ds, dp);
    // The dS^T that was there two tiles ago has been read: both consumers have arrived since.
    write_ds(shared.ds[stage], ds, row, &shared.ds_full);

    wgmma_fence();  // P^T and dS^T are in their registers
    start_pv<T, HEAD_DIM, BLOCK_M>(dv[0], p, shared.d_o[stage]);  // dV += P^T dO
    mbarrier_wait(&shared.ds_full, i % 2);                        // dS^T of the other consumer, too
    float dq[1][64 / MMA_N][4];
    start_dq<T, HEAD_DIM, BLOCK_N>(dq[0], shared.ds[stage][dq_panel], shared.k[0] + 64 * dq_column);
    start_pv<T, HEAD_DIM, BLOCK_M>(dk[0], ds, shared.q[stage]);  // dK += dS^T Q
    wgmma_wait<1>(dv[0], dq[0]);  // dV and dQ are complete; dK may still run
    release(shared.do_empty, state);
    float *const sums = dq_sums(problem, t.workspace, heads.count, tile.head - heads.first);
    const int q = tile.first_q + dq_row;
    add_to_sums<HEAD_DIM / 8>(sums + q * HEAD_DIM + dq_column * 16 + lane * 4, dq,
                              problem.q_len - q);
    wgmma_wait<0>(dk[0]);
    release(shared.q_empty, state);
  }
  // [loop]
  const int key = block.first_key + row;
  store_keys(dv, 1.0f, (T *)t.d_v, problem.v_strides, problem, block, key);
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
    // A stage is filled by two loads, of a tile and of its numbers, and read by all consumer warps.
    init_barriers(shared.q_full, 2, shared.q_empty, CONSUMER_WARPS);
    init_barriers(shared.do_full, 2, shared.do_empty, CONSUMER_WARPS);
    mbarrier_init(&shared.ds_full, CONSUMER_WARPS);
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
    .name = "step16",
    .after = "step15",
    .title = "The backward pass with wgmma and TMA",
    .idea = "P^T and dS^T are operands of wgmma in the registers where they are computed.",
    .head_dims = "D = 64 or 128",
    .nondeterministic = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
