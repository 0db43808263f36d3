/**
 * @file
 * Step 04: prefetch, with a buffer for K and another for V.
 *
 * The idea: loads for later work overlap the compute at hand. V of this tile is copied during
 * Q K^T and the softmax, and K of the next tile during the softmax and P V. A wait covers the
 * copies that are needed now and leaves later ones in flight.
 *
 * What changed since step 03: two buffers instead of one, and the order of copies and waits in the
 * loop. copy_tile() is in device/copy_tile.cuh; every other line is the same (`make diff04`).
 *
 * What it costs: shared memory for one more tile, and a copy of zeros after the last tile.
 *
 * What to look at: what each wait leaves in flight. With cp_async_wait<0> in place of <1> the
 * answer stays right, and half of the overlap is lost: V is still copied during Q K^T, but the next
 * K is no longer copied during P V.
 */
#include <math.h>

#include "attention.h"
#include "device/copy_tile.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/mma_tile.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

/** Sizes of the tiles, by head dimension: S and O must fit the registers. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int M_FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 rows of Q each, per warp
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;         // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 64 : 32;  // rows of K and V
  static constexpr int SHARED_BYTES = 2 * (BLOCK_M + 2 * BLOCK_N) * SMEM_STRIDE<HEAD_DIM>;
};

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS) attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;

  // [buffers]
  extern __shared__ __align__(16) unsigned char smem[];
  T *q_shared = (T *)smem;
  T *k_shared = q_shared + Tile::BLOCK_M * SMEM_STRIDE<HEAD_DIM>;
  T *v_shared = k_shared + Tile::BLOCK_N * SMEM_STRIDE<HEAD_DIM>;
  // [buffers]

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const int first_q = (q_tiles - 1 - blockIdx.x % q_tiles) * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, blockIdx.x / q_tiles);
  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  T *q_warp = q_shared + warp_row * SMEM_STRIDE<HEAD_DIM>;

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // running maximum of score * scale * log2(e)
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -INFINITY);
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_q);

  // [first_group]
  copy_tile<HEAD_DIM, Tile::BLOCK_M, THREADS>(q_shared, q_global, problem.q_strides.row, first_q,
                                              problem.q_len);
  copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_shared, k_global, problem.k_strides.row, 0,
                                              problem.kv_len);
  cp_async_commit();  // Q and the first K
  // [first_group]

  // [copy_v]
  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    cp_async_wait<0>();  // K of this tile: nothing else is in flight
    __syncthreads();     // all threads' copies are visible, and all warps have read the previous V

    copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(v_shared, v_global, problem.v_strides.row,
                                                first_key, problem.kv_len);
    cp_async_commit();  // V of this tile is copied during Q K^T and the softmax
    // [copy_v]

    // [next_k]
    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    __syncthreads();  // all warps have read K; its buffer can be overwritten by the next

    // K of the next tile is copied during the softmax and P V. After the last tile zeros
    // are copied. Every iteration commits a group, so that the wait below counts the same groups.
    const int next_key = first_key + Tile::BLOCK_N;
    copy_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_shared, k_global, problem.k_strides.row, next_key,
                                                next_key < key_end ? problem.kv_len : 0);
    cp_async_commit();
    // [next_k]

    // [softmax_then_output]
    if (next_key > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + warp_row, first_key);
    }
    update_softmax(s, m, l, o, scale_log2);

    cp_async_wait<1>();  // waits for V, the older group; the next K stays in flight
    __syncthreads();     // all threads' copies are visible
    multiply_pv<T, HEAD_DIM>(o, s, v_shared);
    // [softmax_then_output]
  }

  // [end_of_rows]
  cp_async_wait<0>();  // the zeros after the last tile or, if all keys are masked, Q and K
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
    .name = "step04",
    .after = "step03",
    .title = "Prefetch: K and V in buffers of their own",
    .idea = "V is copied during Q K^T, the next K during the softmax and P V.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
