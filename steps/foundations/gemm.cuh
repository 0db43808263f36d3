/**
 * @file
 * The pipeline of f08c for matrices of any shape: C = A B in fp16 with sums in fp32, where A, B or
 * both may lie in memory transposed. Layers need that: of Y = X W, the gradients are dX = dY W^T
 * and dW = X^T dY.
 *
 * A tile lies in shared memory as it lies in global memory, so copies are the same for all forms.
 * What turns a tile is ldmatrix: with .trans it hands out columns in place of rows.
 */
#ifndef GEMM_CUH
#define GEMM_CUH

#include <cuda_fp16.h>

#include "device/ptx.cuh"
#include "foundation.h"

constexpr int THREADS = 256, WARP = 32;
constexpr int TILE_ROWS = 128, TILE_COLUMNS = 256, K = 64;  // of C; columns of A at a time
constexpr int DOWN = 4, ACROSS = 8;  // fragments of a warp: 16 rows, 8 columns each
constexpr int STAGES = 3;            // pairs of tiles, 48 KiB each
constexpr int STEP = 16;             // columns of A and rows of B that an mma.sync multiplies

/** One of the two operands of a block. It counts `size` of what C counts too: rows of A, or columns
 * of B. K_ACROSS: the other index, which the product sums over, runs along a row of memory. */
template <int SIZE, bool K_ACROSS>
struct Operand {
  static constexpr int ROWS = K_ACROSS ? SIZE : K, CHUNKS = (K_ACROSS ? K : SIZE) / 8;
  const __half *matrix;
  int first, size, k;  // the first of the block, and all of the matrix

  /** Where a chunk of 8 halves lies in a tile; swizzled, as in f08c. */
  __device__ static int place(int row, int chunk) { return (row * CHUNKS + (chunk ^ row % 8)) * 8; }

  /** Starts the copies of a quarter of a tile, with 0 outside of the matrix. */
  __device__ void start_copies(__half *tile, int first_k, int quarter) const {
    constexpr int PART = ROWS / (K / STEP);
#pragma unroll
    for (int i = 0; i < PART * CHUNKS; i += THREADS) {
      const int row = quarter * PART + (i + threadIdx.x) / CHUNKS, chunk = threadIdx.x % CHUNKS;
      const int y = (K_ACROSS ? first : first_k) + row,
                x = (K_ACROSS ? first_k : first) + chunk * 8;
      const int rows = K_ACROSS ? size : k, columns = K_ACROSS ? k : size;
      cp_async_16(&tile[place(row, chunk)], &matrix[(size_t)y * columns + x],
                  y < rows && x < columns);
    }
  }
};

// [turned]
/**
 * Loads four 8 x 8 fragments: 16 rows of A, or columns of B, from `at` on, and 16 of k. The first
 * eight lanes name the rows of the first one, and so on. An mma.sync takes fragments of A by rows
 * and those of B by columns, so a tile that has them the other way is read with .trans.
 */
template <bool IS_A, int SIZE, bool K_ACROSS>
__device__ void load_fragments(uint32_t (&own)[4], const Operand<SIZE, K_ACROSS> &operand,
                               const __half *tile, int at, int k) {
  const int lane = threadIdx.x % WARP;
  // The second fragment is the next one down the tile, and the third the next across; or else.
  const bool down_first = IS_A == K_ACROSS;
  const int row = down_first ? lane % 16 : lane % 8 + lane / 16 * 8;
  const int chunk = down_first ? lane / 16 : lane / 8 % 2;
  const __half *const from =
      &tile[operand.place((K_ACROSS ? at : k) + row, (K_ACROSS ? k : at) / 8 + chunk)];
  if (K_ACROSS) ldmatrix_x4(own, from);
  if (!K_ACROSS) ldmatrix_x4_trans(own, from);
}
// [turned]

struct Tiles {
  alignas(16) __half a[TILE_ROWS * K];
  alignas(16) __half b[K * TILE_COLUMNS];
};

