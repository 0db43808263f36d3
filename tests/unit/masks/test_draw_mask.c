/** @file Tests of host/masks/draw_mask.c: small pictures, compared as text. */
#include "host/masks/mask.h"
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
  FREED char *picture = draw(text, q_len, kv_len, q_block, kv_block);
  assert_string_equal(picture, should);
}

TEST(small_masks_are_drawn_as_expected) {
  expect("causal", 16, 20, 4, 4,
         "mask causal, 16 queries down, 20 keys across, a character is 4 x 4 entries\n"
         "#/...\n"
         "##/..\n"
         "###/.\n"
         "####/\n"
         "# all attended   / some   . none   unmasked: 62.5 % of the entries\n");
  expect("causal", 8, 4, 2, 2, /* the first four queries attend nothing */
         "mask causal, 8 queries down, 4 keys across, a character is 2 x 2 entries\n"
         "..\n"
         "..\n"
         "/.\n"
         "#/\n"
         "# all attended   / some   . none   unmasked: 31.2 % of the entries\n");
  expect("document:8,2,6", 16, 16, 4, 2,
         "mask document:8,2,6, 16 queries down, 16 keys across, a character is 4 x 2 entries\n"
         "//......\n"
         "##//....\n"
         "....//..\n"
         ".....#//\n"
         "# all attended   / some   . none   unmasked: 23.4 % of the entries\n");
  expect("blocks:0.5", 14, 32, 4, 4, /* the last row of blocks is cut off */
         "mask blocks:0.5, 14 queries down, 32 keys across, a character is 4 x 4 entries\n"
         "##.##..#\n"
         "#.....##\n"
         ".###.#.#\n"
         "#.##...#\n"
         "# all attended   / some   . none   unmasked: 53.6 % of the entries\n");
}

TEST(a_picture_is_at_most_64_characters_wide_and_high) {
  char *picture = draw("full", 257, 300, 4, 4), expected[80 + 33 * 39] = "";
  strcat(expected, "mask full, 257 queries down, 300 keys across, a character is 8 x 8 entries\n");
  for (int row = 0; row < 33; row++) strcat(expected, "######################################\n");
  assert_memory_equal(picture, expected, strlen(expected));
  free(picture);
}

RUN_TESTS(NULL, NULL)
