/** @file Tests of host/masks/draw_mask.c: small pictures, compared as text. */
#define _POSIX_C_SOURCE 200809L

#include "host/masks/draw_mask.h"
#include "mask_testing.h"

static char *draw(const char *text, int q_len, int kv_len, int q_block, int kv_block) {
  const Problem p = mask_problem(1, 1, q_len, kv_len);
  Mask mask = open_mask(text, &p, q_block, kv_block);
  char *picture = NULL;
  size_t size;
  Error error;
  FILE *out = open_memstream(&picture, &size);
  assert_non_null(out);
  assert_true(draw_mask(&mask, q_block, kv_block, out, &error));
  fclose(out);
  mask_free(&mask);
  return picture;
}

static void expect(const char *text, int q_len, int kv_len, int q_block, int kv_block,
                   const char *should) {
  char *picture = draw(text, q_len, kv_len, q_block, kv_block);
  assert_string_equal(picture, should);
  free(picture);
}

static void small_masks_look_like_this(void **state) {
  (void)state;
  expect("causal", 16, 20, 4, 4,
         "mask causal, 16 queries down, 20 keys across, a character is 4 x 4 entries\n"
         "#/...\n"
         "##/..\n"
         "###/.\n"
         "####/\n"
         "# all attended   / some   . none   unmasked: 62.5 % of the entries\n");
  expect("window:5", 16, 16, 4, 4,
         "mask window:5, 16 queries down, 16 keys across, a character is 4 x 4 entries\n"
         "/...\n"
         "//..\n"
         ".//.\n"
         "..//\n"
         "# all attended   / some   . none   unmasked: 27.3 % of the entries\n");
  expect("document:8,2,6", 16, 16, 4, 2,
         "mask document:8,2,6, 16 queries down, 16 keys across, a character is 4 x 2 entries\n"
         "//......\n"
         "##//....\n"
         "....//..\n"
         ".....#//\n"
         "# all attended   / some   . none   unmasked: 23.4 % of the entries\n");
  expect("blocks:0.5", 14, 32, 4, 4, /* the last row of blocks is cut */
         "mask blocks:0.5, 14 queries down, 32 keys across, a character is 4 x 4 entries\n"
         "##.##..#\n"
         "#.....##\n"
         ".###.#.#\n"
         "#.##...#\n"
         "# all attended   / some   . none   unmasked: 53.6 % of the entries\n");
}

/** '#', '/' or '.' for the entries of a cell, counted one by one. */
static char cell(const uint8_t *dense, const Problem *p, int first_q, int first_k, int q_step,
                 int kv_step) {
  bool any = false, all = true;
  for (int q = first_q; q < first_q + q_step && q < p->q_len; q++) {
    for (int k = first_k; k < first_k + kv_step && k < p->kv_len; k++) {
      const bool one = dense[q * p->kv_len + k];
      any = any || one;
      all = all && one;
    }
  }
  return !any ? '.' : all ? '#' : '/';
}

/** A picture must be of `q_step` x `kv_step` entries a character, each what the cell says. */
static void check_cells(const char *text, int q_len, int kv_len, int block, int q_step,
                        int kv_step) {
  const Problem p = mask_problem(1, 1, q_len, kv_len);
  Mask mask = open_mask(text, &p, block, block);
  uint8_t *dense = dense_of_mask(&mask, 1, 1);
  char *picture = draw(text, q_len, kv_len, block, block), title[256];
  snprintf(title, sizeof title,
           "mask %s, %d queries down, %d keys across, a character is %d x %d entries\n", text,
           q_len, kv_len, q_step, kv_step);
  assert_memory_equal(picture, title, strlen(title));
  const char *at = picture + strlen(title);
  for (int q = 0; q < q_len; q += q_step) {
    for (int k = 0; k < kv_len; k += kv_step) {
      assert_int_equal(*at++, cell(dense, &p, q, k, q_step, kv_step));
    }
    assert_int_equal(*at++, '\n');
  }
  assert_memory_equal(at, "# all attended", strlen("# all attended"));
  free(picture);
  free(dense);
  mask_free(&mask);
}

static void a_picture_is_at_most_64_characters_wide_and_high(void **state) {
  (void)state;
  static const char *const TEXTS[] = {"full",       "causal",     "window:30",
                                      "document:3", "prefix:9",   "dilated:2",
                                      "random:0.3", "blocks:0.5", "empty"};
  for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
    check_cells(TEXTS[i], 64, 65, 1, 1, 2);
    check_cells(TEXTS[i], 130, 64, 1, 3, 1);
    check_cells(TEXTS[i], 257, 300, 4, 8, 8);
    check_cells(TEXTS[i], 1, 17, 16, 16, 16);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_masks_look_like_this),
      cmocka_unit_test(a_picture_is_at_most_64_characters_wide_and_high),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
