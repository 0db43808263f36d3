/**
 * @file
 * Step 17g: masks of one span of keys for each query, for training on packed documents.
 *
 * The idea: a mask says of each query which keys it attends to. A thread block of a backward pass
 * owns keys, and needs the reverse: which queries attend to them. So small kernels transpose the
 * spans once per mask: they list the tiles of queries of each block of keys, and mark those in
 * which elements have to be masked.
 *
 * What changed since step 17c:
 * - The loading thread goes through a list of tiles. It leaves the next tile in shared memory for
 *   all others, and loads spans only for tiles that are marked.
 * - In the first and the last tile of a list, a consumer may have nothing to do: it skips the tile,
 *   and dQ is then a product with half of the keys.
 * - Blocks of keys are sorted by the length of their lists, the longest first, under every mask.
 *
 * What it costs: 8 bytes for each tile of queries of a list, and a copy of all spans.
 *
 * Longer than other steps: the kernels in device/key_plans.cuh make the lists for this step alone.
 * They run once per mask and can be read apart from the pass.
 *
 * What to look at: where a tile is read that the loading thread has written, and why it is still
 * there.
 */
#include <math.h>

#include "backward.h"
#include "block_mask.h"
#include "device/add_dq.cuh"
#include "device/backward_fours.cuh"
#include "device/backward_groups.cuh"
#include "device/backward_hopper.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_maps.cuh"
#include "device/backward_rows.cuh"
#include "device/backward_store.cuh"
#include "device/backward_tile.cuh"
#include "device/dq_sums.cuh"
#include "device/key_plans.cuh"
#include "device/log2.cuh"
#include "device/pipeline.cuh"
#include "device/ptx_hopper.cuh"
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
  static constexpr int TILE_SLOTS = 4;                       // see compute_dq()
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
  alignas(128) KeySpan spans[STAGES][BLOCK_M];
  MarkedTile tiles[Tiles<HEAD_DIM>::TILE_SLOTS];
  uint64_t kv_full;                                  // K and V have arrived
  uint64_t q_full[STAGES], do_full[STAGES];          // Q, LSE and spans have; dO and D have
  uint64_t ds_full[DS_STAGES], ds_empty[DS_STAGES];  // dS^T has been written; read
};

/** The list of a block of keys. */
struct KeyList {
  const MarkedTile *tiles; /**< the tiles of queries */
  int count;               /**< of them */
  int skipped;             /**< KeyPlan::skipped */

  /** The first tile that a consumer needs. */
  __device__ __forceinline__ int begin(int consumer) const { return skipped >> consumer & 1; }
  /** One past the last. */
  __device__ __forceinline__ int end(int consumer) const {
    return count - (skipped >> (2 + consumer) & 1);
  }
};

/** The tensor maps of a pass, and the plans. */
struct MaskedMaps : BackwardMaps {
  CUtensorMap spans; /**< boxes of the spans of a tile of queries */
  KeyPlans plans;    /**< of the mask */
};

