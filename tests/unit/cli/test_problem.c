/**
 * @file
 * From options to the problem: what follows from what, and what fits the memory.
 */
#define _POSIX_C_SOURCE 200809L
#include "host/cli/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* last: its macro fail() would hide ours */

static bool supports(const Problem *problem, char *why, size_t why_size) {
  snprintf(why, why_size, "--head-dim %d: must be below 512", problem->head_dim);
  return problem->head_dim < 512;
}

/* The step that the host asks. */
const Step step = {.name = "step00", .supports = supports};

static void tensors_beyond_memory_are_refused(void **state) {
  (void)state;
  Options o = options_default();
  Problem p;
  Mask mask;
  Error error;
  o.q_heads = 1 << 20;
  o.q_len = 1 << 25;
  assert_false(options_problem(&o, &p, &mask, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_non_null(strstr(error.text, "--batch 1 --heads 1048576 --kv-heads 1048576 --seqlen "));
  assert_non_null(strstr(error.text, " GB of memory, but only "));
}

static void what_is_not_given_follows_from_the_rest(void **state) {
  (void)state;
  Options o = options_default();
  Problem p;
  Mask mask;
  Error error;
  o.q_heads = 6;
  o.q_len = 40;
  o.head_dim = 64;
  assert_true(options_problem(&o, &p, &mask, &error));
  assert_int_equal(p.kv_heads, 6);
  assert_int_equal(p.kv_len, 40);
  assert_true(p.scale == 0.125F);
  assert_int_equal(p.q_strides.head, 40 * 64);
  o.layout = LAYOUT_BNHD;
  assert_true(options_problem(&o, &p, &mask, &error));
  assert_int_equal(p.q_strides.head, 64);
  assert_int_equal(p.q_strides.row, 6 * 64);
}

static void what_the_step_refuses_is_refused_in_its_words(void **state) {
  (void)state;
  Options o = options_default();
  Problem p;
  Mask mask;
  Error error;
  o.head_dim = 512;
  assert_false(options_problem(&o, &p, &mask, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_string_equal(error.text, "--head-dim 512: must be below 512");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_beyond_memory_are_refused),
      cmocka_unit_test(what_is_not_given_follows_from_the_rest),
      cmocka_unit_test(what_the_step_refuses_is_refused_in_its_words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
