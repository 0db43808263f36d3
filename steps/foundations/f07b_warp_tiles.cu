/**
 * @file
 * f07b: C = A B for n x n matrices of floats, with accesses of 16 bytes and tiles for warps.
 *
 * The last stage of f07 loads 16 floats from shared memory for 64 multiply-adds, one load each.
 * Here a load brings 4 floats. A is transposed on its way to shared memory, so that the 8 rows of a
 * thread are neighbours there. The 32 lanes of a warp compute a tile of 64 x 32 elements: together
 * they need 96 floats for each k, so that several lanes read the same words, which costs nothing.
 * In the stage "prefetch" the next tiles are loaded into registers while the block computes with
 * the present ones. In the stage "wide" a thread computes 8 x 16 elements.
 */
#include <stdlib.h>

#include "foundation.h"
#include "product.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 128, K = 8;  // of a block's tile of C; columns of A in shared memory at a time
constexpr int OWN = 8;            // rows of a thread: two times 4, with others between
constexpr int WARP_ROWS = 64, ROW_STEP = WARP_ROWS / 2, COLUMN_STEP = 16;

/** Of a block: a thread has FOURS times 4 columns, a warp 4 threads in a row, a block 4 warps. */
template <int FOURS>
constexpr int COLUMNS = 4 * FOURS * 4 * 4;

// [tiles]
template <int FOURS>
struct Tiles {
  alignas(16) float a[K][ROWS + 4];  // transposed: a[k][row]; the 4 keep the stores of a column
                                     // out of one bank
  alignas(16) float b[K][COLUMNS<FOURS>];  // b[k][column]
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

/** What a thread brings of the tiles at column `first` of A. */
template <int FOURS>
struct Loaded {
  float4 a, b[FOURS / 2];
};
constexpr int A_THREADS = K / 4;  // threads for a row of the tile of A
template <int FOURS>
constexpr int B_THREADS = COLUMNS<FOURS> / 4;

template <int FOURS>
__device__ Loaded<FOURS> load(const float *a, const float *b, int first, int n) {
  const int thread = threadIdx.x, top = blockIdx.y * ROWS, left = blockIdx.x * COLUMNS<FOURS>;
  Loaded<FOURS> own;
  own.a = load_four(a, top + thread / A_THREADS, first + thread % A_THREADS * 4, n);
  for (int i = 0; i < FOURS / 2; i++) {
    const int row = (i * THREADS + thread) / B_THREADS<FOURS>;
    own.b[i] = load_four(b, first + row, left + thread % B_THREADS<FOURS> * 4, n);
  }
  return own;
}

// [store]
template <int FOURS>
__device__ void store(Tiles<FOURS> &tiles, const Loaded<FOURS> &loaded) {
  const int thread = threadIdx.x, row = thread / A_THREADS, k = thread % A_THREADS * 4;
  tiles.a[k][row] = loaded.a.x;
  tiles.a[k + 1][row] = loaded.a.y;
  tiles.a[k + 2][row] = loaded.a.z;
  tiles.a[k + 3][row] = loaded.a.w;
  for (int i = 0; i < FOURS / 2; i++) {
    float *const to = tiles.b[(i * THREADS + thread) / B_THREADS<FOURS>];
    *reinterpret_cast<float4 *>(&to[thread % B_THREADS<FOURS> * 4]) = loaded.b[i];
  }
}
// [store]

// [multiply]
/** One access of 16 bytes. */
__device__ void copy_four(float *to, const float *from) {
  *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
}

/** Adds the products of two tiles; `own` is the first element of this thread in the block's tile.
 */
template <int FOURS>
__device__ void multiply(const Tiles<FOURS> &tiles, int2 own, float (&sums)[OWN][4 * FOURS]) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    alignas(16) float a_own[OWN], b_own[4 * FOURS];
    copy_four(&a_own[0], &tiles.a[k][own.y]);
    copy_four(&a_own[4], &tiles.a[k][own.y + ROW_STEP]);
    for (int i = 0; i < FOURS; i++) copy_four(&b_own[4 * i], &tiles.b[k][own.x + i * COLUMN_STEP]);
    for (int i = 0; i < OWN; i++) {
      for (int j = 0; j < 4 * FOURS; j++) sums[i][j] += a_own[i] * b_own[j];
    }
  }
}
// [multiply]

