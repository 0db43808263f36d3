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

RUN_TESTS(NULL, NULL)
