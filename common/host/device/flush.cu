#include <cuda_runtime.h>

#include "host/device/flush.h"

constexpr int BLOCKS = 1024, THREADS = 256;

/** Reads `count` chunks of 16 bytes. */
__global__ void __launch_bounds__(THREADS)
    read_kernel(const uint4 *data, size_t count, unsigned *out) {
  unsigned sum = 0;
  for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += BLOCKS * THREADS) {
    const uint4 chunk = data[i];
    sum += chunk.x ^ chunk.y ^ chunk.z ^ chunk.w;
  }
  // Rarely true, but the compiler must keep the loads.
  if (sum == 1) *out = sum;
}

cudaError_t flush_l2(void *buffer, size_t bytes, cudaStream_t stream) {
  const cudaError_t status = cudaMemsetAsync(buffer, 0, bytes / 2, stream);
  if (status != cudaSuccess) return status;
  const uint4 *clean = (const uint4 *)((char *)buffer + bytes / 2);
  read_kernel<<<BLOCKS, THREADS, 0, stream>>>(clean, bytes / 2 / sizeof(uint4), (unsigned *)buffer);
  return cudaGetLastError();
}
