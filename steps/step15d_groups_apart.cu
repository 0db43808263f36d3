/**
 * @file
 * Step 15d: the fastest backward pass with mma.sync that was found: the two groups of warps wait
 * for each other as little as possible.
 *
 * The idea: products need the tensor cores, but exponentials, dS and copies do not. If all warps
 * wait for each other, they do the same kind of work at the same time. So let one group have
 * products while the other has not.
 *
 * What changed since step 15c:
 * - One barrier of all warps for each tile, after P^T. The one at the beginning of a tile becomes
 *   one of each group, because group 0 copies Q and its LSE, group 1 dO and D: each group waits for
 *   its own copies, and the barrier after P^T shows them to the other group.
 * - The copies of the next tile start after that barrier, beside the first mma of dV or dK.
 * - No division for each tile: offsets are computed for the first head of a block.
 *
 * What it costs: the order of barriers is harder to see, because a group may be a product ahead.
 */
#include <math.h>

#include "backward.h"
#include "device/add_dq.cuh"
#include "device/backward_groups.cuh"
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

constexpr int GROUP_THREADS = 4 * WARP_SIZE, THREADS = 2 * GROUP_THREADS;

/** Sizes of the tiles. Each product of a tile is BLOCK_M BLOCK_N HEAD_DIM = 2^20 multiply-adds. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int BLOCK_M = HEAD_DIM <= 64 ? 128 : 64;   // queries
  static constexpr int BLOCK_N = HEAD_DIM <= 128 ? 128 : 64;  // keys
  // What one of four warps has of S^T or dP^T, and of dV or dK.
  static constexpr int S_KEYS = HEAD_DIM <= 64 ? 64 : 32;
  static constexpr int S_QUERIES = HEAD_DIM <= 128 ? 64 : 32;
  static constexpr int SUM_KEYS = 64;
  static constexpr int SUM_COLUMNS = BLOCK_N * HEAD_DIM / 4 / SUM_KEYS;
  // What one of all eight warps has of dQ.
  static constexpr int DQ_ROWS = 32;
  static constexpr int DQ_COLUMNS = BLOCK_M * HEAD_DIM / DQ_ROWS / 8;

  static constexpr int ROW_BYTES = 2 * HEAD_DIM;
  static constexpr int KV_BYTES = BLOCK_N * ROW_BYTES, Q_BYTES = BLOCK_M * ROW_BYTES;
  static constexpr int P_BYTES = 2 * BLOCK_N * BLOCK_M;
  static constexpr int NUMBERS_BYTES = 2 * 4 * BLOCK_M;  // LSE and D of a tile of queries
  // K, V; two stages of Q and dO; P^T, dS^T; two stages of LSE and D.
  static constexpr int SHARED_BYTES = 2 * KV_BYTES + 4 * Q_BYTES + 2 * P_BYTES + 2 * NUMBERS_BYTES;
};

/** The copies of tiles of Q by group 0, of dO by group 1: each thread copies a chunk of a piece. */
template <typename T, int HEAD_DIM>
struct RowCopies {
  static constexpr int BLOCK_M = Tiles<HEAD_DIM>::BLOCK_M;
  static constexpr int ROW_STEP = GROUP_THREADS / SWIZZLE_CHUNKS<HEAD_DIM>;  // rows of a piece
  static constexpr int ROW_PIECES = HEAD_DIM / 64, PIECES = BLOCK_M / ROW_STEP * ROW_PIECES;
  static constexpr int COPIES = HEAD_DIM == 128 ? 1 : 4;  // pieces beside a step of the product
  int64_t head_stride, row_stride;
  const T *first, *from;  // this thread's chunk in row 0 of the block's first head; the next one
  uint32_t target;        // of the first one in the tile
  int rows;               // from that of the first chunk on

