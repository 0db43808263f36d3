/**
 * @file
 * f04: the sum of n floats.
 *
 * Additions can be done in any order, so many threads work at a time: each adds up a part, and the
 * partial sums are added in a tree. Within a block the tree goes through shared memory, or within a
 * warp from register to register by shuffles. Between blocks there are three ways: a second launch,
 * atomic additions, or the block that ends last.
 *
 * Sums of floats depend on their order, because each addition rounds. Atomics add in the order in
 * which blocks happen to arrive, so the last bits differ from launch to launch.
 */
#include <stdio.h>
#include <stdlib.h>

#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cub/cub.cuh>)
#include <cub/cub.cuh>
#define HAS_CUB
#endif

constexpr int THREADS = 256, WARP = 32, WARPS = THREADS / WARP;
constexpr int MOST_BLOCKS = 1024;

// [part]
/** The part of this thread: every gridDim.x * 256-th four of elements, so that warps read
 * neighbours. Four sums hide the latency of additions; loads of 16 bytes take fewer requests. */
__device__ float sum_of_part(const float *x, int64_t n) {
  const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  const int64_t threads = (int64_t)gridDim.x * THREADS;
  float sums[4] = {};
  for (int64_t i = thread; i < n / 4; i += threads) {
    const float4 four = reinterpret_cast<const float4 *>(x)[i];
    sums[0] += four.x;
    sums[1] += four.y;
    sums[2] += four.z;
    sums[3] += four.w;
  }
  const int64_t rest = n / 4 * 4 + thread;  // up to three elements are left
  if (rest < n) sums[0] += x[rest];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
// [part]
// [tree]
/** The sum over a block, right in thread 0: in each round half of the threads add two sums. */
__device__ float block_sum_by_tree(float sum) {
  __shared__ float sums[THREADS];
  const int thread = threadIdx.x;
  sums[thread] = sum;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();  // the sums of the round before are there
    if (thread < half) sums[thread] += sums[thread + half];
  }
  return sums[thread];
}
// [tree]
// [shuffles]
__device__ float warp_sum(float sum) {
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(0xffffffff, sum, distance);
  }
  return sum;  // right in lane 0
}

/** The same by shuffles: a warp adds its 32 sums, then the first warp adds those of all warps. */
__device__ float block_sum_by_shuffles(float sum) {
  __shared__ float sums[WARPS];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  sum = warp_sum(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();  // the sums of all warps are there
  return warp == 0 ? warp_sum(lane < WARPS ? sums[lane] : 0) : 0;
}
// [shuffles]

__global__ void __launch_bounds__(THREADS) tree_kernel(const float *x, int64_t n, float *sums) {
  const float sum = block_sum_by_tree(sum_of_part(x, n));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) shuffle_kernel(const float *x, int64_t n, float *sums) {
  const float sum = block_sum_by_shuffles(sum_of_part(x, n));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// [atomics]
/** *sum must be 0 before. */
__global__ void __launch_bounds__(THREADS) atomic_kernel(const float *x, int64_t n, float *sum) {
  const float block_sum = block_sum_by_shuffles(sum_of_part(x, n));
  if (threadIdx.x == 0) atomicAdd(sum, block_sum);
}
// [atomics]
// [last_block]
/** The last block to count itself adds all sums, in their order. *done must be 0 before. */
__global__ void __launch_bounds__(THREADS)
    last_block_kernel(const float *x, int64_t n, float *sums, unsigned *done, float *sum) {
  __shared__ bool is_last;
  const float block_sum = block_sum_by_shuffles(sum_of_part(x, n));
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = block_sum;
    __threadfence();  // the sum is visible before the count that says so
    is_last = atomicAdd(done, 1) == gridDim.x - 1;
    __threadfence();  // the sums of the others are visible after it
  }
  __syncthreads();  // is_last is there; no warp still needs the shared sums
  if (!is_last) return;
  float part = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += THREADS) part += sums[i];
  part = block_sum_by_shuffles(part);
  if (threadIdx.x == 0) {
    *sum = part;
    *done = 0;  // for the next launch
  }
}
// [last_block]

