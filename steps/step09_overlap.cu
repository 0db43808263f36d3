/**
 * @file
 * Step 09: overlap within a warpgroup.
 *
 * The idea: while S of a tile goes through the softmax, P V of the tile before needs nothing of it.
 * So Q K^T of a tile and P V of the tile before are issued together, and P V runs beside the
 * softmax.
 *
 * What changed since step 08: the loop. Q K^T comes first, and the first wait leaves P V running:
 * the softmax begins when S is complete. O is rescaled after the second wait.
 *
 * What it costs: P of the tile before and O stay in use during the softmax, so that more registers
 * are needed at once.
 *
 * What to look at: what each wait leaves in flight, and what is touched before the second one.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mma_tile.cuh"
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
  static constexpr int GROUP_M = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * GROUP_M;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM > 128 ? 80 : HEAD_DIM > 64 ? 192 : 128;
  static constexpr int TAIL_N = 64;               // keys of a short last tile
  static constexpr bool TURNS = HEAD_DIM <= 128;  // one consumer multiplies, another waits
  static constexpr int STAGES = 2;                // tiles of K, and of V, in flight
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  // O of a warp is collected in the place of Q, in padded rows.
  static constexpr int Q_BYTES = 2 * GROUP_M * SMEM_STRIDE<HEAD_DIM>;  // of a consumer
  static constexpr int Q_STEP = (Q_BYTES + 1023) / 1024 * 1024;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;
  static constexpr int BARRIERS = 1 + 4 * STAGES;
  static constexpr int SHARED_BYTES = CONSUMERS * Q_STEP + 2 * STAGES * KV_BYTES + 8 * BARRIERS;
};

/** Shared memory of a thread block, as all its warps see it. */
template <typename T, int HEAD_DIM>
struct Shared {
  T *q;                                          /**< of the first consumer; Q_STEP bytes each */
  T *k_ring, *v_ring;                            /**< STAGES tiles each */
  uint64_t *q_full;                              /**< Q has arrived */
  uint64_t *k_full, *v_full, *k_empty, *v_empty; /**< by stage */
};

