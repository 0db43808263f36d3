/**
 * @file
 * Step 10d: D = 256, where O takes slots of V.
 *
 * The idea: Q and two stages of K and V fill shared memory, so O needs the place of something else.
 * In the place of Q it would delay the next Q, and so the first product of the next tile of
 * queries. In slots of V it delays the next V, which is needed later, after product and softmax.
 *
 * What changed since step 10c, which has no room for D = 256:
 * - After the last V of a tile of queries, the O of each consumer goes through the pipeline of V,
 *   as if it were one more tile of V. So the state of V has a larger count than that of K.
 * - The producer grants a slot when no product reads its V. It is released when TMA has read O.
 * - The first V waits for the previous O. So that no K does, each K comes before the previous V.
 * - Two consumers: O alone takes 128 registers. And short last tiles, as in step 08.
 *
 * What it costs: all parts of the kernel must count V and O in the same order.
 *
 * What to look at: who waits at v_full and v_empty for a slot that has O in it.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/lazy_softmax.cuh"
#include "device/overlap.cuh"
#include "device/pipeline.cuh"
#include "device/producer.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
#include "device/skip_tile.cuh"
#include "device/store_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static_assert(HEAD_DIM == 256, "with smaller head dimensions, O has a place of its own");
  static constexpr int CONSUMERS = 2, O_SLOTS = CONSUMERS;  // warpgroups; slots of V for their O
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int CONSUMER_ROWS = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = 80;                         // rows of K and V
  static constexpr int TAIL_N = 64;                          // keys of a short last tile
  static constexpr int STAGES = 2;                           // tiles of K, and of V, in flight
  static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());
};

/** Shared memory of a thread block. Tiles that TMA swizzles begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::CONSUMERS][Tile::CONSUMER_ROWS * HEAD_DIM];
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];  // and O
  WorkTile work[2];                      // this tile of queries and the next one
  uint64_t work_full[2], work_empty[2];  // it has been written; has been read
  uint64_t q_full[Tile::CONSUMERS], q_empty[Tile::CONSUMERS];  // Q has arrived; has been read
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];        // a tile has arrived; has been read
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

// [o_slots]
/** The state of V for a tile whose K has the state `k`, in work tile number `work_count` of this
 * block: each work tile before has put the O of all consumers through the pipeline of V, too. */
template <int HEAD_DIM>
__device__ __forceinline__ PipelineState<Tiles<HEAD_DIM>::STAGES> v_state(
    PipelineState<Tiles<HEAD_DIM>::STAGES> k, uint32_t work_count) {
  return {k.count + Tiles<HEAD_DIM>::O_SLOTS * work_count};
}

