/** @file Tests of host/masks/mask.c against the definition of each mask, entry by entry. */
#include <limits.h>
#include <math.h>

#include "mask_testing.h"

/** Whether the query at `position`, which is q', attends key k. */
typedef bool Rule(int64_t n, int64_t kv_len, int64_t position, int64_t k);

static bool by_full(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  (void)n, (void)kv_len, (void)position, (void)k;
  return true;
}

static bool by_causal(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  (void)n, (void)kv_len;
  return k <= position;
}

static bool by_window(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  (void)kv_len;
  return position - n < k && k <= position;
}

/** The document of a key: the first kv_len % n documents are one key longer. */
static int64_t document_of(int64_t n, int64_t kv_len, int64_t k) {
  int64_t document = 0;
  for (int64_t end = 0; document < n; document++) {
    end += kv_len / n + (document < kv_len % n);
    if (k < end) break;
  }
  return document;
}

static bool by_document(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  return position >= 0 && k <= position &&
         document_of(n, kv_len, k) == document_of(n, kv_len, position);
}

static bool by_prefix(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  (void)kv_len;
  return k < n || k <= position;
}

static bool by_dilated(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  (void)kv_len;
  return k <= position && (position - k) % n == 0;
}

static bool by_empty(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  (void)n, (void)kv_len, (void)position, (void)k;
  return false;
}

static void check_rule(const char *text, Rule *rule, int64_t n, int q_len, int kv_len) {
  const Problem p = mask_problem(2, 3, q_len, kv_len);
  FREED_BY(mask_free) Mask mask = open_mask(text, &p, 128, 128);
  assert_int_equal(mask.batches * mask.heads, 1);
  FREED uint8_t *dense = dense_of_mask(&mask, 1, 1);
  for (int q = 0; q < q_len; q++) {
    for (int k = 0; k < kv_len; k++) {
      if (dense[q * kv_len + k] == rule(n, kv_len, q + kv_len - q_len, k)) continue;
      fail_msg("%s, %d queries, %d keys: q=%d k=%d is wrong", text, q_len, kv_len, q, k);
    }
  }
  const int64_t ones = count_ones(dense, (size_t)q_len * (size_t)kv_len);
  assert_int_equal(mask_entries(&mask, 1, 1), ones);
  assert_int_equal(mask_entries(&mask, 2, 3), 6 * ones);
}

/** "name:n" */
static void check_number(const char *name, Rule *rule, int64_t n, int q_len, int kv_len) {
  char text[64];
  snprintf(text, sizeof text, "%s:%lld", name, (long long)n);
  check_rule(text, rule, n, q_len, kv_len);
}

static void check_all_presets(int q_len, int kv_len) {
  const int64_t numbers[] = {1, 2, 3, 5, kv_len / 2 + 1, kv_len - 1, kv_len, kv_len + 1, INT_MAX};
  check_rule("full", by_full, 0, q_len, kv_len);
  check_rule("causal", by_causal, 0, q_len, kv_len);
  check_rule("empty", by_empty, 0, q_len, kv_len);
  check_number("prefix", by_prefix, 0, q_len, kv_len);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    const int64_t n = numbers[i];
    if (n < 1) continue;
    check_number("window", by_window, n, q_len, kv_len);
    check_number("dilated", by_dilated, n, q_len, kv_len);
    if (n > kv_len) continue;
    check_number("document", by_document, n, q_len, kv_len);
    check_number("prefix", by_prefix, n, q_len, kv_len);
  }
}

TEST(every_preset_follows_its_rule) {
  for (int q_len = 1; q_len <= 19; q_len += q_len < 3 ? 1 : 8) {
    for (int kv_len = 1; kv_len <= 19; kv_len += kv_len < 3 ? 1 : 8) {
      check_all_presets(q_len, kv_len);
    }
  }
  check_all_presets(70, 33);
  check_all_presets(33, 70);
}

/** Documents of 1, 9, 2, 1 and 7 keys. */
static bool by_listed_document(int64_t n, int64_t kv_len, int64_t position, int64_t k) {
  static const char OWNER[] = "abbbbbbbbbccdeeeeeee";
  (void)n, (void)kv_len;
  return position >= 0 && k <= position && OWNER[k] == OWNER[position];
}

TEST(documents_have_the_lengths_of_the_list) {
  static const int Q_LENGTHS[] = {1, 7, 20, 21, 45};
  for (size_t i = 0; i < sizeof Q_LENGTHS / sizeof Q_LENGTHS[0]; i++) {
    check_rule("document:1,9,2,1,7", by_listed_document, 0, Q_LENGTHS[i], 20);
  }
}

/**
 * Rows of a square mask must come in runs: the rows of an image attend the same keys, up to its
 * end, and each row of text is a run of its own. Checks the lengths, except where the end cuts a
 * run off.
 */
