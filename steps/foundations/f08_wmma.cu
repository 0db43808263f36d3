/**
 * @file
 * f08: C = A B for n x n matrices, A and B in fp16, C in fp32, on tensor cores with wmma.
 *
 * A tensor core multiplies small matrices in one instruction of a warp. wmma hides where the
 * elements are: a fragment is a 16 x 16 matrix of which each lane holds some, and only load,
 * multiply and store know which. A block copies tiles to shared memory, as in f07; a warp keeps 2 x
 * 4 fragments of sums in registers.
 */
#include <cuda_fp16.h>
#include <mma.h>
#include <stdlib.h>

#include "foundation.h"
#include "product.cuh"

namespace wmma = nvcuda::wmma;

constexpr int THREADS = 256, WARP = 32, WARPS = THREADS / WARP;
constexpr int TILE = 128, K = 32;    // of C; columns of A and rows of B in shared memory at a time
constexpr int SIDE = 16;             // of a fragment
constexpr int DOWN = 2, ACROSS = 4;  // fragments of a warp: 32 x 64 elements of C
constexpr int PAD = 8;               // halves between rows, so that 8 rows lie in different banks

/** Copies a tile of 8 halves a thread at a time, with 0 outside of the matrix. */
template <int ROWS, int COLUMNS>
__device__ void load_tile(__half (*tile)[COLUMNS + PAD], const __half *matrix, int top, int left,
                          int n) {
  for (int i = threadIdx.x * 8; i < ROWS * COLUMNS; i += THREADS * 8) {
    const int row = top + i / COLUMNS, column = left + i % COLUMNS;
    __half *const to = &tile[i / COLUMNS][i % COLUMNS];
    const __half *const from = &matrix[(size_t)row * n + column];
    if (n % 8 == 0 && row < n && column < n) {
      *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    } else {
      for (int j = 0; j < 8; j++) {
        to[j] = row < n && column + j < n ? from[j] : __float2half(0);
      }
    }
  }
}

__global__ void __launch_bounds__(THREADS)
    wmma_kernel(const __half *a, const __half *b, float *c, int n) {
  alignas(32) __shared__ __half a_tile[TILE][K + PAD], b_tile[K][TILE + PAD];
  alignas(32) __shared__ float c_tiles[WARPS][SIDE][SIDE];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
  const int y = warp / 2 * DOWN * SIDE, x = warp % 2 * ACROSS * SIDE;  // of the warp in the block
  // [products]
  wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> sums[DOWN][ACROSS];
  for (int i = 0; i < DOWN; i++) {
    for (int j = 0; j < ACROSS; j++) wmma::fill_fragment(sums[i][j], 0.0f);
  }
  for (int first = 0; first < n; first += K) {
    load_tile<TILE, K>(a_tile, a, top, first, n);
    load_tile<K, TILE>(b_tile, b, first, left, n);
    __syncthreads();  // both tiles are complete
#pragma unroll
    for (int k = 0; k < K; k += SIDE) {
      wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, __half, wmma::row_major> a_own[DOWN];
      for (int i = 0; i < DOWN; i++) {
        wmma::load_matrix_sync(a_own[i], &a_tile[y + i * SIDE][k], K + PAD);
      }
      for (int j = 0; j < ACROSS; j++) {
        wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, __half, wmma::row_major> b_own;
        wmma::load_matrix_sync(b_own, &b_tile[k][x + j * SIDE], TILE + PAD);
        for (int i = 0; i < DOWN; i++) wmma::mma_sync(sums[i][j], a_own[i], b_own, sums[i][j]);
      }
    }
    __syncthreads();  // nobody reads them any more
  }
  // [products]
  // [store]
  // A fragment can be stored as a whole only, so those at the edge of C go through shared memory.
  for (int i = 0; i < DOWN; i++) {
    for (int j = 0; j < ACROSS; j++) {
      wmma::store_matrix_sync(&c_tiles[warp][0][0], sums[i][j], SIDE, wmma::mem_row_major);
      __syncwarp();  // the fragment is in shared memory
      for (int at = lane; at < SIDE * SIDE; at += WARP) {
        const int row = top + y + i * SIDE + at / SIDE, column = left + x + j * SIDE + at % SIDE;
        if (row < n && column < n) {
          c[(size_t)row * n + column] = c_tiles[warp][at / SIDE][at % SIDE];
        }
      }
      __syncwarp();  // it can be overwritten
    }
  }
  // [store]
}

static int n;
static __half *a, *b;
static float *c;
static float *a_host, *b_host;  // the same numbers

static void run_wmma(void) {
  const int side = (n + TILE - 1) / TILE;
  wmma_kernel<<<dim3(side, side), THREADS>>>(a, b, c, n);
}

#ifdef HAS_CUBLAS
static void run_cublas(void) {
  product_by_cublas(a, b, c, n);
}
#endif

static bool is_right(char note[200]) {
  return foundation_is_product(c, a_host, b_host, n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f08", "Multiplies two N x N matrices of fp16.", 30000, 200, 8192};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  const size_t elements = (size_t)n * n;
  a_host = (float *)foundation_allocate(sizeof(float) * elements);
  b_host = (float *)foundation_allocate(sizeof(float) * elements);
  CHECK(cudaMalloc(&a, sizeof(__half) * elements));
  CHECK(cudaMalloc(&b, sizeof(__half) * elements));
  CHECK(cudaMalloc(&c, sizeof(float) * elements));
  product_fill(a, a_host, n, n, run.seed);
  product_fill(b, b_host, n, n, run.seed + 1);

  foundation_work(0, 2.0 * n * n * n);
  foundation_stage("wmma", run_wmma, is_right);
#ifdef HAS_CUBLAS
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host);
  return code;
}
