#include <cuda_runtime.h>
#include <math.h>
#include <time.h>

#include "device/ptx_hopper.cuh"
#include "host/device/ceiling.h"

constexpr int THREADS = 256;
constexpr int ITERATIONS = 512;
constexpr int UNROLL = 8;
constexpr int TRIES = 3;
// An idle GPU needs some tenths of a second to reach its highest clock.
constexpr double SECONDS = 1.0;
constexpr size_t COPY_BYTES = 256u << 20;

/** CHAINS independent chains of x = x * a + b: one issues while the others wait for results. */
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

/** Independent chains of x = 2^-x, which stays in [0, 1]; the sign costs no instruction. */
template <int CHAINS>
__global__ void __launch_bounds__(THREADS) exp_kernel(float scale, float *out) {
  float x[CHAINS];
#pragma unroll
  for (int c = 0; c < CHAINS; c++) x[c] = scale * (threadIdx.x + c);
  for (int i = 0; i < ITERATIONS; i++) {
#pragma unroll
    for (int c = 0; c < CHAINS; c++) x[c] = exp2_approx(-x[c]);
  }
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < CHAINS; c++) sum += x[c];
  if (sum == -1.0f) *out = sum;
}

/** Independent accumulators, so that no mma waits for the result of another. */
template <int ACCUMULATORS>
__global__ void __launch_bounds__(THREADS) mma_kernel(uint32_t seed, float *out) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  // Bits that vary: constant operands draw less power and run faster than real ones.
  uint32_t a[4], b[2];
  float d[ACCUMULATORS][4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = (threadIdx.x * 2654435761u + i * 40503u + seed) & 0x3bff3bff;
#pragma unroll
  for (int i = 0; i < 2; i++) b[i] = (threadIdx.x * 2246822519u + i * 30011u + seed) & 0xbbffbbff;
  for (int i = 0; i < ITERATIONS; i++) {
#pragma unroll
    for (int c = 0; c < ACCUMULATORS; c++) mma_m16n8k16<__half>(d[c], a, b[0], b[1]);
  }
  float sum = 0.0f;
#pragma unroll
  for (int c = 0; c < ACCUMULATORS; c++) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
  if (sum == -1.0f) *out = sum;
#else
  (void)seed, (void)out;
#endif
}

/** One warpgroup: the products of one group run while the next is issued. Elements are fp16 or,
 * with twice the depth in as many bytes, e4m3. */
template <bool E4M3>
__global__ void __launch_bounds__(WARPGROUP_THREADS) wgmma_kernel(uint32_t seed, float *out) {
  constexpr int ROWS = 64 + 256;  // of A and B, swizzled in rows of 128 bytes
  constexpr uint32_t SMALL = E4M3 ? 0xbfbfbfbf : 0x3bffbbff;  // bits of numbers below 2
  extern __shared__ __align__(1024) unsigned char smem[];
  for (int i = threadIdx.x; i < ROWS * 32; i += WARPGROUP_THREADS) {
    ((uint32_t *)smem)[i] = (i * 2654435761u + seed) & SMALL;
  }
  fence_proxy_async();
  __syncthreads();
  const uint64_t layout = (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
  const uint64_t a = shared_address(smem) >> 4 | layout;
  const uint64_t b = shared_address(smem + 64 * 128) >> 4 | layout;
  float d[32][4] = {};
  for (int i = 0; i < ITERATIONS; i++) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      if (E4M3) wgmma_e4m3(d, a + 2 * k, b + 2 * k, true);
      if (!E4M3) wgmma<__half, false>(d, a + 2 * k, b + 2 * k, true);
    }
    wgmma_commit();
    wgmma_wait<1>();
  }
  wgmma_wait<0>();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 32; i++) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  if (sum == -1.0f) *out = sum;
}

