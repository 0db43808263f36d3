#include <cuda_runtime.h>
#include <math.h>

#include "host/ceiling.h"

constexpr int THREADS = 256;
constexpr int ITERATIONS = 512;
constexpr int UNROLL = 8;
constexpr int TRIES = 5;
constexpr size_t COPY_BYTES = 256u << 20;

/** Independent chains of x = x * a + b, long enough to hide the latency of each. */
template <int CHAINS>
__global__ void __launch_bounds__(THREADS) ffma_kernel(float a, float b, float *out) {
  float x[CHAINS];
#pragma unroll
  for (int c = 0; c < CHAINS; c++) x[c] = threadIdx.x + c;
  for (int i = 0; i < ITERATIONS; i++) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
#pragma unroll
      for (int c = 0; c < CHAINS; c++) x[c] = x[c] * a + b;
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < CHAINS; c++) sum += x[c];
  // Never true for the values of a and b below, but the compiler must keep the arithmetic.
  if (sum == -1.0f) *out = sum;
}

/** Events around repeated work; keeps the shortest time. */
struct Best {
  cudaEvent_t start, stop;
  double seconds;
};

static void keep_shortest(Best *best) {
  float milliseconds = 0.0f;
  cudaEventSynchronize(best->stop);
  cudaEventElapsedTime(&milliseconds, best->start, best->stop);
  if (best->seconds == 0.0 || milliseconds < 1e3 * best->seconds)
    best->seconds = 1e-3 * milliseconds;
}

template <int CHAINS>
static double measure_ffma(int blocks, float *out, Best best) {
  best.seconds = 0.0;
  for (int i = 0; i < TRIES; i++) {
    cudaEventRecord(best.start);
    ffma_kernel<CHAINS><<<blocks, THREADS>>>(0.999f, 0.001f, out);
    cudaEventRecord(best.stop);
    keep_shortest(&best);
  }
  return 2.0 * CHAINS * UNROLL * ITERATIONS * THREADS * blocks / best.seconds * 1e-12;
}

static double measure_copy(char *buffer, Best best) {
  best.seconds = 0.0;
  for (int i = 0; i < TRIES; i++) {
    cudaEventRecord(best.start);
    cudaMemcpyAsync(buffer + COPY_BYTES, buffer, COPY_BYTES, cudaMemcpyDeviceToDevice);
    cudaEventRecord(best.stop);
    keep_shortest(&best);
  }
  return 2.0 * COPY_BYTES / best.seconds * 1e-9;
}

bool ceilings_measure(Ceilings *ceilings, Error *error) {
  static Ceilings measured;
  if (measured.ffma_tflops > 0.0) {
    *ceilings = measured;
    return true;
  }
  int device = 0, multiprocessors = 1;
  char *buffer = NULL;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaError_t status = cudaMalloc(&buffer, 2 * COPY_BYTES);
  if (status == cudaSuccess) {
    Best best = {};
    cudaEventCreate(&best.start);
    cudaEventCreate(&best.stop);
    const int blocks = 8 * multiprocessors;
    float *out = (float *)buffer;
    const double few = measure_ffma<4>(blocks, out, best);
    const double some = measure_ffma<8>(blocks, out, best);
    const double many = measure_ffma<16>(blocks, out, best);
    measured.ffma_tflops = fmax(few, fmax(some, many));
    measured.copy_gb_per_s = measure_copy(buffer, best);
    status = cudaGetLastError();
    cudaEventDestroy(best.start);
    cudaEventDestroy(best.stop);
    cudaFree(buffer);
  }
  *ceilings = measured;
  if (status == cudaSuccess) return true;
  return fail(error, EXIT_DEVICE, "measuring the ceilings: %s", cudaGetErrorString(status));
}