// [load]
/** Asks for a tile of queries, and leaves it where all threads of the block find it. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_queries(Shared<T, HEAD_DIM> &shared, const MaskedMaps &maps,
                                             const Problem &problem, PassHeads heads,
                                             KeyBlock block, MarkedTile tile,
                                             PipelineState<Tiles<HEAD_DIM>::STAGES> loaded) {
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  const int stage = loaded.index(), q = tile.first_q();
  const int batch = block.first_head / problem.q_heads;
  const int head = block.first_head % problem.q_heads + tile.head;  // of the batch entry
  const int row = 2 * (block.first_head + tile.head - heads.first);
  const bool masked = tile.masked(0) || tile.masked(1);
  uint64_t *const q_full = &shared.q_full[stage], *const do_full = &shared.do_full[stage];
  shared.tiles[loaded.count % Tiles<HEAD_DIM>::TILE_SLOTS] = tile;
  load_numbers(shared.lse_log2[stage], maps.numbers, q_full, row, q);
  mbarrier_arrive_expect(q_full, sizeof *shared.q + (masked ? sizeof *shared.spans : 0));
  load_rows<HEAD_DIM, BLOCK_M>(shared.q[stage], maps.q, q_full, q, head, batch);
  if (masked) {
    const int mask = mask_of_head(maps.plans, batch, head);
    tma_load(shared.spans[stage], maps.spans, q_full, 0, mask * maps.plans.q_tiles + q / BLOCK_M, 0,
             0);
  }
  load_numbers(shared.d[stage], maps.numbers, do_full, row + 1, q);
  mbarrier_arrive_expect(do_full, sizeof *shared.d_o);
  load_rows<HEAD_DIM, BLOCK_M>(shared.d_o[stage], maps.d_o, do_full, q, head, batch);
}
// [load]

// [dq]
/** What the third warpgroup does: dQ of all tiles, and all loads. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void compute_dq(Shared<T, HEAD_DIM> &shared, const MaskedMaps &maps,
                                           const Problem &problem, void *workspace, PassHeads heads,
                                           KeyBlock block, KeyList list) {
  constexpr int STAGES = Tiles<HEAD_DIM>::STAGES, BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  PipelineState<STAGES> loaded;
  MarkedTile ahead;  // the next tile to load: read early, because it comes from device memory
  const auto load_next = [&]() {
    load_queries(shared, maps, problem, heads, block, ahead, loaded);
    ++loaded;
    if ((int)loaded.count < list.count) ahead = list.tiles[loaded.count];
  };
  if (threadIdx.x == 0) {
    load_keys(shared, maps, problem, block);
    if (list.count > 0) ahead = list.tiles[0];
    for (int i = 0; i < STAGES && i < list.count; i++) load_next();
  }
  mbarrier_wait(&shared.kv_full, 0);
  PipelineState<Tiles<HEAD_DIM>::DS_STAGES> state;
  for (int i = 0; i < list.count; i++, ++state) {
    const int stage = state.index();
    // A bit for the consumer that has no keys.
    const int skipped = i == 0 ? list.skipped & 3 : i + 1 < list.count ? 0 : list.skipped >> 2;
    int first_q = 0;
    float *sums = NULL;
    mbarrier_wait(&shared.ds_full[stage], state.phase());
#pragma unroll
    for (int part = 0; part < 2; part++) {  // at D = 64 of the rows, at D = 128 of the columns
      const int row = BLOCK_M > 64 ? 64 * part : 0, column = BLOCK_M > 64 ? 0 : 64 * part;
      float dq[1][64 / MMA_N][4];
      const T *const ds = shared.ds[stage][row / 64];
      if (skipped == 0) {
        wgmma_fence();
        start_dq<T, HEAD_DIM, BLOCK_N>(dq[0], ds, shared.k[0] + 64 * column);
      } else {
        const int other = 2 - skipped;  // the consumer with keys
        wgmma_fence();
        start_dq<T, HEAD_DIM, 64>(dq[0], ds + other * 64 * 64, shared.k[other] + 64 * column);
      }
      if (part == 0) {  // beside the product
        // All consumers have written dS^T of this tile, so they have done with the tile before.
        // All warps here have done with tile i - 2: its slot is free for tile i + 2.
        if (threadIdx.x == 0 && i > 0 && i + STAGES - 1 < list.count) load_next();
        const MarkedTile tile = shared.tiles[i % Tiles<HEAD_DIM>::TILE_SLOTS];
        const int head = block.first_head + tile.head - heads.first;
        first_q = tile.first_q() + 16 * warp;
        sums = dq_sums(problem, workspace, heads.count, head) + first_q * HEAD_DIM + lane * 4;
      }
      wgmma_wait<0>(dq[0]);
      if (part == 1) {
        __syncwarp();  // all lanes have read `tile`
        release(shared.ds_empty, state);
      }
      add_to_sums<HEAD_DIM / 8>(sums + row * HEAD_DIM + column * 16, dq,
                                problem.q_len - first_q - row);
    }
  }
}
// [dq]

// [spans]
/** Masks S^T. Row 0 is key first_key; `spans` are those of the queries of its columns. */
template <int N>
__device__ __forceinline__ void apply_spans(float (&s)[N][4], const KeySpan *spans, int first_key) {
  const int lane = fresh_lane(), key = first_key + lane / 4;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int4 two = *(const int4 *)&spans[8 * n + lane % 4 * 2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int own = key + j / 2 * 8, first = j % 2 == 0 ? two.x : two.z;
      const int end = j % 2 == 0 ? two.y : two.w;
      if (own < first || own >= end) s[n][j] = -INFINITY;
    }
  }
}
// [spans]

