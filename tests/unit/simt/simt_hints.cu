/** @file Tests of the hints about shuffles and masks that may explain a wrong result. */
#include <cuda_fp16.h>

#include <climits>
#include <string>

#include "../tests/unit/simt/simt_testing.h"

/** The only hint since the last test; `line` is that of the shuffle. */
static void expect_hint(SimtReading reading, const char *begin, int line, const char *end) {
  SimtHint hint, another;
  assert_true(simt_hint(0, &hint));
  assert_false(simt_hint(1, &another));
  assert_int_equal(hint.reading, reading);
  assert_ptr_equal(strstr(hint.text, begin), hint.text);
  assert_names_line(hint.text, line);
  assert_contains(hint.text, end);
  simt_reset_counters();
  assert_false(simt_hint(0, &hint));
}

/** The sum of a warp, which lane 0 gets, and all lanes store. */
__global__ void sum_down(float *out, int width) {
  float sum = 1;
  for (int offset = width / 2; offset > 0; offset /= 2) {
    sum += __shfl_down_sync(0xffffffff, sum, offset, width);
  }
  out[blockIdx.x * 32 + threadIdx.x] = sum;
}
enum { DOWN_LINE = __LINE__ - 4 };

TEST(lanes_that_a_shuffle_leaves_their_own_value_are_told) {
  float *device = device_zeros<float>(96);
  sum_down<<<3, 32>>>(device, 32);
  expect_hint(SIMT_DOWN_AS_XOR, "__shfl_down_sync at ", DOWN_LINE,
              " gave lanes 16-31 their own value back, as the lane to read lies past their 32 "
              "lanes: a reduction leaves its result in the first of 32 lanes only");
  sum_down<<<3, 32>>>(device, 8);
  expect_hint(SIMT_DOWN_AS_XOR, "__shfl_down_sync at ", DOWN_LINE,
              " gave lanes 4-7,12-15,20-23,28-31 their own value back, as the lane to read lies "
              "past their 8 lanes: a reduction leaves its result in the first of 8 lanes only");
}

__global__ void scan_up(double *out) {
  out[threadIdx.x] = __shfl_up_sync(0xffffffff, (double)threadIdx.x, 3);
}

__global__ void scan_up_by_one(int *out) {
  out[threadIdx.x] = __shfl_up_sync(0xffffffff, (int)threadIdx.x, 1);
}

__global__ void exchange_too_far(int *out) {
  out[threadIdx.x] = __shfl_xor_sync(0xffffffff, (int)threadIdx.x, 8, 8);
}

TEST(other_shuffles_keep_values_too) {
  scan_up<<<1, 32>>>(device_zeros<double>(32));
  expect_hint(SIMT_KEPT_LARGEST, "__shfl_up_sync at ", __LINE__ - 13,
              " gave lanes 0-2 their own value back, as the lane to read lies before their 32");
  scan_up_by_one<<<1, 32>>>(device_zeros<int>(32));
  expect_hint(SIMT_KEPT_LARGEST, "__shfl_up_sync at ", __LINE__ - 12,
              " gave lane 0 its own value back, as the lane to read lies before its 32 lanes");
  exchange_too_far<<<1, 32>>>(device_zeros<int>(32));
  expect_hint(SIMT_KEPT_LARGEST, "__shfl_xor_sync at ", __LINE__ - 11,
              " gave lanes 0-7,16-23 their own value back, as the lane to read lies past their 8");
}

template <typename T>
__global__ void shuffle_past_the_end(T *out) {
  const T value = T(5.0f), from_below = __shfl_down_sync(0xffffffff, value, 16);
  out[threadIdx.x] = from_below;
}

template <typename T>
static void check_spoiled(T largest, T smallest) {
  T *device = device_zeros<T>(32);
  for (const SimtReading reading : {SIMT_KEPT_LARGEST, SIMT_KEPT_SMALLEST, SIMT_AS_WRITTEN}) {
    const T spoiled = reading == SIMT_KEPT_LARGEST ? largest : smallest;
    simt_read_as(reading);
    shuffle_past_the_end<T><<<1, 32>>>(device);
    const auto out = fetch<32>(device);
    for (int i = 0; i < 32; i++)
      assert_true(out[i] == (i < 16 || reading == SIMT_AS_WRITTEN ? T(5.0f) : spoiled));
  }
}

