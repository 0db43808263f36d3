/**
 * @file
 * Step 02b opens a chapter: both products on the tensor cores.
 *
 * The idea: mma.m16n8k16 is one instruction of a whole warp. It computes C += A B for a 16 x 16
 * matrix A and a 16 x 8 matrix B of 16-bit elements and a 16 x 8 matrix C of fp32 accumulators. The
 * matrices are in registers, spread over the 32 lanes in a fixed pattern. The part that one lane
 * holds is its fragment. With g = lane / 4 (0 to 7) and j = 2 * (lane % 4) (0, 2, 4 or 6), a lane
 * holds
 *
 *     A   a[0]: A[g][j], A[g][j + 1]           a[2]: A[g][j + 8], A[g][j + 9]
 *         a[1]: A[g + 8][j], A[g + 8][j + 1]   a[3]: A[g + 8][j + 8], A[g + 8][j + 9]
 *     B   b[0]: B[j][g], B[j + 1][g]           b[1]: B[j + 8][g], B[j + 9][g]
 *     C   c[0], c[1]: C[g][j], C[g][j + 1]     c[2], c[3]: C[g + 8][j], C[g + 8][j + 1]
 *
 * where each register of A and B holds two 16-bit elements. Lane 5, for example, has g = 1 and
 * j = 2. `make layouts` draws the pattern.
 *
 * What changed since step 02: a warp owns 16 rows of Q, S and O, and S, P and O stay in fragments.
 * Q, K and V stay in 16 bits in shared memory. P is computed in fp32 and rounded to 16 bits before
 * it is multiplied by V; l is the sum of the unrounded P. Under the causal mask the tiles of
 * queries with the most keys come first.
 *
 * What it costs: fragments are filled by ordinary loads from shared memory. An mma of Q K^T needs
 * two 4-byte loads for B, an mma of P V four 2-byte loads and two instructions to pack them.
 *
 * What to look at: the index of each load in multiply_qk() and multiply_pv(), against the pattern
 * above; in multiply_pv(), how C of one product becomes A of the next within the same lane.
 */
#include <math.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

// [tile_sizes]
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

/** Elements from one row of a tile in shared memory to the next: 16 bytes of padding let the rows
 * that a load of a fragment reads together (8 of Q or K, 4 of V) start in different banks. */
template <int HEAD_DIM>
constexpr int SMEM_STRIDE = HEAD_DIM + 8;

/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int BLOCK_M = 16 * WARPS;                // rows of Q; each warp owns 16 of them
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 64 : 32;  // rows of K and V
  static constexpr int SHARED_BYTES = 2 * (BLOCK_M + 2 * BLOCK_N) * SMEM_STRIDE<HEAD_DIM>;
};
// [tile_sizes]

/**
 * Copies rows first to first + ROWS - 1 of a [rows][HEAD_DIM] matrix to shared memory, 16 bytes per
 * thread and iteration. Rows past the end become zero, so that they add nothing to any product.
 */
template <int HEAD_DIM, int ROWS, typename T>
__device__ __forceinline__ void load_tile(T *tile_shared, const T *matrix, int64_t row_stride,
                                          int first, int rows) {
  constexpr int ROW_CHUNKS = HEAD_DIM / 8;  // of 16 bytes
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * ROW_CHUNKS; i += THREADS) {
    const int row = i / ROW_CHUNKS;
    const int column = i % ROW_CHUNKS * 8;
    const T *source = matrix + (first + row) * row_stride + column;
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (first + row < rows) chunk = *reinterpret_cast<const uint4 *>(source);
    *reinterpret_cast<uint4 *>(&tile_shared[row * SMEM_STRIDE<HEAD_DIM> + column]) = chunk;
  }
}

// [load_pairs]
/** Two neighbouring elements of a row as one register; `pair` is aligned to 4 bytes. */
template <typename T>
__device__ __forceinline__ uint32_t load_row_pair(const T *pair) {
  return *reinterpret_cast<const uint32_t *>(pair);
}

