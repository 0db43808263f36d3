/**
 * @file
 * Step 09: overlap within a warpgroup.
 *
 * The idea: P V of a tile does not depend on the softmax of the next one. So Q K^T of a tile and
 * P V of the previous tile are issued together, and P V overlaps the softmax.
 *
 * What changed since step 08: the loop. Q K^T comes first, and the first wait leaves P V running:
 * the softmax begins when S is complete. O is rescaled after the second wait.
 *
 * What it costs: P of the previous tile and O stay in use during the softmax, so that more
 * registers are needed at once.
 *
 * What to look at: what each wait leaves in flight, and what is touched before the second one.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mma_tile.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/turns.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = HEAD_DIM <= 64 ? 3 : 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int CONSUMER_ROWS = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM > 128 ? 80 : HEAD_DIM > 64 ? 192 : 128;
  static constexpr int TAIL_N = 64;               // keys of a short last tile
  static constexpr bool TURNS = HEAD_DIM <= 128;  // one consumer multiplies, another waits
  static constexpr int STAGES = 2;                // tiles of K, and of V, in flight
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  // O of a consumer is collected in the place of Q, in padded rows: in so many elements.
  static constexpr int Q_ELEMENTS = (CONSUMER_ROWS * SMEM_STRIDE<HEAD_DIM> + 511) / 512 * 512;
};

/** Shared memory of a thread block. Tiles that TMA swizzles begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::CONSUMERS][Tile::Q_ELEMENTS];
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  uint64_t q_full;                                       // Q has arrived
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];  // a tile has arrived; has been read
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

// [softmax]
/** Replaces scores by unnormalised probabilities and updates m and l, as update_softmax() does, but
 * leaves O alone: `rescale` is what its rows are to be multiplied by. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void softmax_of_tile(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                                float (&l)[2], float (&rescale)[2],
                                                float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float row_max = -INFINITY;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      row_max = fmaxf(row_max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    row_max = fmaxf(m[half], lanes_reduce_max<4>(row_max) * scale_log2);
    const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
    rescale[half] = exp2_approx(m[half] - safe_max);
    m[half] = row_max;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        s[n][2 * half + c] = exp2_approx(fmaf(s[n][2 * half + c], scale_log2, -safe_max));
        sum += s[n][2 * half + c];
      }
    }
    l[half] = l[half] * rescale[half] + sum;
  }
}

/** Multiplies the rows of O. */
template <int O_FRAGMENTS>
__device__ __forceinline__ void rescale_rows(float (&o)[O_FRAGMENTS][4],
                                             const float (&rescale)[2]) {
#pragma unroll
  for (int n = 0; n < O_FRAGMENTS; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) o[n][c] *= rescale[c / 2];
  }
}
// [softmax]

// [products]
/** Starts S = Q K^T for a tile of K, as soon as it has arrived. */
template <typename T, int HEAD_DIM, int N_FRAGMENTS>
__device__ __forceinline__ void start_qk_of(float (&s)[N_FRAGMENTS][4], Shared<T, HEAD_DIM> &shared,
                                            int consumer,
                                            PipelineState<Tiles<HEAD_DIM>::STAGES> k) {
  mbarrier_wait(&shared.k_full[k.index()], k.phase());  // K has arrived
  wgmma_fence();                                        // the last softmax has read and written S
  start_qk<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(s, shared.q[consumer], shared.k[k.index()]);
}

/** Starts O += P V for a tile of V, as soon as it has arrived. */
template <typename T, int HEAD_DIM, int P_FRAGMENTS>
__device__ __forceinline__ void start_pv_of(float (&o)[HEAD_DIM / MMA_N][4],
                                            const uint32_t (&probs)[P_FRAGMENTS][4],
                                            Shared<T, HEAD_DIM> &shared,
                                            PipelineState<Tiles<HEAD_DIM>::STAGES> v) {
  mbarrier_wait(&shared.v_full[v.index()], v.phase());  // V has arrived
  wgmma_fence();  // P and O were written by other instructions
  start_pv<T, HEAD_DIM, Tiles<HEAD_DIM>::BLOCK_N>(o, probs, shared.v[v.index()]);
}

