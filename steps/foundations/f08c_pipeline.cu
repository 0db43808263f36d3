/**
 * @file
 * f08c: C = A B for n x n matrices, A and B in fp16, C in fp32: copies run ahead of the products.
 *
 * The block of f08b waits for its loads, then computes. Here cp.async copies to shared memory
 * without registers and without waiting: three pairs of tiles are a ring, and while one is
 * multiplied, the next two are on their way. In the same way ldmatrix brings the fragments of the
 * next 16 columns during the products of the present ones. A block computes 128 x 256 elements.
 */
#include <cuda_fp16.h>
#include <stdlib.h>

#include "device/ptx.cuh"
#include "foundation.h"
#include "product.cuh"

constexpr int THREADS = 256, WARP = 32;
constexpr int TILE_ROWS = 128, TILE_COLUMNS = 256, K = 64;  // of C; columns of A at a time
constexpr int DOWN = 4, ACROSS = 8;  // fragments of a warp: 16 rows, 8 columns each
constexpr int STAGES = 3;            // pairs of tiles, 48 KiB each
constexpr int STEP = 16;             // columns of A and rows of B that an mma.sync multiplies

struct Tiles {
  alignas(16) __half a[TILE_ROWS * K];
  alignas(16) __half b[K * TILE_COLUMNS];
};

/** Where a chunk of 8 halves lies in a tile. The chunks of a row are swizzled: 8 rows at the same
 * column, which ldmatrix reads together, are in different banks (step 06 says more). */
template <int CHUNKS>
__device__ int place(int row, int chunk) {
  return (row * CHUNKS + (chunk ^ row % 8)) * 8;
}
constexpr int A_CHUNKS = K / 8, B_CHUNKS = TILE_COLUMNS / 8;  // of a row

// [copies]
/**
 * Starts the copies of ROWS rows of a tile, in chunks of 8 halves, with 0 outside of the matrix,
 * where cp.async reads nothing. (top, left) is the first element of the tile in the matrix.
 */
template <int ROWS, int CHUNKS>
__device__ void start_copies(__half *tile, const __half *matrix, int first_row, int top, int left,
                             int n) {
#pragma unroll
  for (int i = 0; i < ROWS * CHUNKS; i += THREADS) {
    const int row = first_row + (i + threadIdx.x) / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const int y = top + row, x = left + chunk * 8;
    cp_async_16(&tile[place<CHUNKS>(row, chunk)], &matrix[(size_t)y * n + x], y < n && x < n);
  }
}

/** Starts the copies of part k / STEP of a pair: the tiles at column `first` of A and row `first`
 * of B. The last part makes a group of all. */
__device__ void start_part(Tiles &tiles, const __half *a, const __half *b, int first, int k,
                           int n) {
  constexpr int A_ROWS = TILE_ROWS / (K / STEP);
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  start_copies<A_ROWS, A_CHUNKS>(tiles.a, a, k / STEP * A_ROWS, top, first, n);
  start_copies<STEP, B_CHUNKS>(tiles.b, b, k, first, left, n);
  if (k + STEP == K) cp_async_commit();
}
// [copies]

// [fragments]
/** The operands of a warp for 16 columns of A and 16 rows of B. */
struct Fragments {
  uint32_t a[DOWN][4], b[ACROSS / 2][4];  // an ldmatrix brings two fragments of B
};

__device__ void load(Fragments &own, const Tiles &tiles, int y, int x, int k) {
  const int lane = threadIdx.x % WARP, row = lane % 16, chunk = lane / 16;
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
    ldmatrix_x4(own.a[i], &tiles.a[place<A_CHUNKS>(y + i * 16 + row, k / 8 + chunk)]);
  }
#pragma unroll
  for (int j = 0; j < ACROSS / 2; j++) {
    ldmatrix_x4_trans(own.b[j], &tiles.b[place<B_CHUNKS>(k + row, x / 8 + 2 * j + chunk)]);
  }
}