// [skip]
/** What a consumer does with tile `number` of a list if it has no element there: it waits for the
 * loads, as the phases of their barriers go on, and lets the third warpgroup go on. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void skip_queries(Shared<T, HEAD_DIM> &shared, uint32_t number) {
  const PipelineState<Tiles<HEAD_DIM>::STAGES> state = {number};
  const PipelineState<Tiles<HEAD_DIM>::DS_STAGES> ds_state = {number};
  mbarrier_wait(&shared.q_full[state.index()], state.phase());
  mbarrier_wait(&shared.do_full[state.index()], state.phase());
  mbarrier_wait(&shared.ds_empty[ds_state.index()], ds_state.phase() ^ 1);
  __syncwarp();  // all lanes have seen this
  release(shared.ds_full, ds_state);
}
// [skip]

/** What a consumer does: dV and dK of its 64 keys, and their dS^T. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const MaskedMaps &maps,
                                        const Problem &problem, KeyBlock block, KeyList list,
                                        int consumer) {
  constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M, N = BLOCK_M / MMA_N;
  const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE % 4, 0);
  const int row = 64 * consumer + 16 * warp;  // of S^T: the first of this warp
  const float scale_log2 = problem.scale * LOG2_E;
  float dv[1][HEAD_DIM / MMA_N][4] = {}, dk[1][HEAD_DIM / MMA_N][4] = {};
  uint32_t p[N / 2][4];  // P^T of a tile, rounded
  PipelineState<Tiles<HEAD_DIM>::STAGES> state;
  bool masked = false;  // some elements of the next tile; read before its product, not behind it
  const auto start_s = [&](float(&s)[N][4]) {
    mbarrier_wait(&shared.q_full[state.index()], state.phase());
    masked = shared.tiles[state.count % Tiles<HEAD_DIM>::TILE_SLOTS].masked(consumer);
    wgmma_fence();  // other instructions have used these registers
    start_qk<T, HEAD_DIM, BLOCK_M>(s, shared.k[consumer], shared.q[state.index()]);
  };
  const auto finish_s = [&](float(&s)[N][4]) {
    if (masked) apply_spans(s, shared.spans[state.index()], block.first_key + row);
    to_p<T>(s, shared.lse_log2[state.index()], scale_log2);
    pack_probs<T>(p, s);
  };
  const int begin = list.begin(consumer), end = list.end(consumer);
  mbarrier_wait(&shared.kv_full, 0);
  if (begin > 0) skip_queries(shared, 0), ++state;
  if (begin < end) {
    float s[N][4];
    start_s(s);
    wgmma_wait<0>(s);
    finish_s(s);
  }
  for (int i = begin; i < end; i++) {
    const PipelineState<Tiles<HEAD_DIM>::DS_STAGES> ds_state = {state.count};
    const int stage = state.index(), ds_stage = ds_state.index();
    float dp[N][4], next_s[N][4];  // dP^T, then dS^T; S^T of the next tile
    uint32_t ds[N / 2][4];
    mbarrier_wait(&shared.do_full[stage], state.phase());
    wgmma_fence();  // P^T is in its registers
    start_qk<T, HEAD_DIM, BLOCK_M>(dp, shared.v[consumer], shared.d_o[stage]);
    start_pv<T, HEAD_DIM, BLOCK_M>(dv[0], p, shared.d_o[stage]);  // dV += P^T dO
    wgmma_wait<1>(dp);                                            // dV may still run
    to_ds<T>(dp, p, shared.d[stage]);
    pack_probs<T>(ds, dp);
    mbarrier_wait(&shared.ds_empty[ds_stage], ds_state.phase() ^ 1);
    write_ds(shared.ds[ds_stage], ds, row, &shared.ds_full[ds_stage]);
    if (i + 1 < end) ++state;
    start_s(next_s);  // after the last tile once more the same
    start_dk<T, HEAD_DIM, BLOCK_M>(dk[0], ds, shared.ds[ds_stage], 64 * consumer, shared.q[stage],
                                   1 + consumer);
    wgmma_wait<1>(dv[0], next_s);  // dK may still run
    finish_s(next_s);
    wgmma_wait<0>(dk[0]);
  }
  if (end < list.count) skip_queries(shared, end);
  store_by_tma(shared, maps, problem, block, consumer, warp, dv[0], dk[0]);
}

// [order]
/** The work of thread block `number`: of several heads, whose Q, dO and sums of dQ fit the L2 cache
 * together, the longest lists come first. */
