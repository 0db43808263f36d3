/**
 * @file
 * Step 07 opens a chapter: wgmma and TMA, which compute capability 9.0 (Hopper) added.
 *
 * The idea: mma.sync reaches two thirds of what these tensor cores can do. wgmma is made for all of
 * it: four warps, a warpgroup, multiply 64 rows at a time, and read their operands from shared
 * memory without registers in between. The tensor memory accelerator (TMA) fills that shared
 * memory: one thread asks for a whole tile, and a barrier in shared memory counts its bytes.
 *
 * What changed since step 04: all but the masks, the softmax and the store of O.
 *
 * What it costs: only Hopper runs this kernel, and its products need fences and waits in order.
 *
 * What to look at: each wait. A tile has arrived when its "full" barrier has ended a phase; it may
 * be overwritten when all warps have arrived at its "empty" barrier.
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

// [tiles]
/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int WARPGROUPS = HEAD_DIM == 96 || HEAD_DIM == 128 ? 3 : 2;
  static constexpr int THREADS = WARPGROUPS * WARPGROUP_THREADS;
  static constexpr int CONSUMER_ROWS = 64;                    // rows of Q of a warpgroup
  static constexpr int BLOCK_M = WARPGROUPS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 128 ? 128 : 64;  // rows of K and V
  static constexpr int BLOCKS_PER_SM = HEAD_DIM <= 64 ? 2 : 1;
  static constexpr int STAGES = 2;  // tiles of K, and of V, in flight

  // O of a warpgroup is collected in the place of Q, in padded rows: in so many elements.
  static constexpr int Q_ELEMENTS = (CONSUMER_ROWS * SMEM_STRIDE<HEAD_DIM> + 511) / 512 * 512;
};
// [tiles]

// [shared_memory]
/** Shared memory of a thread block. Swizzled tiles must begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) T q[Tile::WARPGROUPS][Tile::Q_ELEMENTS];
  alignas(1024) T k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) T v[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  uint64_t q_full;                                       // Q has arrived
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];  // a tile has arrived; has been read
  uint64_t v_full[Tile::STAGES], v_empty[Tile::STAGES];
};

/** One thread sets up the barriers: a TMA load fills a tile, and then `warps` warps read it. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void init_barriers(Shared<T, HEAD_DIM> &shared, int warps) {
  mbarrier_init(&shared.q_full, 1);
  for (int stage = 0; stage < Tiles<HEAD_DIM>::STAGES; stage++) {
    mbarrier_init(&shared.k_full[stage], 1);
    mbarrier_init(&shared.v_full[stage], 1);
    mbarrier_init(&shared.k_empty[stage], warps);  // one thread of each warp arrives
    mbarrier_init(&shared.v_empty[stage], warps);
  }
}
// [shared_memory]

// [descriptor]
/** Bytes in the units of a descriptor. Added to one, it moves its first element. */
__host__ __device__ constexpr uint64_t units(int bytes) {
  return (uint64_t)(bytes >> 4);
}

/** Describes to wgmma a matrix in shared memory that TMA has written: PANEL columns side by side in
 * rows of 128 or 64 bytes, swizzled. `start` is its first element. The hardware adds the swizzle to
 * every address that it computes, so a part of a panel is described by where it starts. Bits 0-13:
 * the address; 16-29: bytes to the next panel, where the instruction needs several; 32-45: bytes to
 * the next 8 rows; 62-63: the swizzle. The first three are in units of 16 bytes (9.7.15.5.1.2). */
template <int HEAD_DIM, typename T>
__device__ __forceinline__ uint64_t wgmma_descriptor(const T *start, int panel_bytes) {
  constexpr int ROW_BYTES = 2 * PANEL<HEAD_DIM>;
  constexpr uint64_t SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
  return (shared_address(start) & 0x3ffff) >> 4 | units(panel_bytes) << 16 |
         units(8 * ROW_BYTES) << 32 | SWIZZLE << 62;
}
// [descriptor]

// [multiply_qk]
/** Starts S = Q K^T for 64 rows of Q. Of both operands the columns d to d + 15 are described. */
template <typename T, int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void start_qk(float (&s)[BLOCK_N / MMA_N][4], const T *q_group,
                                         const T *k_tile) {
  constexpr int PANEL_COLUMNS = PANEL<HEAD_DIM>;
  const uint64_t q = wgmma_descriptor<HEAD_DIM>(q_group, 0);
  const uint64_t k = wgmma_descriptor<HEAD_DIM>(k_tile, 0);
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 16) {
    const int panel = d / PANEL_COLUMNS, column = d % PANEL_COLUMNS;
    wgmma<T, false>(s, q + units(2 * (panel * 64 * PANEL_COLUMNS + column)),
                    k + units(2 * (panel * BLOCK_N * PANEL_COLUMNS + column)), d > 0);
  }
  wgmma_commit();
}
// [multiply_qk]

