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
      "           in fill: block of 2048 x 1 x 1 threads; from 1 to 1024, and to 64 in z\n");
  lab_start(LAB_EVERYTHING);
  fill<<<dim3(1, 65536), 1>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: grid of 1 x 65536 x 1 blocks; from 1 to 2^31 - 1 x 65535 x "
      "65535\n");
  lab_start(LAB_EVERYTHING);
  fill<<<1, 1, (48 << 10) + 1>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: 49153 bytes of dynamic shared memory; at most 49152\n");
}

static void too_large_an_attribute_is_a_limit_exceeded(void **) {
  const int too_much = (227 << 10) + 1;
  assert_int_equal(
      cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, too_much),
      cudaErrorInvalidValue);
  assert_finds(
      "finding    launch limits exceeded\n"
      "           in fill: 232449 bytes of dynamic shared memory; at most 232448\n");
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
      LAB_TEST(too_large_an_attribute_is_a_limit_exceeded),
      LAB_TEST(a_right_launch_after_a_refused_one_is_counted),
      LAB_TEST(a_deadlock_is_a_finding),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