__device__ void multiply(const Fragments &own, float (&sums)[DOWN][ACROSS][4]) {
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
      const uint32_t *const b = &own.b[j / 2][j % 2 * 2];
      mma_m16n8k16<__half>(sums[i][j], own.a[i], b[0], b[1]);
    }
  }
}
// [fragments]

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
        if (row < n && column < n) *reinterpret_cast<float2 *>(at) = make_float2(left, right);
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
  Fragments own[2];  // of this step and of the next
  // [ring]
  for (int s = 0; s < STAGES - 1; s++) {
    for (int k = 0; k < K; k += STEP) start_part(ring[s], a, b, s * K, k, n);
  }
  cp_async_wait<STAGES - 2>();  // this thread's copies of the first pair have arrived
  __syncthreads();              // those of all threads have
  load(own[0], ring[0], y, x, 0);
  for (int first = 0, s = 0; first < n; first += K) {
    Tiles &empty = ring[(s + STAGES - 1) % STAGES];
#pragma unroll
    for (int k = 0; k < K; k += STEP) {
      if (k + STEP == K) {
        s = (s + 1) % STAGES;
        cp_async_wait<STAGES - 3>();  // this thread's copies of the next pair have arrived
        __syncthreads();  // those of all threads have; all have loaded the fragments of this pair
      }
      load(own[(k / STEP + 1) % 2], ring[s], y, x, (k + STEP) % K);
      start_part(empty, a, b, first + (STAGES - 1) * K, k, n);
      multiply(own[k / STEP % 2], sums);
    }
  }
  cp_async_wait<0>();  // no copy may be in flight when the thread ends
  // [ring]
  write(c, y, x, sums, n);
}

/** The same mma.sync without any load, for matrices of ones: how fast could the others be? */
__global__ void __launch_bounds__(THREADS, 1) alone_kernel(float *c, int n) {
  const int warp = threadIdx.x / WARP, y = warp / 4 * DOWN * 16, x = warp % 4 * ACROSS * 8;
  float sums[DOWN][ACROSS][4] = {};
  Fragments ones;
  for (int i = 0; i < 16; i++) ones.a[i / 4][i % 4] = ones.b[i / 4][i % 4] = 0x3c003c00;  // 1 and 1
  for (int k = 0; k < n; k += STEP) multiply(ones, sums);
  write(c, y, x, sums, n);
}

static int n;  // side of the matrices: that of -n, rounded up to whole chunks
static __half *a, *b;
static float *c;
static float *a_host, *b_host;  // the same numbers
static float *of_ones;          // what alone_kernel must give

static dim3 grid(void) {
  return dim3((n + TILE_COLUMNS - 1) / TILE_COLUMNS, (n + TILE_ROWS - 1) / TILE_ROWS);
}
static void run_pipeline(void) {
  const int bytes = STAGES * sizeof(Tiles);  // more than 48 KiB, for which a kernel must be told
  CHECK(cudaFuncSetAttribute(pipeline_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  pipeline_kernel<<<grid(), THREADS, bytes>>>(a, b, c, n);
}
static void run_alone(void) {
  alone_kernel<<<grid(), THREADS>>>(c, n);
}

#ifdef HAS_CUBLAS
static void run_cublas(void) {
  product_by_cublas(a, b, c, n);
}
#endif

static bool is_right(char note[200]) {
  return foundation_is_product(c, a_host, b_host, n, note);
}

static bool alone_is_right(char note[200]) {
  return foundation_equal(c, of_ones, (int64_t)n * n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f08c", "Multiplies two N x N matrices of fp16.", 30000, 200, 8192};
  const Run run = foundation_begin(argc, argv, &program);
  n = (run.n + 7) / 8 * 8;
  const size_t elements = (size_t)n * n;
  a_host = (float *)foundation_allocate(sizeof(float) * elements);
  b_host = (float *)foundation_allocate(sizeof(float) * elements);
  of_ones = (float *)foundation_allocate(sizeof(float) * elements);
  for (size_t i = 0; i < elements; i++) of_ones[i] = (n + STEP - 1) / STEP * STEP;
  CHECK(cudaMalloc(&a, sizeof(__half) * elements));
  CHECK(cudaMalloc(&b, sizeof(__half) * elements));
  CHECK(cudaMalloc(&c, sizeof(float) * elements));
  product_fill(a, a_host, n, run.n, run.seed);
  product_fill(b, b_host, n, run.n, run.seed + 1);

  foundation_work(0, 2.0 * run.n * run.n * run.n);
  foundation_stage("pipeline", run_pipeline, is_right);
  foundation_stage("mma-alone", run_alone, alone_is_right);
#ifdef HAS_CUBLAS
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host), free(of_ones);
  return code;
}