// [multiply_pv]
/** Starts O += P V. P comes from registers; of V the rows `key` to `key` + 15 are described, with
 * all columns. The instruction transposes them, so that 16 keys of a column are together. */
template <typename T, int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void start_pv(float (&o)[HEAD_DIM / MMA_N][4],
                                         const uint32_t (&probs)[BLOCK_N / MMA_K][4],
                                         const T *v_tile) {
  constexpr int PANEL_COLUMNS = PANEL<HEAD_DIM>;
  const uint64_t v = wgmma_descriptor<HEAD_DIM>(v_tile, 2 * BLOCK_N * PANEL_COLUMNS);
#pragma unroll
  for (int key = 0; key < BLOCK_N; key += 16) {
    wgmma<T, true>(o, probs[key / 16], v + units(2 * key * PANEL_COLUMNS), true);
  }
  wgmma_commit();
}
// [multiply_pv]

// [pack_probs]
/** S and P of a warpgroup, in the same registers: there are not enough for both. */
template <int BLOCK_N>
union ScoresOrProbs {
  float s[1][BLOCK_N / MMA_N][4];
  uint32_t probs[BLOCK_N / MMA_K][4];
};

/** Replaces S by P in the type of V: two neighbouring fragments of S are operand A of one wgmma. */
template <typename T, int BLOCK_N>
__device__ __forceinline__ void pack_probs(ScoresOrProbs<BLOCK_N> &both) {
#pragma unroll
  for (int i = 0; i < BLOCK_N / MMA_K; i++) {
    const float *const left = both.s[0][2 * i], *const right = both.s[0][2 * i + 1];
    const uint32_t packed[4] = {pack<T>(left[0], left[1]), pack<T>(left[2], left[3]),
                                pack<T>(right[0], right[1]), pack<T>(right[2], right[3])};
#pragma unroll
    for (int c = 0; c < 4; c++) both.probs[i][c] = packed[c];  // where tile i of S was
  }
}
// [pack_probs]

// [load_rows]
/** Asks for ROWS rows of a head, from row `row` on, panel by panel. All bytes count for `barrier`,
 * those of rows past the end too. */
template <int HEAD_DIM, int ROWS, typename T>
__device__ __forceinline__ void load_rows(T *target, const CUtensorMap &map, uint64_t *barrier,
                                          int row, int head, int batch) {
  constexpr int PANEL_COLUMNS = PANEL<HEAD_DIM, sizeof(T)>;
#pragma unroll
  for (int column = 0; column < HEAD_DIM; column += PANEL_COLUMNS) {
    tma_load(target + ROWS * column, map, barrier, column, row, head, batch);
  }
}

/** Asks for the tile of Q: CONSUMER_ROWS rows for each warpgroup. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void load_q(Shared<T, HEAD_DIM> &shared, const CUtensorMap &map,
                                       int first_q, int head, int batch) {
  using Tile = Tiles<HEAD_DIM>;
  mbarrier_arrive_expect(&shared.q_full, 2 * Tile::BLOCK_M * HEAD_DIM);
  for (int group = 0; group < Tile::WARPGROUPS; group++) {
    load_rows<HEAD_DIM, Tile::CONSUMER_ROWS>(shared.q[group], map, &shared.q_full,
                                             first_q + group * Tile::CONSUMER_ROWS, head, batch);
  }
}
// [load_rows]

// [load_tile]
/** Asks for a tile of K or V when its stage is empty: the first warp waits, and thread 0 asks. The
 * first use of a stage need not wait, and its wait for parity 1 does not. */