static void check_runs(const Mask *square, const uint8_t *dense) {
  const int n = square->kv_len;
  int text = 0, images = 0;
  for (int first = 0, end; first < n; first = end) {
    end = mask_row_end(square, 0, 0, first, 1);
    assert_true(end > first);
    for (int q = first; q < end; q++) {
      for (int k = 0; k < n; k++) {
        if (dense[q * n + k] != (k < end)) fail_msg("q=%d k=%d is wrong", q, k);
      }
    }
    if (end == first + 1) {
      text++;
    } else {
      assert_in_range(text, 16, 256);
      if (end < n) assert_in_range(end - first, 64, 576);
      text = 0;
      images++;
    }
  }
  assert_in_range(text, 0, 256);
  if (n > 256 + 1) assert_true(images > 0);
}

/** A mask with other lengths must have the rows of the square one, shifted. */
static void check_interleaved(int q_len, int kv_len, const char *text) {
  const Problem p = mask_problem(1, 1, q_len, kv_len), square = mask_problem(1, 1, kv_len, kv_len);
  FREED_BY(mask_free)
  Mask mask = open_mask(text, &p, 128, 128), whole = open_mask(text, &square, 128, 128);
  FREED uint8_t *dense = dense_of_mask(&mask, 1, 1), *rows = dense_of_mask(&whole, 1, 1);
  check_runs(&whole, rows);
  for (int q = 0; q < q_len; q++) {
    const int position = q + kv_len - q_len;
    for (int k = 0; k < kv_len; k++) {
      const bool should = position >= 0 && rows[position * kv_len + k];
      if (dense[q * kv_len + k] != should) fail_msg("q=%d k=%d is wrong", q, k);
    }
  }
  assert_int_equal(mask_entries(&mask, 1, 1), count_ones(dense, (size_t)q_len * (size_t)kv_len));
}

TEST(images_are_attended_whole_and_text_is_causal) {
  check_interleaved(700, 1000, "interleaved:2");
  check_interleaved(1100, 1000, "interleaved:18446744073709551615");
  for (int kv_len = 1; kv_len < 400; kv_len += 131) {
    check_interleaved(kv_len, kv_len, "interleaved:3");
  }
}

TEST(interleaved_masks_depend_on_the_seed) {
  const Problem p = mask_problem(1, 1, 600, 600);
  FREED_BY(mask_free)
  Mask a = open_mask("interleaved:5", &p, 64, 64), b = open_mask("interleaved:5", &p, 128, 32);
  FREED_BY(mask_free) Mask c = open_mask("interleaved:6", &p, 64, 64);
  FREED uint8_t *x = dense_of_mask(&a, 1, 1), *y = dense_of_mask(&b, 1, 1),
                *z = dense_of_mask(&c, 1, 1);
  assert_memory_equal(x, y, 600 * 600);
  assert_true(memcmp(x, z, 600 * 600) != 0);
}

TEST(blocks_are_drawn_whole) {
  static const int SIZES[][4] = {{100, 70, 16, 8}, {33, 90, 8, 16}, {64, 64, 64, 64}, {5, 3, 1, 1}};
  for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++) {
    const int q_len = SIZES[i][0], kv_len = SIZES[i][1], q_b = SIZES[i][2], kv_b = SIZES[i][3];
    const Problem p = mask_problem(1, 1, q_len, kv_len);
    FREED_BY(mask_free) Mask mask = open_mask("blocks:0.5", &p, q_b, kv_b);
    FREED uint8_t *dense = dense_of_mask(&mask, 1, 1);
    for (int q = 0; q < q_len; q++) {
      for (int k = 0; k < kv_len; k++) {
        const uint8_t corner = dense[q / q_b * q_b * kv_len + k / kv_b * kv_b];
        assert_int_equal(dense[q * kv_len + k], corner);
      }
    }
    assert_int_equal(mask_entries(&mask, 1, 1), count_ones(dense, (size_t)q_len * (size_t)kv_len));
  }
}

static uint8_t *draw_mask_of(const char *text, uint64_t seed, int64_t *entries) {
  const Problem p = mask_problem(1, 1, 200, 300);
  Mask mask;
  Error error;
  assert_true(mask_open(text, &p, 2, 3, seed, &mask, &error));
  uint8_t *dense = dense_of_mask(&mask, 1, 1);
  *entries = mask_entries(&mask, 1, 1);
  mask_free(&mask);
  return dense;
}

/** Five standard deviations are allowed; `group` is how many entries are drawn together. */
static void check_density(const char *text, double density, int group) {
  const double total = 200 * 300;
  int64_t first, again, other;
  FREED uint8_t *a = draw_mask_of(text, 7, &first), *b = draw_mask_of(text, 7, &again);
  FREED uint8_t *c = draw_mask_of(text, 8, &other);
  const double allowed = 5 * sqrt(total * group * density * (1 - density));
  assert_true(fabs((double)first - total * density) <= allowed);
  assert_true(fabs((double)other - total * density) <= allowed);
  assert_int_equal(first, count_ones(a, 200 * 300));
  assert_memory_equal(a, b, 200 * 300);
  assert_int_equal(memcmp(a, c, 200 * 300) != 0, density > 0 && density < 1);
}

TEST(random_masks_have_their_density_and_seed) {
  check_density("random:0", 0, 1);
  check_density("random:0.5", 0.5, 1);
  check_density("random:1", 1, 1);
  check_density("blocks:0", 0, 6);
  check_density("blocks:0.9", 0.9, 6);
  check_density("blocks:1", 1, 6);
}

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
