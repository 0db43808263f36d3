/**
 * @file
 * Step 10b: O leaves by TMA.
 *
 * The idea: in step 10 the next Q waits until O has been stored, because both have the same place,
 * and all consumers get their Q together. Here O has a place of its own, from where TMA stores it
 * while the next tile of queries is computed. So a consumer's Q is free at the end of its loop over
 * tiles of keys, and each consumer has barriers of its own for Q: the first can compute the first S
 * of the next tile of queries while the others finish this one.
 *
 * What changed since step 10:
 * - Each warp writes its rows of O to shared memory in the order in which TMA reads a swizzled
 *   tile. One lane has them stored; before the next O is written there, it waits until TMA has read
 *   them.
 * - A full and an empty barrier for the Q of each consumer. The producer asks for the Q of the
 *   first consumer, then for the first K, then for the other Q.
 * - Stages: three instead of two up to D = 64, and two instead of three at D = 128.
 *
 * What it costs: shared memory for O. At D = 128 O takes that of a stage; D = 256 has no room for
 * it, see step 10d.
 *
 * What to look at: what must happen between the last write of a lane to `o` and the TMA store, and
 * what between the store and the next write.
 */
#include <math.h>

#include "attention.h"
#include "device/attend.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
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
  static constexpr int BLOCK_N = 128;                        // rows of K and V
  static constexpr int TAIL_N = BLOCK_N;                     // a last tile is as long as all others
  static constexpr bool TURNS = true;                    // one consumer multiplies, another waits
  static constexpr int STAGES = HEAD_DIM <= 96 ? 3 : 2;  // tiles of K, and of V, in flight
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 40;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 232;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());
};

/** Shared memory of a thread block. Tiles that TMA swizzles begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::CONSUMERS][Tile::CONSUMER_ROWS * HEAD_DIM];
  alignas(1024) T o[Tile::CONSUMERS][4][16 * HEAD_DIM];  // by warp
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  WorkTile work[2];                      // this tile of queries and the next one
  uint64_t work_full[2], work_empty[2];  // it has been written; has been read
  uint64_t q_full[Tile::CONSUMERS], q_empty[Tile::CONSUMERS];  // Q has arrived; has been read
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];        // a tile has arrived; has been read
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

// [store]
/** The byte at which TMA has element (row, column) of a tile of swizzled panels of ROWS rows. */
template <int HEAD_DIM, int ROWS>
__device__ __forceinline__ int swizzled_byte(int row, int column) {
  constexpr int COLUMNS = PANEL<HEAD_DIM>;
  const int chunk = column % COLUMNS / CHUNK;
  const int swizzle = COLUMNS == 64 ? row % 8 : row / 2 % 4;
  return column / COLUMNS * ROWS * 2 * COLUMNS + row * 2 * COLUMNS + (chunk ^ swizzle) * 16 +
         column % CHUNK * 2;
}

/** Divides O by l, of which each lane has a part, and stores LSE of this warp's rows. */
template <int O_FRAGMENTS>
__device__ __forceinline__ void finish_rows(float (&o)[O_FRAGMENTS][4], const float (&m)[2],
                                            const float (&l)[2], float *lse_global, int first_row,
                                            int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first_row + lane / 4 + 8 * half;
    const float sum = lanes_reduce_sum<4>(l[half]);
    const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
    for (int n = 0; n < O_FRAGMENTS; n++) {
      o[n][2 * half] *= factor;
      o[n][2 * half + 1] *= factor;
    }
    // A fully masked row has sum = 0, and log2(0) is -inf.
    if (lane % 4 == 0 && row < rows) lse_global[row] = (m[half] + log2_approx(sum)) * LN_2;
  }
}

/** Writes this warp's 16 rows of O to `o_warp`, and has TMA store them from there. TMA leaves out
 * rows past the end. */
template <int HEAD_DIM, typename T>
__device__ __forceinline__ void store_tile(const float (&o)[HEAD_DIM / MMA_N][4], T *o_warp,
                                           const CUtensorMap &map, int first_row, int head,
                                           int batch) {
  const int lane = threadIdx.x % WARP_SIZE;
  if (lane == 0) tma_store_wait<0>();  // the previous O has been read
  __syncwarp();                        // all lanes may write the next
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
      const int offset = swizzled_byte<HEAD_DIM, 16>(lane / 4 + 8 * half, 8 * n + lane % 4 * 2);
      *(uint32_t *)((char *)o_warp + offset) = pack<T>(o[n][2 * half], o[n][2 * half + 1]);
    }
  }
  fence_proxy_async();  // each lane's stores are visible to TMA
  __syncwarp();         // those of all lanes
  if (lane == 0) {
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += PANEL<HEAD_DIM>) {
      tma_store(map, o_warp + 16 * column, column, first_row, head, batch);
    }
    tma_store_commit();
  }
}
// [store]

/** The tensor maps of a pass. */
struct ForwardMaps {
  TensorMaps in; /**< Q, K and V */
  CUtensorMap o; /**< boxes of 16 rows, those of a warp */
};