template <int HEAD_DIM, typename T, int STAGES, int ELEMENTS>
__device__ __forceinline__ void load_tile(T (&tiles)[STAGES][ELEMENTS], const CUtensorMap &map,
                                          uint64_t (&full)[STAGES], uint64_t (&empty)[STAGES],
                                          int tile, int kv_head, int batch) {
  constexpr int ROWS = ELEMENTS / HEAD_DIM;
  const int stage = tile % STAGES;
  mbarrier_wait(&empty[stage], (tile / STAGES & 1) ^ 1);
  if (threadIdx.x != 0) return;
  mbarrier_arrive_expect(&full[stage], sizeof *tiles);
  load_rows<HEAD_DIM, ROWS>(tiles[stage], map, &full[stage], tile * ROWS, kv_head, batch);
}
// [load_tile]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, Tiles<HEAD_DIM>::BLOCKS_PER_SM)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ TensorMaps maps) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int STAGES = Tile::STAGES, BLOCK_N = Tile::BLOCK_N;
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::BLOCK_M;
  const int head_index = blockIdx.x / q_tiles;
  const int batch = head_index / problem.q_heads, head = head_index % problem.q_heads;
  const int kv_head = head / (problem.q_heads / problem.kv_heads);
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  const int tile_count = (key_end + BLOCK_N - 1) / BLOCK_N;

  // [barriers]
  if (threadIdx.x == 0) {
    init_barriers(shared, 4 * Tile::WARPGROUPS);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers
  // [barriers]

  // The first warp asks for tiles of K and V.
  const bool loads = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE, 0) == 0;
  const auto load = [&](auto &tiles, const CUtensorMap &map, auto &full, auto &empty, int tile) {
    if (tile < tile_count) load_tile<HEAD_DIM>(tiles, map, full, empty, tile, kv_head, batch);
  };

  // [first_loads]
  if (threadIdx.x == 0) {
    load_q(shared, maps.q, first_q, head, batch);
    for (int tile = 0; tile < STAGES; tile++) {
      load(shared.k, maps.k, shared.k_full, shared.k_empty, tile);
      if (tile < STAGES - 1) load(shared.v, maps.v, shared.v_full, shared.v_empty, tile);
    }
  }
  // [first_loads]

  // The same for all lanes of a warp, and the compiler can see it: descriptors need no registers.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  const int warp = threadIdx.x / WARP_SIZE % 4;
  const int first_row = first_q + warpgroup * Tile::CONSUMER_ROWS + 16 * warp;  // of this warp
  const bool releases = threadIdx.x % WARP_SIZE == 0;  // one thread of each warp

  // [0][0] belongs to row lane / 4 of this warp, [0][1] to the row 8 below.
  float m[1][2] = {{-INFINITY, -INFINITY}};  // running maximum of score * scale * log2(e)
  float l[1][2] = {};                        // running sum of this lane's probabilities
  float o[1][HEAD_DIM / MMA_N][4] = {};
  const float scale_log2 = problem.scale * LOG2_E;
  // Every row of this warp attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_row);
  mbarrier_wait(&shared.q_full, 0);  // Q has arrived

  // [loop]
  for (int tile = 0; tile < tile_count; tile++) {
    const int stage = tile % STAGES, parity = tile / STAGES & 1;
    const int first_key = tile * BLOCK_N;

    ScoresOrProbs<BLOCK_N> both;
    mbarrier_wait(&shared.k_full[stage], parity);  // K of this tile has arrived
    wgmma_fence();                                 // the last softmax has read and written S
    start_qk<T, HEAD_DIM, BLOCK_N>(both.s[0], shared.q[warpgroup], shared.k[stage]);
    wgmma_wait<0>(both.s[0]);                               // S is complete
    if (releases) mbarrier_arrive(&shared.k_empty[stage]);  // this warp is done with K

    if (first_key + BLOCK_N > unmasked_end) {
      apply_mask(both.s, problem, problem.mask == MASK_CAUSAL, first_row, first_key);
    }
    update_softmax(both.s, m, l, o, scale_log2);
    pack_probs<T>(both);

    mbarrier_wait(&shared.v_full[stage], parity);  // V of this tile has arrived
    wgmma_fence();                                 // P and O were written by other instructions
    start_pv<T, HEAD_DIM, BLOCK_N>(o[0], both.probs, shared.v[stage]);

    // While P V runs: the K after next goes where this K was, and the next V where the last one
    // was, as the other warpgroups are likely to have read them by now.
    if (loads) {
      load(shared.k, maps.k, shared.k_full, shared.k_empty, tile + STAGES);
      load(shared.v, maps.v, shared.v_full, shared.v_empty, tile + STAGES - 1);
    }
    wgmma_wait<0>(o[0]);                                    // O is complete
    if (releases) mbarrier_arrive(&shared.v_empty[stage]);  // this warp is done with V
  }
  // [loop]

  // Each warp has waited for its products. When all four have, nothing reads their Q any more.
  named_barrier_sync<WARPGROUP_THREADS>(1 + warpgroup);
  const HeadOffsets offset = head_offsets(problem, head_index);
  T *o_warp = shared.q[warpgroup] + 16 * warp * SMEM_STRIDE<HEAD_DIM>;
  store_rows<T, HEAD_DIM>(o, m, l, o_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_row, problem.q_len);
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
    .name = "step07",
    .after = "step04",
    .title = "wgmma and TMA: the instructions of Hopper",
    .idea = "Warpgroups multiply tiles in shared memory that TMA has filled.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
