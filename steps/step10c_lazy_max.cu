/**
 * @file
 * Step 10c: a maximum that is rarely raised.
 *
 * The idea: the maximum m of a row only has to keep P in the range of its type. So P is computed
 * with the m that is there, as soon as S is complete. Only if a sum of P exceeds MOST_SUM, m is
 * raised: then S is computed again, because P has replaced it, and O is rescaled. As in step 06b,
 * this hardly ever happens.
 *
 * What changed since step 10b:
 * - The softmax of all tiles but the first, which is shorter. There are three consumers at D = 96
 *   and 128, too, with tiles of 64 keys and four stages. With three and a short softmax no turns
 *   are needed: one mostly has a product to issue when others compute a softmax.
 * - Without turns, a consumer need not compute what others compute. It skips the tiles of keys that
 *   are masked for all of its 64 queries.
 * - m is finite from the beginning: -FLT_MAX. As long as all scores of a row are -inf, P is 0.
 *
 * What it costs: P may be larger than 1, so its largest values are rounded like all others. K is
 * released later, because S may be needed again. And there is a second way to compute S, by
 * mma.sync, because a single warp cannot issue wgmma.
 *
 * What to look at: what a tile costs in which m stays, and what holds when it does not.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/new_max.cuh"
#include "device/overlap.cuh"
#include "device/pipeline.cuh"
#include "device/producer.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
#include "device/store_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = 3;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int CONSUMER_ROWS = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 128 : 64;  // rows of K and V
  static constexpr int STAGES = HEAD_DIM <= 64 ? 3 : 4;      // tiles of K, and of V, in flight
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = 32, CONSUMER_REGISTERS = 160;
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

// [skip]
/** Waits for a tile that only other consumers need, and releases it: its barriers count this
 * consumer, too. Without the wait this could be a second arrival in the previous phase. */
template <int STAGES>
__device__ __forceinline__ void skip_tile(uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES],
                                          PipelineState<STAGES> state) {
  mbarrier_wait(&full[state.index()], state.phase());
  __syncwarp();  // all lanes are past the wait: a lane that came two phases late would hang
  release(empty, state);
}
// [skip]

// [exponentiate]
/** Replaces scores by unnormalised probabilities with the m that is there. `sums` is what they add
 * to l. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void exponentiate_tile(float (&s)[N_FRAGMENTS][4], float (&sums)[2],
                                                  const float (&m)[2], float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sums[half] = 0.0f;
    const float shift = 0.0f - m[half];  // no -m: nvcc would not give it a register of its own
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        s[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, shift));
        sums[half] += s[n][c];
      }
    }
  }
}
// [exponentiate]

// [again]
/** S = Q K^T of this warp's 16 rows once more, by mma.sync: what P was computed from is gone. */
template <typename T, int HEAD_DIM, int BLOCK_N, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_qk_again(float (&s)[N_FRAGMENTS][4], const T *q,
                                                  const T *k_tile) {
  const int lane = threadIdx.x % WARP_SIZE, first_row = threadIdx.x / WARP_SIZE % 4 * 16;
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) s[n][c] = 0.0f;
  }
#pragma unroll 1
  for (int d = 0; d < HEAD_DIM; d += MMA_K) {
    uint32_t a[4];
    ldmatrix_x4(
        a, (const char *)q + swizzled_byte<HEAD_DIM, 64>(first_row + lane % 16, d + lane / 16 * 8));
#pragma unroll
    for (int n = 0; n < MMA_N * N_FRAGMENTS; n += 16) {
      uint32_t b[4];
      ldmatrix_x4(
          b, (const char *)k_tile + swizzled_byte<HEAD_DIM, BLOCK_N>(n + lane / 16 * 8 + lane % 8,
                                                                     d + lane / 8 % 2 * 8));
      mma_m16n8k16<T>(s[n / MMA_N], a, b[0], b[1]);
      mma_m16n8k16<T>(s[n / MMA_N + 1], a, b[2], b[3]);
    }
  }
  fence_proxy_async();  // these loads come before the TMA load of the next tile
  __syncwarp();
}
// [again]

// [softmax]
/** Replaces scores, which mask() masks, by unnormalised probabilities, and updates l. Returns
 * whether m was raised, for some row of this warp: then the rows of O are to be multiplied by
 * `rescale`. */
