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
constexpr int VECTOR_THREADS = 128, VECTOR_ROWS = VECTOR_THREADS / (TILE / 4);  // of "vectors"

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
/** Four neighbours of a row that has `left` more elements, 1 or more. */
template <bool ALIGNED>
__device__ float4 load_four(const float *from, int left) {
  if (ALIGNED) return *reinterpret_cast<const float4 *>(from);
  return make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0,
                     left > 3 ? from[3] : 0);
}
template <bool ALIGNED>
__device__ void store_four(float *to, float4 four, int left) {
  if (ALIGNED) {
    *reinterpret_cast<float4 *>(to) = four;
  } else {
    to[0] = four.x;
    if (left > 1) to[1] = four.y;
    if (left > 2) to[2] = four.z;
    if (left > 3) to[3] = four.w;
  }
}

// [tiled]
/** A block transposes a tile through shared memory. */
template <typename Layout>
__global__ void __launch_bounds__(TILE *ROWS) tiled_kernel(const float *in, float *out, int n) {
  __shared__ float tile[Layout::FLOATS];
  const int lane = threadIdx.x, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
#pragma unroll
  for (int j = 0; j < TILE; j += ROWS) {
    const int i = j + threadIdx.y, row = top + i, column = left + lane;
    if (row < n && column < n) tile[Layout::place(i, lane)] = in[(int64_t)row * n + column];
  }
  __syncthreads();  // the tile is complete
#pragma unroll
  for (int j = 0; j < TILE; j += ROWS) {
    const int i = j + threadIdx.y, row = left + i, column = top + lane;  // of the transposed matrix
    if (row < n && column < n) out[(int64_t)row * n + column] = tile[Layout::place(lane, i)];
  }
}
// [tiled]

// [vectors]
/** A thread moves 4 neighbours of a row with one access, if rows begin at multiples of 16 bytes. */
template <bool ALIGNED>
__global__ void __launch_bounds__(VECTOR_THREADS)
    vectors_kernel(const float *in, float *out, int n) {
  __shared__ float tile[Padded::FLOATS];
  const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
  const int first_row = threadIdx.x / (TILE / 4), c = threadIdx.x % (TILE / 4) * 4;
#pragma unroll
  for (int i = 0; i < TILE; i += VECTOR_ROWS) {
    const int r = first_row + i;
    const float *const from = &in[(int64_t)(top + r) * n + left + c];
    float4 four = {};  // outside of the matrix
    if (top + r < n && left + c < n) four = load_four<ALIGNED>(from, n - left - c);
    tile[Padded::place(r, c)] = four.x;
    tile[Padded::place(r, c + 1)] = four.y;
    tile[Padded::place(r, c + 2)] = four.z;
    tile[Padded::place(r, c + 3)] = four.w;
  }
  __syncthreads();  // the tile is complete
#pragma unroll
  for (int i = 0; i < TILE; i += VECTOR_ROWS) {
    const int r = first_row + i;  // of the transposed tile, so a column of the tile
    if (left + r >= n || top + c >= n) continue;
    const float4 four = {tile[Padded::place(c, r)], tile[Padded::place(c + 1, r)],
                         tile[Padded::place(c + 2, r)], tile[Padded::place(c + 3, r)]};
    store_four<ALIGNED>(&out[(int64_t)(left + r) * n + top + c], four, n - top - c);
  }
}
// [vectors]

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
static void run_vectors(void) {
  const int tiles = (n + TILE - 1) / TILE;
  const auto kernel = n % 4 == 0 ? vectors_kernel<true> : vectors_kernel<false>;
  kernel<<<dim3(tiles, tiles), VECTOR_THREADS>>>(in, out, n);
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
  foundation_stage("vectors", run_vectors, is_right);
  const int code = foundation_end();

  CHECK(cudaFree(in)), CHECK(cudaFree(out));
  free(in_host), free(right);
  return code;
}
