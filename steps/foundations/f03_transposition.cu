/**
 * @file
 * f03: the transposed of an n x n matrix of floats: out[column][row] = in[row][column].
 *
 * Rows that are read in order must be written as columns, so one of the two accesses is not
 * coalesced. A tile in shared memory makes both so: a block reads rows of a tile into it and writes
 * rows of the transposed tile from it. Then shared memory is read by columns. It has 32 banks of 4
 * bytes; lanes that read different words of one bank wait for each other. A column of a tile with
 * 32 floats a row lies in one bank. Padding or a swizzle spreads it over all banks.
 */
#include <stdlib.h>

#include "foundation.h"

constexpr int TILE = 32;  // as many as a warp has lanes, and shared memory banks
constexpr int ROWS = 8;   // rows of the tile that the threads of a block load at a time

// [layouts]
/** Where element (row, column) of a tile is in shared memory. */
struct Plain {
  static constexpr int FLOATS = TILE * TILE;
  static __device__ int place(int row, int column) { return row * TILE + column; }
};

/** Each row begins one bank further: (row, column) is in bank (row + column) % 32. */
struct Padded {
  static constexpr int FLOATS = TILE * (TILE + 1);
  static __device__ int place(int row, int column) { return row * (TILE + 1) + column; }
};

/** The same without more memory: the columns of each row are in another order. */
struct Swizzled {
  static constexpr int FLOATS = TILE * TILE;
  static __device__ int place(int row, int column) { return row * TILE + (column ^ row); }
};
// [layouts]
// [naive]
/** A warp reads a row and writes a column, 32 elements that are n floats apart. */
__global__ void __launch_bounds__(TILE *ROWS) naive_kernel(const float *in, float *out, int n) {
  const int column = blockIdx.x * TILE + threadIdx.x;
  for (int i = threadIdx.y; i < TILE; i += ROWS) {
    const int row = blockIdx.y * TILE + i;
    if (row < n && column < n) out[(int64_t)column * n + row] = in[(int64_t)row * n + column];
  }
}
// [naive]
// [tiled]
/** A block transposes a tile through shared memory. */
template <typename Layout>
__global__ void __launch_bounds__(TILE *ROWS) tiled_kernel(const float *in, float *out, int n) {
  __shared__ float tile[Layout::FLOATS];
  const int lane = threadIdx.x, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
#pragma unroll
  for (int i = threadIdx.y; i < TILE; i += ROWS) {
    const int row = top + i, column = left + lane;
    if (row < n && column < n) tile[Layout::place(i, lane)] = in[(int64_t)row * n + column];
  }
  __syncthreads();  // the tile is complete
#pragma unroll
  for (int i = threadIdx.y; i < TILE; i += ROWS) {
    const int row = left + i, column = top + lane;  // of the transposed matrix
    if (row < n && column < n) out[(int64_t)row * n + column] = tile[Layout::place(lane, i)];
  }
}
// [tiled]

static int n;
static float *in, *out, *right;

static void launch(void (*kernel)(const float *, float *, int)) {
  const int tiles = (n + TILE - 1) / TILE;
  kernel<<<dim3(tiles, tiles), dim3(TILE, ROWS)>>>(in, out, n);
}
static void run_naive(void) {
  launch(naive_kernel);
}
static void run_shared(void) {
  launch(tiled_kernel<Plain>);
}
static void run_padded(void) {
  launch(tiled_kernel<Padded>);
}
static void run_swizzled(void) {
  launch(tiled_kernel<Swizzled>);
}

static bool is_right(char note[200]) {
  return foundation_equal(out, right, (int64_t)n * n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f03", "Transposes an N x N matrix of floats.", 30000, 200, 8192};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  const size_t elements = (size_t)n * n, bytes = sizeof(float) * elements;
  float *in_host = (float *)foundation_allocate(bytes);
  right = (float *)foundation_allocate(bytes);
  for (size_t i = 0; i < elements; i++) {
    in_host[i] = foundation_float(run.seed, i);
    right[i % n * n + i / n] = in_host[i];
  }
  CHECK(cudaMalloc(&in, bytes));
  CHECK(cudaMalloc(&out, bytes));
  CHECK(cudaMemcpy(in, in_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(2.0 * bytes, 0);
  foundation_stage("naive", run_naive, is_right);
  foundation_stage("shared", run_shared, is_right);
  foundation_stage("padded", run_padded, is_right);
  foundation_stage("swizzled", run_swizzled, is_right);
  const int code = foundation_end();

  CHECK(cudaFree(in)), CHECK(cudaFree(out));
  free(in_host), free(right);
  return code;
}
