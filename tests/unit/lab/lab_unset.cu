/** @file Floats that were never set, guard bands, and the calls that findings name. */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

/* --- Unset floats ---------------------------------------------------------------------------- */

enum Use { SHUFFLE, CONVERSION, PRODUCT };

/** An array that no compiler keeps in registers; only its first `set` rows are set. */
template <int USE>
__global__ void use_row(__half *out, int set, int row) {
  float values[8][4];
  for (int i = 0; i < 4 * set; i++) values[i / 4][i % 4] = 1.0f;
  float(&used)[4] = values[row];
  const uint32_t a[4] = {};
  if (USE == SHUFFLE) used[0] = __shfl_xor_sync(~0u, used[0], 1);
  if (USE == PRODUCT) mma_m16n8k16<__half>(used, a, 0, 0);
  if (USE == CONVERSION) out[threadIdx.x + 32 * blockIdx.x] = used[0];
  if (used[0] == 5.0f) *out = 1;
}
enum { SHUFFLED = __LINE__ - 5, MULTIPLIED = __LINE__ - 4, CONVERTED = __LINE__ - 3 };

/** Uses a row that the kernel sets in the first launch, but not in the second. */
template <int USE>
static void check_use(int line, const char *kernel) {
  __half *out = named<__half>("out", 64);
  use_row<USE><<<2, 32>>>(out, 8, 7);
  assert_finds_nothing();
  use_row<USE><<<2, 32>>>(out, 7, 7);
  assert_finds(
      {LAB_FLOAT_UNSET, line, 0, kernel, "64 times, first: block 0 thread 0, 0xffffffff, a NaN"});
}

TEST(uses_of_unset_floats_are_reported) {
  set_variable("SIMT_THREADS", "1");
  check_use<SHUFFLE>(SHUFFLED, "use_row<0>");
  check_use<CONVERSION>(CONVERTED, "use_row<1>");
  check_use<PRODUCT>(MULTIPLIED, "use_row<2>");
  set_variable("SIMT_THREADS", nullptr);
}

/* --- Guard bands ----------------------------------------------------------------------------- */

__global__ void add_one_at(int *values, int at) {
  values[at]++;
}
enum { ADD_AT = __LINE__ - 2 };

TEST(guard_bands_are_out_of_bounds) {
  int *block = named<int>("O", 192), *values = block + 64;
  assert_int_equal(simt_guard_allocation(block, 256), cudaSuccess);
  assert_int_equal(simt_guard_allocation(block, 200), cudaErrorInvalidValue);
  assert_int_equal(simt_guard_allocation(values, 256), cudaErrorInvalidValue);
  cudaMemset(values + 1, 0, 63 * sizeof *values);
  add_one_at<<<1, 1>>>(values, 1);
  add_one_at<<<1, 1>>>(values, 63);
  assert_finds_nothing();
  add_one_at<<<1, 1>>>(values, 0);
  assert_finds({LAB_GLOBAL_UNWRITTEN, ADD_AT, 0, "add_one_at",
                "1 time, first: block 0 thread 0, O + 0 (256 bytes)"});
  add_one_at<<<1, 1>>>(values, -2);
  assert_finds({LAB_GLOBAL_OUTSIDE, ADD_AT, 0, "add_one_at",
                "2 times, first: block 0 thread 0, 8 bytes before allocation 1 \"O\" (256 bytes)"});
  add_one_at<<<1, 1>>>(values, 64);
  assert_finds({LAB_GLOBAL_OUTSIDE, ADD_AT, 0, "add_one_at",
                "2 times, first: block 0 thread 0, 1 byte past allocation 1 \"O\" (256 bytes)"});
}

/* --- Calls ----------------------------------------------------------------------------------- */

__device__ __forceinline__ void store(int *values) {
  values[threadIdx.x / 2] = 1;
}

__device__ __forceinline__ void store_twice(int *values) {
  store(values);
  store(values + 64);
}
enum { STORE = __LINE__ - 7, CALLS = __LINE__ - 3 };

__global__ void store_through_calls() {
  __shared__ int values[128];
  store_twice(values);
}
enum { OUTER_CALL = __LINE__ - 2 };

TEST(findings_name_the_calls_that_led_to_them) {
  store_through_calls<<<1, 64>>>();
  const char *text = findings_text();
  for (int call = CALLS; call < CALLS + 2; call++) {
    const std::string chain =
        place_text(__FILE__, STORE, call) + ", called at " + place_text(__FILE__, OUTER_CALL, 0);
    const std::string wanted =
        "at " + chain + " in store_through_calls\n           after " + chain + "\n";
    assert_contains(text, wanted.c_str());
  }
}

TEST(a_source_that_was_edited_is_newer) {
  char path[] = "/tmp/lab_unset_XXXXXX";
  const int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  assert_true(lab_source_is_newer(path));
  assert_false(lab_source_is_newer("/bin/sh"));
  unlink(path);
  assert_false(lab_source_is_newer(path));
}

RUN_TESTS_WITH(start_lab, stop_lab)
