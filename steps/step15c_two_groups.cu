/**
 * @file
 * Step 15c: two groups of warps share the products, and all matrices between them lie in shared
 * memory.
 *
 * The idea: in step 15 a warp has 16 or 32 keys, so each operand B that ldmatrix loads is used by
 * one or two mma, and shared memory delivers less than the tensor cores could take. Here the four
 * warps of one group compute all of S^T and dV, and those of the other all of dP^T and dK. So a
 * warp has tiles of up to 64 x 64 elements, where a loaded operand is used by four mma.
 *
 * What changed since step 15: the two groups execute the same products with other operands, and
 * what is between these products differs:
 *
 *     group 0   S^T = K Q^T     P^T = e^(S^T - LSE)        dV += P^T dO     half of dQ = dS K
 *     group 1   dP^T = V dO^T   dS^T = P^T o (dP^T - D)    dK += dS^T Q     the other half
 *
 * P^T passes through shared memory as well, to group 1 and to other warps of group 0.
 *
 * What it costs: most of the shared memory of an SM of compute capability 9.0, so one thread block
 * of 8 warps; and P is rounded to 16 bits before dS is computed from it.
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

/** P^T is multiplied by 2^P_SHIFT before it is rounded. In fp16, small probabilities would lose
 * bits, which the factor dP - D could make visible in dS. */
template <typename T>
constexpr int P_SHIFT = DTYPE_OF<T> == DTYPE_FP16 ? 11 : 0;

/** Where this lane has the first fragment of a warp in a tile of P^T or dS^T. */
template <int BLOCK_M>
__device__ __forceinline__ uint32_t fragment_lane(const unsigned char *tile, int key, int query) {
  const int lane = fresh_lane();
  return shared_address(tile) + chunk_offset<BLOCK_M>(key + lane / 4, query / CHUNK) + lane % 4 * 4;
}

/** Writes P^T of this warp, computed from S^T; `lse` is LSE * log2(e) from its first query on. All
 * exponentials come first: a rounding waits for its two, and whatever follows it waits, too. */
template <typename T, int BLOCK_M, int M, int N>
__device__ __forceinline__ void write_p(const unsigned char *tile, float (&s)[M][N][4],
                                        const float *lse, float scale_log2, int key, int query) {
  const uint32_t target = fragment_lane<BLOCK_M>(tile, key, query);
#pragma unroll
  for (int n = 0; n < N; n++) {
    const float2 pair = *(const float2 *)&lse[8 * n + threadIdx.x % 4 * 2];
    const float left = pair.x - P_SHIFT<T>, right = pair.y - P_SHIFT<T>;
#pragma unroll
    for (int j = 0; j < 4 * M; j++) {
      float &x = s[j / 4][n][j % 4];
      x = exp2_approx(fmaf(x, scale_log2, j % 2 == 0 ? -left : -right));
    }
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int j = 0; j < 2 * M; j++) {
      const float *const x = &s[j / 2][n][j % 2 * 2];
      *(uint32_t *)shared_pointer(more_chunks<BLOCK_M>(target, n) + 8 * j * 2 * BLOCK_M) =
          pack<T>(x[0], x[1]);
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
  const auto start_copies = [&](QueryTile next, int stage) {
    copy_queries<T, HEAD_DIM, BLOCK_M, THREADS>(
        shared_address(q_shared) + stage * 2 * Tile::Q_BYTES,
        numbers_shared + stage * Tile::NUMBERS_BYTES, problem, t, heads, next);
    cp_async_commit();
  };
  float sums[Tile::SUM_KEYS / MMA_M][Tile::SUM_COLUMNS / MMA_N][4] = {};  // dV or dK

  copy_keys<T, HEAD_DIM, BLOCK_N, THREADS>(shared_address(smem), problem, t, block);
  if (tiles.count > 0) start_copies(tile, 0);

  const float scale_log2 = problem.scale * LOG2_E;
  for (int i = 0; i < tiles.count; i++, tile = tiles.next(tile)) {
    const uint32_t q_stage = i % 2 * 2 * Tile::Q_BYTES;
    const float *const numbers =
        (const float *)numbers_shared + (i % 2 * 2 + group) * BLOCK_M + part.s_query;
    cp_async_wait<0>();  // Q and dO of this tile, at first also K and V
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

    float s[M][N][4] = {};  // S^T or dP^T - D
    if (group == 1) start_with_d(s, numbers);
    multiply_rows<T, HEAD_DIM>(s, part.s_rows, part.s_columns + q_stage);
    if (i + 1 < tiles.count) start_copies(tiles.next(tile), 1 - i % 2);
    if (group == 0) {
      if (block.first_key + BLOCK_N > attended_keys(problem, tile.first_q)) {
        mask_transposed(s, problem, block.first_key + part.s_key, tile.first_q + part.s_query);
      }
      write_p<T, BLOCK_M>(p_shared, s, numbers, scale_log2, part.s_key, part.s_query);
    }
    __syncthreads();  // P^T is complete
    if (group == 1) {
      write_ds<T, BLOCK_M>(ds_shared, s, p_shared, part.s_key, part.s_query);
      named_barrier_arrive<THREADS>(1);
      named_barrier_sync<GROUP_THREADS>(2);  // dS^T is complete: this group is on its way
    }
    // dV += P^T dO or dK += dS^T Q.
    multiply_shared<T, BLOCK_M, HEAD_DIM>(sums, part.sum_rows, part.sum_columns + q_stage);
    if (group == 0) named_barrier_sync<THREADS>(1);  // dS^T is complete: group 1 has arrived
    add_dq<T, HEAD_DIM, BLOCK_M, BLOCK_N, Tile::DQ_ROWS, Tile::DQ_COLUMNS>(ds_shared, smem, warp,
                                                                           problem, t, heads, tile);
  }
  cp_async_wait<0>();  // K and V, if no query attends to these keys

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
    .name = "step15c",
    .after = "step15",
    .title = "Two groups of warps share the products",
    .idea = "One group computes P and dV, the other dS and dK, in tiles of up to 64 x 64.",
    .head_dims = "D = 64, 128 or 256",
    .nondeterministic = true,
    .rounded_p = true,
    .supports = supports_backward<CONFIGS>,
    .workspace_bytes = dq_workspace_bytes,
    .describe = describe_backward<CONFIGS>,
    .backward = backward,
};