/** Two elements of a column, in neighbouring rows, as one register: the upper in the low half. */
template <int STRIDE, typename T>
__device__ __forceinline__ uint32_t load_column_pair(const T *upper) {
  const uint16_t low = *reinterpret_cast<const uint16_t *>(upper);
  const uint16_t high = *reinterpret_cast<const uint16_t *>(upper + STRIDE);
  return low | (uint32_t)high << 16;
}
// [load_pairs]

// [scores_mma]
/** S += Q K^T for the 16 rows of this warp and the keys of one tile, 8 keys per fragment of S. */
template <typename T, int HEAD_DIM, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_qk(float (&s)[N_FRAGMENTS][4], const T *q_warp,
                                            const T *k_shared) {
  constexpr int STRIDE = SMEM_STRIDE<HEAD_DIM>;
  const int lane = threadIdx.x % WARP_SIZE;
  const int g = lane / 4, j = lane % 4 * 2;
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 16) {
    // A is rows 0 to 15 and columns d to d + 15 of Q.
    const T *q = &q_warp[g * STRIDE + d + j];
    const uint32_t a[4] = {load_row_pair(q), load_row_pair(q + 8 * STRIDE), load_row_pair(q + 8),
                           load_row_pair(q + 8 * STRIDE + 8)};
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      // B is part of K^T: B[j][g] and B[j + 1][g] are K[8 n + g][d + j] and its right neighbour.
      const T *k = &k_shared[(8 * n + g) * STRIDE + d + j];
      mma_m16n8k16<T>(s[n], a, load_row_pair(k), load_row_pair(k + 8));
    }
  }
}
// [scores_mma]

// [mask_rows]
/** Sets masked scores to -inf: those of keys past the last one and, under the causal mask, of keys
 * past the diagonal. Row 0 of `s` is query first_q, column 0 is key first_key. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void apply_mask(float (&s)[N_FRAGMENTS][4], const Problem &problem,
                                           int first_q, int first_key) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {  // of the 16 rows: upper, lower
    // Attended keys from the first key of this lane on; may be negative.
    const int keys =
        attended_keys(problem, first_q + 8 * half + lane / 4) - first_key - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      if (8 * n >= keys) s[n][2 * half] = -INFINITY;
      if (8 * n + 1 >= keys) s[n][2 * half + 1] = -INFINITY;
    }
  }
}
// [mask_rows]

// [softmax_rows]
/** Replaces scores by unnormalised probabilities 2^(scale_log2 s - m) and updates m, l and O. */
template <int N_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void update_softmax(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                               float (&l)[2], float (&o)[O_FRAGMENTS][4],
                                               float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float row_max = -INFINITY;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      row_max = fmaxf(row_max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    // Lanes 4 g to 4 g + 3 hold rows g and g + 8. The scale is positive, so scaling the maximum
    // once is the same as scaling every score.
    row_max = fmaxf(m[half], lanes_reduce_max<4>(row_max) * scale_log2);
    const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
    const float rescale = exp2_approx(m[half] - safe_max);
    m[half] = row_max;
    float tile_sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        s[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, -safe_max));
        tile_sum += s[n][c];
      }
    }
    l[half] = l[half] * rescale + tile_sum;
#pragma unroll
    for (int n = 0; n < O_FRAGMENTS; n++) {
      o[n][2 * half] *= rescale;
      o[n][2 * half + 1] *= rescale;
    }
  }
}
// [softmax_rows]

// [output_mma]
/** Two values, rounded to T, as one register of a fragment: `low` in the lower half. */
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const typename PairOf<T>::type pair = from_floats<T>(low, high);
  return *reinterpret_cast<const uint32_t *>(&pair);
}

