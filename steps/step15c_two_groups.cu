/**
 * @file
 * Step 15c: the fastest backward pass with mma.sync that was found: two groups of warps share the
 * products, and all matrices between them lie in shared memory.
 *
 * The idea: in step 15 a warp has 16 or 32 keys, so each operand B that ldmatrix loads is used by
 * one or two mma, and shared memory delivers less than the tensor cores could take. Here the four
 * warps of one group compute all of S^T and dV, and those of the other all of dP^T and dK. So a
 * warp has tiles of up to 64 x 64 elements, where a loaded operand is used by four mma.
 *
 * What changed since step 15:
 * - Both groups run the same code, with other operands:
 *       group 0   S^T = K Q^T     P^T = e^(S^T - LSE)     dV += P^T dO
 *       group 1   dP^T = V dO^T   dS^T = P^T o (dP^T - D)   dK += dS^T Q, dQ = dS K
 * - P^T passes from group 0 to group 1 through shared memory, too.
 * - dQ of a tile is computed during the next one. Then group 1 has products while group 0 computes
 *   exponentials, and group 0 has products while group 1 computes dS.
 * - The copies of the next tile are spread over the mma of S^T and dP^T.
 *
 * What it costs: all shared memory of an SM of compute capability 9.0, so one thread block of 8
 * warps; and P is rounded to 16 bits before dS is computed from it.
 *
 * What to look at: `--report=banks,counts` of this step and of step 15: wavefronts of ldmatrix for
 * each mma.
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
  // What a warp has of dQ: at D = 256, where both groups compute dQ, one of eight.
  static constexpr int DQ_GROUPS = HEAD_DIM <= 128 ? 1 : 2;
  static constexpr int DQ_ROWS = 32;
  static constexpr int DQ_COLUMNS = BLOCK_M * HEAD_DIM / DQ_ROWS / (4 * DQ_GROUPS);

  static constexpr int ROW_BYTES = 2 * HEAD_DIM;
  static constexpr int KV_BYTES = BLOCK_N * ROW_BYTES, Q_BYTES = BLOCK_M * ROW_BYTES;
  static constexpr int P_BYTES = 2 * BLOCK_N * BLOCK_M;
  static constexpr int NUMBERS_BYTES = 2 * 4 * BLOCK_M;  // LSE and D of a tile of queries
  // K, V; two stages of Q and dO; P^T, two stages of dS^T; two stages of LSE and D.
  static constexpr int SHARED_BYTES = 2 * KV_BYTES + 4 * Q_BYTES + 3 * P_BYTES + 2 * NUMBERS_BYTES;
};

/** P^T is multiplied by 2^P_SHIFT before it is rounded. In fp16, small probabilities would lose
 * bits, which the factor dP - D could make visible in dS. */
template <typename T>
constexpr int P_SHIFT = DTYPE_OF<T> == DTYPE_FP16 ? 11 : 0;

/** The copies of one tile of Q and dO, a piece at a time: each thread copies one chunk of it. */
template <typename T, int HEAD_DIM>
struct QueryCopies {
  static constexpr int ROW_STEP = THREADS / SWIZZLE_CHUNKS<HEAD_DIM>;  // rows of a piece
  static constexpr int ROW_PIECES = HEAD_DIM / 64;
  static constexpr int PIECES = Tiles<HEAD_DIM>::BLOCK_M / ROW_STEP * ROW_PIECES;  // of Q, of dO
  uint32_t target;
  const T *q, *d_o;
  int rows;  // from that of the first chunk on; 0 if there is no such tile

