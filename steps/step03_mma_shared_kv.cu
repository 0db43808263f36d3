/**
 * @file
 * Step 03: asynchronous copies, with K and V sharing one buffer.
 *
 * The idea: cp.async copies 16 bytes from global to shared memory without using a register and
 * without waiting: the thread continues, and waits when it needs the data. K and V are needed one
 * after the other, so they can share one buffer.
 *
 * What changed since step 02c: copy_tile() instead of load_tile(), and one buffer instead of two.
 * After Q K^T the buffer is free, so V is copied during the softmax; after P V the next K is
 * copied, and all warps wait for it. The products and store_rows() are those of step 02c, in
 * device/mma_tile.cuh.
 *
 * What it costs: K and V need half the shared memory, yet this step is slower than step 02c. There
 * both tiles are loaded together and a thread block waits once per tile; here it waits for K, then
 * for V, at four barriers instead of two, and no mma of a thread block runs while its copies are in
 * flight. Step 02c with one buffer is as slow: cp.async alone gives nothing when every copy is
 * waited for at once. It pays in step 04, where copies overlap compute.
 *
 * What to look at: a commit puts the copies since the last commit into a group, and
 * cp_async_wait<N> waits until at most the N newest groups are unfinished. A wait covers the copies
 * of the waiting thread only; the barrier after it covers those of all threads.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mma_tile.cuh"
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
  static constexpr int SHARED_BYTES = 2 * (BLOCK_M + BLOCK_N) * SMEM_STRIDE<HEAD_DIM>;
};
// [tile_sizes]

// [copy_tile]
/**
 * Starts copying rows first to first + ROWS - 1 of a [rows][HEAD_DIM] matrix to shared memory. Rows
 * past the end become zero, so that they add nothing to any product.
 */
template <int HEAD_DIM, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void copy_tile(T *tile_shared, const T *matrix, int64_t row_stride,
                                          int first, int rows) {
  constexpr int ITERATIONS = ROWS * HEAD_DIM / CHUNK / THREADS;
  static_assert(ITERATIONS * THREADS * CHUNK == ROWS * HEAD_DIM, "all threads copy as much");
#pragma unroll
  for (int i = 0; i < ITERATIONS; i++) {
    const ChunkPosition chunk = chunk_position<HEAD_DIM, THREADS>(i, threadIdx.x);
    const int row = chunk.row + chunk.row_offset;
    const T *source =
        matrix + (first + chunk.row) * row_stride + chunk.column + chunk.row_offset * row_stride;
    cp_async_16(&tile_shared[row * SMEM_STRIDE<HEAD_DIM> + chunk.column], source,
                first + row < rows);
  }
}
// [copy_tile]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS) attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;
  // [buffers]
  extern __shared__ __align__(16) unsigned char smem[];
  T *q_shared = (T *)smem;
  T *kv_shared = q_shared + Tile::BLOCK_M * SMEM_STRIDE<HEAD_DIM>;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, blockIdx.x / q_tiles);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  T *q_warp = q_shared + warp_row * SMEM_STRIDE<HEAD_DIM>;
  // [buffers]
  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // running maximum of score * scale * log2(e)
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -INFINITY);
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_q);

  // [first_copy]
  copy_tile<HEAD_DIM, Tile::BLOCK_M, THREADS>(q_shared, q_global, problem.q_strides.row, first_q,
                                              problem.q_len);
  cp_async_commit();
  // [first_copy]

  // [copy_k]
  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(kv_shared, k_global, problem.k_strides.row,
                                                first_key, problem.kv_len);
    cp_async_commit();
    cp_async_wait<0>();  // this thread's copies of K and, in the first iteration, of Q
    __syncthreads();     // all threads' copies are visible
    // [copy_k]

    // [scores_then_v]
    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, kv_shared);
    __syncthreads();  // all warps have read K; the buffer can be overwritten by V

    copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(kv_shared, v_global, problem.v_strides.row,
                                                first_key, problem.kv_len);
    cp_async_commit();
    // [scores_then_v]
    // [softmax_then_output]
    if (first_key + Tile::BLOCK_N > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + warp_row, first_key);
    }
    update_softmax(s, m, l, o, scale_log2);
    cp_async_wait<0>();  // this thread's copies of V
    __syncthreads();     // all threads' copies are visible

    multiply_pv<T, HEAD_DIM>(o, s, kv_shared);
    __syncthreads();  // all warps have read V; the buffer can be overwritten by the next K
    // [softmax_then_output]
  }

  // [end_of_rows]
  cp_async_wait<0>();  // if the loop did not run, the copy of Q may still be in flight
  __syncthreads();     // all threads' copies of Q are complete; its rows can be overwritten by O
  store_rows<T, HEAD_DIM>(o, m, l, q_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_q + warp_row, problem.q_len);
  // [end_of_rows]
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
    .name = "step03",
    .after = "step02c",
    .title = "Asynchronous copies, K and V sharing one buffer",
    .idea = "cp.async copies without registers; each tile waits for its K, then for its V.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
