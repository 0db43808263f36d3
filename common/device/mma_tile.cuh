/**
 * @file
 * What a warp of the tensor-core steps does with one tile, from step 03 on: copies by cp.async, the
 * two products in mma fragments, the mask and the online softmax on fragments, the store of O.
 *
 * A warp owns M_TILES x 16 rows of Q. S is an array [M_TILES][N_TILES] of 16 x 8 accumulators,
 * N_TILES = keys / 8; O is [M_TILES][HEAD_DIM / 8] of them. Of each, a lane holds c[0] and c[1] in
 * row lane / 4, c[2] and c[3] in the row 8 below, in the columns 2 (lane % 4) and the next: the
 * layout of mma.m16n8k16, see ptx.cuh. So four lanes share a row, and m and l of a row are kept by
 * all four.
 */
#ifndef DEVICE_MMA_TILE_CUH
#define DEVICE_MMA_TILE_CUH

#include <cuda_runtime.h>
#include <math.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

constexpr int VECTOR = 8;  // elements in 16 bytes: what cp.async and the store of O move

/** Elements from row to row of a tile in shared memory. Padded by 16 bytes, so that the eight rows
 * of an ldmatrix lie in different banks. */
template <int HEAD_DIM>
constexpr int PITCH = HEAD_DIM + VECTOR;

/**
 * The 16 bytes that one thread moves in one turn, when THREADS of them move a tile row by row: in
 * row `row + later`. Apart from each other the compiler can compute an address once, from what
 * differs between the threads, and add the same to it for all of them in each later turn.
 */
struct Piece {
  int row, column; /**< differ between the threads, not between the turns */
  int later;       /**< differs between the turns, not between the threads */
};

template <int HEAD_DIM, int THREADS>
__device__ __forceinline__ Piece piece_of_turn(int turn, int thread) {
  constexpr int VECTORS = HEAD_DIM / VECTOR;
  if (THREADS % VECTORS == 0) {
    return {thread / VECTORS, thread % VECTORS * VECTOR, turn * (THREADS / VECTORS)};
  }
  const int i = turn * THREADS + thread;  // at D = 96 a turn ends within a row: nothing stays
  return {i / VECTORS, i % VECTORS * VECTOR, 0};
}

/**
 * Starts copying rows first .. first + ROWS - 1 of a [rows][HEAD_DIM] matrix; rows past the end
 * become zero, so that they add nothing to any product.
 */
template <int HEAD_DIM, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void copy_tile(T *tile_shared, const T *matrix, int64_t row_stride,
                                          int first, int rows) {
  constexpr int TURNS = ROWS * HEAD_DIM / VECTOR / THREADS;
  static_assert(TURNS * THREADS * VECTOR == ROWS * HEAD_DIM, "every thread copies as much");
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const Piece at = piece_of_turn<HEAD_DIM, THREADS>(turn, threadIdx.x);
    const int row = at.row + at.later;
    // One product for all turns; what a later turn adds is the same for all threads.
    const T *source = matrix + (first + at.row) * row_stride + at.column + at.later * row_stride;
    cp_async_16(&tile_shared[row * PITCH<HEAD_DIM> + at.column], source, first + row < rows);
  }
}

/** S = Q K^T for this warp's rows and the keys of one tile. */
template <typename T, int HEAD_DIM, int M_TILES, int N_TILES>
__device__ __forceinline__ void multiply_qk(float (&s)[M_TILES][N_TILES][4], const T *q_warp,
                                            const T *k_shared) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll(HEAD_DIM <= 128 ? HEAD_DIM / 16 : 4)  // beyond, the registers would not do
  for (int d = 0; d < HEAD_DIM; d += 16) {
    // Four 8 x 8 matrices of Q: upper and lower rows, left and right columns.
    uint32_t q[M_TILES][4];
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
      ldmatrix_x4(q[i], &q_warp[(16 * i + lane % 16) * PITCH<HEAD_DIM> + d + lane / 16 * 8]);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
      // Row-major K is column-major K^T. Four matrices: left and right columns of 8 keys, of 8
      // more.
      uint32_t k[4];
      const int key = 8 * n + lane / 16 * 8 + lane % 8;
      ldmatrix_x4(k, &k_shared[key * PITCH<HEAD_DIM> + d + lane / 8 % 2 * 8]);
#pragma unroll
      for (int i = 0; i < M_TILES; i++) {
        mma_m16n8k16<T>(s[i][n], q[i], k[0], k[1]);
        mma_m16n8k16<T>(s[i][n + 1], q[i], k[2], k[3]);
      }
    }
  }
}