// [first_element]
/** The first row and column of this thread: 8 x 4 lanes in a warp, 2 x 4 warps in a block. */
template <int FOURS>
__device__ int2 first_element() {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return make_int2(warp % 4 * (COLUMNS<FOURS> / 4) + lane % 4 * 4,
                   warp / 4 * WARP_ROWS + lane / 4 * 4);
}
// [first_element]

template <int FOURS>
__device__ void write(float *c, int2 own, const float (&sums)[OWN][4 * FOURS], int n) {
  for (int i = 0; i < OWN; i++) {
    const int row = blockIdx.y * ROWS + own.y + i / 4 * ROW_STEP + i % 4;
    for (int four = 0; four < FOURS && row < n; four++) {
      const int column = blockIdx.x * COLUMNS<FOURS> + own.x + four * COLUMN_STEP;
      float *const at = &c[(size_t)row * n + column];
      const float *const from = &sums[i][4 * four];
      if (n % 4 == 0 && column < n) {
        copy_four(at, from);
      } else {
        for (int j = 0; j < 4 && column + j < n; j++) at[j] = from[j];
      }
    }
  }
}

__global__ void __launch_bounds__(THREADS)
    vectors_kernel(const float *a, const float *b, float *c, int n) {
  __shared__ Tiles<2> tiles;
  const int2 own = first_element<2>();
  float sums[OWN][8] = {};
  for (int first = 0; first < n; first += K) {
    store(tiles, load<2>(a, b, first, n));
    __syncthreads();  // both tiles are complete
    multiply(tiles, own, sums);
    __syncthreads();  // nobody reads them any more
  }
  write<2>(c, own, sums, n);
}

// [prefetch]
/** Two pairs of tiles in turns: one barrier for each, and the loads have the time of a product. */
template <int FOURS>
__global__ void __launch_bounds__(THREADS, 4 / FOURS)  // two blocks or one on an SM
    prefetch_kernel(const float *a, const float *b, float *c, int n) {
  __shared__ Tiles<FOURS> tiles[2];
  const int2 own = first_element<FOURS>();
  float sums[OWN][4 * FOURS] = {};
  store(tiles[0], load<FOURS>(a, b, 0, n));
  for (int first = 0, now = 0; first < n; first += K, now ^= 1) {
    __syncthreads();  // tiles[now] is complete, and nobody reads the other one any more
    const Loaded<FOURS> next = load<FOURS>(a, b, first + K, n);
    multiply(tiles[now], own, sums);
    store(tiles[now ^ 1], next);
  }
  write<FOURS>(c, own, sums, n);
}
// [prefetch]

static int n;
static float *a, *b, *c;
static float *a_host, *b_host;  // the same numbers

static dim3 blocks(int columns) {
  return dim3((n + columns - 1) / columns, (n + ROWS - 1) / ROWS);
}
static void run_vectors(void) {
  vectors_kernel<<<blocks(COLUMNS<2>), THREADS>>>(a, b, c, n);
}
static void run_prefetch(void) {
  prefetch_kernel<2><<<blocks(COLUMNS<2>), THREADS>>>(a, b, c, n);
}
static void run_wide(void) {
  prefetch_kernel<4><<<blocks(COLUMNS<4>), THREADS>>>(a, b, c, n);
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
  const Program program = {"f07b", "Multiplies two N x N matrices of floats.", 30000, 100, 4096};
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
  foundation_stage("vectors", run_vectors, is_right);
  foundation_stage("prefetch", run_prefetch, is_right);
  foundation_stage("wide", run_wide, is_right);
#ifdef HAS_CUBLAS
  foundation_library("cuBLAS", run_cublas, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(a)), CHECK(cudaFree(b)), CHECK(cudaFree(c));
  free(a_host), free(b_host);
  return code;
}
