/**
 * @file
 * Tests that one core computes reference rows as quickly as the choice of rows to check assumes.
 * The best of many tries counts, so that a busy machine does not fail it. Debug builds are not
 * judged, nor is anything when SIMT_SLOW is set: for valgrind and emulators.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "host/check/check.h"
#include "host/check/reference.h"
#include "host/io/random.h"

#include <cmocka.h> /* last: its macro fail() would hide ours */

enum { SEQLEN = 4096, HEAD_DIM = 128, TRIES = 40, ROWS_A_TRY = 64 };

static double seconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static uint16_t *draw_head(Dtype dtype, uint32_t tensor) {
  const size_t count = (size_t)SEQLEN * HEAD_DIM;
  uint16_t *x = malloc(count * sizeof *x);
  assert_non_null(x);
  for (size_t i = 0; i < count; i++) x[i] = element_bits(dtype, random_normal(1, tensor, i));
  return x;
}

static void ignore_row(void *context, size_t index, const ReferenceRow *row) {
  (void)context;
  (void)index;
  (void)row;
}

static double best_flops(const Problem *problem, const HostInputs *inputs, const CheckPlan *plan) {
  double best = INFINITY;
  for (int i = 0; i < TRIES; i++) {
    Error error;
    const double start = seconds_now();
    assert_true(
        reference_rows(problem, inputs, plan->rows, ROWS_A_TRY, ignore_row, NULL, NULL, &error));
    best = fmin(best, seconds_now() - start);
  }
  return 4.0 * HEAD_DIM * SEQLEN * ROWS_A_TRY / best;
}

/** The first rows of the sample that a run of B=4 H=16 N=4096 D=128 is checked by. */
static void one_core_keeps_up_with_the_plan(void **state) {
  const Dtype dtype = *(const Dtype *)*state;
  /* All heads share one: what is in memory does not matter to the speed, what is read does. */
  const Strides one_head = {.row = HEAD_DIM};
  const Problem problem = {.batch = 4,
                           .q_heads = 16,
                           .kv_heads = 16,
                           .q_len = SEQLEN,
                           .kv_len = SEQLEN,
                           .head_dim = HEAD_DIM,
                           .dtype = dtype,
                           .scale = 1 / sqrtf(HEAD_DIM),
                           .q_strides = one_head,
                           .k_strides = one_head,
                           .v_strides = one_head};
  uint16_t *q = draw_head(dtype, 0), *k = draw_head(dtype, 1), *v = draw_head(dtype, 2);
  const Mask mask = mask_simple(&problem);
  const HostInputs inputs = {q, k, v, &mask};
  CheckPlan plan;
  Error error;
  assert_true(check_plan(&problem, &mask, CHECK_DEFAULT, 0, 128, 1, &plan, &error));
  assert_true(plan.count >= ROWS_A_TRY);
  omp_set_num_threads(1);
  const double speed = best_flops(&problem, &inputs, &plan);
  print_message("reference: %.1f GFLOP/s (at least: %.1f)\n", 1e-9 * speed, 1e-9 * REFERENCE_SPEED);
#ifdef __OPTIMIZE__
  if (getenv("SIMT_SLOW") == NULL) assert_true(speed >= REFERENCE_SPEED);
#endif
  check_plan_free(&plan);
  free(q);
  free(k);
  free(v);
}

int main(void) {
  static Dtype fp16 = DTYPE_FP16, bf16 = DTYPE_BF16;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(one_core_keeps_up_with_the_plan, &fp16),
      cmocka_unit_test_prestate(one_core_keeps_up_with_the_plan, &bf16),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
