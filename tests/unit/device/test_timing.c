/** @file Tests of host/device/timing.c: how many passes are made and which of them are samples. A
 * simulated clock gives the time of each pass. */
#include "host/device/flush.h"
#include "host/device/timing.h"

#include "../testing.h" /* last */

/* --- Replacements for the step and for CUDA's runtime ---------------------------------------- */

static int passes, flushes;
static float next_ms, growth; /* of the next pass; its increase a pass */

cudaError_t device_launch(const Step *launched, const Problem *problem,
                          const DeviceTensors *tensors) {
  (void)launched, (void)problem, (void)tensors;
  assert_int_equal(flushes, passes + 1); /* L2 is flushed before every pass */
  passes++;
  return cudaSuccess;
}

const Step step = {.name = "stub"};

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = NULL;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  (void)event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)event, (void)stream;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  (void)event;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  (void)start, (void)stop;
  *milliseconds = next_ms;
  next_ms += growth;
  return cudaSuccess;
}

cudaError_t flush_l2(void *buffer, size_t bytes, cudaStream_t stream) {
  (void)buffer, (void)stream;
  assert_int_equal(bytes, flush_bytes(1000));
  flushes++;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  *pointer = malloc(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
  free(pointer);
  return cudaSuccess;
}

bool device_ok(cudaError_t status, const char *what, Error *error) {
  (void)what, (void)error;
  return status == cudaSuccess;
}

static Timing time_passes(float first_ms, float more_ms, Sampling sampling) {
  Timing timing = {0};
  Error error;
  passes = flushes = 0;
  next_ms = first_ms;
  growth = more_ms;
  assert_true(time_pass(NULL, NULL, 1000, sampling, &timing, &error));
  assert_int_equal(passes, timing.samples + 3); /* the first three are warm-up */
  return timing;
}

static const Sampling USUAL = {.least = 10, .least_if_slow = 3, .min_time = 0.5};

TEST(samples_last_half_a_second_and_are_ten_or_three_of_slow_passes) {
  assert_int_equal(time_passes(1, 0, USUAL).samples, 500);
  assert_int_equal(time_passes(0.25f, 0, USUAL).samples, 2000);
  assert_int_equal(time_passes(60, 0, USUAL).samples, 10);
  assert_int_equal(time_passes(SLOW_PASS_MS, 0, USUAL).samples, 10);
  assert_int_equal(time_passes(SLOW_PASS_MS + 1, 0, USUAL).samples, 3);
  assert_int_equal(time_passes(9000, 0, USUAL).samples, 3);
}

TEST(the_last_warm_up_tells_whether_a_pass_is_slow) {
  const Sampling two = {.least = 2, .least_if_slow = 1, .min_time = 0};
  assert_int_equal(time_passes(500, -100, two).samples, 2); /* 500, 400 and 300 are warm-up */
  assert_int_equal(time_passes(501, -100, two).samples, 1);
}

TEST(quantiles_are_of_the_samples_alone) {
  const Sampling eleven = {.least = 11, .least_if_slow = 11, .min_time = 0};
  const Timing timing = time_passes(1, 1, eleven); /* 1 to 3 are warm-up, 4 to 14 are samples */
  assert_float_equal(timing.p10_ms, 5, 1e-9);
  assert_float_equal(timing.median_ms, 9, 1e-9);
  assert_float_equal(timing.p90_ms, 13, 1e-9);
}

static int turns_taken[2];

static cudaError_t take_turn(const void *context) {
  const int turn = *(const int *)context;
  assert_int_equal(flushes, turns_taken[0] + turns_taken[1] + 1);
  assert_int_equal(turns_taken[0], turns_taken[1] + turn); /* one after the other */
  turns_taken[turn]++;
  return cudaSuccess;
}

TEST(turns_alternate_and_their_samples_are_apart) {
  static const int NUMBERS[] = {0, 1};
  const Turn turns[] = {{take_turn, &NUMBERS[0]}, {take_turn, &NUMBERS[1]}};
  const Sampling five = {.least = 5, .least_if_slow = 5, .min_time = 0};
  Timing timings[2];
  Error error;
  flushes = 0;
  next_ms = 1;
  growth = 1; /* the first has 1, 3, 5, ..., the second 2, 4, 6, ... */
  assert_true(time_turns(turns, 2, 1000, five, timings, &error));
  assert_int_equal(turns_taken[0], 5 + 3);
  assert_int_equal(turns_taken[1], 5 + 3);
  assert_int_equal(timings[1].samples, 5);
  assert_float_equal(timings[0].median_ms, 11, 1e-9); /* of 7 to 15 */
  assert_float_equal(timings[1].median_ms, 12, 1e-9);
}

TEST(the_least_time_is_that_of_all_turns) {
  static const int NUMBERS[] = {0, 1};
  const Turn turns[] = {{take_turn, &NUMBERS[0]}, {take_turn, &NUMBERS[1]}};
  Timing timings[2];
  Error error;
  flushes = turns_taken[0] = turns_taken[1] = 0;
  next_ms = 1;
  growth = 0;
  assert_true(time_turns(turns, 2, 1000, USUAL, timings, &error));
  assert_int_equal(timings[0].samples, 250);
}

RUN_TESTS(NULL, NULL)