/** The producer grants each consumer a slot for its O of work tile `work_count` - 1: these slots
 * come right before the first V of work tile `work_count`, whose first K has the state `k`. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void grant_o_slots(Shared<T, HEAD_DIM> &shared,
                                              PipelineState<Tiles<HEAD_DIM>::STAGES> k,
                                              uint32_t work_count) {
  if (work_count == 0) return;
  auto o_slot = v_state<HEAD_DIM>(k, work_count - 1);
  for (int i = 0; i < Tiles<HEAD_DIM>::O_SLOTS; i++, ++o_slot) {
    mbarrier_wait(&shared.v_empty[o_slot.index()], o_slot.phase() ^ 1);  // no product reads V
    mbarrier_arrive(&shared.v_full[o_slot.index()]);
  }
}

/** A consumer releases the slots that were granted for the O of work tile `work_count` - 1, when
 * TMA has read its own O: those of the others, too, because the empty barriers count all consumers.
 * `k` and `work_count` as above. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void release_o_slots(Shared<T, HEAD_DIM> &shared,
                                                PipelineState<Tiles<HEAD_DIM>::STAGES> k,
                                                uint32_t work_count) {
  if (work_count == 0) return;
  auto o_slot = v_state<HEAD_DIM>(k, work_count - 1);
  for (int i = 0; i < Tiles<HEAD_DIM>::O_SLOTS; i++, ++o_slot) {
    if (threadIdx.x % WARP_SIZE == 0) tma_store_wait<0>();
    skip_tile(shared.v_full, shared.v_empty, o_slot);
  }
}
// [o_slots]

// [producer]
/** What the one producing thread does: as in step 10b, but each K comes before the previous V. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void produce_k_ahead(Shared<T, HEAD_DIM> &shared, const TensorMaps &maps,
                                                const Problem &problem,
                                                const TileScheduler &scheduler) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  PipelineState<Tile::STAGES> state;
  PipelineState<2> work_state;
  for (int index = blockIdx.x;; ++work_state) {
    const WorkTile work = find_work<HEAD_DIM>(problem, scheduler, index);
    mbarrier_wait(&shared.work_empty[work_state.index()], work_state.phase() ^ 1);  // all read it
    shared.work[work_state.index()] = work;
    mbarrier_arrive(&shared.work_full[work_state.index()]);
    if (work.key_end < 0) break;

    const int kv_head = work.head / (problem.q_heads / problem.kv_heads);
    const auto load_k = [&](PipelineState<Tile::STAGES> k, int first_key) {
      load_tile<HEAD_DIM, BLOCK_N>(shared.k, maps.k, shared.k_full, shared.k_empty, k, first_key,
                                   kv_head, work.batch);
    };
    load_q(shared, maps.q, 0, work, work_state.count);
    for (int first_key = 0; first_key < work.key_end; first_key += BLOCK_N, ++state) {
      const int next_key = first_key + BLOCK_N;
      // Not earlier: a block that is late must not take a tile that a free one could begin.
      if (next_key >= work.key_end) index = take_next(scheduler);
      if (first_key == 0) {
        load_k(state, 0);
        load_q(shared, maps.q, 1, work, work_state.count);
      }
      if (next_key < work.key_end) load_k({state.count + 1}, next_key);
      if (first_key == 0) grant_o_slots(shared, state, work_state.count);
      load_tile<HEAD_DIM, BLOCK_N>(shared.v, maps.v, shared.v_full, shared.v_empty,
                                   v_state<HEAD_DIM>(state, work_state.count), first_key, kv_head,
                                   work.batch);
    }
    if (work.key_end == 0) {
      load_q(shared, maps.q, 1, work, work_state.count);
      grant_o_slots(shared, state, work_state.count);
      index = take_next(scheduler);
    }
  }
  grant_o_slots(shared, state, work_state.count);
}
// [producer]

/** The loop over the tiles of keys 0 to `key_end` - 1: O, m and l of a consumer's rows. It releases
 * Q, and the slots of the previous O. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       int consumer, int first_row, int key_end,
                                       uint32_t work_count,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  constexpr int BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N, TAIL_N = Tiles<HEAD_DIM>::TAIL_N;
  const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N, last = tile_count - 1;
  const int unmasked_end = attended_keys(problem, first_row);
  const float scale_log2 = problem.scale * LOG2_E;
  uint32_t probs[BLOCK_N / MMA_K][4], tail_probs[TAIL_N / MMA_K][4];
  float rescale[2];
  const auto v_before = [&] { return v_state<HEAD_DIM>(state.previous(), work_count); };
  if (tile_count > 0) {
    float s[1][BLOCK_N / MMA_N][4];
    start_qk_of(s[0], shared, consumer, state);
    release_o_slots(shared, state, work_count);
    wgmma_wait<0>(s[0]);
    release(shared.k_empty, state);
    ++state;
    mask_tile(s, problem, first_row, 0, unmasked_end);
    softmax_of_tile(s[0], m, l, rescale, scale_log2);  // O is still 0
    pack_probs<T>(probs, s[0]);
  } else {
    release_o_slots(shared, state, work_count);
  }
  const auto overlap = [&](auto &s, int tile) {
    start_qk_of(s[0], shared, consumer, state);
    start_pv_of(o, probs, shared, v_before());
    wgmma_wait<1>(s[0]);  // S of this tile is complete; P V of the previous one may still run
    const bool raised = lazy_softmax<T, HEAD_DIM, BLOCK_N>(
        s[0], m, l, rescale, scale_log2, shared.q[consumer], shared.k[state.index()],
        [&] { mask_tile(s, problem, first_row, tile * BLOCK_N, unmasked_end); });
    release(shared.k_empty, state);
    wgmma_wait<0>(o);  // O is complete, and nothing reads P any more
    release(shared.v_empty, v_before());
    if (raised) rescale_rows(o, rescale);
    ++state;
  };
  const bool short_tail = last > 0 && key_end - last * BLOCK_N <= TAIL_N;
  for (int tile = 1; tile < tile_count - short_tail; tile++) {
    float s[1][BLOCK_N / MMA_N][4];
    overlap(s, tile);
    pack_probs<T>(probs, s[0]);
  }
  if (short_tail) {
    float s[1][TAIL_N / MMA_N][4];
    overlap(s, last);
    pack_probs<T>(tail_probs, s[0]);
  }
  // All products with Q are complete: the next Q may come.
  __syncwarp();  // without a tile no wgmma made the lanes meet: all have seen that Q has come
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&shared.q_empty[consumer]);
  if (tile_count > 0) {
    if (short_tail) {
      start_pv_of(o, tail_probs, shared, v_before());
    } else {
      start_pv_of(o, probs, shared, v_before());
    }
    wgmma_wait<0>(o);  // O is complete
    release(shared.v_empty, v_before());
  }
}

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
    float m[2] = {-FLT_MAX, -FLT_MAX};  // maximum of score * scale * log2(e) over some of the keys
    float l[2] = {};                    // running sum of this lane's probabilities
    float o[HEAD_DIM / MMA_N][4] = {};
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[consumer], q_state.phase());  // Q of this consumer has arrived
    attend(shared, problem, consumer, first_row, own_end, work_state.count, state, o, m, l);
    const int tiles_end = (own_end + BLOCK_N - 1) / BLOCK_N * BLOCK_N;
    for (int key = tiles_end; key < work.key_end; key += BLOCK_N, ++state) {
      skip_tile(shared.k_full, shared.k_empty, state);
      skip_tile(shared.v_full, shared.v_empty, v_state<HEAD_DIM>(state, work_state.count));
    }

    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    finish_rows(o, m, l, t.lse + head_index * problem.q_len, first_row, problem.q_len);
    const PipelineState<Tile::STAGES> o_slot = {v_state<HEAD_DIM>(state, work_state.count).count +
                                                consumer};
    mbarrier_wait(&shared.v_full[o_slot.index()], o_slot.phase());  // no product reads V there
    store_tile<HEAD_DIM>(o, shared.v[o_slot.index()] + 16 * warp * HEAD_DIM, maps.o, first_row,
                         work.head, work.batch);
    release(shared.work_empty, work_state);  // all lanes have read `work` before __syncwarp()
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until TMA has read it
}

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
    if (threadIdx.x == 0) produce_k_ahead(shared, maps.in, problem, scheduler);
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

static constexpr KernelConfig<ForwardMaps, TileScheduler> CONFIGS[] = {CONFIG<__half, 256>,
                                                                       CONFIG<__nv_bfloat16, 256>};

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
    .name = "step10d",
    .after = "step10c",
    .title = "D = 256: O in slots of V",
    .idea = "Where shared memory is full, O goes through the pipeline of V.",
    .head_dims = "D = 256",
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
};
