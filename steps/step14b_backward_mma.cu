/**
 * @file
 * Step 14b opens a chapter: the seven products of step 14 on tensor cores.
 *
 * The idea: which matrix a warp keeps in its fragments decides what has to be transposed. The
 * fragments of C of one mma are operand A of the next, as P was in step 02b. So a warp that adds up
 * dV = P^T dO and dK = dS^T Q computes S^T = K Q^T and dP^T = V dO^T: P^T and dS^T are then operand
 * A without an exchange between lanes. A warp that adds up dQ = dS K computes S = Q K^T and
 * dP = dO V^T. Each of these products is one of two kinds:
 *
 *     C += A B^T   S^T = K Q^T, dP^T = V dO^T, S = Q K^T, dP = dO V^T    multiply_rows()
 *     C += A B     dV = P^T dO, dK = dS^T Q, dQ = dS K                   multiply_columns()
 *
 * In the first, both operands are rows of a tile, as they lie in memory. In the second, A comes
 * from registers, and ldmatrix .trans transposes B. No tile is stored transposed: Q is operand B
 * both of S^T, as it is, and of dK, transposed.
 *
 * What changed since step 14: the products are mma.sync, and tiles are swizzled, with two stages
 * for those of the loop, as in step 06. Operand B is loaded two steps ahead of its mma.
 *
 * What it costs: P and dS are rounded to 16 bits before they are multiplied. At D = 256 dK and dV
 * of 16 keys do not fit the registers of a warp: a second warp keeps dK, and computes S^T again.
 *
 * What to look at: the operands in the loops of the two kernels. They differ in names alone.
 */
#include <math.h>

#include "backward.h"
#include "device/backward_launch.cuh"
#include "device/backward_rows.cuh"
#include "device/backward_tile.cuh"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/log2.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"

/** Sizes of the tiles. A block of the first kernel owns BLOCK_N keys and goes through tiles of
 * BLOCK_M queries; one of the second owns OWN_QUERIES and goes through tiles of NEXT_KEYS. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int SIDES = HEAD_DIM <= 128 ? 1 : 2;  // 2: dV and dK are in different warps
  static constexpr int KEY_WARPS = 4 * SIDES;
  static constexpr int KEY_FRAGMENTS = HEAD_DIM <= 64 ? 2 : 1;  // of 16 keys, per warp
  static constexpr int BLOCK_N = 16 * KEY_FRAGMENTS * 4;
  static constexpr int BLOCK_M = HEAD_DIM == 128 ? 64 : 32;

  static constexpr int QUERY_WARPS = 4;
  static constexpr int QUERY_FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 queries, per warp
  static constexpr int OWN_QUERIES = 16 * QUERY_FRAGMENTS * QUERY_WARPS;
  static constexpr int NEXT_KEYS = HEAD_DIM <= 64 ? 64 : 32;

  static constexpr int ROW_BYTES = 2 * HEAD_DIM;
  static constexpr int NUMBERS_BYTES = 2 * 4 * BLOCK_M;  // LSE and D of a tile of queries
  static constexpr int KEYS_SHARED = (2 * BLOCK_N + 4 * BLOCK_M) * ROW_BYTES + 2 * NUMBERS_BYTES;
  static constexpr int QUERIES_SHARED = (2 * OWN_QUERIES + 4 * NEXT_KEYS) * ROW_BYTES;
};

// [products]
/** C += A B^T for 16 M rows of A and 8 N rows of B, all of HEAD_DIM columns: `a` and `b` are the
 * addresses of this lane's chunks in them, a_lane() and b_lane(). */
template <typename T, int HEAD_DIM, int M, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[M][N][4], uint32_t a, uint32_t b) {
  constexpr int PAIRS = N / 2;
  uint32_t rows[2][M][4];
  load_ahead<HEAD_DIM / 16 * PAIRS, AHEAD<M, HEAD_DIM>>(
      [&](uint32_t(&columns)[4], int index) {
        const int d = index / PAIRS, n = index % PAIRS;
#pragma unroll
        for (int i = 0; i < M; i++) {
          if (n > 0) continue;
          ldmatrix_x4(rows[d % 2][i],
                      shared_pointer(more_chunks<HEAD_DIM>(a, 2 * d) + 16 * i * 2 * HEAD_DIM));
        }
        ldmatrix_x4(columns,
                    shared_pointer(more_chunks<HEAD_DIM>(b, 2 * d) + 16 * n * 2 * HEAD_DIM));
      },
      [&](const uint32_t(&columns)[4], int index) {
        const int d = index / PAIRS, n = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][n], rows[d % 2][i], columns[0], columns[1]);
          mma_m16n8k16<T>(c[i][n + 1], rows[d % 2][i], columns[2], columns[3]);
        }
      });
}

