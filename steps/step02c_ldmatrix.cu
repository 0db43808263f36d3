/**
 * @file
 * Step 02c: ldmatrix, and 32 query rows per warp.
 *
 * The idea: ldmatrix fills fragments with one instruction. For an 8 x 8 matrix of 16-bit elements,
 * lanes 0 to 7 each give the address of one row, 16 bytes, and all 32 lanes receive one register:
 * elements j and j + 1 of row g, with g and j as in step 02b. The form .x4 loads four matrices, and
 * each group of 8 lanes names the rows of one. The form .trans gives elements j and j + 1 of column
 * g instead, which is what V needs. One ldmatrix.x4 replaces four 32-bit loads, or eight 16-bit
 * loads and four instructions that pack pairs.
 *
 * What changed since step 02b: the two products use ldmatrix. A warp owns 32 rows of Q (16 at
 * HEAD_DIM 256, where O fills the registers), so that what is loaded of K and V serves two mma. O
 * is collected in shared memory and stored 16 bytes at a time. Mask and softmax are those of step
 * 02b, for M_FRAGMENTS tiles of 16 rows, in device/fragments.cuh. Later steps find multiply_qk(),
 * multiply_pv() and store_rows() in device/mma_tile.cuh.
 *
 * What it costs: twice the rows per warp need twice the registers for S and O, so fewer thread
 * blocks fit an SM. All warps still wait while K and V are loaded.
 *
 * What to look at: which 8 rows each group of 8 lanes names in multiply_qk() and multiply_pv().
 * They start in different banks because rows are padded by 16 bytes.
 */
#include <math.h>

#include "attention.h"
#include "device/fragments.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

// [tile_sizes]
/** Sizes of the tiles, by head dimension: S and O must fit the registers. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int M_FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 rows of Q each, per warp
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;         // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 64 : 32;  // rows of K and V
  static constexpr int SHARED_BYTES = 2 * (BLOCK_M + 2 * BLOCK_N) * SMEM_STRIDE<HEAD_DIM>;
};
// [tile_sizes]

// [scores_ldmatrix]
/** S += Q K^T for this warp's rows and the keys of one tile. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_qk(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            const T *q_warp, const T *k_shared) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 16) {
    // Lanes 0-7 name the upper left 8 x 8 matrix of Q, then 8 lanes each the lower left, the upper
    // right and the lower right one: registers a[0] to a[3] of operand A.
    uint32_t q[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      ldmatrix_x4(q[i], &q_warp[(16 * i + lane % 16) * SMEM_STRIDE<HEAD_DIM> + d + lane / 16 * 8]);
    }
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n += 2) {
      // Left and right 8 columns of 8 keys, then of the next 8 keys: operand B of two mma.
      uint32_t k[4];
      const int key = 8 * n + lane / 16 * 8 + lane % 8;
      ldmatrix_x4(k, &k_shared[key * SMEM_STRIDE<HEAD_DIM> + d + lane / 8 % 2 * 8]);
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        mma_m16n8k16<T>(s[i][n], q[i], k[0], k[1]);
        mma_m16n8k16<T>(s[i][n + 1], q[i], k[2], k[3]);
      }
    }
  }
}
// [scores_ldmatrix]

// [output_ldmatrix]
/** O += P V for this warp's rows and the keys of one tile. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                            const float (&probs)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            const T *v_shared) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
    // Two neighbouring fragments of P, 8 keys each, are operand A of one mma.
    uint32_t a[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      a[i][0] = pack<T>(probs[i][n][0], probs[i][n][1]);
      a[i][1] = pack<T>(probs[i][n][2], probs[i][n][3]);
      a[i][2] = pack<T>(probs[i][n + 1][0], probs[i][n + 1][1]);
      a[i][3] = pack<T>(probs[i][n + 1][2], probs[i][n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 16) {
      // 16 keys of the left 8 columns, then of the right 8: operand B of two mma. .trans transposes
      // each 8 x 8 matrix, so that a lane gets two keys of one column.
      uint32_t v[4];
      const int key = 8 * n + lane % 16;
      ldmatrix_x4_trans(v, &v_shared[key * SMEM_STRIDE<HEAD_DIM> + d + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        mma_m16n8k16<T>(o[i][d / MMA_N], a[i], v[0], v[1]);
        mma_m16n8k16<T>(o[i][d / MMA_N + 1], a[i], v[2], v[3]);
      }
    }
  }
}
// [output_ldmatrix]

// [collect_rows]
/**
 * Divides O by l and stores this warp's rows of O and LSE; its first row is query `first`. The rows
 * are collected in `o_warp`, shared memory of this warp alone, so that a lane stores 16 bytes at a
 * time. With `lse_global` NULL, LSE is not stored.
 */
