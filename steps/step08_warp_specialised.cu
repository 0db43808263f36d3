/**
 * @file
 * Step 08: warp specialisation, and turns.
 *
 * The idea: loading and computing are different jobs, so different warps do them. One thread of a
 * producer warpgroup asks for tiles as soon as there is room. Consumer warpgroups only compute. The
 * producer needs few registers; it gives the rest to the consumers (setmaxnreg), whose tiles can be
 * larger. The consumers issue their products in turns (ping-pong): while one multiplies, another
 * computes its softmax, because the tensor cores and the units for exponentials are different
 * hardware.
 *
 * What changed since step 07: who loads, and when. Producer and consumers each count the tiles that
 * they have seen, in a PipelineState. In the loop, P V of a tile moves to the next turn: a turn is
 * P V (t - 1) and Q K^T (t), and after it comes the softmax of tile t. It is passed on when its
 * products are issued. Tiles have 192 keys at D = 96 and 128; of a last tile with at most 64 keys
 * only 64 are multiplied.
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
  static constexpr int CONSUMER_ROWS = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM > 128 ? 80 : HEAD_DIM > 64 ? 192 : 128;
  static constexpr int TAIL_N = 64;  // keys of a short last tile
  static constexpr int STAGES = 2;   // tiles of K, and of V, in flight
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
  static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());

  // O of a consumer is collected in the place of Q, in padded rows: in so many elements.
  static constexpr int Q_ELEMENTS = (CONSUMER_ROWS * SMEM_STRIDE<HEAD_DIM> + 511) / 512 * 512;
};
// [tiles]

// [shared_memory]
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
// [shared_memory]

// [pipeline]
/** How many tiles have gone through a pipeline of STAGES stages: so tile `count` is the next. */
template <int STAGES>
struct PipelineState {
  uint32_t count = 0; /**< of tiles before the next */

  /** The stage of this tile. */
  __device__ __forceinline__ int index() const { return count % STAGES; }
  /** The parity of the phase of this stage's barriers. It changes when a stage is used again. */
  __device__ __forceinline__ uint32_t phase() const { return count / STAGES % 2; }
  /** The state of the previous tile. */
  __device__ __forceinline__ PipelineState previous() const { return {count - 1}; }
  /** Goes on to the next tile. */
  __device__ __forceinline__ void operator++() { count++; }
};

/** This warp has read the tile in a stage: one of its threads arrives for all. */
template <int STAGES>
__device__ __forceinline__ void release(uint64_t (&empty)[STAGES], PipelineState<STAGES> state) {
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&empty[state.index()]);
}
// [pipeline]

// [producer]
/** Asks for ROWS rows of K or V, from row `row` on, as soon as the stage is empty. */
template <int HEAD_DIM, int ROWS, typename T, int STAGES>
__device__ __forceinline__ void load_tile(T (&tiles)[STAGES][ROWS * HEAD_DIM],
                                          const CUtensorMap &map, uint64_t (&full)[STAGES],
                                          uint64_t (&empty)[STAGES], PipelineState<STAGES> state,
                                          int row, int kv_head, int batch) {
  const int stage = state.index();
  mbarrier_wait(&empty[stage], state.phase() ^ 1);  // all have read what was there
  mbarrier_arrive_expect(&full[stage], sizeof *tiles);
  load_rows<HEAD_DIM, ROWS>(tiles[stage], map, &full[stage], row, kv_head, batch);
}

/** What the one producing thread does: it asks for Q, then for all tiles of K and V in the order of
 * their use. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce(Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                        int first_q, int tile_count, int head, int kv_head,
                                        int batch) {
  using Tile = Tiles<HEAD_DIM>;
  mbarrier_arrive_expect(&shared.q_full, 2 * Tile::BLOCK_M * HEAD_DIM);
  for (int consumer = 0; consumer < Tile::CONSUMERS; consumer++) {
    load_rows<HEAD_DIM, Tile::CONSUMER_ROWS>(shared.q[consumer], maps.q, &shared.q_full,
                                             first_q + consumer * Tile::CONSUMER_ROWS, head, batch);
  }
  PipelineState<Tile::STAGES> state;
  for (int tile = 0; tile < tile_count; tile++, ++state) {
    const int first_key = tile * Tile::BLOCK_N;
    load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, state,
                                       first_key, kv_head, batch);
    load_tile<HEAD_DIM, Tile::BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty, state,
                                       first_key, kv_head, batch);
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

/** The loop over the tiles of keys 0 to `key_end` - 1: O, m and l of a consumer's rows. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       int consumer, int first_row, int key_end,
                                       float (&o)[1][HEAD_DIM / MMA_N][4], float (&m)[1][2],
                                       float (&l)[1][2]) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N, CONSUMERS = Tile::CONSUMERS;
  const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N;
  const float scale_log2 = problem.scale * LOG2_E;
  // Every row of this warp attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_row);
  uint32_t probs[BLOCK_N / MMA_K][4];
  PipelineState<Tile::STAGES> state;  // of the next tile

  // [start_pv_of]
  // Starts P V of the tile before the next one.
  const auto start_pv_of = [&](const auto &p) {
    const auto v = state.previous();
    mbarrier_wait(&shared.v_full[v.index()], v.phase());  // V of the tile has arrived
    wgmma_fence();  // P and O were written by other instructions
    start_pv<T, HEAD_DIM, BLOCK_N>(o[0], p, shared.v[v.index()]);
  };
  // [start_pv_of]

  // Consumer 0 begins, if there is anything to do.
  if (tile_count > 0 && consumer == CONSUMERS - 1) pass_turn<CONSUMERS>(consumer);

  // [turn]
  // P V of the previous tile and Q K^T of this one, then the softmax of this one. `s` has room for
  // the scores of a tile, or of its first keys.
  const auto take_turn = [&](auto &s, int tile) {
    wait_for_turn(consumer);
    if (tile > 0) start_pv_of(probs);
    mbarrier_wait(&shared.k_full[state.index()], state.phase());  // K of this tile has arrived
    wgmma_fence();  // for the first turn: in others that of start_pv_of() covers S, too
    start_qk<T, HEAD_DIM, BLOCK_N>(s[0], shared.q[consumer], shared.k[state.index()]);
    // The last turn of all is not passed on: nobody waits for it.
    if (tile + 1 < tile_count || consumer + 1 < CONSUMERS) pass_turn<CONSUMERS>(consumer);
    wgmma_wait<0>(s[0], o[0]);  // S of this tile is complete, and O of the previous one
    release(shared.k_empty, state);
    if (tile > 0) release(shared.v_empty, state.previous());
    ++state;

    if ((tile + 1) * BLOCK_N > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_row, tile * BLOCK_N);
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
    start_pv_of(tail_probs);
  } else if (tile_count > 0) {
    start_pv_of(probs);
  }
  wgmma_wait<0>(o[0]);  // O is complete
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

  // [roles]
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
  // [roles]

  const int consumer = warpgroup - 1, warp = threadIdx.x / WARP_SIZE % 4;
  const int first_row = first_q + consumer * Tile::CONSUMER_ROWS + 16 * warp;  // of this warp
  // [0][0] belongs to row lane / 4 of this warp, [0][1] to the row 8 below.
  float m[1][2] = {{-INFINITY, -INFINITY}};  // running maximum of score * scale * log2(e)
  float l[1][2] = {};                        // running sum of this lane's probabilities
  float o[1][HEAD_DIM / MMA_N][4] = {};
  mbarrier_wait(&shared.q_full, 0);  // Q has arrived
  attend(shared, problem, consumer, first_row, key_end, o, m, l);

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
