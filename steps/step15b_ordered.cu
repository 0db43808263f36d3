/**
 * @file
 * Step 15b: the same bits every time: thread blocks add to dQ in a fixed order.
 *
 * The idea: floating-point addition is not associative, so dQ of step 15 depends on the order in
 * which blocks add. Here 128 rows of dQ have a counter, the number of blocks that have added to
 * them. A block waits until the counter says that it is its turn, adds, and raises the counter.
 *
 * What changed since step 15: the last keys of a head come first, and the order of additions is the
 * same. Under the causal mask the block of these keys starts at the last queries, and a block of
 * earlier keys at earlier ones: when it comes to the queries of the block before, that one has just
 * added. Blocks of several heads start by turns, so that those that wait for each other do not
 * start together.
 *
 * What it costs: the longest blocks of a head come last, so at the end of the grid some SMs have
 * nothing to do. A turn is passed on by a release, which waits until the additions are done.
 *
 * What to look at: the two places where a turn is awaited and passed on. They need no barrier of
 * their own: the first is before the barrier for dS^T, the second after the first one of a tile.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_launch.cuh"
#include "device/backward_products.cuh"
#include "device/backward_rows.cuh"
#include "device/backward_tile.cuh"
#include "device/convert.cuh"
#include "device/dq_sums.cuh"
#include "device/heads.cuh"
#include "device/log2.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"

/** Sizes of the tiles. A block owns BLOCK_N keys and goes through tiles of BLOCK_M queries. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int SIDES = HEAD_DIM <= 128 ? 1 : 2;  // 2: dV and dK are in different warps
  static constexpr int WARPS = 4 * SIDES;
  static constexpr int KEY_FRAGMENTS = HEAD_DIM <= 64 ? 2 : 1;  // of 16 keys, per warp
  static constexpr int BLOCK_N = 16 * KEY_FRAGMENTS * 4;
  static constexpr int BLOCK_M = HEAD_DIM == 128 ? 64 : 32;

  // Of dQ of a tile, a warp adds up DQ_ROWS x DQ_COLUMNS elements.
  static constexpr int DQ_ROWS = HEAD_DIM == 128 ? 32 : 16;
  static constexpr int DQ_COLUMNS = BLOCK_M / DQ_ROWS * HEAD_DIM / WARPS;

  static constexpr int ROW_BYTES = 2 * HEAD_DIM;
  static constexpr int NUMBERS_BYTES = 2 * 4 * BLOCK_M;  // LSE and D of a tile of queries
  static constexpr int DS_BYTES = 2 * BLOCK_N * BLOCK_M;
  static constexpr int SHARED_BYTES =
      (2 * BLOCK_N + 4 * BLOCK_M) * ROW_BYTES + DS_BYTES + 2 * NUMBERS_BYTES;
};

// [turns]
/** The turns of a pass: how many thread blocks have started, then for each head how many have added
 * to each TURN_QUERIES rows of dQ. They lie behind the sums. */
constexpr int TURN_QUERIES = 128;
__host__ __device__ inline uint32_t *turns_of(const Problem &problem, void *workspace, int heads,
                                              int head) {
  return (uint32_t *)dq_sums(problem, workspace, heads, heads) + 1 +
         (int64_t)head * (padded_rows(problem) / TURN_QUERIES);
}

/** What a block needs for its turns. */
template <int BLOCK_N>
struct Turns {
  const Problem &problem;
  void *workspace;
  PassHeads heads;
  KeyBlock block;

  /** Where the turn is counted, and how many blocks add before this one: those of later keys. */
  __device__ __forceinline__ uint32_t *counter(QueryTile of) const {
    return turns_of(problem, workspace, heads.count, of.head - heads.first) +
           of.first_q / TURN_QUERIES;
  }
  __device__ __forceinline__ uint32_t before(QueryTile of) const {
    const int first = of.first_q / TURN_QUERIES * TURN_QUERIES;
    return (keys_of_rows(problem, first, TURN_QUERIES) - 1) / BLOCK_N - block.first_key / BLOCK_N;
  }
  /** Waits until the blocks before this one have added to the rows of a tile. */
  __device__ __forceinline__ void wait(QueryTile of) const {
    while (load_acquire(counter(of)) != before(of)) {
    }
  }
  /** After a barrier: all threads of this block have added to these rows. */
  __device__ __forceinline__ void pass(QueryTile of) const { reduce_add_release(counter(of), 1); }
};

