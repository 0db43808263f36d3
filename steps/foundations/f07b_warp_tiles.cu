/**
 * @file
 * f07b: C = A B for n x n matrices of floats, with accesses of 16 bytes and tiles for warps.
 *
 * The last stage of f07 loads 16 floats from shared memory for 64 multiply-adds, one load each.
 * Here a load brings 4 floats. A is transposed on its way to shared memory, so that the 8 rows of a
 * thread are neighbours there. The 32 lanes of a warp compute a tile of 64 x 32 elements: together
 * they need 96 floats for each k, so that several lanes read the same words, which costs nothing.
 * In the stage "prefetch" the next tiles are loaded into registers while the block computes with
 * the present ones.
 */
#include <stdlib.h>

#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define HAS_CUBLAS
#endif

constexpr int THREADS = 256;      // of a block that computes 128 x 128 elements
constexpr int TILE = 128, K = 8;  // columns of A and rows of B in shared memory at a time
constexpr int OWN = 8;            // rows and columns of a thread: two times 4, with others between
constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32;
constexpr int ROW_STEP = WARP_ROWS / 2, COLUMN_STEP = WARP_COLUMNS / 2;

// [tiles]
struct Tiles {
  alignas(16) float a[K][TILE + 4];  // transposed: a[k][row]; the 4 keep the stores of a column
                                     // out of one bank
  alignas(16) float b[K][TILE];      // b[k][column]
};
// [tiles]

/** Four neighbours of a row, with 0 outside of the matrix. In one access if all are inside and the
 * rows begin at multiples of 16 bytes. */
__device__ float4 load_four(const float *matrix, int row, int column, int n) {
  if (row >= n) return make_float4(0, 0, 0, 0);
  const float *const at = &matrix[(size_t)row * n + column];
  if (n % 4 == 0 && column < n) return *reinterpret_cast<const float4 *>(at);
  return make_float4(column < n ? at[0] : 0, column + 1 < n ? at[1] : 0, column + 2 < n ? at[2] : 0,
                     column + 3 < n ? at[3] : 0);
}

/** What a thread brings of the tiles at column `first` of A: four floats of each. */
struct Loaded {
  float4 a, b;
};
constexpr int A_THREADS = K / 4, B_THREADS = TILE / 4;  // threads for a row of the tiles

__device__ Loaded load(const float *a, const float *b, int first, int n) {
  const int thread = threadIdx.x, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
  return {load_four(a, top + thread / A_THREADS, first + thread % A_THREADS * 4, n),
          load_four(b, first + thread / B_THREADS, left + thread % B_THREADS * 4, n)};
}

// [store]
__device__ void store(Tiles &tiles, const Loaded &loaded) {
  const int thread = threadIdx.x, row = thread / A_THREADS, k = thread % A_THREADS * 4;
  tiles.a[k][row] = loaded.a.x;
  tiles.a[k + 1][row] = loaded.a.y;
  tiles.a[k + 2][row] = loaded.a.z;
  tiles.a[k + 3][row] = loaded.a.w;
  *reinterpret_cast<float4 *>(&tiles.b[thread / B_THREADS][thread % B_THREADS * 4]) = loaded.b;
}
// [store]

// [multiply]
/** Adds the products of two tiles; (y, x) is the first element of this thread in the block's tile.
 */
__device__ void multiply(const Tiles &tiles, int y, int x, float (&sums)[OWN][OWN]) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    alignas(16) float a_own[OWN], b_own[OWN];
    for (int half = 0; half < 2; half++) {
      *reinterpret_cast<float4 *>(&a_own[4 * half]) =
          *reinterpret_cast<const float4 *>(&tiles.a[k][y + half * ROW_STEP]);
      *reinterpret_cast<float4 *>(&b_own[4 * half]) =
          *reinterpret_cast<const float4 *>(&tiles.b[k][x + half * COLUMN_STEP]);
    }
    for (int i = 0; i < OWN; i++) {
      for (int j = 0; j < OWN; j++) sums[i][j] += a_own[i] * b_own[j];
    }
  }
}
// [multiply]