/** C += A B for A in registers, 16 M rows and 16 K columns, and 16 K rows of B with HEAD_DIM
 * columns: `b` is the address of this lane's chunk in it, a_lane(). */
template <typename T, int HEAD_DIM, int M, int K>
__device__ __forceinline__ void multiply_columns(float (&c)[M][HEAD_DIM / MMA_N][4],
                                                 const uint32_t (&a)[M][K][4], uint32_t b) {
  constexpr int PAIRS = HEAD_DIM / 16;
  load_ahead<K * PAIRS, AHEAD<M, HEAD_DIM>>(
      [&](uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, d = index % PAIRS;
        ldmatrix_x4_trans(rows,
                          shared_pointer(more_chunks<HEAD_DIM>(b, 2 * d) + 16 * k * 2 * HEAD_DIM));
      },
      [&](const uint32_t(&rows)[4], int index) {
        const int k = index / PAIRS, d = index % PAIRS * 2;
#pragma unroll
        for (int i = 0; i < M; i++) {
          mma_m16n8k16<T>(c[i][d], a[i][k], rows[0], rows[1]);
          mma_m16n8k16<T>(c[i][d + 1], a[i][k], rows[2], rows[3]);
        }
      });
}
// [products]

/** dK and dV: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(32 * Tiles<HEAD_DIM>::KEY_WARPS, HEAD_DIM <= 128 ? 2 : 1)
    keys_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int THREADS = 32 * Tile::KEY_WARPS, BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N;
  constexpr int M = Tile::KEY_FRAGMENTS, N = BLOCK_M / MMA_N;
  constexpr int V_TILE = BLOCK_N * Tile::ROW_BYTES, Q_TILE = BLOCK_M * Tile::ROW_BYTES;

  extern __shared__ __align__(128) unsigned char smem[];
  // K, V, then stage by stage Q and dO, then stage by stage LSE and D.
  unsigned char *const q_shared = smem + 2 * V_TILE;
  unsigned char *const numbers_shared = q_shared + 4 * Q_TILE;

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

  // [keys_loop]
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
      multiply_columns<T, HEAD_DIM>(sums[BOTH], a, q_columns + q_stage);  // dK += dS^T Q
    }
  }
  // [keys_loop]
  cp_async_wait<0>();  // K and V, if no query attends to these keys

  store_dv_dk<T, BOTH>(sums, side, problem, t, block, warp_key);
}

/** dQ: one thread block for OWN_QUERIES queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(32 * Tiles<HEAD_DIM>::QUERY_WARPS, HEAD_DIM <= 128 ? 2 : 1)
    queries_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int THREADS = 32 * Tile::QUERY_WARPS, ROWS = Tile::OWN_QUERIES, KEYS = Tile::NEXT_KEYS;
  constexpr int M = Tile::QUERY_FRAGMENTS, N = KEYS / MMA_N;
  constexpr int D_O_TILE = ROWS * Tile::ROW_BYTES, K_TILE = KEYS * Tile::ROW_BYTES;

  extern __shared__ __align__(128) unsigned char smem[];
  unsigned char *const k_shared = smem + 2 * D_O_TILE;  // Q, dO, then stage by stage K and V

  // Under the causal mask the last queries of a head have the most keys: they come first.
  const int q_tiles = (problem.q_len + ROWS - 1) / ROWS;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * ROWS;
  const int head = heads.first + blockIdx.x / q_tiles;
  const HeadOffsets offset = head_offsets(problem, head);
  const int key_end = keys_of_rows(problem, first_q, ROWS);
  const int unmasked_end = attended_keys(problem, first_q);

  const auto start_copies = [&](int key, int stage) {
    const uint32_t target = shared_address(k_shared) + stage * 2 * K_TILE;
    copy_tile_rows<HEAD_DIM, KEYS, THREADS>(target, (const T *)t.k + offset.k,
                                            problem.k_strides.row, key, problem.kv_len);
    copy_tile_rows<HEAD_DIM, KEYS, THREADS>(target + K_TILE, (const T *)t.v + offset.v,
                                            problem.v_strides.row, key, problem.kv_len);
    cp_async_commit();
  };

  const int lane = threadIdx.x % WARP_SIZE, warp_q = threadIdx.x / WARP_SIZE * 16 * M;
  const uint32_t q_rows = a_lane<HEAD_DIM>(smem, warp_q);
  const uint32_t k_rows = b_lane<HEAD_DIM>(k_shared), k_columns = a_lane<HEAD_DIM>(k_shared, 0);
  const float scale_log2 = problem.scale * LOG2_E;
  const RowNumbers numbers = row_numbers(problem, t.workspace, head - heads.first);
  float lse[2 * M], d[2 * M];
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
    lse[i] = numbers.lse_log2[first_q + warp_q + 8 * i + lane / 4];
    d[i] = numbers.d[first_q + warp_q + 8 * i + lane / 4];
  }
  float dq[M][HEAD_DIM / MMA_N][4] = {};

  copy_tile_rows<HEAD_DIM, ROWS, THREADS>(shared_address(smem), (const T *)t.q + offset.q,
                                          problem.q_strides.row, first_q, problem.q_len);
  copy_tile_rows<HEAD_DIM, ROWS, THREADS>(shared_address(smem) + D_O_TILE,
                                          (const T *)t.d_o + offset.o, problem.o_strides.row,
                                          first_q, problem.q_len);
  start_copies(0, 0);

  // [queries_loop]
  for (int key = 0; key < key_end; key += KEYS) {
    const int stage = key / KEYS % 2;
    const uint32_t k_stage = stage * 2 * K_TILE;
    cp_async_wait<0>();  // K and V of this tile, at first also Q and dO
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

    float s[M][N][4] = {}, ds[M][N][4];  // S, then P; dP - D, then dS
    multiply_rows<T, HEAD_DIM>(s, q_rows, k_rows + k_stage);
    if (key + KEYS < key_end) start_copies(key + KEYS, 1 - stage);
    if (key + KEYS > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + warp_q, key);
    }
#pragma unroll
    for (int j = 0; j < 4 * M * N; j++) {
      const int i = j / 4 / N, n = j / 4 % N, c = j % 4;
      s[i][n][c] = exp2_approx(fmaf(s[i][n][c], scale_log2, -lse[2 * i + c / 2]));
      ds[i][n][c] = -d[2 * i + c / 2];
    }
    multiply_rows<T, HEAD_DIM>(ds, q_rows + D_O_TILE, k_rows + k_stage + K_TILE);
    multiply_elements(ds, s);
    uint32_t a[M][N / 2][4];
    pack_rows<T>(a, ds);
    multiply_columns<T, HEAD_DIM>(dq, a, k_columns + k_stage);  // dQ += dS K
  }
  // [queries_loop]
  cp_async_wait<0>();  // Q and dO, if all keys are masked

  store_queries(dq, problem.scale, (T *)t.d_q, problem, head, first_q + warp_q);
}

template <typename T, int HEAD_DIM, typename Tile = Tiles<HEAD_DIM>>
constexpr BackwardConfig CONFIG = {
    DTYPE_OF<T>,
    HEAD_DIM,
    Tile::BLOCK_M,
    Tile::BLOCK_N,
    {{"row_numbers", row_numbers_kernel<T, HEAD_DIM>, SHARE_ROWS, 0, ROWS_THREADS, 0},
     {"keys", keys_kernel<T, HEAD_DIM>, SHARE_KEYS, Tile::BLOCK_N, 32 * Tile::KEY_WARPS,
      Tile::KEYS_SHARED},
     {"queries", queries_kernel<T, HEAD_DIM>, SHARE_QUERIES, Tile::OWN_QUERIES,
      32 * Tile::QUERY_WARPS, Tile::QUERIES_SHARED}}};

static constexpr BackwardConfig CONFIGS[] = {
    CONFIG<__half, 64>,        CONFIG<__half, 128>,        CONFIG<__half, 256>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>, CONFIG<__nv_bfloat16, 256>};

static cudaError_t backward(const Problem *problem, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  const auto launch = [&](const KernelLaunch &l, PassHeads pass) {
    const auto kernel = (BackwardKernel)l.kernel;
    kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass);
  };
  return backward_in_passes<CONFIGS>(problem, t, heads, stream, launch);
}

static size_t workspace_bytes(const Problem *problem) {
  return 2 * sizeof(float) * padded_rows(*problem);
}

const Step step = {
    .name = "step14b",
    .after = "step14",
    .title = "The backward pass on the tensor cores",
    .idea = "P^T and dS^T are operand A of the next product where S^T = K Q^T is computed.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
