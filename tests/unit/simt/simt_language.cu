/** @file Tests of what CUDA C has beyond C++: variables of the device, names of shared memory. */
#include "../tests/unit/simt/simt_testing.h"
#include "device/ptx.cuh"

/* --- Shared memory --------------------------------------------------------------------------- */

__global__ void reverse_floats(float *values) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

template <typename T>
__global__ void reverse(T *values) {
  extern __shared__ __align__(16) unsigned char bytes[];
  T *row_shared = (T *)bytes;
  row_shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = row_shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void transpose(int *values) {
  extern __shared__ int square[][8];
  square[threadIdx.y][threadIdx.x] = values[threadIdx.y * 8 + threadIdx.x];
  __syncthreads();
  values[threadIdx.y * 8 + threadIdx.x] = square[threadIdx.x][threadIdx.y];
}

/** In a namespace, and of another type than the `smem` of other files. */
namespace inner {
extern __shared__ double smem[];

__global__ void find_address(double *out) {
  smem[3] = 4.5;
  out[0] = *(const double *)shared_pointer(shared_address(smem) + 24);
  out[1] = shared_address(smem);
  *(double *)shared_pointer(24) = 5.5;
  out[2] = smem[3];
}
}  // namespace inner

TEST(dynamic_shared_memory_has_any_name_and_type) {
  float values[64], *device = device_zeros<float>(64);
  for (int i = 0; i < 64; i++) values[i] = (float)i;
  cudaMemcpy(device, values, sizeof values, cudaMemcpyHostToDevice);
  reverse_floats<<<1, 64, sizeof values>>>(device);
  const auto once = fetch<64>(device);
  for (int i = 0; i < 64; i++) assert_true(once[i] == (float)(63 - i));
  reverse<float><<<1, 64, sizeof values>>>(device);
  assert_memory_equal(fetch<64>(device).data(), values, sizeof values);

  int matrix[64], *device_matrix = device_zeros<int>(64);
  for (int i = 0; i < 64; i++) matrix[i] = i;
  cudaMemcpy(device_matrix, matrix, sizeof matrix, cudaMemcpyHostToDevice);
  transpose<<<1, dim3(8, 8), sizeof matrix>>>(device_matrix);
  const auto transposed = fetch<64>(device_matrix);
  for (int i = 0; i < 64; i++) assert_int_equal(transposed[i], i % 8 * 8 + i / 8);

  double *device_found = device_zeros<double>(3);
  inner::find_address<<<1, 1, 64>>>(device_found);
  const auto found = fetch<3>(device_found);
  assert_true(found[0] == 4.5 && found[1] == 0 && found[2] == 5.5);
}

/* --- Variables of the device ------------------------------------------------------------------ */

__device__ unsigned finished;
__device__ float weights[4] = {1, 2, 3, 4};
static __device__ __managed__ int managed = 5;
__constant__ float factors[2];

__device__ __noinline__ float weighted(int i) {
  return weights[i] * factors[i % 2];
}

__global__ void use_variables(float *out) {
  if (threadIdx.x < 4) out[threadIdx.x] = weighted((int)threadIdx.x);
  if (threadIdx.x == 0) managed++;
  atomicAdd(&finished, 1u);
}

TEST(variables_of_the_device_are_copied_by_their_names) {
  const float some[] = {10, 100}, other[] = {20, 30};
  float *device = device_zeros<float>(4), back[4];
  unsigned count;
  void *address;
  assert_int_equal(cudaMemcpyToSymbol(factors, some, sizeof some), cudaSuccess);
  assert_int_equal(cudaMemcpyToSymbol(weights, other, sizeof other, 4), cudaSuccess);
  assert_int_equal(cudaGetSymbolAddress(&address, finished), cudaSuccess);
  assert_int_equal(cudaMemset(address, 0, sizeof finished), cudaSuccess);
  managed = 5;
  use_variables<<<3, 32>>>(device);
  const auto out = fetch<4>(device);
  assert_true(out[0] == 10 && out[1] == 2000 && out[2] == 300 && out[3] == 400);
  assert_int_equal(cudaMemcpyFromSymbol(&count, finished, sizeof count), cudaSuccess);
  assert_int_equal(count, 96);
  assert_true(managed > 5);
  assert_int_equal(cudaMemcpyFromSymbol(back, weights, 8, 4), cudaSuccess);
  assert_true(back[0] == 20 && back[1] == 30);
  assert_int_equal(cudaMemcpyToSymbol(weights, other, sizeof other, 12), cudaErrorInvalidValue);
  assert_int_equal(cudaMemset(address, 0, 8), cudaErrorInvalidValue);
}

RUN_IN_ALL_SETTINGS("language", reset_device, nullptr)