/** How many blocks have started before this one. */
__device__ __forceinline__ int number_of_block(uint32_t *started) {
  __shared__ int number;
  if (threadIdx.x == 0) number = atomicAdd(started, 1);
  __syncthreads();  // the number is visible
  return number;
}

/** The work of block `number`: the last keys of some heads, then the keys before them. */
template <int BLOCK_N>
__device__ __forceinline__ KeyBlock ordered_block(const Problem &problem, PassHeads heads,
                                                  int number) {
  // Of Q of the heads that take turns: with dO and the sums of dQ 32 MB, which the L2 cache keeps.
  constexpr int ELEMENTS = 1 << 22;
  const int tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int group = problem.q_heads / problem.kv_heads;
  const int all = heads.count / group;
  const int most = min(all, max(1, ELEMENTS / problem.head_dim / problem.q_len));
  const int first = number / (most * tiles) * most;
  const int together = min(most, all - first), rest = number - first * tiles;
  return {(tiles - 1 - rest / together) * BLOCK_N, heads.first + (first + rest % together) * group};
}
// [turns]

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(32 * Tiles<HEAD_DIM>::WARPS, HEAD_DIM <= 128 ? 2 : 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int THREADS = 32 * Tile::WARPS, BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N;
  constexpr int M = Tile::KEY_FRAGMENTS, N = BLOCK_M / MMA_N;
  constexpr int V_TILE = BLOCK_N * Tile::ROW_BYTES, Q_TILE = BLOCK_M * Tile::ROW_BYTES;

  extern __shared__ __align__(128) unsigned char smem[];
  // K, V, then stage by stage Q and dO, then dS^T, then stage by stage LSE and D.
  unsigned char *const q_shared = smem + 2 * V_TILE;
  unsigned char *const ds_shared = q_shared + 4 * Q_TILE;
  unsigned char *const numbers_shared = ds_shared + Tile::DS_BYTES;

  // Blocks are numbered as they start, so that a block waits only for blocks that have started.
  const int number = number_of_block(turns_of(problem, t.workspace, heads.count, 0) - 1);
  const KeyBlock block = ordered_block<BLOCK_N>(problem, heads, number);
  const Turns<BLOCK_N> turns = {problem, t.workspace, heads, block};
  const QueryTiles<BLOCK_M> tiles(problem, block.first_key);
  QueryTile tile = {block.first_head, tiles.first_q};
  const auto start_copies = [&](QueryTile next, int stage) {
    copy_queries<T, HEAD_DIM, BLOCK_M, THREADS>(shared_address(q_shared) + stage * 2 * Q_TILE,
                                                numbers_shared + stage * Tile::NUMBERS_BYTES,
                                                problem, t, heads, next);
    cp_async_commit();
  };

  const int warp = threadIdx.x / WARP_SIZE;
  const int side = warp / 4, warp_key = warp % 4 * 16 * M;
  const uint32_t k_rows = a_lane<HEAD_DIM>(smem, warp_key);
  const uint32_t q_rows = b_lane<HEAD_DIM>(q_shared), q_columns = a_lane<HEAD_DIM>(q_shared, 0);
  const float scale_log2 = problem.scale * LOG2_E;
  // dV and dK, or at D = 256 the one of this warp's side.
  constexpr bool BOTH = Tile::SIDES == 1;
  float sums[BOTH ? 2 : 1][M][HEAD_DIM / MMA_N][4] = {};

  copy_keys<T, HEAD_DIM, BLOCK_N, THREADS>(shared_address(smem), problem, t, block);
  if (tiles.count > 0) start_copies(tile, 0);

  for (int i = 0; i < tiles.count; i++, tile = tiles.next(tile)) {
    const uint32_t q_stage = i % 2 * 2 * Q_TILE;
    const float *const numbers = (const float *)(numbers_shared + i % 2 * Tile::NUMBERS_BYTES);
    cp_async_wait<0>();  // Q and dO of this tile, at first also K and V: nothing else is in flight
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before
    const bool turn_begins = tile.first_q % TURN_QUERIES == 0 || tile.first_q == tiles.first_q;

    float s[M][N][4] = {};  // S^T, then P^T
    multiply_rows<T, HEAD_DIM>(s, k_rows, q_rows + q_stage);
    if (i + 1 < tiles.count) start_copies(tiles.next(tile), 1 - i % 2);
    if (block.first_key + BLOCK_N > attended_keys(problem, tile.first_q)) {
      mask_transposed(s, problem, block.first_key + warp_key, tile.first_q);
    }
    to_probabilities(s, numbers, scale_log2);
    uint32_t a[M][N / 2][4];
    if (BOTH || side == 0) {
      pack_rows<T>(a, s);
      multiply_columns<T, HEAD_DIM>(sums[0], a, q_columns + q_stage + Q_TILE);  // dV += P^T dO
    }
    if (i > 0 && turn_begins && threadIdx.x == WARP_SIZE) turns.pass(tiles.previous(tile));
    if (BOTH || side == 1) {
      float ds[M][N][4];  // dP^T - D, then dS^T
      start_with_d(ds, numbers + BLOCK_M);
      multiply_rows<T, HEAD_DIM>(ds, k_rows + V_TILE, q_rows + q_stage + Q_TILE);
      multiply_elements(ds, s);
      pack_rows<T>(a, ds);
      write_rows<BLOCK_M>(a, ds_shared, warp_key);
      multiply_columns<T, HEAD_DIM>(sums[BOTH], a, q_columns + q_stage);  // dK += dS^T Q
    }
    if (turn_begins && threadIdx.x == 0) turns.wait(tile);
    __syncthreads();  // dS^T of all warps is complete, and it is this block's turn to add

    add_dq<T, HEAD_DIM, BLOCK_M, BLOCK_N, Tile::DQ_ROWS, Tile::DQ_COLUMNS>(ds_shared, smem, warp,
                                                                           problem, t, heads, tile);
  }
  cp_async_wait<0>();  // K and V, if no query attends to these keys
  __syncthreads();     // all threads have added to dQ of the last tile
  if (tiles.count > 0 && threadIdx.x == 0) turns.pass(tiles.previous(tile));

  store_dv_dk<T, BOTH>(sums, side, problem, t, block, warp_key);
}

