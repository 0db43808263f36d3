/**
 * @file
 * f07: C = A B for n x n matrices of floats, row by row in memory.
 *
 * Every element of C takes n multiply-adds and 2 n loads. The same elements of A and B are needed n
 * times, so the question is where they are read from: device memory, shared memory, or registers.
 * A multiply-add takes 2 loads of a thread that computes one element; a thread with 8 x 8 elements
 * uses what it has loaded 8 times.
 */
#include <stdlib.h>

#include "foundation.h"
#include "product.cuh"

constexpr int SIDE = 32;  // of a block in the first two stages; a warp computes a row of it

// [naive]
/** A thread computes an element; all loads go to global memory, where caches help. */
__global__ void __launch_bounds__(SIDE *SIDE)
    naive_kernel(const float *a, const float *b, float *c, int n) {
  const int row = blockIdx.y * SIDE + threadIdx.y, column = blockIdx.x * SIDE + threadIdx.x;
  if (row >= n || column >= n) return;
  float sum = 0;
  for (int k = 0; k < n; k++) sum += a[(size_t)row * n + k] * b[(size_t)k * n + column];
  c[(size_t)row * n + column] = sum;
}
// [naive]

// [shared]
/** An element, or 0 outside of the matrix, which adds nothing. */
__device__ float element_or_zero(const float *matrix, int row, int column, int n) {
  return row < n && column < n ? matrix[(size_t)row * n + column] : 0;
}

/** The block copies a tile of A and one of B to shared memory; each element is used 32 times. */
__global__ void __launch_bounds__(SIDE *SIDE)
    shared_kernel(const float *a, const float *b, float *c, int n) {
  __shared__ float a_tile[SIDE][SIDE], b_tile[SIDE][SIDE];
  const int y = threadIdx.y, x = threadIdx.x;
  const int row = blockIdx.y * SIDE + y, column = blockIdx.x * SIDE + x;
  float sum = 0;
  for (int first = 0; first < n; first += SIDE) {
    a_tile[y][x] = element_or_zero(a, row, first + x, n);
    b_tile[y][x] = element_or_zero(b, first + y, column, n);
    __syncthreads();  // both tiles are complete
    for (int k = 0; k < SIDE; k++) sum += a_tile[y][k] * b_tile[k][x];
    __syncthreads();  // nobody reads them any more
  }
  if (row < n && column < n) c[(size_t)row * n + column] = sum;
}
// [shared]

// [registers]
constexpr int THREADS = 256;        // of a block that computes 128 x 128 elements
constexpr int TILE = 128, K = 8;    // columns of A and rows of B in shared memory at a time
constexpr int OWN = 8;              // rows and columns of a thread
constexpr int ACROSS = TILE / OWN;  // threads in a row of the block

/** A thread computes 8 x 8 elements: 16 loads from shared memory for 64 multiply-adds. */
__global__ void __launch_bounds__(THREADS)
    registers_kernel(const float *a, const float *b, float *c, int n) {
  __shared__ float a_tile[TILE][K], b_tile[K][TILE];
  const int thread = threadIdx.x, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
  const int y = thread / ACROSS * OWN, x = thread % ACROSS;  // columns x, x + 16, x + 32, ...
  float sums[OWN][OWN] = {};
  for (int first = 0; first < n; first += K) {
    for (int i = thread; i < TILE * K; i += THREADS) {
      a_tile[i / K][i % K] = element_or_zero(a, top + i / K, first + i % K, n);
      b_tile[i / TILE][i % TILE] = element_or_zero(b, first + i / TILE, left + i % TILE, n);
    }
    __syncthreads();  // both tiles are complete
#pragma unroll
    for (int k = 0; k < K; k++) {
      float a_own[OWN], b_own[OWN];
      for (int i = 0; i < OWN; i++) a_own[i] = a_tile[y + i][k];
      for (int j = 0; j < OWN; j++) b_own[j] = b_tile[k][x + j * ACROSS];
      for (int i = 0; i < OWN; i++) {
        for (int j = 0; j < OWN; j++) sums[i][j] += a_own[i] * b_own[j];
      }
    }
    __syncthreads();  // nobody reads them any more
  }
  for (int i = 0; i < OWN; i++) {
    for (int j = 0; j < OWN; j++) {
      const int row = top + y + i, column = left + x + j * ACROSS;
      if (row < n && column < n) c[(size_t)row * n + column] = sums[i][j];
    }
  }
}
// [registers]

static int n;
static float *a, *b, *c;
static float *a_host, *b_host;  // the same numbers

static dim3 grid(int side) {
  return dim3((n + side - 1) / side, (n + side - 1) / side);
}
static void run_naive(void) {
  naive_kernel<<<grid(SIDE), dim3(SIDE, SIDE)>>>(a, b, c, n);
}
static void run_shared(void) {
  shared_kernel<<<grid(SIDE), dim3(SIDE, SIDE)>>>(a, b, c, n);
}
static void run_registers(void) {
  registers_kernel<<<grid(TILE), THREADS>>>(a, b, c, n);
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
  const Program program = {"f07", "Multiplies two N x N matrices of floats.", 30000, 100, 4096};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  const size_t bytes = sizeof(float) * n * n;
  a_host = (float *)foundation_allocate(bytes);
  b_host = (float *)foundation_allocate(bytes);
  CHECK(cudaMalloc(&a, bytes));
  CHECK(cudaMalloc(&b, bytes));
  CHECK(cudaMalloc(&c, bytes));
  product_fill(a, a_host, n, n, run.seed);
  product_fill(b, b_host, n, n, run.seed + 1);

  foundation_work(0, 2.0 * n * n * n);
  foundation_stage("naive", run_naive, is_right);
  foundation_stage("shared", run_shared, is_right);
  foundation_stage("registers", run_registers, is_right);
#ifdef HAS_CUBLAS
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host);
  return code;
}