/**
 * Hides what lies past the last key or, if `causal`, past the diagonal, of the rows from `first_q`
 * on and the keys from `first_key` on. Turns the scores round if the scale is negative, and into 0
 * if it is 0: from here on it counts as positive.
 */
template <int M_TILES, int N_TILES>
__device__ __forceinline__ void adjust_scores(float (&s)[M_TILES][N_TILES][4], const Problem &p,
                                              bool causal, int first_q, int first_key) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_TILES; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int q = first_q + 16 * i + 8 * half + lane / 4;
      // How many of the keys from this lane's first on are attended.
      const int keys = (causal ? causal_keys(p, q) : p.kv_len) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < N_TILES; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float &score = s[i][n][2 * half + c];
          if (p.scale <= 0.0f) score *= p.scale < 0.0f ? -1.0f : 0.0f;
          if (8 * n + c >= keys) score = -INFINITY;
        }
      }
    }
  }
}

/** Loads what hide_by_bits() needs: of this lane's rows, a bit for each key of the tile. Rows lie
 * WORDS apart, from `row_bits` on for this warp's first. */
template <int M_TILES, int WORDS>
__device__ __forceinline__ void load_bits(uint32_t (&bits)[M_TILES][2][WORDS],
                                          const uint32_t *row_bits) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_TILES; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int word = 0; word < WORDS; word++) {
        bits[i][half][word] = row_bits[(16 * i + 8 * half + lane / 4) * WORDS + word];
      }
    }
  }
}

/** Hides what the bits of a partial tile hide. */
template <int M_TILES, int N_TILES>
__device__ __forceinline__ void hide_by_bits(float (&s)[M_TILES][N_TILES][4],
                                             const uint32_t (&bits)[M_TILES][2][N_TILES / 4]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_TILES; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int n = 0; n < N_TILES; n += 4) {  // four accumulator tiles are 32 keys, one word
        const uint32_t word = bits[i][half][n / 4] >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if ((word >> (j / 2 * 8 + j % 2) & 1) == 0) s[i][n + j / 2][2 * half + j % 2] = -INFINITY;
        }
      }
    }
  }
}

/** Turns scores into weights 2^(scale s - m) and brings m, l and O up to date, as in step 02. */
template <int M_TILES, int N_TILES, int O_TILES>
__device__ __forceinline__ void update_softmax(float (&s)[M_TILES][N_TILES][4],
                                               float (&m)[M_TILES][2], float (&l)[M_TILES][2],
                                               float (&o)[M_TILES][O_TILES][4], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_TILES; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {  // of the 16 rows: upper, lower
      float row_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < N_TILES; n++) {
        row_max = fmaxf(row_max, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
      }
      // Four lanes hold a row. The scale is positive, so the maximum may be scaled in the end.
      row_max = fmaxf(m[i][half], lanes_max<4>(row_max) * scale_log2);
      const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
      const float rescale = exp2_approx(m[i][half] - safe_max);
      m[i][half] = row_max;
      float tile_sum = 0.0f;
#pragma unroll
      for (int n = 0; n < N_TILES; n++) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; c++) {
          s[i][n][c] = exp2_approx(fmaf(s[i][n][c], scale_log2, -safe_max));
          tile_sum += s[i][n][c];
        }
      }
      l[i][half] = l[i][half] * rescale + tile_sum;