template <typename T, int HEAD_DIM, int BLOCK_N, int N_FRAGMENTS, typename Mask>
__device__ __forceinline__ bool lazy_softmax(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                             float (&l)[2], float (&rescale)[2], float scale_log2,
                                             const T *q, const T *k_tile, Mask mask) {
  mask();
  float sums[1][2];
  exponentiate_tile(s, sums[0], m, scale_log2);
  // One decision for the whole warp: ldmatrix and mma need all lanes.
  const bool raise = __any_sync(FULL_WARP, needs_new_max(sums, MOST_SUM));
  if (raise) {
    multiply_qk_again<T, HEAD_DIM, BLOCK_N>(s, q, k_tile);
    mask();
    softmax_of_tile(s, m, l, rescale, scale_log2);
  } else {
    l[0] += sums[0][0], l[1] += sums[0][1];
  }
  return raise;
}
// [softmax]

// [attend]
/** The loop over tiles of keys of step 09, without turns: O, m and l of a consumer's rows. It
 * releases Q. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       int consumer, int first_row, int own_end,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  constexpr int BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  const int unmasked_end = attended_keys(problem, first_row);
  const float scale_log2 = problem.scale * LOG2_E;
  uint32_t probs[BLOCK_N / MMA_K][4];
  float rescale[2];
  if (own_end > 0) {
    float s[1][BLOCK_N / MMA_N][4];
    start_qk_of(s[0], shared, consumer, state);
    wgmma_wait<0>(s[0]);
    release(shared.k_empty, state);
    ++state;
    mask_tile(s, problem, first_row, 0, unmasked_end);
    softmax_of_tile(s[0], m, l, rescale, scale_log2);  // O is still 0
    pack_probs<T>(probs, s[0]);
  }
  for (int first_key = BLOCK_N; first_key < own_end; first_key += BLOCK_N) {
    float s[1][BLOCK_N / MMA_N][4];
    start_qk_of(s[0], shared, consumer, state);
    start_pv_of(o, probs, shared, state.previous());
    wgmma_wait<1>(s[0]);  // S of this tile is complete; P V of the previous one may still run
    const bool raised = lazy_softmax<T, HEAD_DIM, BLOCK_N>(
        s[0], m, l, rescale, scale_log2, shared.q[consumer], shared.k[state.index()],
        [&] { mask_tile(s, problem, first_row, first_key, unmasked_end); });
    release(shared.k_empty, state);
    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
    release(shared.v_empty, state.previous());
    if (raised) rescale_rows(o, rescale);
    ++state;
    pack_probs<T>(probs, s[0]);
  }
  // All products with Q are complete: the next Q may come.
  __syncwarp();  // without a tile no wgmma made the lanes meet: all have seen that Q has come
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&shared.q_empty[consumer]);
  if (own_end > 0) {
    start_pv_of(o, probs, shared, state.previous());
    wgmma_wait<0>(o);  // O is complete
    release(shared.v_empty, state.previous());
  }
}
// [attend]

// [consumer_loop]
/** What a consumer does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const ForwardMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  const int warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
  PipelineState<Tile::STAGES> state;  // of the next tile of K and V
  for (PipelineState<2> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const WorkTile &work = shared.work[work_state.index()];
    if (work.key_end < 0) break;
    const int first_q = work.first_q + consumer * Tile::CONSUMER_ROWS;  // of this consumer
    const int first_row = first_q + 16 * warp;                          // of this warp
    const int own_end = keys_of_rows(problem, first_q, Tile::CONSUMER_ROWS);
    const int tile_count = (own_end + BLOCK_N - 1) / BLOCK_N;
    // [0] belongs to row lane / 4 of this warp, [1] to the row 8 below.
    float m[2] = {-FLT_MAX, -FLT_MAX};  // maximum of score * scale * log2(e) over some of the keys
    float l[2] = {};                    // running sum of this lane's probabilities
    float o[HEAD_DIM / MMA_N][4] = {};
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[consumer], q_state.phase());  // Q of this consumer has arrived
    attend(shared, problem, consumer, first_row, own_end, state, o, m, l);
    for (int key = tile_count * BLOCK_N; key < work.key_end; key += BLOCK_N, ++state) {
      skip_tile(shared.k_full, shared.k_empty, state);
      skip_tile(shared.v_full, shared.v_empty, state);
    }

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
    .name = "step10c",
    .after = "step10b",
    .title = "A maximum that is rarely raised, and three consumers without turns",
    .idea = "P is computed with the m that is there; three consumers keep the tensor cores busy.",
    .head_dims = "D = 32, 64, 96 or 128",
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
};
