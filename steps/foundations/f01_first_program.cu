/**
 * @file
 * f01: a first program. A GPU, the device, adds two vectors of n floats for the CPU, the host.
 *
 *     make f01 && ./f01 -n 1000      or, with a GPU and without make: nvcc f01_first_program.cu
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// [check]
/** Every call of CUDA can fail. Then this prints which did and why, and ends the program. */
static void check(cudaError_t error, const char *call) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "f01: %s: %s\n", call, cudaGetErrorString(error));
  exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 77 : 3);
}
#define CHECK(call) check(call, #call)
// [check]
// [kernel]
/** sum[i] = x[i] + y[i]. There may be more threads than elements; those left over do nothing. */
__global__ void add_kernel(const float *x, const float *y, float *sum, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) sum[i] = x[i] + y[i];
}
// [kernel]
int main(int argc, char **argv) {
  const int n = argc == 1 ? 1000 : argc == 3 && strcmp(argv[1], "-n") == 0 ? atoi(argv[2]) : 0;
  if (n < 1 || n > 100000000) {
    fprintf(stderr, "Usage: ./f01 [-n N], with N elements from 1 to 100000000\n");
    return 2;
  }
  const size_t bytes = n * sizeof(float);
  float *x_host = (float *)malloc(bytes), *y_host = (float *)malloc(bytes);
  for (int i = 0; i < n; i++) x_host[i] = i, y_host[i] = 0.5f * i;
  // [memory]
  float *x, *y, *sum;  // addresses in the memory of the device: the host cannot read there
  CHECK(cudaMalloc(&x, bytes));
  CHECK(cudaMalloc(&y, bytes));
  CHECK(cudaMalloc(&sum, bytes));
  CHECK(cudaMemcpy(x, x_host, bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(y, y_host, bytes, cudaMemcpyHostToDevice));
  // [memory]
  // [launch]
  const int threads = 256, blocks = (n + threads - 1) / threads;  // n / 256, rounded up
  add_kernel<<<blocks, threads>>>(x, y, sum, n);
  CHECK(cudaGetLastError());       // was the launch possible?
  CHECK(cudaDeviceSynchronize());  // the kernel has ended: did it fail?
  // [launch]
  // [result]
  float *sum_host = (float *)malloc(bytes);
  CHECK(cudaMemcpy(sum_host, sum, bytes, cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; i < n; i++) wrong += sum_host[i] != x_host[i] + y_host[i];
  printf("f01: %d blocks of %d threads added %d pairs, %d wrong\n", blocks, threads, n, wrong);
  CHECK(cudaFree(x)), CHECK(cudaFree(y)), CHECK(cudaFree(sum));
  // [result]
  free(x_host), free(y_host), free(sum_host);
  return wrong > 0;
}