// [load_q]
/** Asks for the Q of a consumer, as soon as it has released the previous Q. `work_count`
 * is the number of the work tile in this block. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_q(Shared<T, HEAD_DIM> &shared, const CUtensorMap &map,
                                       int consumer, const WorkTile &work, uint32_t work_count) {
  constexpr int ROWS = Tiles<HEAD_DIM>::CONSUMER_ROWS;
  const PipelineState<1> q_state = {work_count};
  mbarrier_wait(&shared.q_empty[consumer], q_state.phase() ^ 1);
  mbarrier_arrive_expect(&shared.q_full[consumer], sizeof *shared.q);
  load_rows<HEAD_DIM, ROWS>(shared.q[consumer], map, &shared.q_full[consumer],
                            work.first_q + consumer * ROWS, work.head, work.batch);
}
// [load_q]

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

    const int kv_head = work.head / (problem.q_heads / problem.kv_heads);
    load_q(shared, maps.q, 0, work, work_state.count);
    for (int first_key = 0; first_key < work.key_end; first_key += Tile::BLOCK_N, ++state) {
      // Not earlier: a block that is late must not take a tile that a free one could begin.
      if (first_key + Tile::BLOCK_N >= work.key_end) index = take_next(scheduler);
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, state,
                                         first_key, kv_head, work.batch);
      for (int c = 1; first_key == 0 && c < Tile::CONSUMERS; c++) {
        load_q(shared, maps.q, c, work, work_state.count);
      }
      // The state of V has the same count. In step 12, V has another number of stages than K.
      load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty,
                                         {state.count}, first_key, kv_head, work.batch);
    }
    if (work.key_end == 0) {
      for (int c = 1; c < Tile::CONSUMERS; c++) {
        load_q(shared, maps.q, c, work, work_state.count);
      }
      index = take_next(scheduler);
    }
  }
}
// [producer]

// [consumer_loop]
/** What a consumer does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const ForwardMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  const int warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
  PipelineState<Tile::STAGES> state;  // of the next tile of K and V
  for (PipelineState<2> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const WorkTile &work = shared.work[work_state.index()];
    if (work.key_end < 0) break;
    const int first_row = work.first_q + consumer * Tile::CONSUMER_ROWS + 16 * warp;
    // [0] belongs to row lane / 4 of this warp, [1] to the row 8 below.
    float m[2] = {-INFINITY, -INFINITY};  // running maximum of score * scale * log2(e)
    float l[2] = {};                      // running sum of this lane's probabilities
    float o[HEAD_DIM / MMA_N][4] = {};
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[consumer], q_state.phase());  // Q of this consumer has arrived
    attend(shared, problem, consumer, first_row, work.key_end, state, o, m, l);
    __syncwarp();  // without keys no wgmma made the lanes meet: all have seen that Q has come
    if (lane == 0) mbarrier_arrive(&shared.q_empty[consumer]);

    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    finish_rows(o, m, l, t.lse + head_index * problem.q_len, first_row, problem.q_len);
    store_tile<HEAD_DIM>(o, shared.o[consumer][warp], maps.o, first_row, work.head, work.batch);
    release(shared.work_empty, work_state);  // all lanes have read `work` before __syncwarp()
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until TMA has read it
}
// [consumer_loop]

/** The whole forward pass: one thread block for each SM. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ ForwardMaps maps,
                     TileScheduler scheduler) {
  using Tile = Tiles<HEAD_DIM>;
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;

  if (threadIdx.x == 0) {
    constexpr int READS = 4 * Tile::CONSUMERS;  // one thread of each warp
    init_barriers(shared.work_full, 1, shared.work_empty, READS);
    init_barriers(shared.q_full, 1, shared.q_empty, 4);
    init_barriers(shared.k_full, 1, shared.k_empty, READS);
    init_barriers(shared.v_full, 1, shared.v_empty, READS);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) produce(shared, maps.in, problem, scheduler);
  } else {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume(shared, maps, problem, t, warpgroup - 1);
  }
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  sizeof(Shared<T, HEAD_DIM>),
                                                                  USES_WGMMA);

static constexpr KernelConfig<ForwardMaps, TileScheduler> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__nv_bfloat16, 32>, CONFIG<__nv_bfloat16, 64>,
    CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>};

/** The tensor maps for tiles of `kv_rows` keys. */
static inline cudaError_t make_forward_maps(ForwardMaps *maps, const Problem *problem,
                                            const Tensors *t, int kv_rows) {
  const cudaError_t error = make_tensor_maps(&maps->in, problem, t, 64, kv_rows);
  if (error != cudaSuccess) return error;
  return make_tensor_map(&maps->o, t->o, problem, problem->o_strides, problem->q_len,
                         problem->q_heads, 16, problem->o_dtype);
}

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  ForwardMaps maps;
  if (const cudaError_t error = make_forward_maps(&maps, problem, t, config->block_n)) return error;
  const TileScheduler scheduler = make_scheduler(problem, config->block_m, 2, t->workspace);
  config->kernel<<<block_count(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, scheduler);
  return cudaGetLastError();
}

const Step step = {
    .name = "step10b",
    .after = "step10",
    .title = "O leaves by TMA",
    .idea = "TMA stores O while the next tile of queries, whose Q came early, is computed.",
    .head_dims = "D = 32, 64, 96 or 128",
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
};
