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

static void check_by_brute_force(const Problem *problem) {
  int64_t entries = 0;
  for (int q = 0; q < problem->q_len; q++) {
    const int64_t count = mask_row_count(problem, q);
    for (int k = 0; k < problem->kv_len; k++) {
      assert_int_equal(k < count, attends(problem, q, k));
      entries += attends(problem, q, k);
    }
    assert_in_range(count, 0, problem->kv_len);
  }
  assert_int_equal(mask_entries(problem), entries);
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
  assert_int_equal(mask_row_count(&more_keys, 0), 4);
  assert_int_equal(mask_row_count(&more_keys, 1), 5);
  const Problem more_queries = {.q_len = 5, .kv_len = 2, .mask = MASK_CAUSAL};
  assert_int_equal(mask_row_count(&more_queries, 2), 0);
  assert_int_equal(mask_row_count(&more_queries, 3), 1);
  assert_int_equal(mask_row_count(&more_queries, 4), 2);
}

static void the_longest_sequences_do_not_overflow(void **state) {
  (void)state;
  const int64_t n = INT_MAX;
  const Problem full = {.q_len = INT_MAX, .kv_len = INT_MAX, .mask = MASK_FULL};
  assert_true(mask_entries(&full) == n * n);
  const Problem square = {.q_len = INT_MAX, .kv_len = INT_MAX, .mask = MASK_CAUSAL};
  assert_true(mask_entries(&square) == n * (n + 1) / 2);
  const Problem wide = {.q_len = 1, .kv_len = INT_MAX, .mask = MASK_CAUSAL};
  assert_true(mask_entries(&wide) == n);
  assert_true(mask_row_count(&wide, 0) == n);
  const Problem tall = {.q_len = INT_MAX, .kv_len = 1, .mask = MASK_CAUSAL};
  assert_true(mask_entries(&tall) == 1);
  assert_true(mask_row_count(&tall, 0) == 0);
  assert_true(mask_row_count(&tall, n - 1) == 1);
}

static void names_are_parsed(void **state) {
  (void)state;
  MaskKind kind = MASK_CAUSAL;
  Error error;
  assert_true(mask_parse("full", &kind, &error));
  assert_int_equal(kind, MASK_FULL);
  assert_string_equal(mask_name(kind), "full");
  assert_true(mask_parse("causal", &kind, &error));
  assert_int_equal(kind, MASK_CAUSAL);
  assert_string_equal(mask_name(kind), "causal");
}

static void other_masks_are_refused_with_what_is_taken(void **state) {
  (void)state;
  const char *const others[] = {"",          "Full",          "causal ",  "ful",       "causal:1",
                                "window:64", "document:4",    "prefix:2", "dilated:2", "blocks:.5",
                                "random:.5", "interleaved:1", "empty",    "mask.npy",  "masks/"};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    MaskKind kind;
    Error error;
    char expected[128];
    snprintf(expected, sizeof expected, "--mask %s: this step takes full or causal", others[i]);
    assert_false(mask_parse(others[i], &kind, &error));
    assert_int_equal(error.code, EXIT_USAGE);
    assert_string_equal(error.text, expected);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_and_entries_follow_the_rule),
      cmocka_unit_test(causal_is_aligned_to_the_bottom_right),
      cmocka_unit_test(the_longest_sequences_do_not_overflow),
      cmocka_unit_test(names_are_parsed),
      cmocka_unit_test(other_masks_are_refused_with_what_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
