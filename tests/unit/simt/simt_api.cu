/** @file Tests of the rest of CUDA's API in the CPU backend: the device, events, errors. */
#include "../tests/unit/simt/simt_testing.h"

__global__ void do_nothing() {}

static void the_device_says_what_it_is(void **) {
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
  assert_int_equal(cudaSetDevice(0), cudaSuccess);
  assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
  assert_int_equal(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  set_variable("SIMT_THREADS", nullptr);
}

static void events_measure_time_on_this_machine(void **) {
  cudaEvent_t start, stop;
  cudaStream_t stream;
  float milliseconds = -1;
  assert_int_equal(cudaEventCreate(&start), cudaSuccess);
  assert_int_equal(cudaEventCreate(&stop), cudaSuccess);
  assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
  assert_int_equal(cudaEventRecord(start), cudaSuccess);
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, stop),
                   cudaErrorInvalidResourceHandle);
  usleep(2000);
  do_nothing<<<1, 1, 0, stream>>>();
  assert_int_equal(cudaEventRecord(stop, stream), cudaSuccess);
  assert_int_equal(cudaEventSynchronize(stop), cudaSuccess);
  assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, stop), cudaSuccess);
  assert_true(milliseconds >= 2.0f && milliseconds < 10000.0f);
  assert_int_equal(cudaEventDestroy(start), cudaSuccess);
  assert_int_equal(cudaEventDestroy(stop), cudaSuccess);
  assert_int_equal(cudaEventDestroy(nullptr), cudaErrorInvalidResourceHandle);
  assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void expect_invalid_value(cudaError_t error) {
  assert_int_equal(error, cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

static void null_results_are_refused(void **) {
  size_t bytes;
  cudaEvent_t event;
  assert_int_equal(cudaEventCreate(&event), cudaSuccess);
  assert_int_equal(cudaEventRecord(event), cudaSuccess);
  expect_invalid_value(cudaGetDeviceCount(nullptr));
  expect_invalid_value(cudaGetDevice(nullptr));
  expect_invalid_value(cudaGetDeviceProperties(nullptr, 0));
  expect_invalid_value(cudaDeviceGetAttribute(nullptr, cudaDevAttrWarpSize, 0));
  expect_invalid_value(cudaRuntimeGetVersion(nullptr));
  expect_invalid_value(cudaDriverGetVersion(nullptr));
  expect_invalid_value(cudaMemGetInfo(nullptr, &bytes));
  expect_invalid_value(cudaMemGetInfo(&bytes, nullptr));
  expect_invalid_value(cudaStreamCreate(nullptr));
  expect_invalid_value(cudaEventCreate(nullptr));
  expect_invalid_value(cudaEventElapsedTime(nullptr, event, event));
  expect_invalid_value(cudaFuncGetAttributes(nullptr, do_nothing));
  expect_invalid_value(cudaOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, do_nothing, 32, 0));
}

static void errors_have_names_and_texts(void **) {
  assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}

#define TEST(name) cmocka_unit_test_setup(name, reset_device)

int main() {
  const CMUnitTest tests[] = {
      TEST(the_device_says_what_it_is),
      TEST(events_measure_time_on_this_machine),
      TEST(null_results_are_refused),
      TEST(errors_have_names_and_texts),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