template <typename T, int HEAD_DIM, int M_FRAGMENTS>
__device__ __forceinline__ void store_rows(const float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                           const float (&m)[M_FRAGMENTS][2],
                                           const float (&l)[M_FRAGMENTS][2], T *o_warp, T *o_global,
                                           int64_t row_stride, float *lse_global, int first,
                                           int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = 16 * i + 8 * half + lane / 4;
      const float sum = lanes_reduce_sum<4>(l[i][half]);
      const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
      for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
        *reinterpret_cast<uint32_t *>(&o_warp[row * SMEM_STRIDE<HEAD_DIM> + 8 * n + lane % 4 * 2]) =
            pack<T>(o[i][n][2 * half] * factor, o[i][n][2 * half + 1] * factor);
      }
      // A fully masked row has m = -inf and sum = 0, and log2(0) is -inf too.
      if (lse_global != NULL && lane % 4 == 0 && first + row < rows) {
        lse_global[first + row] = (m[i][half] + log2_approx(sum)) * LN_2;
      }
    }
  }
  __syncwarp();  // the rows are complete: a lane stores what other lanes of the warp have written
  // [collect_rows]
  // [store_chunks]
  constexpr int ITERATIONS = 16 * M_FRAGMENTS * HEAD_DIM / CHUNK / WARP_SIZE;
  uint4 chunks[ITERATIONS];  // all loads come before the first store, so they overlap each other
#pragma unroll
  for (int j = 0; j < ITERATIONS; j++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, WARP_SIZE>(j, lane);
    chunks[j] = *reinterpret_cast<const uint4 *>(
        &o_warp[(chunk.row + chunk.row_offset) * SMEM_STRIDE<HEAD_DIM> + chunk.column]);
  }
#pragma unroll
  for (int j = 0; j < ITERATIONS; j++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, WARP_SIZE>(j, lane);
    T *target =
        o_global + (first + chunk.row) * row_stride + chunk.column + chunk.row_offset * row_stride;
    store_16(target, chunks[j], first + chunk.row + chunk.row_offset < rows);
  }
  // [store_chunks]
}

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS) attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;

  extern __shared__ __align__(16) unsigned char smem[];
  T *q_shared = (T *)smem;
  T *k_shared = q_shared + Tile::BLOCK_M * SMEM_STRIDE<HEAD_DIM>;
  T *v_shared = k_shared + Tile::BLOCK_N * SMEM_STRIDE<HEAD_DIM>;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, blockIdx.x / q_tiles);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  // [warp_rows]
  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  T *q_warp = q_shared + warp_row * SMEM_STRIDE<HEAD_DIM>;

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // running maximum of score * scale * log2(e)
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -INFINITY);
  // [warp_rows]
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_q);

  // [reuse_q]
  load_tile<HEAD_DIM, Tile::BLOCK_M, THREADS>(q_shared, q_global, problem.q_strides.row, first_q,
                                              problem.q_len);

  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    __syncthreads();  // all warps have read the previous K and V; their buffers can be overwritten
    load_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_shared, k_global, problem.k_strides.row,
                                                first_key, problem.kv_len);
    load_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(v_shared, v_global, problem.v_strides.row,
                                                first_key, problem.kv_len);
    __syncthreads();  // K, V and, in the first iteration, Q are complete

    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    if (first_key + Tile::BLOCK_N > unmasked_end)
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + warp_row, first_key);
    update_softmax(s, m, l, o, scale_log2);
    multiply_pv<T, HEAD_DIM>(o, s, v_shared);
  }

  // O goes to the memory of Q. Other lanes of the warp may still read it; if the loop did not run,
  // other warps may still write it.
  __syncthreads();
  store_rows<T, HEAD_DIM>(o, m, l, q_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_q + warp_row, problem.q_len);
  // [reuse_q]
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  THREADS,
                                                                  Tiles<HEAD_DIM>::SHARED_BYTES,
                                                                  USES_MMA);

static constexpr KernelConfig<> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  config->kernel<<<grid_size(config, problem), THREADS, config->shared_bytes, stream>>>(*problem,
                                                                                        *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step02c",
    .after = "step02b",
    .title = "ldmatrix, and 32 query rows per warp",
    .idea = "One load fills four registers, and what is loaded of K and V serves two mma.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
