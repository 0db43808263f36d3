#include <cuda_runtime.h>

#include "host/device/flush.h"

constexpr int THREADS = 256;

/** Each thread reads 16 bytes. */
__global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *data, unsigned *out) {
  const uint4 chunk = data[(size_t)blockIdx.x * THREADS + threadIdx.x];
  // Rarely true, but the compiler must keep the load.
  if ((chunk.x ^ chunk.y ^ chunk.z ^ chunk.w) == 1) *out = chunk.x;
}

cudaError_t flush_l2(void *buffer, size_t bytes, cudaStream_t stream) {
  const cudaError_t status = cudaMemsetAsync(buffer, 0, bytes / 2, stream);
  if (status != cudaSuccess) return status;
  const uint4 *clean = (const uint4 *)((char *)buffer + bytes / 2);
  const unsigned blocks = bytes / 2 / (THREADS * sizeof(uint4));
  read_kernel<<<blocks, THREADS, 0, stream>>>(clean, (unsigned *)buffer);
  return cudaGetLastError();
}