static int64_t n;
static int blocks;
static const float *x;  // one of these two
static float *integers, *fractions;
static double right_sum;      // of the integers, which floats add without rounding
static float *sums, *result;  // of each block; of all
static unsigned *done;
static bool is_examined;  // by the lab: the launches on fractions would only add to its counts

static void run_tree(void) {
  tree_kernel<<<blocks, THREADS>>>(x, n, sums);
  tree_kernel<<<1, THREADS>>>(sums, blocks, result);
}
static void run_shuffles(void) {
  shuffle_kernel<<<blocks, THREADS>>>(x, n, sums);
  shuffle_kernel<<<1, THREADS>>>(sums, blocks, result);
}
static void run_atomics(void) {
  CHECK(cudaMemsetAsync(result, 0, sizeof *result));
  atomic_kernel<<<blocks, THREADS>>>(x, n, result);
}
static void run_last_block(void) {
  last_block_kernel<<<blocks, THREADS>>>(x, n, sums, done, result);
}

#ifdef HAS_CUB
static void *cub_memory;
static size_t cub_bytes;
static void run_cub(void) {
  CHECK(cub::DeviceReduce::Sum(cub_memory, cub_bytes, x, result, n));
}
#endif

static float get_result(void) {
  float sum;
  CHECK(cudaMemcpy(&sum, result, sizeof sum, cudaMemcpyDeviceToHost));
  return sum;
}

/** After a launch on integers; then counts the different sums of LAUNCHES launches on fractions. */
template <void (*run)(void)>
static bool is_right(char note[200]) {
  enum { LAUNCHES = 10 };
  float found[LAUNCHES];
  int different = 0;
  const float sum = get_result();
  if (sum != (float)right_sum) {
    snprintf(note, 200, "the sum is %g, not %g", sum, right_sum);
    return false;
  }
  if (is_examined) return true;
  x = fractions;
  for (int i = 0; i < LAUNCHES; i++) {
    run();
    found[different] = get_result();
    int same = 0;
    while (found[same] != found[different]) same++;
    different += same == different;
  }
  x = integers;
  snprintf(note, 200, "%d different sum%s of fractions in %d launches", different,
           different == 1 ? "" : "s", LAUNCHES);
  return true;
}

int main(int argc, char **argv) {
  const Program program = {"f04", "Sums N floats.", 1000000000, 100000, 100000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  is_examined = run.is_examined;
  const size_t bytes = sizeof(float) * n;
  float *host = (float *)foundation_allocate(bytes);
  CHECK(cudaMalloc(&integers, bytes));
  CHECK(cudaMalloc(&fractions, bytes));
  CHECK(cudaMalloc(&sums, sizeof(float) * MOST_BLOCKS));
  CHECK(cudaMalloc(&result, sizeof(float)));
  CHECK(cudaMalloc(&done, sizeof(unsigned)));
  CHECK(cudaMemset(done, 0, sizeof(unsigned)));
  for (int64_t i = 0; i < n; i++) host[i] = foundation_float(run.seed, i);
  CHECK(cudaMemcpy(fractions, host, bytes, cudaMemcpyHostToDevice));
  for (int64_t i = 0; i < n; i++) right_sum += host[i] = foundation_bits(run.seed, i) % 3 - 1.0f;
  CHECK(cudaMemcpy(integers, host, bytes, cudaMemcpyHostToDevice));
  x = integers;
  const int64_t needed = (n + 4 * THREADS - 1) / (4 * THREADS);
  blocks = needed < MOST_BLOCKS ? needed : MOST_BLOCKS;

  foundation_work(bytes, 0);
  foundation_stage("tree", run_tree, is_right<run_tree>);
  foundation_stage("shuffles", run_shuffles, is_right<run_shuffles>);
  foundation_stage("atomics", run_atomics, is_right<run_atomics>);
  foundation_stage("last-block", run_last_block, is_right<run_last_block>);
#ifdef HAS_CUB
  CHECK(cub::DeviceReduce::Sum(nullptr, cub_bytes, x, result, n));
  CHECK(cudaMalloc(&cub_memory, cub_bytes));
  foundation_library("CUB", run_cub, is_right<run_cub>);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(integers)), CHECK(cudaFree(fractions)), CHECK(cudaFree(sums)),
      CHECK(cudaFree(result)), CHECK(cudaFree(done));
  free(host);
  return code;
}
