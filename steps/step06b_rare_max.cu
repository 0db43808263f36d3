/**
 * @file
 * Step 06b: a row maximum that is rarely raised.
 *
 * The idea: any m gives the same O, because the division by l removes the factor 2^-m. So P is
 * computed with the m that there is, before anything is known of the tile's scores. Nearly all
 * comparisons and shuffles of the maximum are gone, and so is the rescaling of O in every tile.
 *
 * What changed since step 06:
 * - m is the maximum of some keys whose scores are known. If a sum of P exceeds MOST_SUM, m is
 *   raised to the maximum of the rest of the tile, O and l are rescaled, and P is computed again.
 *   With normal inputs that never happens after the first tile.
 * - P is computed for 32 keys at a time, so that nvcc may put the exponentials of the next 32 keys
 *   beside P V of the current ones. Measured, this gains nothing.
 * - m starts at -FLT_MAX: with minus infinity, 2^(s - m) of a masked key would be NaN.
 *
 * What it costs: P is no longer at most 1, so the largest P of a row is rounded, too.
 * What to look at: `--report=counts` of both steps: the shuffles, which the maximum takes.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/store_rows.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;
constexpr int PART = 32; /**< keys whose probabilities are computed at a time */
/** The largest sum of P of a row in a lane. In fp16, P must be below 65504. Scores beyond 2^28 are
 * so coarse in fp32 that even P of a new m may be larger (docs/correctness.md). */
constexpr float MOST_SUM = 512;

/** Sizes of the tiles, by measurement on an H200. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int M_FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 rows of Q each, per warp
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;                                 // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 128 : HEAD_DIM <= 128 ? 64 : 32;  // of K and V
  static constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;  // of one stage of K or of V
  static constexpr int SHARED_BYTES = Q_BYTES + 4 * KV_BYTES;
};

// [probabilities]
/** Probabilities 2^(scale_log2 s - m) of PART keys from fragment `first` of S on, as operand A of
 * one mma per 16 keys, and their sums over the keys of this lane. */
template <typename T, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void exponentiate(uint32_t (&probs)[PART / 16][M_FRAGMENTS][4],
                                             float (&sums)[M_FRAGMENTS][2],
                                             const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                             int first, const float (&m)[M_FRAGMENTS][2],
                                             float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
    sums[i][0] = sums[i][1] = 0.0f;
#pragma unroll
    for (int j = 0; j < PART / 16; j++) {
      float prob[8];  // of two fragments
#pragma unroll
      for (int c = 0; c < 8; c++) {
        const int half = c / 2 % 2;
        prob[c] = exp2_approx(fmaf(s[i][first + 2 * j + c / 4][c % 4], scale_log2, -m[i][half]));
        sums[i][half] += prob[c];
      }
#pragma unroll
      for (int c = 0; c < 4; c++) probs[j][i][c] = pack<T>(prob[2 * c], prob[2 * c + 1]);
    }
  }
}

/** Whether a sum of P exceeds `most`, so that m is too small for a row of this lane. Before its
 * first unmasked key a row has m = -FLT_MAX: P of a masked key is 0, and P of any other is
 * infinite. A score of NaN or +inf makes the sum NaN or infinite, too. */
template <int M_FRAGMENTS>
__device__ __forceinline__ bool needs_new_max(const float (&sums)[M_FRAGMENTS][2], float most) {
  bool needs = false;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) needs |= !(sums[i][half] <= most);
  }
  return needs;
}
// [probabilities]

/** The maximum score of each row from fragment `first` of S on. */
template <int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void row_maxima(float (&maxima)[M_FRAGMENTS][2],
                                           const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                           int first) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float maximum = -INFINITY;
#pragma unroll
      for (int n = first; n < N_FRAGMENTS; n++) {
        maximum = fmaxf(maximum, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
      }
      maxima[i][half] = lanes_reduce_max<4>(maximum);
    }
  }
}

/** Gives m of rows without an unmasked key so far, whose l and O are 0, these maxima. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void start_m(float (&m)[M_FRAGMENTS][2],
                                        const float (&maxima)[M_FRAGMENTS][2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (m[i][half] == -FLT_MAX) m[i][half] = fmaxf(-FLT_MAX, maxima[i][half] * scale_log2);
    }
  }
}

// [raise_maximum]
/** Raises m to these maxima and rescales l and O. */
template <int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void raise_m(float (&m)[M_FRAGMENTS][2], float (&l)[M_FRAGMENTS][2],
                                        float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                        const float (&maxima)[M_FRAGMENTS][2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float raised = fmaxf(m[i][half], maxima[i][half] * scale_log2);
      const float rescale = exp2_approx(m[i][half] - raised);
      m[i][half] = raised;
      l[i][half] *= rescale;
#pragma unroll
      for (int n = 0; n < O_FRAGMENTS; n++) {
        o[i][n][2 * half] *= rescale;
        o[i][n][2 * half + 1] *= rescale;
      }
    }
  }
}
// [raise_maximum]

