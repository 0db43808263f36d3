/**
 * @file
 * Launches that do not come about, or do not come to their end, are findings of the lab.
 */
#include "../tests/unit/lab_testing.h"

extern __shared__ __align__(16) unsigned char smem[];

__global__ void fill(int *out) {
  out[blockIdx.x] = 1;
}

/** Half of the warp waits for all of it in a shuffle, the other half at the barrier. */
__global__ void deadlock(int *out) {
  if (threadIdx.x < 16) {
    *out = __shfl_sync(0xffffffff, 1, 0);
  } else {
    __syncthreads();
  }
}

static void assert_finds(const char *expected) {
  char text[8192];
  findings_text(text, sizeof text);
  assert_string_equal(text, expected);
}

static void refused_launches_name_the_limit(void **) {
  int *out = named<int>("out", 1);
  fill<<<1, 2048>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: block of 2048 x 1 x 1 threads: x is 2048, at most 1024\n");
  lab_start(LAB_EVERYTHING);
  fill<<<1, dim3(64, 32)>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: block of 64 x 32 x 1 threads: 2048 in all, at most 1024\n");
  lab_start(LAB_EVERYTHING);
  fill<<<dim3(1, 65536), 1>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: grid of 1 x 65536 x 1 blocks: y is 65536, at most 65535\n");
  lab_start(LAB_EVERYTHING);
  fill<<<1, 1, (48 << 10) + 1>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: 49153 bytes of dynamic and 0 of static shared memory: 49153 in all, at "
      "most 49152 without cudaFuncAttributeMaxDynamicSharedMemorySize\n");
}

static void every_refusal_of_a_kernel_is_told(void **) {
  int *out = named<int>("out", 1);
  fill<<<1, 2048>>>(out);
  fill<<<1, dim3(1, 1, 65)>>>(out);
  fill<<<1, 2048>>>(out);
  fill<<<0, 1>>>(out);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: block of 1 x 1 x 65 threads: z is 65, at most 64\n"
      "finding    launch limits exceeded\n"
      "           in fill: block of 2048 x 1 x 1 threads: x is 2048, at most 1024\n"
      "finding    launch limits exceeded\n"
      "           in fill: grid of 0 x 1 x 1 blocks: x is 0, at least 1\n");
}

template <int THREADS>
__global__ void __launch_bounds__(2 * THREADS, /* blocks on a multiprocessor */
                                  1) bounded(int *out) {
  out[threadIdx.x] = 1;
}

static void a_kernel_has_the_bounds_that_it_was_declared_with(void **) {
  int *out = named<int>("out", 128);
  bounded<32><<<1, 64>>>(out);
  bounded<64><<<1, 128>>>(out);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds("");
  bounded<32><<<1, dim3(5, 13)>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in bounded<32>: block of 5 x 13 x 1 threads: 65 in all, at most 64 by "
      "__launch_bounds__\n");
}

/** 32 KiB of its own, and what the launch gives. */
__global__ void use_both(int *out) {
  __shared__ int values[8192];
  values[threadIdx.x] = 1;
  ((int *)smem)[threadIdx.x] = values[threadIdx.x];
  out[threadIdx.x] = ((int *)smem)[threadIdx.x];
}

static void static_and_dynamic_shared_memory_count_together(void **) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  int *out = named<int>("out", 32);
  use_both<<<1, 32, 16 << 10>>>(out);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds("");
  use_both<<<1, 32, (16 << 10) + 1>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in use_both: 16385 bytes of dynamic and 32768 of static shared memory: 49153 in "
      "all, at most 49152 without cudaFuncAttributeMaxDynamicSharedMemorySize\n");
  lab_start(LAB_EVERYTHING);
  assert_int_equal(cudaFuncSetAttribute(use_both, most, (195 << 10) + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(use_both, most, 40000), cudaSuccess);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  use_both<<<1, 32, 40000>>>(out);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  use_both<<<1, 32, 40004>>>(out);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in use_both: 40004 bytes of dynamic and 32768 of static shared memory: 72772 in "
      "all, at most 72768 as the limit was set\n"
      "finding    launch limits exceeded\n"
      "           in use_both: limit of 199681 bytes of dynamic beside 32768 of static shared "
      "memory: 232449 in all, at most 232448\n");
}

static void too_large_an_attribute_is_a_limit_exceeded(void **) {
  const int too_much = (227 << 10) + 1;
  assert_int_equal(
      cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, too_much),
      cudaErrorInvalidValue);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: limit of 232449 bytes of dynamic beside 0 of static shared memory: "
      "232449 "
      "in all, at most 232448\n");
}

static void a_right_launch_after_a_refused_one_is_counted(void **) {
  int *out = named<int>("out", 2);
  fill<<<0, 1>>>(out);
  fill<<<2, 1>>>(out);
  LabResults results;
  lab_take_results(&results);
  assert_int_equal(results.kernel_count, 1);
  assert_int_equal(results.kernels[0].launches, 1);
  assert_int_equal(results.kernels[0].blocks, 2);
  assert_int_equal(results.finding_count, 1);
  lab_free_results(&results);
}

static void a_deadlock_is_a_finding(void **) {
  static Capture capture;
  int *out = named<int>("out", 1);
  begin_capture(&capture);
  deadlock<<<4, 32>>>(out);
  end_capture(&capture);
  assert_contains(capture.text, "DEADLOCK");
  assert_finds(
      "finding    the launch ended early\n"
      "           in deadlock: DEADLOCK\n");
}

int main() {
#define LAB_TEST(test) cmocka_unit_test_setup_teardown(test, start_lab, stop_lab)
  const CMUnitTest tests[] = {
      LAB_TEST(refused_launches_name_the_limit),
      LAB_TEST(every_refusal_of_a_kernel_is_told),
      LAB_TEST(a_kernel_has_the_bounds_that_it_was_declared_with),
      LAB_TEST(static_and_dynamic_shared_memory_count_together),
      LAB_TEST(too_large_an_attribute_is_a_limit_exceeded),
      LAB_TEST(a_right_launch_after_a_refused_one_is_counted),
      LAB_TEST(a_deadlock_is_a_finding),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