  __device__ __forceinline__ QueryCopies(uint32_t tile, unsigned char *numbers,
                                         const Problem &problem, const BackwardTensors &t,
                                         PassHeads heads, QueryTile of, bool exists) {
    if (exists) {
      copy_row_numbers<Tiles<HEAD_DIM>::BLOCK_M>(
          numbers, row_numbers(problem, t.workspace, of.head - heads.first), of.first_q);
    }
    uint32_t thread = threadIdx.x;
    keep_in_register(thread);  // nvcc keeps nothing that follows from it from tile to tile
    const int row = thread / SWIZZLE_CHUNKS<HEAD_DIM>, chunk = thread % SWIZZLE_CHUNKS<HEAD_DIM>;
    const HeadOffsets from = head_offsets(problem, of.head);
    target = tile + chunk_offset<HEAD_DIM>(row, chunk);
    q = (const T *)t.q + from.q + (of.first_q + row) * problem.q_strides.row + chunk * CHUNK;
    d_o = (const T *)t.d_o + from.o + (of.first_q + row) * problem.o_strides.row + chunk * CHUNK;
    rows = exists ? problem.q_len - of.first_q - row : 0;
  }
  /** Starts the copy of a piece, 0 to 2 PIECES - 1. */
  __device__ __forceinline__ void start(const Problem &problem, int piece) {
    const int row = piece % PIECES / ROW_PIECES * ROW_STEP, column = piece % ROW_PIECES * 64;
    const uint32_t to = target + piece / PIECES * Tiles<HEAD_DIM>::Q_BYTES;
    cp_async_16(shared_pointer(to + row * 2 * HEAD_DIM + column * 2),
                (piece < PIECES ? q : d_o) + column, row < rows);
    if (column + 64 < HEAD_DIM) return;
    if (piece < PIECES) q += ROW_STEP * problem.q_strides.row;
    if (piece >= PIECES) d_o += ROW_STEP * problem.o_strides.row;
  }
};

/** Where this lane has the first fragment of a warp in a tile of P^T or dS^T. */
template <int BLOCK_M>
__device__ __forceinline__ uint32_t fragment_lane(const unsigned char *tile, int key, int query) {
  const int lane = fresh_lane();
  return shared_address(tile) + chunk_offset<BLOCK_M>(key + lane / 4, query / CHUNK) + lane % 4 * 4;
}

/** Writes P^T of this warp, computed from S^T; `lse` is LSE * log2(e) from its first query on. */
template <typename T, int BLOCK_M, int M, int N>
__device__ __forceinline__ void write_p(const unsigned char *tile, const float (&s)[M][N][4],
                                        const float *lse, float scale_log2, int key, int query) {
  const uint32_t target = fragment_lane<BLOCK_M>(tile, key, query);
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&lse[8 * n + threadIdx.x % 4 * 2];
    const float left = pair.x - P_SHIFT<T>, right = pair.y - P_SHIFT<T>;
#pragma unroll
    for (int j = 0; j < 2 * M; j++) {
      const float *const x = &s[j / 2][n][j % 2 * 2];
      *(uint32_t *)shared_pointer(more_chunks<BLOCK_M>(target, n) + 8 * j * 2 * BLOCK_M) = pack<T>(
          exp2_approx(fmaf(x[0], scale_log2, -left)), exp2_approx(fmaf(x[1], scale_log2, -right)));
    }
  }
}

/** Writes dS^T of this warp: P^T, which ldmatrix loads as fragments, times `dp`, dP^T - D. */
template <typename T, int BLOCK_M, int M, int N>
__device__ __forceinline__ void write_ds(const unsigned char *tile, const float (&dp)[M][N][4],
                                         const unsigned char *p_tile, int key, int query) {
  constexpr float FACTOR = 1.0f / (1 << P_SHIFT<T>);
  const uint32_t target = fragment_lane<BLOCK_M>(tile, key, query);
  const uint32_t source =
      more_chunks<BLOCK_M>(a_lane<BLOCK_M>(p_tile, key, fresh_lane()), query / CHUNK);
  load_ahead<M * N / 2, 1>(
      [&](uint32_t(&p)[4], int index) {
        const int i = index / (N / 2), n = index % (N / 2) * 2;
        ldmatrix_x4(p, shared_pointer(more_chunks<BLOCK_M>(source, n) + 16 * i * 2 * BLOCK_M));
      },
      [&](const uint32_t(&p)[4], int index) {
        const int i = index / (N / 2), n = index % (N / 2) * 2;
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const float *const x = &dp[i][n + c / 2][c % 2 * 2];
          const float2 pair = to_float2(*(const typename PairOf<T>::type *)&p[c]);
          *(uint32_t *)shared_pointer(more_chunks<BLOCK_M>(target, n + c / 2) +
                                      (16 * i + c % 2 * 8) * 2 * BLOCK_M) =
              pack<T>(x[0] * FACTOR * pair.x, x[1] * FACTOR * pair.y);
        }
      });
}

