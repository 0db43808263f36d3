/**
 * @file
 * f08b: C = A B for n x n matrices, A and B in fp16, C in fp32, with ldmatrix and mma.sync.
 *
 * What wmma hides is written out. mma.sync multiplies a 16 x 16 matrix and a 16 x 8 one, and says
 * which lane holds which elements of them in which register. ldmatrix loads four 8 x 8 matrices
 * from shared memory into these registers. So rows can be swizzled instead of padded, and C
 * can go from registers to device memory.
 */
#include <cuda_fp16.h>
#include <stdlib.h>

#include "device/ptx.cuh"
#include "foundation.h"
#include "product.cuh"

constexpr int THREADS = 256, WARP = 32;
constexpr int TILE_ROWS = 128, TILE_COLUMNS = 128, K = 32;  // of C; columns of A at a time
constexpr int DOWN = 4, ACROSS = 4;  // fragments of a warp: 16 rows, 8 columns each

// [places]
/** Tiles in shared memory, in chunks of 8 halves. The chunks of a row are swizzled: 8 rows at the
 * same column, which ldmatrix reads together, are in different banks (step 06 says more). */
struct Tiles {
  alignas(16) __half a[TILE_ROWS * K];
  alignas(16) __half b[K * TILE_COLUMNS];
};
__device__ int a_place(int row, int chunk) {
  return row * K + (chunk ^ row / 2 % 4) * 8;
}
__device__ int b_place(int row, int chunk) {
  return row * TILE_COLUMNS + (chunk ^ row % 8) * 8;
}
// [places]

/** Eight neighbours of a row, with 0 outside of the matrix. */
__device__ uint4 load_eight(const __half *matrix, int row, int column, int n) {
  const __half *const at = &matrix[(size_t)row * n + column];
  if (n % 8 == 0 && row < n && column < n) return *reinterpret_cast<const uint4 *>(at);
  alignas(16) __half eight[8];
  for (int j = 0; j < 8; j++) eight[j] = row < n && column + j < n ? at[j] : __float2half(0);
  return *reinterpret_cast<const uint4 *>(eight);
}

__device__ void load(Tiles &tiles, const __half *a, const __half *b, int first, int n) {
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  for (int i = threadIdx.x; i < TILE_ROWS * K / 8; i += THREADS) {
    const int row = i / (K / 8), chunk = i % (K / 8);
    *reinterpret_cast<uint4 *>(&tiles.a[a_place(row, chunk)]) =
        load_eight(a, top + row, first + chunk * 8, n);
  }
  for (int i = threadIdx.x; i < K * TILE_COLUMNS / 8; i += THREADS) {
    const int row = i / (TILE_COLUMNS / 8), chunk = i % (TILE_COLUMNS / 8);
    *reinterpret_cast<uint4 *>(&tiles.b[b_place(row, chunk)]) =
        load_eight(b, first + row, left + chunk * 8, n);
  }
}

// [multiply]
/** Adds the products of two tiles: for each 16 columns of A, ldmatrix brings the fragments of A and
 * B of this warp, and each pair of them goes into an mma.sync. */
__device__ void multiply(const Tiles &tiles, int y, int x, float (&sums)[DOWN][ACROSS][4]) {
  const int lane = threadIdx.x % WARP, row = lane % 16, chunk = lane / 16;
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    uint32_t a_own[DOWN][4];
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
      ldmatrix_x4(a_own[i], &tiles.a[a_place(y + i * 16 + row, k / 8 + chunk)]);
    }
#pragma unroll
    for (int j = 0; j < ACROSS; j += 2) {
      uint32_t b_own[4];  // two fragments: 8 columns of B each, transposed on the way
      ldmatrix_x4_trans(b_own, &tiles.b[b_place(k + row, (x + j * 8) / 8 + chunk)]);
#pragma unroll
      for (int i = 0; i < DOWN; i++) {
        mma_m16n8k16<__half>(sums[i][j], a_own[i], b_own[0], b_own[1]);
        mma_m16n8k16<__half>(sums[i][j + 1], a_own[i], b_own[2], b_own[3]);
      }
    }
  }
}
// [multiply]

// [write]
/** A lane holds two neighbours in each of two rows of a 16 x 8 fragment. */
__device__ void write(float *c, int y, int x, const float (&sums)[DOWN][ACROSS][4], int n) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = blockIdx.y * TILE_ROWS + y + i * 16 + half * 8 + lane / 4;
        const int column = blockIdx.x * TILE_COLUMNS + x + j * 8 + lane % 4 * 2;
        float *const at = &c[(size_t)row * n + column];
        const float left = sums[i][j][2 * half], right = sums[i][j][2 * half + 1];
        if (n % 2 == 0 && row < n && column < n) {
          *reinterpret_cast<float2 *>(at) = make_float2(left, right);
        } else if (row < n) {
          if (column < n) at[0] = left;
          if (column + 1 < n) at[1] = right;
        }
      }
    }
  }
}
// [write]

__global__ void __launch_bounds__(THREADS)
    mma_kernel(const __half *a, const __half *b, float *c, int n) {
  __shared__ Tiles tiles;
  const int warp = threadIdx.x / WARP, y = warp / 4 * DOWN * 16, x = warp % 4 * ACROSS * 8;
  float sums[DOWN][ACROSS][4] = {};
  for (int first = 0; first < n; first += K) {
    load(tiles, a, b, first, n);
    __syncthreads();  // both tiles are complete
    multiply(tiles, y, x, sums);
    __syncthreads();  // nobody reads them any more
  }
  write(c, y, x, sums, n);
}

static int n;
static __half *a, *b;
static float *c;
static float *a_host, *b_host;  // the same numbers

static void run_mma(void) {
  const dim3 grid((n + TILE_COLUMNS - 1) / TILE_COLUMNS, (n + TILE_ROWS - 1) / TILE_ROWS);
  mma_kernel<<<grid, THREADS>>>(a, b, c, n);
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
  const Program program = {"f08b", "Multiplies two N x N matrices of fp16.", 30000, 200, 8192};
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
  foundation_stage("mma", run_mma, is_right);
#ifdef HAS_CUBLAS
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host);
  return code;
}