/** O += P V for the 16 rows of this warp and the keys of one tile. */
template <typename T, int HEAD_DIM, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[HEAD_DIM / MMA_N][4],
                                            const float (&probs)[N_FRAGMENTS][4],
                                            const T *v_shared) {
  constexpr int STRIDE = SMEM_STRIDE<HEAD_DIM>;
  const int lane = threadIdx.x % WARP_SIZE;
  const int g = lane / 4, j = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
    // A is 16 keys of P. Of it this lane needs columns j and j + 1, which are in its fragment n of
    // P, and columns j + 8 and j + 9, which are in fragment n + 1.
    const uint32_t a[4] = {pack<T>(probs[n][0], probs[n][1]), pack<T>(probs[n][2], probs[n][3]),
                           pack<T>(probs[n + 1][0], probs[n + 1][1]),
                           pack<T>(probs[n + 1][2], probs[n + 1][3])};
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 8) {
      // B is part of V: B[j][g] and B[j + 1][g] are V[8 n + j][d + g] and the element below it.
      const T *v = &v_shared[(8 * n + j) * STRIDE + d + g];
      mma_m16n8k16<T>(o[d / MMA_N], a, load_column_pair<STRIDE>(v),
                      load_column_pair<STRIDE>(v + 8 * STRIDE));
    }
  }
}
// [output_mma]

// [store_fragments]
/** Divides O by l and stores this warp's rows of O and LSE; its first row is query `first`. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void store_rows(const float (&o)[HEAD_DIM / MMA_N][4],
                                           const float (&m)[2], const float (&l)[2], T *o_global,
                                           int64_t row_stride, float *lse_global, int first,
                                           int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = first + 8 * half + lane / 4;
    const float sum = lanes_reduce_sum<4>(l[half]);
    const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < HEAD_DIM / MMA_N; n++) {
      *reinterpret_cast<uint32_t *>(&o_global[row * row_stride + 8 * n + lane % 4 * 2]) =
          pack<T>(o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
    }
    // A fully masked row has m = -inf and sum = 0, and log2(0) is -inf too.
    if (lane % 4 == 0) lse_global[row] = (m[half] + log2_approx(sum)) * LN_2;
  }
}
// [store_fragments]

// [tile_loop]
/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS) attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;

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

  const int warp_row = threadIdx.x / WARP_SIZE * 16;
  T *q_warp = q_shared + warp_row * SMEM_STRIDE<HEAD_DIM>;

  // Index 0 belongs to row g of this warp, index 1 to row g + 8.
  float m[2] = {-INFINITY, -INFINITY};  // running maximum of score * scale * log2(e)
  float l[2] = {0.0f, 0.0f};            // running sum of the probabilities of this lane's keys
  float o[HEAD_DIM / MMA_N][4] = {};
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_q);

  load_tile<HEAD_DIM, Tile::BLOCK_M>(q_shared, q_global, problem.q_strides.row, first_q,
                                     problem.q_len);

  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    __syncthreads();  // all warps have read the previous K and V; their buffers can be overwritten
    load_tile<HEAD_DIM, Tile::BLOCK_N>(k_shared, k_global, problem.k_strides.row, first_key,
                                       problem.kv_len);
    load_tile<HEAD_DIM, Tile::BLOCK_N>(v_shared, v_global, problem.v_strides.row, first_key,
                                       problem.kv_len);
    __syncthreads();  // K, V and, in the first iteration, Q are complete

    float s[Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    if (first_key + Tile::BLOCK_N > unmasked_end)
      apply_mask(s, problem, first_q + warp_row, first_key);
    update_softmax(s, m, l, o, scale_log2);
    multiply_pv<T, HEAD_DIM>(o, s, v_shared);  // s holds probabilities now
  }
  // [tile_loop]

  store_rows<T, HEAD_DIM>(o, m, l, (T *)t.o + offset.o, problem.o_strides.row, t.lse + offset.lse,
                          first_q + warp_row, problem.q_len);
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
    .name = "step02b",
    .after = "step02",
    .title = "Both products on the tensor cores",
    .idea = "S, P and O stay in mma fragments; Q, K and V are read with ordinary loads.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