/** Seconds of the fastest of TRIES runs. `enqueue` starts the work. */
template <typename Enqueue>
static double shortest(Enqueue enqueue) {
  cudaEvent_t start, stop;
  float best = INFINITY;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  for (int i = 0; i < TRIES; i++) {
    float milliseconds = 0.0f;
    cudaEventRecord(start);
    enqueue();
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    cudaEventElapsedTime(&milliseconds, start, stop);
    best = fminf(best, milliseconds);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return 1e-3 * best;
}

template <int CHAINS>
static double measure_ffma(int blocks, float *out) {
  const double seconds =
      shortest([=] { ffma_kernel<CHAINS><<<blocks, THREADS>>>(0.999f, 0.001f, out); });
  return 2.0 * CHAINS * UNROLL * ITERATIONS * THREADS * blocks / seconds * 1e-12;
}

template <int ACCUMULATORS>
static double measure_mma(int multiprocessors, float *out) {
  // Several times the number of blocks that run at once.
  const int blocks = 16 * multiprocessors;
  const double seconds = shortest([=] { mma_kernel<ACCUMULATORS><<<blocks, THREADS>>>(1, out); });
  const double flops_per_mma = 2.0 * 16 * 8 * 16;
  return flops_per_mma * ACCUMULATORS * ITERATIONS * (THREADS / 32) * blocks / seconds * 1e-12;
}

template <bool E4M3>
static double measure_wgmma(int multiprocessors, float *out) {
  const int blocks = 16 * multiprocessors, shared_bytes = (64 + 256) * 128;
  const double seconds =
      shortest([=] { wgmma_kernel<E4M3><<<blocks, WARPGROUP_THREADS, shared_bytes>>>(1, out); });
  return 2.0 * 64 * 256 * (E4M3 ? 32 : 16) * 4 * ITERATIONS * blocks / seconds * 1e-12;
}

template <int CHAINS>
static double measure_exp(int blocks, float *out) {
  const double seconds =
      shortest([=] { exp_kernel<CHAINS><<<blocks, THREADS>>>(1.0f / THREADS, out); });
  return 1.0 * CHAINS * ITERATIONS * THREADS * blocks / seconds * 1e-9;
}

static double measure_copy(char *buffer) {
  const double seconds = shortest(
      [=] { cudaMemcpyAsync(buffer + COPY_BYTES, buffer, COPY_BYTES, cudaMemcpyDeviceToDevice); });
  return 2.0 * COPY_BYTES / seconds * 1e-9;
}

/** Runs all loops once; `found` keeps the best rate of each. */
static void measure_once(char *buffer, int multiprocessors, int major, Ceilings *found) {
  const int blocks = 8 * multiprocessors;
  float *out = (float *)buffer;
  const double ffma = fmax(measure_ffma<4>(blocks, out),
                           fmax(measure_ffma<8>(blocks, out), measure_ffma<16>(blocks, out)));
  found->ffma_tflops = fmax(found->ffma_tflops, ffma);
  if (major == 9) {
    found->wgmma_tflops = fmax(found->wgmma_tflops, measure_wgmma<false>(multiprocessors, out));
    found->wgmma_e4m3_tflops =
        fmax(found->wgmma_e4m3_tflops, measure_wgmma<true>(multiprocessors, out));
  }
  if (major >= 8) {
    const double mma =
        fmax(measure_mma<8>(multiprocessors, out), measure_mma<16>(multiprocessors, out));
    found->mma_tflops = fmax(found->mma_tflops, mma);
  }
  const double exps = fmax(measure_exp<4>(blocks, out), measure_exp<8>(blocks, out));
  found->exp_g_per_s = fmax(found->exp_g_per_s, exps);
  found->copy_gb_per_s = fmax(found->copy_gb_per_s, measure_copy(buffer));
}

static double now_s() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static Ceilings measure(char *buffer, int device) {
  int multiprocessors = 1, major = 0;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  Ceilings found = {};
  const double end = now_s() + SECONDS;
  do {
    measure_once(buffer, multiprocessors, major, &found);
  } while (now_s() < end && cudaPeekAtLastError() == cudaSuccess);
  return found;
}

bool ceilings_measure(Ceilings *ceilings, Error *error) {
  int device = 0;
  char *buffer = NULL;
  cudaGetDevice(&device);
  cudaError_t status = cudaMalloc(&buffer, 2 * COPY_BYTES);
  if (status == cudaSuccess) *ceilings = measure(buffer, device);
  if (status == cudaSuccess) status = cudaGetLastError();
  cudaFree(buffer);
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // reported here; a later launch must not see it
  return fail(error, EXIT_DEVICE, "measuring the ceilings: %s", cudaGetErrorString(status));
}