template <int HEAD_DIM>
__device__ __forceinline__ KeyBlock long_list_first(const Problem &problem, const KeyPlans &plans,
                                                    PassHeads heads, int number, KeyList *list) {
  constexpr int CACHED_ELEMENTS = (32 << 20) / 8;  // 8 bytes for each
  const int kv_heads = heads.count / plans.q_heads;
  const int fit = CACHED_ELEMENTS / HEAD_DIM / problem.q_len / plans.q_heads;
  const int section = max(1, min(fit, kv_heads));
  const int first = number / (section * plans.key_blocks) * section;
  const int size = min(section, kv_heads - first), rest = number - first * plans.key_blocks;
  const int head = heads.first + (first + rest % size) * plans.q_heads;
  const int group = head / problem.q_heads % plans.batches * plans.kv_heads +
                    head % problem.q_heads / plans.q_heads % plans.kv_heads;
  const KeyPlan plan = plans.plans[(int64_t)group * plans.key_blocks + rest / size];
  *list = {list_of_block(plans, group, plan.block), plan.tiles, plan.skipped};
  return {plan.block * plans.block_n, head};
}
// [order]

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads,
                    const __grid_constant__ MaskedMaps maps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;
  KeyList list;
  const KeyBlock block = long_list_first<HEAD_DIM>(problem, maps.plans, heads, blockIdx.x, &list);

  if (threadIdx.x == 0) {
    mbarrier_init(&shared.kv_full, 1);
    for (int i = 0; i < Tiles<HEAD_DIM>::STAGES; i++) {  // two arrivals: of a tile, of its numbers
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
    compute_dq(shared, maps, problem, t.workspace, heads, block, list);
  } else {
    setmaxnreg_inc<CONSUMER_REGISTERS>();
    consume(shared, maps, problem, block, list, warpgroup - 1);
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
     {"backward", NULL, SHARE_KEYS, Tile::BLOCK_N, THREADS, sizeof(Shared<T, HEAD_DIM>), NULL,
      backward_kernel<T, HEAD_DIM>},
     {"convert_dq", convert_dq_kernel<T, HEAD_DIM>, SHARE_SUMS, 0, ROWS_THREADS, 0}}};

static constexpr BackwardConfig CONFIGS[] = {CONFIG<__half, 64>, CONFIG<__half, 128>,
                                             CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>};

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  const BackwardConfig *config = find_backward<CONFIGS>(problem);
  MaskedMaps maps;
  cudaError_t error = make_backward_maps(&maps, problem, t, heads, config->block_m, 64);
  if (error != cudaSuccess) return error;
  maps.plans = lay_out_key_plans(problem, t->block_mask, config, t->prepared);
  error = make_key_spans_map(&maps.spans, maps.plans);
  if (error != cudaSuccess) return error;
  const auto launch = [&](const KernelLaunch &l, PassHeads pass) {
    if (l.dynamic_shared_bytes > 0) {
      const auto kernel = (MaskedKernel)l.kernel;
      kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass, maps);
    } else {
      const auto kernel = (BackwardKernel)l.kernel;
      kernel<<<l.grid, l.block, 0, stream>>>(*problem, *t, pass);
    }
  };
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch, clear_dq_sums);
}

static size_t prepared_bytes(const Problem *problem, const BlockMask *mask) {
  return lay_out_key_plans(problem, mask, find_backward<CONFIGS>(problem), NULL).bytes;
}

// [prepare]
static cudaError_t prepare(const Problem *problem, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  const KeyPlans plans =
      lay_out_key_plans(problem, mask, find_backward<CONFIGS>(problem), prepared);
  const int64_t queries = (int64_t)plans.batches * plans.heads * plans.q_tiles * plans.block_m;
  const int64_t blocks = (int64_t)plans.batches * plans.kv_heads * plans.key_blocks;
  copy_spans_kernel<<<plan_blocks(queries), PLAN_THREADS, 0, stream>>>(*problem, *mask, plans);
  list_tiles_kernel<<<blocks, WARP_SIZE, 0, stream>>>(plans);
  sort_plans_kernel<<<plan_blocks(blocks), PLAN_THREADS, 0, stream>>>(plans);
  return cudaGetLastError();
}
// [prepare]

static const BlockMaskSupport BLOCK_MASKS = {
    .prepared_bytes = prepared_bytes, .prepare = prepare, .takes_spans = true};

const Step step = {
    .name = "step17g",
    .after = "step17c",
    .title = "Masks of one span of keys, backward",
    .idea = "The spans are transposed: each block of keys has a list of the queries that see it.",
    .head_dims = "D = 64 or 128",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
    .block_masks = &BLOCK_MASKS,
};