// [first_element]
/** The first row and column of this thread: 8 x 4 lanes in a warp, 2 x 4 warps in a block. */
__device__ int2 first_element() {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return make_int2(warp % 4 * WARP_COLUMNS + lane % 4 * 4, warp / 4 * WARP_ROWS + lane / 4 * 4);
}
// [first_element]

__device__ void write(float *c, int y, int x, const float (&sums)[OWN][OWN], int n) {
  for (int i = 0; i < OWN; i++) {
    const int row = blockIdx.y * TILE + y + i / 4 * ROW_STEP + i % 4;
    for (int half = 0; half < 2 && row < n; half++) {
      const int column = blockIdx.x * TILE + x + half * COLUMN_STEP;
      float *const at = &c[(size_t)row * n + column];
      const float *const from = &sums[i][4 * half];
      if (n % 4 == 0 && column < n) {
        *reinterpret_cast<float4 *>(at) = make_float4(from[0], from[1], from[2], from[3]);
      } else {
        for (int j = 0; j < 4 && column + j < n; j++) at[j] = from[j];
      }
    }
  }
}

__global__ void __launch_bounds__(THREADS)
    vectors_kernel(const float *a, const float *b, float *c, int n) {
  __shared__ Tiles tiles;
  const int2 own = first_element();
  float sums[OWN][OWN] = {};
  for (int first = 0; first < n; first += K) {
    store(tiles, load(a, b, first, n));
    __syncthreads();  // both tiles are complete
    multiply(tiles, own.y, own.x, sums);
    __syncthreads();  // nobody reads them any more
  }
  write(c, own.y, own.x, sums, n);
}

// [prefetch]
/** Two pairs of tiles in turns: one barrier for each, and the loads have the time of a product. */
__global__ void __launch_bounds__(THREADS, 2)
    prefetch_kernel(const float *a, const float *b, float *c, int n) {
  __shared__ Tiles tiles[2];
  const int2 own = first_element();
  float sums[OWN][OWN] = {};
  store(tiles[0], load(a, b, 0, n));
  for (int first = 0, now = 0; first < n; first += K, now ^= 1) {
    __syncthreads();  // tiles[now] is complete, and nobody reads the other one any more
    const Loaded next = load(a, b, first + K, n);
    multiply(tiles[now], own.y, own.x, sums);
    store(tiles[now ^ 1], next);
  }
  write(c, own.y, own.x, sums, n);
}
// [prefetch]

static int n;
static float *a, *b, *c;
static float *a_host, *b_host;

static void launch(void (*kernel)(const float *, const float *, float *, int)) {
  const int side = (n + TILE - 1) / TILE;
  kernel<<<dim3(side, side), THREADS>>>(a, b, c, n);
}
static void run_vectors(void) {
  launch(vectors_kernel);
}
static void run_prefetch(void) {
  launch(prefetch_kernel);
}

#ifdef HAS_CUBLAS
static cublasHandle_t cublas;
/** cuBLAS stores columns: its B A is the A B of rows. */
static void run_cublas(void) {
  const float one = 1, zero = 0;
  cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b, n, a, n, &zero, c, n);
}
#endif

static bool is_right(char note[200]) {
  return foundation_is_product(c, a_host, b_host, n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f07b", "Multiplies two N x N matrices of floats.", 30000, 100, 4096};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  const size_t elements = (size_t)n * n, bytes = sizeof(float) * elements;
  a_host = (float *)foundation_allocate(bytes);
  b_host = (float *)foundation_allocate(bytes);
  for (size_t i = 0; i < elements; i++) {
    a_host[i] = foundation_bits(run.seed, 2 * i) % 5 - 2.0f;
    b_host[i] = foundation_bits(run.seed, 2 * i + 1) % 5 - 2.0f;
  }
  CHECK(cudaMalloc(&a, bytes));
  CHECK(cudaMalloc(&b, bytes));
  CHECK(cudaMalloc(&c, bytes));
  CHECK(cudaMemcpy(a, a_host, bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(b, b_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(0, 2.0 * n * n * n);
  foundation_stage("vectors", run_vectors, is_right);
  foundation_stage("prefetch", run_prefetch, is_right);
#ifdef HAS_CUBLAS
  cublasCreate(&cublas);
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host);
  return code;
}