// [producer]
/** What the one producing thread does: it asks for Q, then for all tiles of K and V in the order of
 * their use. It waits whenever a stage is not empty yet. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(const Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                        int first_q, int tile_count, int head, int kv_head,
                                        int batch) {
  using Tile = Tiles<HEAD_DIM>;
  mbarrier_arrive_expect(shared.q_full, 2 * Tile::BLOCK_M * HEAD_DIM);
  for (int group = 0; group < Tile::CONSUMERS; group++) {
    load_rows<HEAD_DIM, Tile::GROUP_M>(shared.q + group * Tile::Q_STEP / sizeof(T), maps.q,
                                       shared.q_full, first_q + group * Tile::GROUP_M, head, batch);
  }
  const auto load_tile = [&](T *ring, const CUtensorMap &map, uint64_t *full, uint64_t *empty,
                             int tile) {
    const int stage = tile % Tile::STAGES;
    mbarrier_wait(&empty[stage], (tile / Tile::STAGES & 1) ^ 1);  // all consumers have read it
    mbarrier_arrive_expect(&full[stage], Tile::KV_BYTES);
    load_rows<HEAD_DIM, Tile::BLOCK_N>(ring + stage * Tile::BLOCK_N * HEAD_DIM, map, &full[stage],
                                       tile * Tile::BLOCK_N, kv_head, batch);
  };
  for (int tile = 0; tile < tile_count; tile++) {
    load_tile(shared.k_ring, maps.k, shared.k_full, shared.k_empty, tile);
    load_tile(shared.v_ring, maps.v, shared.v_full, shared.v_empty, tile);
  }
}
// [producer]

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
    float sums[2] = {};  // two, so that an addition waits less for the one before
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        s[n][2 * half + c] = exp2_approx(fmaf(s[n][2 * half + c], scale_log2, -safe_max));
        sums[c] += s[n][2 * half + c];
      }
    }
    l[half] = l[half] * rescale[half] + (sums[0] + sums[1]);
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

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ TensorMaps maps) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int STAGES = Tile::STAGES;
  constexpr bool TURNS = Tile::TURNS;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  constexpr int KV_ELEMENTS = BLOCK_N * HEAD_DIM;

  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> shared;
  shared.q = (T *)smem;
  shared.k_ring = (T *)(smem + Tile::CONSUMERS * Tile::Q_STEP);
  shared.v_ring = shared.k_ring + STAGES * KV_ELEMENTS;
  shared.q_full = (uint64_t *)(shared.v_ring + STAGES * KV_ELEMENTS);
  shared.k_full = shared.q_full + 1, shared.k_empty = shared.k_full + STAGES;
  shared.v_full = shared.k_empty + STAGES, shared.v_empty = shared.v_full + STAGES;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::BLOCK_M;
  const int head_index = blockIdx.x / q_tiles;
  const int batch = head_index / problem.q_heads, head = head_index % problem.q_heads;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N;

  if (threadIdx.x == 0) {
    mbarrier_init(shared.q_full, 1);
    for (int stage = 0; stage < STAGES; stage++) {
      mbarrier_init(&shared.k_full[stage], 1);
      mbarrier_init(&shared.v_full[stage], 1);
      mbarrier_init(&shared.k_empty[stage], 4 * Tile::CONSUMERS);  // one thread of each warp
      mbarrier_init(&shared.v_empty[stage], 4 * Tile::CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // [roles]
  // The same for all lanes of a warp, and the compiler can see it.
  const int group = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (group == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) {
      produce(shared, maps, first_q, tile_count, head, head / (problem.q_heads / problem.kv_heads),
              batch);
    }
    return;
  }
  setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
  // [roles]

  const int consumer = group - 1;
  const int warp = threadIdx.x / WARP_SIZE % 4;
  const int first_row = first_q + consumer * Tile::GROUP_M + 16 * warp;  // of this warp
  const T *q_group = shared.q + consumer * Tile::Q_STEP / sizeof(T);
  const bool releases = threadIdx.x % WARP_SIZE == 0;  // one thread of each warp

  // [0][0] belongs to row lane / 4 of this warp, [0][1] to the row 8 below.
  float m[1][2] = {{-INFINITY, -INFINITY}};  // running maximum of score * scale * log2(e)
  float l[1][2] = {};                        // running sum of this lane's probabilities
  float o[1][HEAD_DIM / MMA_N][4] = {};
  uint32_t probs[BLOCK_N / MMA_K][4];
  const float scale_log2 = problem.scale * LOG2_E;
  // Every row of this warp attends the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_row);

  // [products]
  const auto start_qk_of = [&](auto &s, int tile) {
    const int stage = tile % STAGES;
    mbarrier_wait(&shared.k_full[stage], tile / STAGES & 1);  // K of the tile has arrived
    wgmma_fence();  // the last softmax has read and written S
    start_qk<T, HEAD_DIM, BLOCK_N>(s, q_group, shared.k_ring + stage * KV_ELEMENTS);
  };
  const auto start_pv_of = [&](const auto &probs, int tile) {
    const int stage = tile % STAGES;
    mbarrier_wait(&shared.v_full[stage], tile / STAGES & 1);  // V of the tile has arrived
    wgmma_fence();  // P and O were written by other instructions
    start_pv<T, HEAD_DIM, BLOCK_N>(o[0], probs, shared.v_ring + stage * KV_ELEMENTS);
  };
  const auto mask_tile = [&](auto &s, int tile) {
    if ((tile + 1) * BLOCK_N > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, tile * BLOCK_N);
    }
  };
  // [products]

  mbarrier_wait(shared.q_full, 0);  // Q has arrived
  // [first_tile]
  float rescale[2];
  if (tile_count > 0) {
    float s[1][BLOCK_N / MMA_N][4];
    start_qk_of(s[0], 0);
    wgmma_wait<0>(s[0]);
    if (releases) mbarrier_arrive(&shared.k_empty[0]);
    mask_tile(s, 0);
    softmax_of_tile(s[0], m[0], l[0], rescale, scale_log2);  // O is still 0
    pack_probs<T>(probs, s[0]);
  }
  // [first_tile]
  // The first turn is passed only if somebody will wait for it.
  if (TURNS && tile_count > 1 && consumer == Tile::CONSUMERS - 1) {
    pass_turn<Tile::CONSUMERS>(consumer);
  }

  // [overlap]
  // Q K^T of a tile and P V of the one before, which runs beside the softmax of this one.
  const auto overlap = [&](auto &s, int tile) {
    if (TURNS) wait_for_turn(consumer);
    start_qk_of(s[0], tile);
    start_pv_of(probs, tile - 1);
    // The last turn of all is not passed on: nobody waits for it.
    if (TURNS && (tile + 1 < tile_count || consumer + 1 < Tile::CONSUMERS)) {
      pass_turn<Tile::CONSUMERS>(consumer);
    }
    wgmma_wait<1>(s[0]);  // S of this tile is complete; P V of the one before may still run
    if (releases) mbarrier_arrive(&shared.k_empty[tile % STAGES]);
    mask_tile(s, tile);
    softmax_of_tile(s[0], m[0], l[0], rescale, scale_log2);
    wgmma_wait<0>(o[0]);  // O is complete, and nothing reads P any more
    if (releases) mbarrier_arrive(&shared.v_empty[(tile - 1) % STAGES]);
    rescale_rows(o[0], rescale);
  };
  // [overlap]

  // [loop]
  const int last = tile_count - 1;
  const bool short_tail = tile_count > 1 && key_end - last * BLOCK_N <= Tile::TAIL_N;
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
    start_pv_of(tail_probs, last);
  } else if (tile_count > 0) {
    start_pv_of(probs, last);
  }
  wgmma_wait<0>(o[0]);  // O is complete
  // [loop]

  // Each warp has waited for its products. When all four have, nothing reads their Q any more.
  named_barrier_sync<WARPGROUP_THREADS>(1 + Tile::CONSUMERS + consumer);
  const HeadOffsets offset = head_offsets(problem, head_index);
  T *o_warp = (T *)q_group + 16 * warp * SMEM_STRIDE<HEAD_DIM>;
  store_rows<T, HEAD_DIM>(o, m, l, o_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_row, problem.q_len);
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  Tiles<HEAD_DIM>::SHARED_BYTES,
                                                                  CEILING_WGMMA);

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
    .title = "Overlap: two products run during a softmax",
    .idea = "Q K^T of a tile and P V of the one before run while the softmax is computed.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
