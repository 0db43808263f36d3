/**
 * @file
 * f11: the softmax of each row of n floats, y = exp(x - m) / l with the maximum m of a row and the
 * sum l of exp(x - m). A row has 256 KiB, more than the shared memory of a block.
 *
 * m and l need the whole row before the first y can be written, so a block that cannot keep the row
 * reads it twice. Eight blocks of a cluster can keep it together, an eighth each. They run at the
 * same time and reach each other's shared memory, through which they exchange their parts of m and
 * l. So the row is read once.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/ptx_cluster.cuh"
#include "foundation.h"

constexpr int THREADS = 256, WARP = 32, WARPS = THREADS / WARP;
constexpr int AT_ONCE = 8;             // loads of a thread that do not wait for each other
constexpr int BLOCKS = 8;              // of a cluster, and parts of a row
constexpr int ROW_ON_GPU = 64 * 1024;  // 256 KiB, of which each block keeps 32: six fit on an SM
constexpr int ROW_ON_CPU = 2048;

// [parts]
/** x is the maximum of some numbers, and y the sum of exp(number - x). */
using Part = float2;
__device__ Part nothing() {
  return make_float2(-FLT_MAX, 0);
}
__device__ __forceinline__ Part joined(Part a, Part b) {
  const float max = fmaxf(a.x, b.x);
  return make_float2(max, a.y * expf(a.x - max) + b.y * expf(b.x - max));
}

/** The part of all threads of the block together, in each of them. */
__device__ Part part_of_block(Part part) {
  __shared__ Part warps[WARPS];
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    part = joined(part, make_float2(__shfl_xor_sync(0xffffffff, part.x, distance),
                                    __shfl_xor_sync(0xffffffff, part.y, distance)));
  }
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = part;
  __syncthreads();  // the parts of all warps are there
  part = nothing();
  for (int warp = 0; warp < WARPS; warp++) part = joined(part, warps[warp]);
  return part;
}
// [parts]

/** The numbers of a row, or of an eighth of it. */
struct Range {
  int64_t begin;
  int count;
};
__device__ Range range_of(int64_t n, int row, int64_t number, int parts) {
  const int length = row / parts;
  const int64_t begin = number * length;
  return {begin, (int)(begin >= n ? 0 : n - begin < length ? n - begin : length)};
}

// [range]
/** The part of a range, of which each thread reads eight numbers at a time. They stay in `kept`
 * unless it is NULL. */
__device__ Part part_of_range(const float *x, Range range, float *kept) {
  Part part = nothing();
  for (int first = threadIdx.x; first < range.count; first += AT_ONCE * THREADS) {
    float v[AT_ONCE], max = -FLT_MAX, sum = 0;
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS;
      v[k] = i < range.count ? x[range.begin + i] : -FLT_MAX;
      if (kept != NULL && i < range.count) kept[i] = v[k];
    }
    for (int k = 0; k < AT_ONCE; k++) max = fmaxf(max, v[k]);
    for (int k = 0; k < AT_ONCE; k++) sum += expf(v[k] - max);
    part = joined(part, make_float2(max, sum));
  }
  return part_of_block(part);
}

/** Writes y of a range, from x in either memory. */
__device__ void write_range(const float *x_of_range, Range range, Part row, float *y) {
#pragma unroll 8
  for (int i = threadIdx.x; i < range.count; i += THREADS) {
    y[range.begin + i] = expf(x_of_range[i] - row.x) / row.y;
  }
}
// [range]

/** One block reads a row, and reads it again. */
__global__ void __launch_bounds__(THREADS)
    one_block_kernel(int64_t n, int row, const float *x, float *y) {
  const Range range = range_of(n, row, blockIdx.x, 1);
  write_range(x + range.begin, range, part_of_range(x, range, NULL), y);
}

/** Eight blocks of a row leave their parts in global memory. */
__global__ void __launch_bounds__(THREADS)
    parts_kernel(int64_t n, int row, const float *x, Part *parts) {
  const Part part = part_of_range(x, range_of(n, row, blockIdx.x, BLOCKS), NULL);
  if (threadIdx.x == 0) parts[blockIdx.x] = part;
}
/** The next launch joins them, and reads the row again. */
__global__ void __launch_bounds__(THREADS)
    finish_kernel(int64_t n, int row, const float *x, const Part *parts, float *y) {
  Part whole = nothing();
  for (int i = 0; i < BLOCKS; i++) whole = joined(whole, parts[blockIdx.x / BLOCKS * BLOCKS + i]);
  const Range range = range_of(n, row, blockIdx.x, BLOCKS);
  write_range(x + range.begin, range, whole, y);
}