template <typename T, int HEAD_DIM, typename Tile = Tiles<HEAD_DIM>>
constexpr BackwardConfig CONFIG = {
    DTYPE_OF<T>,
    HEAD_DIM,
    Tile::BLOCK_M,
    Tile::BLOCK_N,
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM>, SHARE_ROWS, 0, ROWS_THREADS, 0},
     {"backward", backward_kernel<T, HEAD_DIM>, SHARE_KEYS, Tile::BLOCK_N, 32 * Tile::WARPS,
      Tile::SHARED_BYTES},
     {"convert_dq", convert_dq_kernel<T, HEAD_DIM>, SHARE_SUMS, 0, ROWS_THREADS, 0}}};

static constexpr BackwardConfig CONFIGS[] = {
    CONFIG<__half, 64>,        CONFIG<__half, 128>,        CONFIG<__half, 256>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>, CONFIG<__nv_bfloat16, 256>};

/** Sums and turns. */
static cudaError_t clear(const Problem &problem, void *workspace, int heads, cudaStream_t stream) {
  const char *const first = (const char *)dq_sums(problem, workspace, heads, 0);
  const char *const end = (const char *)turns_of(problem, workspace, heads, heads);
  return cudaMemsetAsync((void *)first, 0, end - first, stream);
}

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  const auto launch = [&](const KernelLaunch &l, PassHeads pass) {
    const auto kernel = (BackwardKernel)l.kernel;
    kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass);
  };
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch, clear);
}

static size_t workspace_bytes(const Problem *problem) {
  return dq_workspace_bytes(problem) +
         sizeof(uint32_t) * (4 + padded_rows(*problem) / TURN_QUERIES);
}

const Step step = {
    .name = "step15b",
    .after = "step15",
    .title = "One pass, the same bits every time",
    .idea = "A counter for each 128 rows of dQ says whose turn it is to add.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