/** Masks the scores of the keys from `first_key` on, unless all rows of this warp, from `first_row`
 * on, attend to all of these keys: to those before `unmasked_end` they do. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void mask_tile(float (&s)[1][N_FRAGMENTS][4], const Problem &problem,
                                          int first_row, int first_key, int unmasked_end) {
  if (first_key + MMA_N * N_FRAGMENTS > unmasked_end) {
    apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, first_key);
  }
}
// [products]

/** The loop over the tiles of keys 0 to `key_end` - 1: O, m and l of a consumer's rows. `state` is
 * that of the first tile, and afterwards the one after the last. This, and the release of the last
 * V, are for step 10, where a thread block goes on to other queries. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       int consumer, int first_row, int key_end,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N, CONSUMERS = Tile::CONSUMERS;
  const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N, last = tile_count - 1;
  const int unmasked_end = attended_keys(problem, first_row);
  const float scale_log2 = problem.scale * LOG2_E;
  uint32_t probs[BLOCK_N / MMA_K][4];
  float rescale[2];

  const auto softmax = [&](auto &s, int tile) {
    mask_tile(s, problem, first_row, tile * BLOCK_N, unmasked_end);
    softmax_of_tile(s[0], m, l, rescale, scale_log2);
  };

  // [first_tile]
  if (tile_count > 0) {
    float s[1][BLOCK_N / MMA_N][4];
    start_qk_of(s[0], shared, consumer, state);
    wgmma_wait<0>(s[0]);
    release(shared.k_empty, state);
    softmax(s, 0);  // O is still 0
    pack_probs<T>(probs, s[0]);
    ++state;
  }
  // [first_tile]
  // The first turn is passed only if somebody will wait for it.
  if (Tile::TURNS && last > 0 && consumer == CONSUMERS - 1) pass_turn<CONSUMERS>(consumer);

  // [overlap]
  // Q K^T of a tile and P V of the previous one, which runs beside the softmax of this one.
  const auto overlap = [&](auto &s, int tile) {
    if (Tile::TURNS) wait_for_turn(consumer);
    start_qk_of(s[0], shared, consumer, state);
    start_pv_of(o, probs, shared, state.previous());
    // The last turn of all is not passed on: nobody waits for it.
    if (Tile::TURNS && (tile < last || consumer < CONSUMERS - 1)) pass_turn<CONSUMERS>(consumer);
    wgmma_wait<1>(s[0]);  // S of this tile is complete; P V of the previous one may still run
    release(shared.k_empty, state);
    softmax(s, tile);
    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
    release(shared.v_empty, state.previous());
    rescale_rows(o, rescale);
    ++state;
  };
  // [overlap]

  // [loop]
  const bool short_tail =
      Tile::TAIL_N < BLOCK_N && last > 0 && key_end - last * BLOCK_N <= Tile::TAIL_N;
  for (int tile = 1; tile < tile_count - short_tail; tile++) {
    float s[1][BLOCK_N / MMA_N][4];
    overlap(s, tile);
    pack_probs<T>(probs, s[0]);
  }
  if (short_tail) {
    float s[1][Tile::TAIL_N / MMA_N][4];
    uint32_t tail_probs[Tile::TAIL_N / MMA_K][4];
    overlap(s, last);
    pack_probs<T>(tail_probs, s[0]);
    start_pv_of(o, tail_probs, shared, state.previous());
  } else if (tile_count > 0) {
    start_pv_of(o, probs, shared, state.previous());
  }
  wgmma_wait<0>(o);  // O is complete
  if (tile_count > 0) release(shared.v_empty, state.previous());
  // [loop]
}

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ TensorMaps maps) {
  using Tile = Tiles<HEAD_DIM>;
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::BLOCK_M;
  const int head_index = blockIdx.x / q_tiles;
  const int batch = head_index / problem.q_heads, head = head_index % problem.q_heads;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);

  if (threadIdx.x == 0) {
    init_barriers(shared, 4 * Tile::CONSUMERS);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      const int tile_count = (key_end + Tile::BLOCK_N - 1) / Tile::BLOCK_N;
      const int kv_head = head / (problem.q_heads / problem.kv_heads);
      produce(shared, maps, first_q, tile_count, head, kv_head, batch);
    }
    return;
  }
  setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();

  const int consumer = warpgroup - 1, warp = threadIdx.x / WARP_SIZE % 4;
  const int first_row = first_q + consumer * Tile::CONSUMER_ROWS + 16 * warp;  // of this warp
  // [0][0] belongs to row lane / 4 of this warp, [0][1] to the row 8 below.
  float m[1][2] = {{-INFINITY, -INFINITY}};  // running maximum of score * scale * log2(e)
  float l[1][2] = {};                        // running sum of this lane's probabilities
  float o[1][HEAD_DIM / MMA_N][4] = {};
  mbarrier_wait(&shared.q_full, 0);   // Q has arrived
  PipelineState<Tile::STAGES> state;  // of the first tile
  attend(shared, problem, consumer, first_row, key_end, state, o[0], m[0], l[0]);

  // Each warp has waited for its products. When all four have, nothing reads their Q any more.
  named_barrier_sync<WARPGROUP_THREADS>(1 + Tile::CONSUMERS + consumer);
  const HeadOffsets offset = head_offsets(problem, head_index);
  store_rows<T, HEAD_DIM>(o, m, l, shared.q[consumer] + 16 * warp * SMEM_STRIDE<HEAD_DIM>,
                          (T *)t.o + offset.o, problem.o_strides.row, t.lse + offset.lse, first_row,
                          problem.q_len);
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  sizeof(Shared<T, HEAD_DIM>),
                                                                  USES_WGMMA);

static constexpr KernelConfig<TensorMaps> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  TensorMaps maps;
  if (const cudaError_t error = make_tensor_maps(&maps, problem, t, 64, config->block_n))
    return error;
  config->kernel<<<grid_size(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps);
  return cudaGetLastError();
}

const Step step = {
    .name = "step09",
    .after = "step08",
    .title = "Overlap: P V runs during the next softmax",
    .idea = "P V of the tile before runs while the softmax of this tile is computed.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
