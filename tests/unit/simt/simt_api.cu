/** @file Tests of the rest of CUDA's API in the CPU backend: the device, events, errors. */
#include "../tests/unit/simt/simt_testing.h"

__global__ void do_nothing() {}

TEST(the_device_says_what_it_is) {
  cudaDeviceProp properties;
  int value = 0, count = 0;
  set_variable("SIMT_THREADS", "3");
  assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
  assert_int_equal(count, 1);
  assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  assert_contains(properties.name, "CPU backend (");
  assert_contains(properties.name, ", 3 threads)");
  assert_int_equal(properties.sharedMemPerBlockOptin, 227 << 10);
  assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  assert_int_equal(value, 4);
  assert_int_equal(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0), cudaErrorInvalidValue);
  assert_int_equal(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
}

TEST(events_measure_time_on_this_machine) {
  cudaEvent_t start, stop;
  float milliseconds = -1;
  assert_int_equal(cudaEventCreate(&start), cudaSuccess);
  assert_int_equal(cudaEventCreate(&stop), cudaSuccess);
  assert_int_equal(cudaEventRecord(start), cudaSuccess);
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, stop),
                   cudaErrorInvalidResourceHandle);
  usleep(2000);
  do_nothing<<<1, 1>>>();
  assert_int_equal(cudaEventRecord(stop), cudaSuccess);
  assert_int_equal(cudaEventSynchronize(stop), cudaSuccess);
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, stop), cudaSuccess);
  assert_true(milliseconds >= 2.0f && milliseconds < 10000.0f);
  assert_int_equal(cudaEventDestroy(start), cudaSuccess);
  assert_int_equal(cudaEventDestroy(stop), cudaSuccess);
  assert_int_equal(cudaEventDestroy(nullptr), cudaErrorInvalidResourceHandle);
}

TEST(errors_have_names_and_texts) {
  assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}

RUN_TESTS_WITH(reset_device, nullptr)
