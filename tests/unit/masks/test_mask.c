/** @file Tests of host/masks/mask.c at its limits. The end-to-end tests compare every preset with
 * NumPy. */
#include <limits.h>

#include "mask_testing.h"

TEST(the_longest_sequences_do_not_overflow) {
  const int64_t n = INT_MAX;
  Problem p = {.q_len = INT_MAX, .kv_len = INT_MAX, .mask = MASK_FULL};
  Mask mask = mask_simple(&p);
  assert_true(mask_entries(&mask, 1, 1) == n * n);
  p.mask = MASK_CAUSAL;
  mask = mask_simple(&p);
  assert_true(mask_entries(&mask, 1, 1) == n * (n + 1) / 2);
  p.q_len = 1;
  mask = mask_simple(&p);
  assert_true(mask_entries(&mask, 1, 1) == n);
  assert_true(mask_row_end(&mask, 0, 0, 0, 1) == n);
  p = (Problem){.q_len = INT_MAX, .kv_len = 1, .mask = MASK_CAUSAL};
  mask = mask_simple(&p);
  assert_true(mask_entries(&mask, 1, 1) == 1);
  assert_true(mask_row_end(&mask, 0, 0, 0, 1) == 0);
  assert_true(mask_row_end(&mask, 0, 0, INT_MAX - 1, 1) == 1);
}

TEST(all_masks_but_full_and_causal_are_block_masks) {
  static const char *const TEXTS[] = {"full", "causal", "window:9", "empty", "prefix:9"};
  for (int i = 0; i < 5; i++) {
    const MaskKind kind = i == 0 ? MASK_FULL : i == 1 ? MASK_CAUSAL : MASK_BLOCKS;
    assert_int_equal(mask_kind(TEXTS[i]), kind);
    assert_false(mask_names_directory(TEXTS[i]));
  }
  assert_true(mask_names_directory("."));
}

/** Query q of a sequence attends to the keys first .. end - 1; to none if they are equal. */
static void attends(const Mask *mask, int batch, int q, int first, int end) {
  KeySpan span = {-1, -1};
  assert_int_equal(mask_row(mask, batch, 0, q, &span), first < end);
  if (first >= end) return;
  assert_int_equal(span.first, first);
  assert_int_equal(span.end, end);
  assert_int_equal(mask_row_end(mask, batch, 0, q, 1), end);
}

TEST(each_sequence_has_a_length_of_its_own) {
  static const int LENGTHS[] = {0, 2, 9};
  Problem p = {.batch = 3, .q_heads = 2, .q_len = 3, .kv_len = 10, .mask = MASK_CAUSAL};
  Mask mask = mask_of_lengths(&p, LENGTHS);
  for (int q = 0; q < 3; q++) attends(&mask, 0, q, 0, 0);
  for (int q = 0; q < 3; q++) attends(&mask, 1, q, 0, q);
  for (int q = 0; q < 3; q++) attends(&mask, 2, q, 0, 7 + q);
  assert_int_equal(mask_entries(&mask, 3, 2), 2 * (0 + 1 + 2 + 7 + 8 + 9));
  assert_int_equal(mask_most_spans(&mask), 1);
  p.window = 4;
  mask = mask_of_lengths(&p, LENGTHS);
  for (int q = 0; q < 3; q++) attends(&mask, 1, q, 0, q);
  for (int q = 0; q < 3; q++) attends(&mask, 2, q, 3 + q, 7 + q);
  assert_int_equal(mask_entries(&mask, 3, 2), 2 * (0 + 1 + 2 + 3 * 4));
  p.window = 0;
  p.mask = MASK_FULL;
  mask = mask_of_lengths(&p, LENGTHS);
  for (int q = 0; q < 3; q++) {
    for (int b = 0; b < 3; b++) attends(&mask, b, q, 0, LENGTHS[b]);
  }
  assert_int_equal(mask_entries(&mask, 3, 2), 2 * 3 * 11);
}

RUN_TESTS(NULL, NULL)
