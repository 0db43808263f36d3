/** @file Tests of host/mask.c against the definition of each mask, entry by entry. */
#include "host/mask.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/** The rule of the mask, for one query and one key. */
static bool attends(const Problem *problem, int q, int k) {
  return problem->mask == MASK_FULL || k <= q + (problem->kv_len - problem->q_len);
}

static int64_t keys_of(const Problem *problem, int q) {
  const Mask mask = mask_simple(problem);
  return mask_row_end(&mask, 0, 0, q);
}

static int64_t entries_of(const Problem *problem) {
  const Mask mask = mask_simple(problem);
  return mask_entries(&mask, 1, 1);
}

static void check_by_brute_force(const Problem *problem) {
  int64_t entries = 0;
  for (int q = 0; q < problem->q_len; q++) {
    const int64_t count = keys_of(problem, q);
    for (int k = 0; k < problem->kv_len; k++) {
      assert_int_equal(k < count, attends(problem, q, k));
      entries += attends(problem, q, k);
    }
    assert_in_range(count, 0, problem->kv_len);
  }
  assert_int_equal(entries_of(problem), entries);
}

static void rows_and_entries_follow_the_rule(void **state) {
  (void)state;
  for (int q_len = 1; q_len <= 40; q_len++) {
    for (int kv_len = 1; kv_len <= 40; kv_len++) {
      check_by_brute_force(&(Problem){.q_len = q_len, .kv_len = kv_len, .mask = MASK_FULL});
      check_by_brute_force(&(Problem){.q_len = q_len, .kv_len = kv_len, .mask = MASK_CAUSAL});
    }
  }
}

static void causal_is_aligned_to_the_bottom_right(void **state) {
  (void)state;
  const Problem more_keys = {.q_len = 2, .kv_len = 5, .mask = MASK_CAUSAL};
  assert_int_equal(keys_of(&more_keys, 0), 4);
  assert_int_equal(keys_of(&more_keys, 1), 5);
  const Problem more_queries = {.q_len = 5, .kv_len = 2, .mask = MASK_CAUSAL};
  assert_int_equal(keys_of(&more_queries, 2), 0);
  assert_int_equal(keys_of(&more_queries, 3), 1);
  assert_int_equal(keys_of(&more_queries, 4), 2);
}

static void the_longest_sequences_do_not_overflow(void **state) {
  (void)state;
  const int64_t n = INT_MAX;
  const Problem full = {.q_len = INT_MAX, .kv_len = INT_MAX, .mask = MASK_FULL};
  assert_true(entries_of(&full) == n * n);
  const Problem square = {.q_len = INT_MAX, .kv_len = INT_MAX, .mask = MASK_CAUSAL};
  assert_true(entries_of(&square) == n * (n + 1) / 2);
  const Problem wide = {.q_len = 1, .kv_len = INT_MAX, .mask = MASK_CAUSAL};
  assert_true(entries_of(&wide) == n);
  assert_true(keys_of(&wide, 0) == n);
  const Problem tall = {.q_len = INT_MAX, .kv_len = 1, .mask = MASK_CAUSAL};
  assert_true(entries_of(&tall) == 1);
  assert_true(keys_of(&tall, 0) == 0);
  assert_true(keys_of(&tall, n - 1) == 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_and_entries_follow_the_rule),
      cmocka_unit_test(causal_is_aligned_to_the_bottom_right),
      cmocka_unit_test(the_longest_sequences_do_not_overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
