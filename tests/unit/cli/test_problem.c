/**
 * @file
 * From options to the problem: what follows from what, and what fits the memory of this machine.
 */
#define _POSIX_C_SOURCE 200809L
#include "host/cli/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h> /* last: its macro fail() would hide ours */

static bool supports(const Problem *problem, char *why, size_t why_size) {
  snprintf(why, why_size, "--head-dim %d: must be below 512", problem->head_dim);
  return problem->head_dim < 512;
}

/* The step that the host asks. */
const Step step = {.name = "step00", .supports = supports};

static void every_copy_is_counted(void **state) {
  (void)state;
  Problem p = {.batch = 2, .q_heads = 6, .kv_heads = 3, .q_len = 10, .kv_len = 7, .head_dim = 32};
  const double q = 2 * 2 * 6 * 10 * 32, kv = 2 * 2 * 3 * 7 * 32, lse = 4 * 2 * 6 * 10;
  const double guards = 4 * 4096, once = q + 2 * kv + q + lse + guards;
  assert_true(problem_host_bytes(&p, (HostCopies){0}) == once);
  assert_true(problem_host_bytes(&p, (HostCopies){.device = true}) == 2 * once);
  assert_true(problem_host_bytes(&p, (HostCopies){.files = true}) == once + q);
  p.dtype = DTYPE_BF16;
  assert_true(problem_host_bytes(&p, (HostCopies){true, true}) == 2 * once + 2 * q);
}

static void memory_sets_the_limit(void **state) {
  (void)state;
  const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  Options o = options_default();
  Problem p;
  Mask mask;
  Error error;
  o.batch = 64;
  o.q_heads = o.kv_heads = o.kv_len = 1;
  o.kv_heads_given = o.kv_len_given = true;
  o.head_dim = 256;
  const double row_bytes = 64 * 2 * (2 * 512 + 4); /* Q, O and LSE, twice: the CPU backend */
  o.q_len = (int)(0.99 * memory / row_bytes);
  assert_true(options_problem(&o, &p, &mask, &error));
  char directory[] = "out"; /* O once more, in the order of a file */
  o.output_directory = directory;
  assert_false(options_problem(&o, &p, &mask, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_non_null(strstr(error.text, "--batch 64 --heads 1 --kv-heads 1 --seqlen "));
  assert_non_null(strstr(error.text, " GB, must be at most the "));
  o.output_directory = NULL;
  o.q_len = (int)(1.01 * memory / row_bytes);
  assert_false(options_problem(&o, &p, &mask, &error));
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
      cmocka_unit_test(every_copy_is_counted),
      cmocka_unit_test(memory_sets_the_limit),
      cmocka_unit_test(what_is_not_given_follows_from_the_rest),
      cmocka_unit_test(what_the_step_refuses_is_refused_in_its_words),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