// [cluster]
/** Eight blocks keep a row, and tell each other their parts. */
__global__ void __launch_bounds__(THREADS)
    cluster_kernel(int64_t n, int row, const float *x, float *y) {
  extern __shared__ float kept[];
  __shared__ Part parts[BLOCKS];
  const Range range = range_of(n, row, blockIdx.x, BLOCKS);
  cluster_arrive_relaxed();  // this block has started; it has written nothing yet
  const Part part = part_of_range(x, range, kept);
  cluster_wait();  // all blocks of the cluster have started: their shared memory may be used
  if (threadIdx.x < BLOCKS) *cluster_map(&parts[cluster_rank()], threadIdx.x) = part;
  cluster_sync();  // all parts are here, and nobody uses the memory of another block any more
  Part whole = nothing();
  for (int i = 0; i < BLOCKS; i++) whole = joined(whole, parts[i]);
  write_range(kept, range, whole, y);
}
// [cluster]

static int64_t n;
static int row, rows;
static float *x, *y, *x_host, *y_host;
static Part *parts;

static void run_one_block(void) {
  one_block_kernel<<<rows, THREADS>>>(n, row, x, y);
}
static void run_two_kernels(void) {
  parts_kernel<<<rows * BLOCKS, THREADS>>>(n, row, x, parts);
  finish_kernel<<<rows * BLOCKS, THREADS>>>(n, row, x, parts, y);
}

// [launch]
/** A launch with an attribute: every 8 blocks of the grid are a cluster. */
static void run_cluster(void) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = BLOCKS;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = rows * BLOCKS;
  config.blockDim = THREADS;
  config.dynamicSmemBytes = sizeof(float) * row / BLOCKS;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, cluster_kernel, n, row, (const float *)x, y));
}
// [launch]

/** Compares with a softmax in double precision. Overwrites y on the device. */
static bool is_right(char note[200]) {
  CHECK(cudaMemcpy(y_host, y, sizeof(float) * n, cudaMemcpyDeviceToHost));
  CHECK(cudaMemset(y, 0xff, sizeof(float) * n));
  for (int64_t begin = 0; begin < n; begin += row) {
    const int64_t end = begin + row < n ? begin + row : n;
    double max = x_host[begin], sum = 0;
    for (int64_t i = begin; i < end; i++) max = fmax(max, x_host[i]);
    for (int64_t i = begin; i < end; i++) sum += exp(x_host[i] - max);
    for (int64_t i = begin; i < end; i++) {
      const double right = exp(x_host[i] - max) / sum;
      if (fabs(y_host[i] - right) <= 1e-5 * right) continue;
      snprintf(note, 200, "y[%lld] is %g, should be %g", (long long)i, y_host[i], right);
      return false;
    }
  }
  return true;
}

int main(int argc, char **argv) {
  const Program program = {"f11", "Softmax of N floats, in long rows.", 1 << 30, 5000, 1 << 26};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  row = run.on_gpu ? ROW_ON_GPU : ROW_ON_CPU;
  rows = (int)((n + row - 1) / row);
  x_host = (float *)foundation_allocate(sizeof(float) * n);
  y_host = (float *)foundation_allocate(sizeof(float) * n);
  for (int64_t i = 0; i < n; i++) x_host[i] = 4 * foundation_float(run.seed, (uint64_t)i);
  CHECK(cudaMalloc(&x, sizeof(float) * n));
  CHECK(cudaMalloc(&y, sizeof(float) * n));
  CHECK(cudaMalloc(&parts, sizeof(Part) * rows * BLOCKS));
  CHECK(cudaMemcpy(x, x_host, sizeof(float) * n, cudaMemcpyHostToDevice));
  CHECK(cudaFuncSetAttribute(cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)sizeof(float) * row / BLOCKS));

  foundation_work(2.0 * sizeof(float) * n, 0);  // reads and writes each number once
  foundation_stage("one-block", run_one_block, is_right);
  foundation_stage("two-kernels", run_two_kernels, is_right);
  int major;
  CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major >= 9) foundation_stage("cluster", run_cluster, is_right);
  const int code = foundation_end();

  CHECK(cudaFree(x)), CHECK(cudaFree(y)), CHECK(cudaFree(parts));
  free(x_host), free(y_host);
  return code;
}