/** dK, dV and sums of dQ: one thread block for BLOCK_N keys of one key/value head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N;
  constexpr int M = Tile::S_KEYS / MMA_M, N = Tile::S_QUERIES / MMA_N;

  extern __shared__ __align__(128) unsigned char smem[];
  unsigned char *const q_shared = smem + 2 * Tile::KV_BYTES;
  unsigned char *const p_shared = q_shared + 4 * Tile::Q_BYTES;
  unsigned char *const ds_shared = p_shared + Tile::P_BYTES;
  unsigned char *const numbers_shared = ds_shared + 2 * Tile::P_BYTES;

  // Under the causal mask the first keys of a head have the most queries: they come first.
  const int key_tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int sharing = problem.q_heads / problem.kv_heads;
  const KeyBlock block = {(int)blockIdx.x % key_tiles * BLOCK_N,
                          heads.first + (int)blockIdx.x / key_tiles * sharing};
  const QueryTiles<BLOCK_M> tiles(problem, block.first_key);
  QueryTile tile = {block.first_head, tiles.first_q};
  // The copies of tile i.
  const auto copies_of = [&](QueryTile next, int i) {
    return QueryCopies<T, HEAD_DIM>(shared_address(q_shared) + i % 2 * 2 * Tile::Q_BYTES,
                                    numbers_shared + i % 2 * Tile::NUMBERS_BYTES, problem, t, heads,
                                    next, i < tiles.count);
  };

  const int group = threadIdx.x / GROUP_THREADS, warp = threadIdx.x / WARP_SIZE % 4;
  // S^T or dP^T.
  const int s_key = warp % (BLOCK_N / Tile::S_KEYS) * Tile::S_KEYS;
  const int s_query = warp / (BLOCK_N / Tile::S_KEYS) * Tile::S_QUERIES;
  const uint32_t s_rows = a_lane<HEAD_DIM>(smem + group * Tile::KV_BYTES, s_key);
  const uint32_t s_columns =
      b_lane<HEAD_DIM>(q_shared + group * Tile::Q_BYTES) + s_query * Tile::ROW_BYTES;
  const int ds_stage = group * Tile::P_BYTES;  // P^T has one stage
  // dV or dK.
  const int sum_key = warp % (BLOCK_N / Tile::SUM_KEYS) * Tile::SUM_KEYS;
  const int sum_column = warp / (BLOCK_N / Tile::SUM_KEYS) * Tile::SUM_COLUMNS;
  const uint32_t sum_rows = a_lane<BLOCK_M>(p_shared + group * Tile::P_BYTES, sum_key);
  const uint32_t sum_columns = more_chunks<HEAD_DIM>(
      a_lane<HEAD_DIM>(q_shared + (1 - group) * Tile::Q_BYTES, 0), sum_column / 8);
  float sums[Tile::SUM_KEYS / MMA_M][Tile::SUM_COLUMNS / MMA_N][4] = {};

  const int dq_warp = Tile::DQ_GROUPS == 1 ? warp : threadIdx.x / WARP_SIZE;
  const auto add_dq_of = [&](QueryTile of, int i) {  // tile i
    add_dq<T, HEAD_DIM, BLOCK_M, BLOCK_N, Tile::DQ_ROWS, Tile::DQ_COLUMNS>(
        ds_shared + i % 2 * Tile::P_BYTES, smem, dq_warp, problem, t, heads, of);
  };

  copy_keys<T, HEAD_DIM, BLOCK_N, THREADS>(shared_address(smem), problem, t, block);
  constexpr int PIECES = 2 * QueryCopies<T, HEAD_DIM>::PIECES;
  auto first_copies = copies_of(tile, 0);
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++) first_copies.start(problem, piece);
  cp_async_commit();

  const float scale_log2 = problem.scale * LOG2_E;
  for (int i = 0; i < tiles.count; i++, tile = tiles.next(tile)) {
    const uint32_t q_stage = i % 2 * 2 * Tile::Q_BYTES;
    const float *const numbers =
        (const float *)(numbers_shared + i % 2 * Tile::NUMBERS_BYTES) + group * BLOCK_M + s_query;
    cp_async_wait<0>();  // Q and dO of this tile, at first also K and V
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

    if (group == 1 && i > 0) add_dq_of(tiles.previous(tile), i - 1);

    float s[M][N][4] = {};  // S^T or dP^T - D
    if (group == 1) start_with_d(s, numbers);
    auto copies = copies_of(tiles.next(tile), i + 1);
    constexpr int STEPS = HEAD_DIM / 16 * N / 2 / PIECES;  // of the product, for each piece
    multiply_rows<T, HEAD_DIM>(s, s_rows, s_columns + q_stage, [&](int index) {
      if (index % STEPS == 0) copies.start(problem, index / STEPS);
    });
    cp_async_commit();

    if (group == 0) {
      if (block.first_key + BLOCK_N > attended_keys(problem, tile.first_q)) {
        mask_transposed(s, problem, block.first_key + s_key, tile.first_q + s_query);
      }
      write_p<T, BLOCK_M>(p_shared, s, numbers, scale_log2, s_key, s_query);
    }
    __syncthreads();  // P^T is complete
    if (group == 1) {
      write_ds<T, BLOCK_M>(ds_shared + i % 2 * Tile::P_BYTES, s, p_shared, s_key, s_query);
      named_barrier_sync<GROUP_THREADS>(1);  // dS^T is complete for this group
    }
    // dV += P^T dO or dK += dS^T Q.
    multiply_shared<T, BLOCK_M, HEAD_DIM>(sums, sum_rows + i % 2 * ds_stage, sum_columns + q_stage);
    if (Tile::DQ_GROUPS == 2 && group == 0 && i > 0) add_dq_of(tiles.previous(tile), i - 1);
  }
  cp_async_wait<0>();  // K and V, if no query attends to these keys
  __syncthreads();     // dS^T of the last tile is complete
  if (tiles.count > 0 && group >= 2 - Tile::DQ_GROUPS) {
    add_dq_of(tiles.previous(tile), tiles.count - 1);
  }

  const Strides &strides = group == 0 ? problem.v_strides : problem.k_strides;
  store_keys(sums, group == 0 ? 1.0f / (1 << P_SHIFT<T>) : problem.scale,
             (T *)(group == 0 ? t.d_v : t.d_k) + sum_column, strides, problem, block,
             block.first_key + sum_key);
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
  const int all = problem->batch * problem->q_heads;
  for (int first = 0; first < all; first += heads) {
    const PassHeads pass = {first, min(heads, all - first)};  // the last may have fewer
    Description d;
    describe_backward<CONFIGS>(problem, pass.count, &d);
    const size_t sum_bytes = sizeof(float) * dq_floats(*problem) * pass.count;
    if (const cudaError_t error =
            cudaMemsetAsync(dq_sums(*problem, t->workspace, pass.count, 0), 0, sum_bytes, stream)) {
      return error;
    }
    for (int i = 0; i < d.launch_count; i++) {
      const KernelLaunch &l = d.launches[i];
      if (const cudaError_t error = allow_shared(l)) return error;
      const auto kernel = (BackwardKernel)l.kernel;
      kernel<<<l.grid, l.block, l.dynamic_shared_bytes, stream>>>(*problem, *t, pass);
    }
  }
  return cudaGetLastError();
}

static size_t workspace_bytes(const Problem *problem) {
  return sizeof(float) * (2 * padded_rows(*problem) + dq_floats(*problem));
}

const Step step = {
    .name = "step15c",
    .after = "step15",
    .title = "Two groups of warps share the products",
    .idea = "One group computes P and dV, the other dS, dK and dQ, in tiles of up to 64 x 64.",
    .head_dims = "D = 64, 128 or 256",
    .nondeterministic = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