/** Adds the sums of PART keys to l. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void add_sums(float (&l)[M_FRAGMENTS][2],
                                         const float (&sums)[M_FRAGMENTS][2]) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) l[i][half] += sums[i][half];
  }
}

/** O += P V for 16 keys. `probs` is operand A, and `v` the lane's address in V: of the first key
 * plus lane % 16, chunk lane / 16. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                            const uint32_t (&probs)[M_FRAGMENTS][4], uint32_t v) {
#pragma unroll
  for (int d = 0; d < O_FRAGMENTS / 2; d++) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, shared_pointer(more_chunks<HEAD_DIM>(v, 2 * d)));
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      mma_m16n8k16<T>(o[i][2 * d], probs[i], b[0], b[1]);
      mma_m16n8k16<T>(o[i][2 * d + 1], probs[i], b[2], b[3]);
    }
  }
}

// [parts_overlap]
/** Takes one tile into O, m and l: its scores are `s`, and `v` is the lane's address in its V. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void update_output(float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                              float (&m)[M_FRAGMENTS][2],
                                              float (&l)[M_FRAGMENTS][2],
                                              const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                              uint32_t v, float scale_log2) {
  float maxima[M_FRAGMENTS][2];
  if (__any_sync(FULL_WARP, m[0][0] == -FLT_MAX)) {
    // Usually the first tile. Without this branch, its P would be computed twice. Only m[0][0] is
    // tested, eight rows of a warp: if others alone lack an m, their P is computed twice.
    row_maxima(maxima, s, 0);
    start_m(m, maxima, scale_log2);
  }
  uint32_t probs[2][PART / 16][M_FRAGMENTS][4];  // of this part and the next
  float sums[2][M_FRAGMENTS][2];
  exponentiate<T>(probs[0], sums[0], s, 0, m, scale_log2);
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += PART / 8) {
    const int now = n / (PART / 8) % 2, next = n + PART / 8;
    if (__any_sync(FULL_WARP, needs_new_max(sums[now], MOST_SUM))) {
      row_maxima(maxima, s, n);
      raise_m(m, l, o, maxima, scale_log2);
      exponentiate<T>(probs[now], sums[now], s, n, m, scale_log2);
    }
    add_sums(l, sums[now]);
    // No branch separates this from P V, so nvcc can put the exponentials between its mma.
    if (next < N_FRAGMENTS) {
      exponentiate<T>(probs[1 - now], sums[1 - now], s, next, m, scale_log2);
    }
#pragma unroll
    for (int j = 0; j < PART / 16; j++) {
      multiply_pv<T, HEAD_DIM>(o, probs[now][j], v + (8 * n + 16 * j) * 2 * HEAD_DIM);
    }
  }
}
// [parts_overlap]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, HEAD_DIM <= 128 ? 2 : 1)
    attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;
  extern __shared__ __align__(128) unsigned char smem[];
  // Of K and V there are two stages.
  unsigned char *k_shared = smem + Tile::Q_BYTES, *v_shared = k_shared + 2 * Tile::KV_BYTES;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const BlockRow row = row_of_block(problem, heads_per_wave(problem), q_tiles, blockIdx.x);
  const int first_q = (q_tiles - 1 - row.entry) * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, row.head);

  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;
  const int lane = threadIdx.x % WARP_SIZE;
  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  const uint32_t q_lane = lane_address<HEAD_DIM>(smem, warp_row + lane % 16, lane / 16);
  const uint32_t k_lane = lane_address<HEAD_DIM>(k_shared, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t v_lane = lane_address<HEAD_DIM>(v_shared, lane % 16, lane / 16);
  const int copy_row = threadIdx.x / SWIZZLE_CHUNKS<HEAD_DIM>;
  const uint32_t target = shared_address(smem) +
                          chunk_offset<HEAD_DIM>(copy_row, threadIdx.x % SWIZZLE_CHUNKS<HEAD_DIM>);
  const T *k_chunk = first_chunk<HEAD_DIM>(k_global, problem.k_strides.row);
  const T *v_chunk = first_chunk<HEAD_DIM>(v_global, problem.v_strides.row);
  const auto copy_keys = [&](int key, int stage) {
    const int rows = problem.kv_len - key - copy_row;
    const uint32_t k_target = target + Tile::Q_BYTES + stage * Tile::KV_BYTES;
    const int64_t k_stride = problem.k_strides.row, v_stride = problem.v_strides.row;
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_target, k_chunk + key * k_stride, k_stride, rows);
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_target + 2 * Tile::KV_BYTES,
                                                v_chunk + key * v_stride, v_stride, rows);
    cp_async_commit();
  };

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // maximum of score * scale * log2(e) over some of the keys so far
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -FLT_MAX);
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  const int unmasked_end = attended_keys(problem, first_q);
  const int64_t q_stride = problem.q_strides.row;
  copy_rows<HEAD_DIM, Tile::BLOCK_M, THREADS>(
      target, first_chunk<HEAD_DIM>(q_global, q_stride) + first_q * q_stride, q_stride,
      problem.q_len - first_q - copy_row);
  copy_keys(0, 0);
  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    const int stage = first_key / Tile::BLOCK_N % 2;
    cp_async_wait<0>();  // K and V of this tile, at first also Q: nothing else is in flight
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_lane, k_lane + stage * Tile::KV_BYTES);
    // The copies come after Q K^T, so that the tensor cores have work after the barrier at once.
    const int next_key = first_key + Tile::BLOCK_N;
    if (next_key < key_end) copy_keys(next_key, 1 - stage);
    if (next_key > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + warp_row, first_key);
    }
    update_output<T, HEAD_DIM>(o, m, l, s, v_lane + stage * Tile::KV_BYTES, scale_log2);
  }

  cp_async_wait<0>();  // Q and the first keys, if all keys are masked
  __syncthreads();     // no warp reads Q or K any more; O can be written there, in padded rows
  T *o_warp = (T *)smem + warp_row * SMEM_STRIDE<HEAD_DIM>;
  store_rows<T, HEAD_DIM>(o, m, l, o_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_q + warp_row, problem.q_len);
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
    .name = "step06b",
    .after = "step06",
    .title = "A row maximum that is rarely raised",
    .idea = "P needs only a maximum that is large enough, so O is rarely rescaled.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
