/**
 * @file
 * f06: sorts n keys of 32 bits with a bitonic network.
 *
 * Two sorted runs, one up and one down, are merged by comparing and exchanging keys at half the
 * length, then at a quarter, and so on: which keys are compared never depends on the keys, so a
 * thread for each pair can do it. Runs of 2, 4, 8, ... keys are merged, each key in log2(n)^2 / 2
 * steps altogether. As long as the distance fits, a block does its steps in shared memory; the
 * others read and write all keys.
 */
#include <stdlib.h>

#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cub/cub.cuh>)
#include <cub/cub.cuh>
#define HAS_CUB
#endif

constexpr int THREADS = 256;

constexpr int CHUNK = 2 * THREADS;  // keys that a block sorts or merges in shared memory

// [compare]
/** Exchanges the keys at i and i + distance if they are in the wrong order. Runs of `size` keys are
 * sorted up and down in turns, so that two neighbours together rise and then fall. */
__device__ void compare(uint32_t *keys, int64_t i, int64_t distance, bool up) {
  const uint32_t a = keys[i], b = keys[i + distance];
  if ((a > b) == up) keys[i] = b, keys[i + distance] = a;
}
// [compare]

// [chunk]
/** Steps of the network whose distance is below CHUNK: all of sizes up to CHUNK if `first_size` is
 * 2, or the last ones of one larger size. */
__global__ void __launch_bounds__(THREADS)
    bitonic_chunk_kernel(uint32_t *keys, int64_t first_size) {
  __shared__ uint32_t shared[CHUNK];
  const int64_t start = (int64_t)blockIdx.x * CHUNK;
  for (int i = threadIdx.x; i < CHUNK; i += THREADS) shared[i] = keys[start + i];
  const int64_t last_size = first_size > CHUNK ? first_size : CHUNK;
  for (int64_t size = first_size; size <= last_size; size *= 2) {
    for (int distance = (size < CHUNK ? size : CHUNK) / 2; distance > 0; distance /= 2) {
      const int i = threadIdx.x / distance * 2 * distance + threadIdx.x % distance;
      __syncthreads();  // the step before is complete
      compare(shared, i, distance, ((start + i) & size) == 0);
    }
  }
  __syncthreads();  // the last step is complete
  for (int i = threadIdx.x; i < CHUNK; i += THREADS) keys[start + i] = shared[i];
}
// [chunk]

// [step]
/** A step whose distance is CHUNK or more, in global memory. */
__global__ void __launch_bounds__(THREADS)
    bitonic_step_kernel(uint32_t *keys, int64_t size, int64_t distance) {
  const int64_t pair = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  const int64_t i = pair / distance * 2 * distance + pair % distance;
  compare(keys, i, distance, (i & size) == 0);
}
// [step]

static int n;
static int64_t padded;  // n, up to the next power of two, at least CHUNK
static uint32_t *in, *out, *other, *right;

// [launches]
static void run_bitonic(void) {
  CHECK(cudaMemsetAsync(other, 0xff, sizeof *other * padded));
  CHECK(cudaMemcpyAsync(other, in, sizeof *in * n, cudaMemcpyDeviceToDevice));
  bitonic_chunk_kernel<<<padded / CHUNK, THREADS>>>(other, 2);
  for (int64_t size = 2 * CHUNK; size <= padded; size *= 2) {
    for (int64_t distance = size / 2; distance >= CHUNK; distance /= 2) {
      bitonic_step_kernel<<<padded / CHUNK, THREADS>>>(other, size, distance);
    }
    bitonic_chunk_kernel<<<padded / CHUNK, THREADS>>>(other, size);
  }
  CHECK(cudaMemcpyAsync(out, other, sizeof *in * n, cudaMemcpyDeviceToDevice));
}
// [launches]

#ifdef HAS_CUB
static void *cub_memory;
static size_t cub_bytes;
static void run_cub(void) {
  CHECK(cub::DeviceRadixSort::SortKeys(cub_memory, cub_bytes, in, out, n));
}
#endif

static bool is_right(char note[200]) {
  return foundation_equal(out, right, n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f06", "Sorts N keys of 32 bits.", 500000000, 10000, 100000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  for (padded = CHUNK; padded < n; padded *= 2) continue;
  const size_t bytes = sizeof(uint32_t) * n;
  uint32_t *in_host = (uint32_t *)foundation_allocate(bytes);
  right = (uint32_t *)foundation_allocate(bytes);
  for (int i = 0; i < n; i++) in_host[i] = foundation_bits(run.seed, i);
  foundation_sort(in_host, right, n);
  CHECK(cudaMalloc(&in, bytes));
  CHECK(cudaMalloc(&out, bytes));
  CHECK(cudaMalloc(&other, sizeof(uint32_t) * padded));
  CHECK(cudaMemcpy(in, in_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(2.0 * bytes, 0);
  foundation_stage("bitonic", run_bitonic, is_right);
#ifdef HAS_CUB
  CHECK(cub::DeviceRadixSort::SortKeys(nullptr, cub_bytes, in, out, n));
  CHECK(cudaMalloc(&cub_memory, cub_bytes));
  foundation_library("CUB", run_cub, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(in)), CHECK(cudaFree(out)), CHECK(cudaFree(other));
  free(in_host), free(right);
  return code;
}
