/**
 * @file
 * f08c: C = A B for n x n matrices, A and B in fp16, C in fp32: copies run ahead of the products.
 *
 * The block of f08b waits for its loads, then computes. Here cp.async copies to shared memory
 * without registers and without waiting: four pairs of tiles are a ring, and while one is
 * multiplied, the next three are on their way. Each thread waits for its own copies of a stage
 * (cuda::pipeline calls this consumer_wait()), and a barrier makes those of all threads visible.
 * The tile of a block is 128 x 256, so that each element from device memory is used more often.
 */
#include <cuda_fp16.h>
#include <stdlib.h>

#include "device/ptx.cuh"
#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define HAS_CUBLAS
#endif

constexpr int THREADS = 256, WARP = 32;
constexpr int TILE_ROWS = 128, TILE_COLUMNS = 256, K = 32;  // of C; columns of A at a time
constexpr int DOWN = 4, ACROSS = 8;  // fragments of a warp: 16 rows, 8 columns each
constexpr int STAGES = 4;            // pairs of tiles, 24 KiB each

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

// [copies]
/** Starts the copy of a chunk of 8 halves, with 0 outside of the matrix. Rows that do not begin at
 * multiples of 16 bytes are loaded and stored at once. */
__device__ void copy_eight(__half *to, const __half *matrix, int row, int column, int n) {
  const bool is_inside = row < n && column < n;
  const __half *const from = &matrix[is_inside ? (size_t)row * n + column : 0];
  if (n % 8 == 0) {
    cp_async_16(to, from, is_inside);
  } else {
    for (int j = 0; j < 8; j++) to[j] = is_inside && column + j < n ? from[j] : __float2half(0);
  }
}

/** Starts the copies of a stage, a group of them for each thread. */
__device__ void start_copies(Tiles &tiles, const __half *a, const __half *b, int first, int n) {
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  for (int i = threadIdx.x; i < TILE_ROWS * K / 8; i += THREADS) {
    const int row = i / (K / 8), chunk = i % (K / 8);
    copy_eight(&tiles.a[a_place(row, chunk)], a, top + row, first + chunk * 8, n);
  }
  for (int i = threadIdx.x; i < K * TILE_COLUMNS / 8; i += THREADS) {
    const int row = i / (TILE_COLUMNS / 8), chunk = i % (TILE_COLUMNS / 8);
    copy_eight(&tiles.b[b_place(row, chunk)], b, first + row, left + chunk * 8, n);
  }
  cp_async_commit();
}
// [copies]

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

__global__ void __launch_bounds__(THREADS, 1)
    pipeline_kernel(const __half *a, const __half *b, float *c, int n) {
  extern __shared__ __align__(16) unsigned char smem[];
  Tiles *const ring = reinterpret_cast<Tiles *>(smem);
  const int warp = threadIdx.x / WARP, y = warp / 4 * DOWN * 16, x = warp % 4 * ACROSS * 8;
  float sums[DOWN][ACROSS][4] = {};
  // [ring]
  for (int s = 0; s < STAGES - 1; s++) start_copies(ring[s], a, b, s * K, n);
  for (int first = 0, s = 0; first < n; first += K, s = (s + 1) % STAGES) {
    cp_async_wait<STAGES - 2>();  // this thread's copies of this stage have arrived
    __syncthreads();  // those of all threads have, and nobody reads the stage before any more
    start_copies(ring[(s + STAGES - 1) % STAGES], a, b, first + (STAGES - 1) * K, n);
    multiply(ring[s], y, x, sums);
  }
  cp_async_wait<0>();  // no copy may be in flight when the thread ends
  // [ring]
  write(c, y, x, sums, n);
}

static int n;
static __half *a, *b;
static float *c;
static float *a_host, *b_host;  // the same numbers

static void run_pipeline(void) {
  const dim3 grid((n + TILE_COLUMNS - 1) / TILE_COLUMNS, (n + TILE_ROWS - 1) / TILE_ROWS);
  pipeline_kernel<<<grid, THREADS, STAGES * sizeof(Tiles)>>>(a, b, c, n);
}

#ifdef HAS_CUBLAS
static cublasHandle_t cublas;
/** cuBLAS stores columns: its B A is the A B of rows. */
static void run_cublas(void) {
  const float one = 1, zero = 0;
  cublasGemmEx(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b, CUDA_R_16F, n, a, CUDA_R_16F, n,
               &zero, c, CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
#endif

static bool is_right(char note[200]) {
  return foundation_is_product(c, a_host, b_host, n, note);
}

/** A matrix of small integers in fp16, and the same numbers in `host`. */
static void fill(__half *matrix, float *host, uint64_t seed) {
  const size_t elements = (size_t)n * n;
  __half *halves = (__half *)foundation_allocate(sizeof(__half) * elements);
  for (size_t i = 0; i < elements; i++) {
    host[i] = foundation_bits(seed, i) % 5 - 2.0f;
    halves[i] = __float2half(host[i]);
  }
  CHECK(cudaMemcpy(matrix, halves, sizeof(__half) * elements, cudaMemcpyHostToDevice));
  free(halves);
}

int main(int argc, char **argv) {
  const Program program = {"f08c", "Multiplies two N x N matrices of fp16.", 30000, 200, 8192};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  const size_t elements = (size_t)n * n;
  a_host = (float *)foundation_allocate(sizeof(float) * elements);
  b_host = (float *)foundation_allocate(sizeof(float) * elements);
  CHECK(cudaMalloc(&a, sizeof(__half) * elements));
  CHECK(cudaMalloc(&b, sizeof(__half) * elements));
  CHECK(cudaMalloc(&c, sizeof(float) * elements));
  fill(a, a_host, run.seed);
  fill(b, b_host, run.seed + 1);

  foundation_work(0, 2.0 * n * n * n);
  CHECK(cudaFuncSetAttribute(pipeline_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             STAGES * sizeof(Tiles)));  // more than 48 KiB
  foundation_stage("pipeline", run_pipeline, is_right);
#ifdef HAS_CUBLAS
  cublasCreate(&cublas);
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host);
  return code;
}