/** The operands of a warp for 16 of k. */
struct Fragments {
  uint32_t a[DOWN][4], b[ACROSS / 2][4];  // an ldmatrix brings two fragments of B
};

__device__ inline void multiply(const Fragments &own, float (&sums)[DOWN][ACROSS][4]) {
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
      const uint32_t *const b = &own.b[j / 2][j % 2 * 2];
      mma_m16n8k16<__half>(sums[i][j], own.a[i], b[0], b[1]);
    }
  }
}

__device__ inline void write_pair(float *at, float left, float right) {
  *reinterpret_cast<float2 *>(at) = make_float2(left, right);
}
__device__ inline void write_pair(__half *at, float left, float right) {
  *reinterpret_cast<__half2 *>(at) = __floats2half2_rn(left, right);
}

/**
 * The work of a thread block: 128 x 256 elements of C, which has the rows of A, the columns of B,
 * and elements of fp16 or fp32. Sums are of k_size terms; `ring` is the dynamic shared memory.
 */
template <bool A_ACROSS, bool B_ACROSS, typename T>
__device__ __forceinline__ void gemm_block(Tiles *ring, const __half *a_matrix,
                                           const __half *b_matrix, T *c, int rows, int columns,
                                           int k_size) {
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int y = warp / 4 * DOWN * 16, x = warp % 4 * ACROSS * 8;  // of the warp in the block
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  const Operand<TILE_ROWS, A_ACROSS> a = {a_matrix, top, rows, k_size};
  const Operand<TILE_COLUMNS, B_ACROSS> b = {b_matrix, left, columns, k_size};
  float sums[DOWN][ACROSS][4] = {};
  Fragments own[2];  // of this step and of the next

  // Copies of part k / STEP of a pair; the last part makes a group of all.
  const auto start_part = [&](Tiles &tiles, int first, int k) {
    a.start_copies(tiles.a, first, k / STEP);
    b.start_copies(tiles.b, first, k / STEP);
    if (k + STEP == K) cp_async_commit();
  };
  const auto load = [&](Fragments &to, const Tiles &tiles, int k) {
#pragma unroll
    for (int i = 0; i < DOWN; i++) load_fragments<true>(to.a[i], a, tiles.a, y + i * 16, k);
#pragma unroll
    for (int j = 0; j < ACROSS / 2; j++) load_fragments<false>(to.b[j], b, tiles.b, x + j * 16, k);
  };

  for (int s = 0; s < STAGES - 1; s++) {
    for (int k = 0; k < K; k += STEP) start_part(ring[s], s * K, k);
  }
  cp_async_wait<STAGES - 2>();  // this thread's copies of the first pair have arrived
  __syncthreads();              // those of all threads have
  load(own[0], ring[0], 0);
  for (int first = 0, s = 0; first < k_size; first += K) {
    Tiles &empty = ring[(s + STAGES - 1) % STAGES];
#pragma unroll
    for (int k = 0; k < K; k += STEP) {
      if (k + STEP == K) {
        s = (s + 1) % STAGES;
        cp_async_wait<STAGES - 3>();  // this thread's copies of the next pair have arrived
        __syncthreads();  // those of all threads have; all have loaded the fragments of this pair
      }
      load(own[(k / STEP + 1) % 2], ring[s], (k + STEP) % K);
      start_part(empty, first + (STAGES - 1) * K, k);
      multiply(own[k / STEP % 2], sums);
    }
  }
  cp_async_wait<0>();  // no copy may be in flight when the thread ends

#pragma unroll
  for (int i = 0; i < DOWN * 2; i++) {
    const int row = top + y + i * 8 + lane / 4;
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
      const int column = left + x + j * 8 + lane % 4 * 2;
      const float *const pair = &sums[i / 2][j][i % 2 * 2];
      if (row < rows && column < columns) {
        write_pair(&c[(size_t)row * columns + column], pair[0], pair[1]);
      }
    }
  }
}

#endif
