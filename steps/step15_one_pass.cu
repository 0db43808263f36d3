/**
 * @file
 * Step 15: one pass, five products. dQ of a tile is added up by all thread blocks that have keys.
 *
 * The idea: step 14b computes S and dP twice, because dQ is a sum over keys, and a thread block
 * that keeps dK and dV in registers has only some of them. Here this block also computes what its
 * keys add to dQ, and adds it to a sum in device memory. red.add adds in the L2 cache, and a thread
 * does not wait for it. The sums are fp32; a last kernel scales and rounds them.
 *
 * What changed since step 14b: dS^T passes through shared memory, because the keys of dQ = dS K are
 * spread over all warps. A row of dS^T there is a key, as in the registers; ldmatrix .trans
 * transposes it to operand A. In place of the second kernel, sums are cleared before, and converted
 * after.
 *
 * What it costs: 4 bytes of device memory for each element of Q, a second barrier per tile, and
 * 4 D / BLOCK_N bytes of additions for each score. Additions of several blocks come in any order,
 * so the last bits of dQ differ from run to run.
 *
 * What to look at: add_to_sums(). The sums lie in the order of fragments, so that a lane adds four
 * neighbours at once, and a warp 512 bytes.
 */
#include <math.h>

#include "backward.h"
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

// [add_dq]
/** Writes 16 M rows of a tile of COLUMNS columns, from row `first` on: `a` as for operand A. */
template <int COLUMNS, int M>
__device__ __forceinline__ void write_rows(const uint32_t (&a)[M][COLUMNS / 16][4],
                                           const unsigned char *tile, int first) {
  const int lane = fresh_lane();
  const uint32_t target =
      shared_address(tile) + chunk_offset<COLUMNS>(first + lane / 4, 0) + lane % 4 * 4;
#pragma unroll
  for (int j = 0; j < 4 * M * COLUMNS / 16; j++) {
    const int i = j / 4 / (COLUMNS / 16), k = j / 4 % (COLUMNS / 16), c = j % 4;
    const uint32_t chunk = more_chunks<COLUMNS>(target, 2 * k + c / 2);
    *(uint32_t *)shared_pointer(chunk + (16 * i + c % 2 * 8) * 2 * COLUMNS) = a[i][k][c];
  }
}

/** C += A^T B for 16 K rows of A, with A_COLUMNS columns of which 16 M count, and of B, with
 * B_COLUMNS columns of which 8 N count: `a` is the address of this lane's chunk of A, b_lane(), and
 * `b` that of B, a_lane(). */
template <typename T, int A_COLUMNS, int B_COLUMNS, int K, int M, int N>
__device__ __forceinline__ void multiply_transposed(float (&c)[M][N][4], uint32_t a, uint32_t b) {
  constexpr int PAIRS = N / 2;
  uint32_t columns[2][M][4];
  load_ahead<K * PAIRS, AHEAD<M, B_COLUMNS>>(
      [&](uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, n = index % PAIRS;
#pragma unroll
        for (int i = 0; i < M; i++) {
          if (n > 0) continue;
          ldmatrix_x4_trans(columns[k % 2][i], shared_pointer(more_chunks<A_COLUMNS>(a, 2 * i) +
                                                              16 * k * 2 * A_COLUMNS));
        }
        ldmatrix_x4_trans(
            rows, shared_pointer(more_chunks<B_COLUMNS>(b, 2 * n) + 16 * k * 2 * B_COLUMNS));
      },
      [&](const uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, n = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][n], columns[k % 2][i], rows[0], rows[1]);
          mma_m16n8k16<T>(c[i][n + 1], columns[k % 2][i], rows[2], rows[3]);
        }
      });
}

/** Adds fragments of 16 rows and 8 columns to sums that lie fragment by fragment. `sums` are those
 * of this lane in the first one; from one 16 rows to the next there are ROW_FRAGMENTS. */