#pragma unroll
      for (int n = 0; n < O_TILES; n++) {
        o[i][n][2 * half] *= rescale;
        o[i][n][2 * half + 1] *= rescale;
      }
    }
  }
}

/** Two weights, rounded, as one register of an A fragment. */
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const typename PairOf<T>::type pair = from_floats<T>(low, high);
  return *reinterpret_cast<const uint32_t *>(&pair);
}

/** O += P V for this warp's rows and the keys of one tile. */
template <typename T, int HEAD_DIM, int M_TILES, int N_TILES>
__device__ __forceinline__ void multiply_pv(float (&o)[M_TILES][HEAD_DIM / 8][4],
                                            const float (&p)[M_TILES][N_TILES][4],
                                            const T *v_shared) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int n = 0; n < N_TILES; n += 2) {
    // Two accumulator tiles of S, side by side, are one A fragment of 16 keys.
    uint32_t a[M_TILES][4];
#pragma unroll
    for (int i = 0; i < M_TILES; i++) {
      a[i][0] = pack<T>(p[i][n][0], p[i][n][1]);
      a[i][1] = pack<T>(p[i][n][2], p[i][n][3]);
      a[i][2] = pack<T>(p[i][n + 1][0], p[i][n + 1][1]);
      a[i][3] = pack<T>(p[i][n + 1][2], p[i][n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 16) {
      // V is row-major where B wants columns: .trans turns each 8 x 8 matrix on the way.
      uint32_t v[4];
      ldmatrix_x4_trans(v, &v_shared[(8 * n + lane % 16) * PITCH<HEAD_DIM> + d + lane / 16 * 8]);
#pragma unroll
      for (int i = 0; i < M_TILES; i++) {
        mma_m16n8k16<T>(o[i][d / 8], a[i], v[0], v[1]);
        mma_m16n8k16<T>(o[i][d / 8 + 1], a[i], v[2], v[3]);
      }
    }
  }
}

/** Divides by l, gathers this warp's rows of O in shared memory and stores them 16 bytes at a time.
 */
template <typename T, int HEAD_DIM, int M_TILES>
__device__ __forceinline__ void store_rows(const float (&o)[M_TILES][HEAD_DIM / 8][4],
                                           const float (&m)[M_TILES][2],
                                           const float (&l)[M_TILES][2], T *o_warp, T *o_global,
                                           int64_t row_stride, float *lse_global, int first,
                                           int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_TILES; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = 16 * i + 8 * half + lane / 4;
      const float sum = lanes_sum<4>(l[i][half]);
      const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
      for (int n = 0; n < HEAD_DIM / 8; n++) {
        *reinterpret_cast<uint32_t *>(&o_warp[row * PITCH<HEAD_DIM> + 8 * n + lane % 4 * 2]) =
            pack<T>(o[i][n][2 * half] * factor, o[i][n][2 * half + 1] * factor);
      }
      // Where nothing was attended, m and log2(0) are -inf.
      if (lane % 4 == 0 && first + row < rows) {
        lse_global[first + row] = (m[i][half] + log2_approx(sum)) * 0.6931471805599453f;
      }
    }
  }
  __syncwarp();  // the rows are complete: other lanes wrote parts of what this one stores
  constexpr int TURNS = 16 * M_TILES * HEAD_DIM / VECTOR / WARP_SIZE;
  uint4 values[TURNS];  // all are on their way before the first is stored
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const Piece at = piece_of_turn<HEAD_DIM, WARP_SIZE>(turn, lane);
    values[turn] = *reinterpret_cast<const uint4 *>(
        &o_warp[(at.row + at.later) * PITCH<HEAD_DIM> + at.column]);
  }
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const Piece at = piece_of_turn<HEAD_DIM, WARP_SIZE>(turn, lane);
    T *target = o_global + (first + at.row) * row_stride + at.column + at.later * row_stride;
    store_16(target, values[turn], first + at.row + at.later < rows);
  }
}

#endif
