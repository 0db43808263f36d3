/** @file Tests of which launches the CPU backend accepts. */
#include <signal.h>

#include <climits>

#include "../tests/unit/simt/simt_testing.h"

__global__ void do_nothing() {}

static void expect_launch_error(dim3 grid, dim3 block, size_t bytes, cudaError_t error) {
  SimtCounters before, after;
  simt_read_counters(&before);
  do_nothing<<<grid, block, bytes>>>();
  simt_read_counters(&after);
  assert_int_equal(cudaPeekAtLastError(), error);
  assert_int_equal(cudaGetLastError(), error);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_int_equal(after.launches - before.launches, error == cudaSuccess);
}

TEST(wrong_shapes_are_invalid_configurations) {
  const cudaError_t invalid = cudaErrorInvalidConfiguration;
  expect_launch_error(dim3(1, 2, 1), dim3(1024), 0, cudaSuccess);
  expect_launch_error(1, dim3(16, 1, 64), 0, cudaSuccess);
  expect_launch_error(1, 1025, 0, invalid);
  expect_launch_error(1, dim3(32, 33), 0, invalid);
  expect_launch_error(1, dim3(65536, 65536), 0, invalid);
  expect_launch_error(1, dim3(1, 1, 65), 0, invalid);
  expect_launch_error(1, 0, 0, invalid);
  expect_launch_error(1, dim3(1, 0), 0, invalid);
  expect_launch_error(0, 1, 0, invalid);
  expect_launch_error(dim3(1, 1, 0), 1, 0, invalid);
  expect_launch_error(dim3(1, 65536), 1, 0, invalid);
  expect_launch_error(dim3(1, 1, 65536), 1, 0, invalid);
  expect_launch_error(dim3(1u << 31), 1, 0, invalid);
}

TEST(a_null_pointer_is_no_kernel) {
  void (*kernel)() = nullptr;
  kernel<<<1, 1>>>();
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(more_than_48_kilobytes_of_shared_memory_must_be_asked_for) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  expect_launch_error(1, 1, 48 << 10, cudaSuccess);
  expect_launch_error(1, 1, (48 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, 100 << 10), cudaSuccess);
  expect_launch_error(1, 1, 100 << 10, cudaSuccess);
  expect_launch_error(1, 1, (100 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute((const void *)do_nothing, most, 227 << 10), cudaSuccess);
  expect_launch_error(1, 1, 227 << 10, cudaSuccess);
  expect_launch_error(1, 1, (227 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, (227 << 10) + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);

  cudaFuncAttributes attributes;
  assert_int_equal(cudaFuncGetAttributes(&attributes, do_nothing), cudaSuccess);
  assert_int_equal(attributes.maxDynamicSharedSizeBytes, 227 << 10);
  assert_int_equal(attributes.maxThreadsPerBlock, 1024);
}

/** 20 KiB of static shared memory. */
__global__ void __launch_bounds__(96) declared(int *out) {
  __shared__ int values[5120];
  values[threadIdx.x] = 1;
  out[threadIdx.x] = values[threadIdx.x];
}

TEST(attributes_are_as_the_kernel_is_declared) {
  cudaFuncAttributes attributes;
  int blocks;
  assert_int_equal(cudaFuncGetAttributes(&attributes, declared), cudaSuccess);
  assert_int_equal(attributes.maxThreadsPerBlock, 96);
  assert_int_equal(attributes.maxDynamicSharedSizeBytes, 28 << 10);
  assert_int_equal(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, declared, 96, 0),
                   cudaSuccess);
  assert_int_equal(blocks, 10); /* at 21 KiB each */
  assert_int_equal(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, declared, 97, 0),
                   cudaSuccess);
  assert_int_equal(blocks, 0);
}

TEST(wrong_attributes_of_kernels_are_refused) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaFuncAttributes attributes;
  int blocks = -1;
  for (int value : {-1, INT_MIN, INT_MAX}) {
    assert_int_equal(cudaFuncSetAttribute(do_nothing, most, value), cudaErrorInvalidValue);
  }
  assert_int_equal(cudaFuncSetAttribute(do_nothing, (cudaFuncAttribute)77, 0),
                   cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(nullptr, most, 0), cudaErrorInvalidDeviceFunction);
  assert_int_equal(cudaFuncGetAttributes(&attributes, nullptr), cudaErrorInvalidDeviceFunction);
  for (int threads : {0, -1, INT_MIN}) {
    assert_int_equal(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, do_nothing, threads, 0),
                     cudaErrorInvalidValue);
  }
  assert_int_equal(blocks, -1);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  expect_launch_error(1, 1, 48 << 10, cudaSuccess);
  expect_launch_error(1, 1, (size_t)1 << 32, cudaErrorInvalidValue);
}

TEST(a_smaller_gpu_has_less_shared_memory) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaDeviceProp properties;
  int value = 0;
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, 227 << 10), cudaSuccess);
  set_variable("SIMT_SHARED", "99K");
  expect_launch_error(1, 1, 99 << 10, cudaSuccess);
  expect_launch_error(1, 1, (99 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, (99 << 10) + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, 99 << 10), cudaSuccess);
  assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  assert_int_equal(properties.sharedMemPerBlockOptin, 99 << 10);
  assert_int_equal(properties.sharedMemPerMultiprocessor, 100 << 10);
  assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                   cudaSuccess);
  assert_int_equal(value, 99 << 10);
}

static int occupancy(int threads, size_t bytes) {
  int blocks = -1;
  assert_int_equal(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, do_nothing, threads, bytes),
      cudaSuccess);
  return blocks;
}

TEST(occupancy_is_that_of_compute_capability_9) {
  assert_int_equal(occupancy(1, 0), 32);
  assert_int_equal(occupancy(128, 0), 16);
  assert_int_equal(occupancy(129, 0), 12);
  assert_int_equal(occupancy(1024, 0), 2);
  assert_int_equal(occupancy(1025, 0), 0);
  assert_int_equal(occupancy(128, 48 << 10), 4);
  assert_int_equal(occupancy(128, 49 << 10), 0);
}

TEST(a_fault_of_the_host_ends_the_program) {
  const int status = status_of_child([] {
    signal(SIGSEGV, SIG_DFL); /* cmocka has its own */
    do_nothing<<<1, 1>>>();
    volatile int *volatile nowhere = nullptr;
    *nowhere = 1;
  });
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

RUN_TESTS_WITH(reset_device, nullptr)