template <int ROW_FRAGMENTS, int M, int N>
__device__ __forceinline__ void add_to_sums(float *sums, const float (&c)[M][N][4], int rows) {
#pragma unroll
  for (int i = 0; i < M; i++) {
    if (16 * i >= rows) return;
#pragma unroll
    for (int n = 0; n < N; n++) {
      reduce_add_4(sums + (i * ROW_FRAGMENTS + n) * 4 * WARP_SIZE, c[i][n][0], c[i][n][1],
                   c[i][n][2], c[i][n][3]);
    }
  }
}

/** Adds what the keys of a block give to dQ of the tile `of`, for the rows and columns of warp
 * `warp`: dS K, with dS^T and K in shared memory. */
template <typename T, int HEAD_DIM, int BLOCK_M, int BLOCK_N, int ROWS, int COLUMNS>
__device__ __forceinline__ void add_dq(const unsigned char *ds_tile, const unsigned char *k_tile,
                                       int warp, const Problem &problem, const BackwardTensors &t,
                                       PassHeads heads, QueryTile of) {
  const int first_row = warp % (BLOCK_M / ROWS) * ROWS, row = of.first_q + first_row;
  const int column = warp / (BLOCK_M / ROWS) * COLUMNS, lane = fresh_lane();
  const uint32_t a = more_chunks<BLOCK_M>(b_lane<BLOCK_M>(ds_tile, lane), first_row / CHUNK);
  const uint32_t b = more_chunks<HEAD_DIM>(a_lane<HEAD_DIM>(k_tile, 0, lane), column / CHUNK);
  float dq[ROWS / MMA_M][COLUMNS / MMA_N][4] = {};
  multiply_transposed<T, BLOCK_M, HEAD_DIM, BLOCK_N / 16>(dq, a, b);
  float *const sums = dq_sums(problem, t.workspace, heads.count, of.head - heads.first);
  add_to_sums<HEAD_DIM / 8>(sums + row * HEAD_DIM + column * 16 + lane * 4, dq,
                            problem.q_len - row);
}
// [add_dq]

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

  const KeyBlock block = key_block<BLOCK_N>(problem, heads, blockIdx.x);
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

  // [one_pass]
  for (int i = 0; i < tiles.count; i++, tile = tiles.next(tile)) {
    const uint32_t q_stage = i % 2 * 2 * Q_TILE;
    const float *const numbers = (const float *)(numbers_shared + i % 2 * Tile::NUMBERS_BYTES);
    cp_async_wait<0>();  // Q and dO of this tile, at first also K and V: nothing else is in flight
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

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
    if (BOTH || side == 1) {
      float ds[M][N][4];  // dP^T - D, then dS^T
      start_with_d(ds, numbers + BLOCK_M);
      multiply_rows<T, HEAD_DIM>(ds, k_rows + V_TILE, q_rows + q_stage + Q_TILE);
      multiply_elements(ds, s);
      pack_rows<T>(a, ds);
      write_rows<BLOCK_M>(a, ds_shared, warp_key);
      multiply_columns<T, HEAD_DIM>(sums[BOTH], a, q_columns + q_stage);  // dK += dS^T Q
    }
    __syncthreads();  // dS^T of all warps is complete

    add_dq<T, HEAD_DIM, BLOCK_M, BLOCK_N, Tile::DQ_ROWS, Tile::DQ_COLUMNS>(ds_shared, smem, warp,
                                                                           problem, t, heads, tile);
  }
  // [one_pass]
  cp_async_wait<0>();  // K and V, if no query attends to these keys

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

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  const auto launch = [&](const KernelLaunch &l, PassHeads pass) {
    const auto kernel = (BackwardKernel)l.kernel;
    kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass);
  };
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch, clear_dq_sums);
}

const Step step = {
    .name = "step15",
    .after = "step14b",
    .title = "One pass: dQ is added up by all thread blocks",
    .idea = "S and dP are computed once; red.add adds what a block's keys give to dQ.",
    .head_dims = "D = 64, 128 or 256",
    .nondeterministic = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