  __device__ __forceinline__ RowCopies(const Problem &problem, const BackwardTensors &t, int group,
                                       int head) {
    const HeadOffsets offset = head_offsets(problem, head);
    const int row = threadIdx.x % GROUP_THREADS / SWIZZLE_CHUNKS<HEAD_DIM>;
    const int chunk = threadIdx.x % SWIZZLE_CHUNKS<HEAD_DIM>;
    row_stride = group == 0 ? problem.q_strides.row : problem.o_strides.row;
    head_stride = group == 0 ? problem.q_strides.head : problem.o_strides.head;
    first = (group == 0 ? (const T *)t.q + offset.q : (const T *)t.d_o + offset.o) +
            row * row_stride + chunk * CHUNK;
  }
  /** What start() copies is of tile `of`, `head` heads after the first. */
  __device__ __forceinline__ void begin(uint32_t tile, QueryTile of, int head, int q_len) {
    uint32_t thread = threadIdx.x % GROUP_THREADS;
    keep_in_register(thread);  // nvcc keeps nothing that follows from it from tile to tile
    const int row = thread / SWIZZLE_CHUNKS<HEAD_DIM>, chunk = thread % SWIZZLE_CHUNKS<HEAD_DIM>;
    target = tile + chunk_offset<HEAD_DIM>(row, chunk);
    from = first + head * head_stride + of.first_q * row_stride;
    rows = q_len - of.first_q - row;
  }
  /** Starts the copies beside a step of the product, as long as there are pieces. */
  __device__ __forceinline__ void start(int index) {
#pragma unroll
    for (int piece = index * COPIES; piece < min((index + 1) * COPIES, PIECES); piece++) {
      const int row = piece / ROW_PIECES * ROW_STEP, column = piece % ROW_PIECES * 64;
      cp_async_16(shared_pointer(target + 2 * (row * HEAD_DIM + column)), from + column,
                  row < rows);
      if (column + 64 == HEAD_DIM) from += ROW_STEP * row_stride;
    }
  }
};

/** What a warp computes of a tile, and the addresses of this lane's chunks in its operands. */
template <int HEAD_DIM>
struct Part {
  using Tile = Tiles<HEAD_DIM>;
  int s_key, s_query;              // where S^T or dP^T of this warp begins
  uint32_t s_rows, s_columns;      // in K or V, and in Q or dO
  int sum_key, sum_column;         // where dV or dK of this warp begins
  uint32_t sum_rows, sum_columns;  // in P^T or dS^T, and in dO or Q