TEST(spoiled_values_show_which_results_depend_on_them) {
  check_spoiled<float>(INFINITY, -INFINITY);
  check_spoiled<double>(INFINITY, -INFINITY);
  check_spoiled<int>(INT_MAX, INT_MIN);
  check_spoiled<unsigned>(UINT_MAX, 0);
  check_spoiled<long long>(LLONG_MAX, LLONG_MIN);
  check_spoiled<__half>(INFINITY, -INFINITY);
}

__global__ void count_active_lanes(int *out) {
  out[threadIdx.x] = __popc(__activemask());
  if (threadIdx.x % 32 < 5) out[threadIdx.x] += 100 * __popc(__activemask());
}

TEST(lanes_that_call_activemask_meet_if_it_is_read_so) {
  int *device = device_zeros<int>(48);
  simt_read_as(SIMT_ACTIVE_TOGETHER);
  count_active_lanes<<<1, 48>>>(device);
  simt_read_as(SIMT_AS_WRITTEN);
  const auto out = fetch<48>(device);
  for (int i = 0; i < 48; i++) {
    assert_int_equal(out[i], (i < 32 ? 32 : 16) + (i % 32 < 5 ? 500 : 0));
  }
}

__global__ void read_missing(float *out) {
  if (threadIdx.x < 8) out[threadIdx.x] = __shfl_down_sync(0xff, 1.0f, 6);
}

__global__ void count_active(int *out) {
  if (threadIdx.x < 20) out[threadIdx.x] = __popc(__activemask());
}

TEST(missing_lanes_and_active_masks_are_told) {
  read_missing<<<2, 32>>>(device_zeros<float>(32));
  expect_hint(
      SIMT_AS_WRITTEN, "__shfl_down_sync at ", __LINE__ - 10,
      ": lane 2 reads lane 8, which is not in the mask 0x000000ff, so the value is undefined");
  count_active<<<2, 32>>>(device_zeros<int>(32));
  expect_hint(SIMT_ACTIVE_TOGETHER, "__activemask() at ", __LINE__ - 9,
              " gave each lane itself alone, and CUDA promises no more");
  count_active<<<2, 1>>>(device_zeros<int>(32)); /* that lane is all that live */
  SimtHint hint;
  assert_false(simt_hint(0, &hint));
}

__global__ void go_far(int *out) {
  out[threadIdx.x] = __shfl_xor_sync(0xffffffff, (int)threadIdx.x, 32);
  out[threadIdx.x] += __shfl_sync(0xffffffff, (int)threadIdx.x, 33);  // the same lane of each warp
}

TEST(distances_past_the_warp_are_told) {
  go_far<<<1, 32>>>(device_zeros<int>(32));
  expect_hint(SIMT_AS_WRITTEN, "__shfl_xor_sync at ", __LINE__ - 6,
              " goes by 32, which counts modulo 32, so as 0");
}

__global__ void meet_elsewhere(int *out) {
  int x = 1;
  if (threadIdx.x < 20) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    out[threadIdx.x] = x;
  } else {
    x += 2 * __shfl_xor_sync(0xffffffff, x, 1);
    out[threadIdx.x] = x;
  }
}
enum { OTHER_LINE = __LINE__ - 4, ONE_LINE = OTHER_LINE - 3 };

__global__ void meet_on_one_line(int *out) {
  out[threadIdx.x] = threadIdx.x < 20 ? __shfl_xor_sync(~0u, 1, 1) : __shfl_xor_sync(~0u, 2, 1);
}

TEST(lanes_that_meet_at_different_shuffles_are_told) {
  meet_elsewhere<<<1, 32>>>(device_zeros<int>(32));
  SimtHint hint;
  assert_true(simt_hint(0, &hint));
  const char *there = strstr(hint.text, " met lanes at ");
  assert_non_null(there);
  assert_names_line(there, OTHER_LINE);
  expect_hint(
      SIMT_AS_WRITTEN, "__shfl_xor_sync at ", ONE_LINE,
      ": lanes 0-19 here, lanes 20-31 there; all lanes of the mask must reach the same one");
  meet_on_one_line<<<1, 32>>>(device_zeros<int>(32)); /* so may one that is compiled twice */
  assert_true(simt_hint(0, &hint));
  assert_string_equal(hint.text, "");
}

RUN_IN_ALL_SETTINGS("hints", reset_device, nullptr)
