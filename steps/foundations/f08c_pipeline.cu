/**
 * @file
 * f08c: C = A B for n x n matrices, A and B in fp16, C in fp32: copies run ahead of the products.
 *
 * The block of f08b waits for its loads, then computes. Here cp.async copies to shared memory
 * without registers and without waiting: four pairs of tiles are a ring, and while one is
 * multiplied, the next three are on their way. In the same way ldmatrix brings the fragments of the
 * next 16 columns during the products of the present ones. A block computes 128 x 256 elements.
 */
#include <cuda_fp16.h>
#include <stdlib.h>

#include "device/ptx.cuh"
#include "foundation.h"
#include "product.cuh"

constexpr int THREADS = 256, WARP = 32;
constexpr int TILE_ROWS = 128, TILE_COLUMNS = 256, K = 32;  // of C; columns of A at a time
constexpr int DOWN = 4, ACROSS = 8;  // fragments of a warp: 16 rows, 8 columns each
constexpr int STAGES = 4;            // pairs of tiles, 24 KiB each

struct Tiles {
  alignas(16) __half a[TILE_ROWS * K];
  alignas(16) __half b[K * TILE_COLUMNS];
};

/** Where a chunk of 8 halves lies in a tile. The chunks of a row are swizzled: 8 rows at the same
 * column, which ldmatrix reads together, are in different banks (step 06 says more). */
template <int CHUNKS>
__device__ int place(int row, int chunk) {
  return (row * CHUNKS + (chunk ^ (CHUNKS == 4 ? row / 2 % 4 : row % 8))) * 8;
}
constexpr int A_CHUNKS = K / 8, B_CHUNKS = TILE_COLUMNS / 8;  // of a row

// [copies]
/** Starts the copy of a chunk of 8 halves, with 0 outside of the matrix, where cp.async reads
 * nothing. If rows do not begin at multiples of 16 bytes, they are loaded and stored at once. */
template <bool ALIGNED>
__device__ void copy_eight(__half *to, const __half *matrix, int row, int column, int n) {
  const bool is_inside = row < n && column < n;
  const __half *const from = &matrix[(size_t)row * n + column];
  if (ALIGNED) {
    cp_async_16(to, from, is_inside);
  } else {
    for (int j = 0; j < 8; j++) to[j] = is_inside && column + j < n ? from[j] : __float2half(0);
  }
}

/** Starts the copies of a tile whose first element is (top, left). */
template <bool ALIGNED, int ROWS, int CHUNKS>
__device__ void start_copies(__half *tile, const __half *matrix, int top, int left, int n) {
#pragma unroll
  for (int i = 0; i < ROWS * CHUNKS; i += THREADS) {
    const int row = (i + threadIdx.x) / CHUNKS, chunk = threadIdx.x % CHUNKS;
    copy_eight<ALIGNED>(&tile[place<CHUNKS>(row, chunk)], matrix, top + row, left + chunk * 8, n);
  }
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
        if (row >= n || column >= n) continue;
        if (n % 2 == 0) *reinterpret_cast<float2 *>(at) = make_float2(left, right);
        if (n % 2 != 0) at[0] = left;
        if (n % 2 != 0 && column + 1 < n) at[1] = right;
      }
    }
  }
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 1)
    pipeline_kernel(const __half *a, const __half *b, float *c, int n) {
  extern __shared__ __align__(16) unsigned char smem[];
  Tiles *const ring = reinterpret_cast<Tiles *>(smem);
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  const int warp = threadIdx.x / WARP, y = warp / 4 * DOWN * 16, x = warp % 4 * ACROSS * 8;
  float sums[DOWN][ACROSS][4] = {};
  Fragments own[2];  // of the first 16 columns of a pair of tiles, and of the others
  const auto copy_a = start_copies<ALIGNED, TILE_ROWS, A_CHUNKS>;
  const auto copy_b = start_copies<ALIGNED, K, B_CHUNKS>;
  // [ring]
  for (int s = 0; s < STAGES - 1; s++) {
    copy_a(ring[s].a, a, top, s * K, n);
    copy_b(ring[s].b, b, s * K, left, n);
    cp_async_commit();
  }
  cp_async_wait<STAGES - 2>();  // this thread's copies of the first pair have arrived
  __syncthreads();              // those of all threads have
  load(own[0], ring[0], y, x, 0);
  for (int first = 0, s = 0; first < n; first += K, s = (s + 1) % STAGES) {
    Tiles &empty = ring[(s + STAGES - 1) % STAGES];
    const int ahead = first + (STAGES - 1) * K;  // of the pair that goes there
    load(own[1], ring[s], y, x, 16);
    copy_a(empty.a, a, top, ahead, n);
    multiply(own[0], sums);
    cp_async_wait<STAGES - 3>();  // this thread's copies of the next pair have arrived
    __syncthreads();  // those of all threads have, and all have loaded the fragments of this pair
    load(own[0], ring[(s + 1) % STAGES], y, x, 0);
    copy_b(empty.b, b, ahead, left, n);
    cp_async_commit();
    multiply(own[1], sums);
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
  for (int k = 0; k < n; k += 16) multiply(ones, sums);
  write(c, y, x, sums, n);
}

static int n;
static __half *a, *b;
static float *c;
static float *a_host, *b_host;  // the same numbers
static float *of_ones;          // what alone_kernel must give

static dim3 grid(void) {
  return dim3((n + TILE_COLUMNS - 1) / TILE_COLUMNS, (n + TILE_ROWS - 1) / TILE_ROWS);
}
static void run_pipeline(void) {
  const auto kernel = n % 8 == 0 ? pipeline_kernel<true> : pipeline_kernel<false>;
  const int bytes = STAGES * sizeof(Tiles);  // more than 48 KiB, for which a kernel must be told
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid(), THREADS, bytes>>>(a, b, c, n);
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
  n = run.n;
  const size_t elements = (size_t)n * n;
  a_host = (float *)foundation_allocate(sizeof(float) * elements);
  b_host = (float *)foundation_allocate(sizeof(float) * elements);
  of_ones = (float *)foundation_allocate(sizeof(float) * elements);
  for (size_t i = 0; i < elements; i++) of_ones[i] = (n + 15) / 16 * 16;
  CHECK(cudaMalloc(&a, sizeof(__half) * elements));
  CHECK(cudaMalloc(&b, sizeof(__half) * elements));
  CHECK(cudaMalloc(&c, sizeof(float) * elements));
  product_fill(a, a_host, n, run.seed);
  product_fill(b, b_host, n, run.seed + 1);

  foundation_work(0, 2.0 * n * n * n);
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
