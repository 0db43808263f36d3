#include <cuda_runtime.h>

#include "host/device/limits.h"

constexpr int THREADS = 256;
// Loads of a thread in flight at once, 16 bytes each.
constexpr int LOADS = 4;
constexpr int BLOCK_LOADS = THREADS * LOADS;

// Written where the bits that were read are such, so that the compiler must keep the loads.
__device__ unsigned sink;

__global__ void empty_kernel() {}

/** A block reads 16 KiB: of the first tensor, or in the second row of blocks of the other. */
__global__ void __launch_bounds__(THREADS)
    read_two_kernel(const uint4 *first, const uint4 *second, size_t count) {
  const uint4 *data = blockIdx.y == 0 ? first : second;
  const size_t begin = (size_t)blockIdx.x * BLOCK_LOADS + threadIdx.x;
  uint4 chunk[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const size_t at = begin + i * THREADS;
    chunk[i] = at < count ? data[at] : uint4{};
  }
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < LOADS; i++) bits |= chunk[i].x ^ chunk[i].y ^ chunk[i].z ^ chunk[i].w;
  if (bits == 1) sink = bits;
}

cudaError_t launch_empty(cudaStream_t stream) {
  empty_kernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t launch_reads(const void *first, const void *second, size_t bytes, cudaStream_t stream) {
  const size_t count = bytes / sizeof(uint4);
  const dim3 grid((unsigned)((count + BLOCK_LOADS - 1) / BLOCK_LOADS), 2);
  if (count == 0) return cudaSuccess;
  read_two_kernel<<<grid, THREADS, 0, stream>>>((const uint4 *)first, (const uint4 *)second, count);
  return cudaGetLastError();
}
