/**
 * @file
 * Step 08: warp specialisation, and turns.
 *
 * The idea: loading and computing are different jobs, so different warps do them. One thread of a
 * producer warpgroup asks for tiles as soon as there is room. Consumer warpgroups only compute. The
 * producer needs few registers; it gives the rest to the consumers (setmaxnreg), whose tiles can be
 * larger. The consumers issue their products in turns: one multiplies while the other computes its
 * softmax, because the tensor cores and the units for exponentials are different hardware.
 *
 * What changed since step 07: who loads, and when; the order of the loop. P V of a tile waits for
 * the next turn: P V (t - 1) and Q K^T (t) are one turn, then comes the softmax of tile t. A turn
 * is passed on when its products are issued. Tiles have 192 keys at D = 96 and 128; of a last tile
 * with at most 64 keys only 64 are multiplied.
 *
 * What it costs: a warpgroup that computes nothing, and P of a tile in registers for longer.
 *
 * What to look at: where a consumer waits for its turn, and where it passes the turn on.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mma_tile.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

// [tiles]
/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = HEAD_DIM <= 64 ? 3 : 2;  // warpgroups that compute
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int GROUP_M = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * GROUP_M;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM > 128 ? 80 : HEAD_DIM > 64 ? 192 : 128;
  static constexpr int TAIL_N = 64;  // keys of a short last tile
  static constexpr int STAGES = 2;   // tiles of K, and of V, in flight
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
// [tiles]

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

// [turns]
/** Waits until it is the turn of this consumer: barrier 1 + consumer, at which its own threads wait
 * and those of the consumer before it arrive. */
__device__ __forceinline__ void wait_for_turn(int consumer) {
  named_barrier_sync<2 * WARPGROUP_THREADS>(1 + consumer);
}

/** Passes the turn on to the next consumer. */
template <int CONSUMERS>
__device__ __forceinline__ void pass_turn(int consumer) {
  named_barrier_arrive<2 * WARPGROUP_THREADS>(1 + (consumer + 1) % CONSUMERS);
}
// [turns]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ TensorMaps maps) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int STAGES = Tile::STAGES;
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

  // [start_pv_of]
  // Starts P V of a tile.
  const auto start_pv_of = [&](const auto &probs, int tile) {
    const int stage = tile % STAGES;
    mbarrier_wait(&shared.v_full[stage], tile / STAGES & 1);  // V of the tile has arrived
    wgmma_fence();  // P and O were written by other instructions
    start_pv<T, HEAD_DIM, BLOCK_N>(o[0], probs, shared.v_ring + stage * KV_ELEMENTS);
  };
  // [start_pv_of]

  mbarrier_wait(shared.q_full, 0);  // Q has arrived
  // Consumer 0 begins, if there is anything to do.
  if (tile_count > 0 && consumer == Tile::CONSUMERS - 1) pass_turn<Tile::CONSUMERS>(consumer);

  // [turn]
  // P V of the tile before and Q K^T of this one, then the softmax of this one. `s` has room for
  // the scores of a tile, or of its first keys.
  const auto take_turn = [&](auto &s, int tile) {
    const int stage = tile % STAGES;
    const int first_key = tile * BLOCK_N;

    wait_for_turn(consumer);
    if (tile > 0) start_pv_of(probs, tile - 1);
    mbarrier_wait(&shared.k_full[stage], tile / STAGES & 1);  // K of this tile has arrived
    wgmma_fence();  // the last softmax has read and written S
    start_qk<T, HEAD_DIM, BLOCK_N>(s[0], q_group, shared.k_ring + stage * KV_ELEMENTS);
    // The last turn of all is not passed on: nobody waits for it.
    if (tile + 1 < tile_count || consumer + 1 < Tile::CONSUMERS)
      pass_turn<Tile::CONSUMERS>(consumer);
    wgmma_wait<0>(s[0], o[0]);  // S of this tile is complete, and O of the one before
    if (releases) {             // this warp is done with both tiles
      mbarrier_arrive(&shared.k_empty[stage]);
      if (tile > 0) mbarrier_arrive(&shared.v_empty[(tile - 1) % STAGES]);
    }

    if (first_key + BLOCK_N > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, first_key);
    }
    update_softmax(s, m, l, o, scale_log2);
  };
  // [turn]

  // [loop]
  const int last = tile_count - 1;
  const bool short_tail = tile_count > 0 && key_end - last * BLOCK_N <= Tile::TAIL_N;
  for (int tile = 0; tile < tile_count - short_tail; tile++) {
    float s[1][BLOCK_N / MMA_N][4];
    take_turn(s, tile);
    pack_probs<T>(probs, s[0]);
  }
  if (short_tail) {
    float s[1][Tile::TAIL_N / MMA_N][4];
    uint32_t tail_probs[Tile::TAIL_N / MMA_K][4];
    take_turn(s, last);
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
    .name = "step08",
    .after = "step07",
    .title = "Warp specialisation: a producer, and consumers that take turns",
    .idea =
        "One thread loads, other warpgroups compute, and one multiplies while another does "
        "its softmax.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