  __device__ __forceinline__ Part(const unsigned char *k_shared, const unsigned char *q_shared,
                                  const unsigned char *p_shared, int group, int warp) {
    s_key = warp % (Tile::BLOCK_N / Tile::S_KEYS) * Tile::S_KEYS;
    s_query = warp / (Tile::BLOCK_N / Tile::S_KEYS) * Tile::S_QUERIES;
    s_rows = a_lane<HEAD_DIM>(k_shared + group * Tile::KV_BYTES, s_key);
    s_columns = b_lane<HEAD_DIM>(q_shared + group * Tile::Q_BYTES) + s_query * Tile::ROW_BYTES;
    sum_key = warp % (Tile::BLOCK_N / Tile::SUM_KEYS) * Tile::SUM_KEYS;
    sum_column = warp / (Tile::BLOCK_N / Tile::SUM_KEYS) * Tile::SUM_COLUMNS;
    sum_rows = a_lane<Tile::BLOCK_M>(p_shared + group * Tile::P_BYTES, sum_key);
    sum_columns = more_chunks<HEAD_DIM>(a_lane<HEAD_DIM>(q_shared + (1 - group) * Tile::Q_BYTES, 0),
                                        sum_column / 8);
  }
};

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  using Tile = Tiles<HEAD_DIM>;
  using Copies = RowCopies<T, HEAD_DIM>;
  constexpr int BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N;
  constexpr int M = Tile::S_KEYS / MMA_M, N = Tile::S_QUERIES / MMA_N;

  extern __shared__ __align__(128) unsigned char smem[];
  unsigned char *const q_shared = smem + 2 * Tile::KV_BYTES;
  unsigned char *const p_shared = q_shared + 4 * Tile::Q_BYTES;
  unsigned char *const ds_shared = p_shared + Tile::P_BYTES;
  unsigned char *const numbers_shared = ds_shared + Tile::P_BYTES;

  const KeyBlock block = key_block<BLOCK_N>(problem, heads, blockIdx.x);
  const QueryTiles<BLOCK_M> tiles(problem, block.first_key);
  QueryTile tile = {block.first_head, tiles.first_q};

  const int group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / WARP_SIZE;
  const Part<HEAD_DIM> part(smem, q_shared, p_shared, group, warp % 4);
  Copies copies(problem, t, group, block.first_head);
  const auto begin_copies = [&](QueryTile next, int i) {  // of tile i
    const int stage = i % 2 * 2 + group, n = 4 * (threadIdx.x % GROUP_THREADS);
    copies.begin(shared_address(q_shared) + stage * Tile::Q_BYTES, next,
                 next.head - block.first_head, i < tiles.count ? problem.q_len : 0);
    if (i >= tiles.count || n >= BLOCK_M) return;
    const RowNumbers all = row_numbers(problem, t.workspace, next.head - heads.first);
    cp_async_16(numbers_shared + 4 * (stage * BLOCK_M + n),
                (group == 0 ? all.lse_log2 : all.d) + next.first_q + n, true);
  };
  float sums[Tile::SUM_KEYS / MMA_M][Tile::SUM_COLUMNS / MMA_N][4] = {};  // dV or dK

  copy_keys<T, HEAD_DIM, BLOCK_N, THREADS>(shared_address(smem), problem, t, block);
  begin_copies(tile, 0);
  for (int j = 0; j < Copies::PIECES / Copies::COPIES; j++) copies.start(j);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();  // K, V and the first tile are visible

  const float scale_log2 = problem.scale * LOG2_E;
  for (int i = 0; i < tiles.count; i++, tile = tiles.next(tile)) {
    const uint32_t q_stage = i % 2 * 2 * Tile::Q_BYTES;
    const float *const numbers =
        (const float *)numbers_shared + (i % 2 * 2 + group) * BLOCK_M + part.s_query;
    cp_async_wait<0>();                            // Q or dO of this tile
    named_barrier_sync<GROUP_THREADS>(1 + group);  // what this group copied is visible to it

    float s[M][N][4] = {};  // S^T or dP^T - D
    if (group == 1) start_with_d(s, numbers);
    multiply_rows<T, HEAD_DIM>(s, part.s_rows, part.s_columns + q_stage);
    if (group == 0) {
      if (block.first_key + BLOCK_N > attended_keys(problem, tile.first_q)) {
        mask_transposed(s, problem, block.first_key + part.s_key, tile.first_q + part.s_query);
      }
      write_p<T, BLOCK_M>(p_shared, s, numbers, scale_log2, part.s_key, part.s_query);
    }
    __syncthreads();  // P^T is complete, all copies are visible, all are done with the tile before
    if (group == 1) {
      write_ds<T, BLOCK_M>(ds_shared, s, p_shared, part.s_key, part.s_query);
      named_barrier_arrive<THREADS>(3);
      named_barrier_sync<GROUP_THREADS>(2);  // dS^T is complete: this group is on its way
    }
    begin_copies(tiles.next(tile), i + 1);
    // dV += P^T dO or dK += dS^T Q.
    multiply_shared<T, BLOCK_M, HEAD_DIM>(sums, part.sum_rows, part.sum_columns + q_stage,
                                          [&](int index) { copies.start(index); });
    cp_async_commit();
    if (group == 0) named_barrier_sync<THREADS>(3);  // dS^T is complete: group 1 has arrived
    add_dq<T, HEAD_DIM, BLOCK_M, BLOCK_N, Tile::DQ_ROWS, Tile::DQ_COLUMNS>(ds_shared, smem, warp,
                                                                           problem, t, heads, tile);
  }
  cp_async_wait<0>();  // the zeros in place of a tile behind the last

  store_keys(sums, group == 0 ? 1.0f / (1 << P_SHIFT<T>) : problem.scale,
             (T *)(group == 0 ? t.d_v : t.d_k) + part.sum_column,
             group == 0 ? problem.v_strides : problem.k_strides, problem, block,
             block.first_key + part.sum_key);
}

template <typename T, int HEAD_DIM, typename Tile = Tiles<HEAD_DIM>>
constexpr BackwardConfig CONFIG = {
    DTYPE_OF<T>,
    HEAD_DIM,
    Tile::BLOCK_M,
    Tile::BLOCK_N,
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM>, SHARE_ROWS, 0, ROWS_THREADS, 0},
     {"backward", backward_kernel<T, HEAD_DIM>, SHARE_KEYS, Tile::BLOCK_N, THREADS,
      Tile::SHARED_BYTES},
     {"convert_dq", convert_dq_kernel<T, HEAD_DIM>, SHARE_SUMS, 0, ROWS_THREADS, 0}}};

static constexpr BackwardConfig CONFIGS[] = {
    CONFIG<__half, 64>,        CONFIG<__half, 128>,        CONFIG<__half, 256>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>, CONFIG<__nv_bfloat16, 256>};

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  const auto launch = [&](const KernelLaunch &l, PassHeads pass) {
    const auto kernel = (BackwardKernel)l.kernel;
    kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass);
  };
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch, clear_dq_sums);
}

const Step step = {
    .name = "step15d",
    .after = "step15c",
    .title = "The groups wait for each other once a tile",
    .idea = "Each group copies what it needs first; one has products while the other has not.",
    .head_dims = "D = 64, 128 or 256",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
