/** @file Tests of host/io/cache.c: lengths of sequences, page tables, and where keys lie. */
#include <stdlib.h>
#include <string.h>

#include "host/io/cache.h"
#include "host/io/npy.h"

#include "../directory.h" /* last */

enum { BATCH = 6 };

static Problem problem_of(int page_size, int kv_len) {
  const Problem p = {.batch = BATCH,
                     .q_heads = 4,
                     .kv_heads = 2,
                     .q_len = 3,
                     .kv_len = kv_len,
                     .head_dim = 8,
                     .page_size = page_size};
  return p;
}

static Cache cache_of(const char *text, int most) {
  Cache cache = {0};
  Error error = {0};
  if (!cache_set_lengths(text, BATCH, most, 7, &cache, &error)) fail_msg("%s", error.text);
  return cache;
}

static void refused(const char *text, const char *says) {
  Cache cache = {0};
  Error error = {0};
  assert_false(cache_set_lengths(text, BATCH, 100, 7, &cache, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_non_null(strstr(error.text, says));
  cache_free(&cache);
}

TEST(page_sizes_are_five_powers_of_two) {
  int count = 0;
  for (int64_t size = -1; size < 5000; size++) count += is_page_size(size);
  assert_int_equal(count, 5);
  assert_true(is_page_size(16) && is_page_size(32) && is_page_size(64) && is_page_size(128) &&
              is_page_size(256));
}

TEST(lengths_are_listed) {
  static const int EXPECTED[BATCH] = {5, 0, 100, 1, 2, 3};
  Cache cache = cache_of("5,0,100,1,2,3", 100);
  assert_memory_equal(cache.lengths, EXPECTED, sizeof EXPECTED);
  assert_int_equal(cache_longest(&cache, BATCH), 100);
  assert_int_equal(cache_longest(&cache, 2), 5);
  cache_free(&cache);
  assert_null(cache.lengths);
}

TEST(an_empty_cache_counts_as_one_key_long) {
  Cache cache = cache_of("0,0,0,0,0,0", 100);
  assert_int_equal(cache_longest(&cache, BATCH), 1);
  cache_free(&cache);
}

TEST(without_lengths_all_are_the_longest) {
  Cache cache = cache_of(NULL, 77);
  for (int b = 0; b < BATCH; b++) assert_int_equal(cache.lengths[b], 77);
  cache_free(&cache);
}

TEST(drawn_lengths_are_in_their_range_and_differ) {
  static const char *const RANGES[] = {"20-90", "log:20-90"};
  for (int i = 0; i < 2; i++) {
    Cache cache = cache_of(RANGES[i], 100);
    int different = 0;
    for (int b = 0; b < BATCH; b++) {
      assert_in_range(cache.lengths[b], 20, 90);
      different += cache.lengths[b] != cache.lengths[0];
    }
    assert_true(different > 1);
    cache_free(&cache);
  }
}

TEST(the_logarithm_of_lengths_is_uniform) {
  enum { MANY = 4000 };
  int shorter = 0;
  Cache cache = {0};
  Error error = {0};
  assert_true(cache_set_lengths("log:10-1000", MANY, 1000, 1, &cache, &error));
  for (int b = 0; b < MANY; b++) shorter += cache.lengths[b] < 100; /* the geometric mean */
  assert_in_range(shorter, MANY * 47 / 100, MANY * 53 / 100);
  cache_free(&cache);
}

TEST(wrong_lengths_are_refused) {
  refused("5", "1 lengths, must be one for each of --batch 6");
  refused("1,2,3,4,5,6,7", "7 lengths");
  refused("1,2,3,-4,5,6", "length 3 is \"-4\", must be an integer from 0 to 100");
  refused("1,2,3,101,5,6", "length 3 is \"101\"");
  refused("1,2,99999999999999999999,4,5,6", "length 2 is \"9999");
  refused("", "length 0 is \"\",");
  refused("90-20", "must be A-B with 0 <= A <= B <= 100");
  refused("20-101", "must be A-B");
  refused("-20", "length 0 is \"-20\"");
  refused("log:0-9", "must be log:A-B with 1 <= A <= B <= 100");
  refused("log:", "must be log:A-B");
  refused("/nowhere/lengths.npy", "/nowhere/lengths.npy: cannot open");
}

TEST(drawn_pages_are_different_and_some_have_no_owner) {
  Problem p = problem_of(16, 100);
  Cache cache = cache_of("0,1,16,17,100,64", 100);
  Error error = {0};
  assert_true(cache_draw_pages(&p, 3, &cache, &error));
  assert_int_equal(cache.table_stride, 7);
  int *owners = calloc((size_t)cache.pages, sizeof *owners);
  int needed = 0, without = 0;
  for (int b = 0; b < BATCH; b++) {
    for (int i = 0; i < cache.table_stride; i++) {
      const int page = cache.page_table[b * cache.table_stride + i];
      if (i >= page_count(&p, cache.lengths[b])) {
        assert_int_equal(page, NO_PAGE);
        continue;
      }
      assert_in_range(page, 0, cache.pages - 1);
      const int left = cache.lengths[b] - 16 * i;
      assert_int_equal(cache.page_rows[page], left < 16 ? left : 16);
      owners[page]++;
      needed++;
    }
  }
  assert_int_equal(needed, 0 + 1 + 1 + 2 + 7 + 4);
  for (int page = 0; page < cache.pages; page++) {
    assert_true(owners[page] <= 1 && (owners[page] == 1) == (cache.page_rows[page] > 0));
    without += owners[page] == 0;
  }
  assert_true(without >= 2);
  assert_int_equal(cache_rows(&p, &cache), 1 + 16 + 17 + 100 + 64);
  free(owners);
  cache_free(&cache);
}

TEST(keys_lie_where_strides_and_tables_say) {
  Problem p = problem_of(0, 100);
  int table[] = {3, 1, 0, 2}, lengths[BATCH] = {100};
  const Strides strides = {1000, 100, 10};
  Cache cache = {.lengths = lengths};
  assert_int_equal(cache_offset(&p, &cache, &strides, 2, 1, 33), 2000 + 100 + 330);
  p.page_size = 32;
  cache.page_table = table;
  cache.table_stride = 2;
  assert_int_equal(cache_offset(&p, &cache, &strides, 1, 1, 33), 2000 + 100 + 10);
  assert_int_equal(cache_offset(&p, &cache, &strides, 0, 0, 31), 3000 + 310);
}

TEST(a_window_limits_the_rows_that_are_read) {
  Problem p = problem_of(0, 100);
  Cache cache = cache_of("0,1,16,17,100,64", 100);
  assert_int_equal(cache_rows(&p, &cache), 198);
  p.window = 10; /* and three queries: 12 keys */
  assert_int_equal(cache_rows(&p, &cache), 0 + 1 + 12 + 12 + 12 + 12);
  cache_free(&cache);
}

TEST(files_of_lengths_and_pages) {
  static const int32_t LENGTHS[BATCH] = {0, 1, 16, 17, 33, 2};
  static const int32_t TABLE[BATCH][3] = {{-1, -1, -1}, {4, 99, 99}, {0, -1, -1},
                                          {4, 1, -1},   {0, 2, 3},   {1, -1, -1}};
  const int64_t shapes[2][2] = {{BATCH}, {BATCH, 3}};
  const NpyFile files[] = {{"lengths.npy", NPY_I4, 1, shapes[0], LENGTHS},
                           {"table.npy", NPY_I4, 2, shapes[1], TABLE}};
  char path[2][160];
  Problem p = problem_of(16, 33);
  Cache cache = {0};
  Error error = {0};
  assert_true(npy_write(test_directory, files, 2, &error));
  snprintf(path[0], sizeof path[0], "%s/lengths.npy", test_directory);
  snprintf(path[1], sizeof path[1], "%s/table.npy", test_directory);
  assert_true(cache_set_lengths(path[0], BATCH, 33, 0, &cache, &error));
  assert_memory_equal(cache.lengths, LENGTHS, sizeof LENGTHS);
  assert_true(cache_read_pages(path[1], &p, 5, &cache, &error));
  assert_int_equal(cache.page_table[3], 4);
  assert_int_equal(cache.page_table[4], NO_PAGE); /* the file's 99 is not read */
  static const int ROWS[] = {16, 2, 16, 1,
                             16}; /* page 4: of two sequences, 1 and 16; page 1: 1, 2 */
  assert_memory_equal(cache.page_rows, ROWS, sizeof ROWS);
  assert_int_equal(cache_rows(&p, &cache), 51);
  Cache other = {.lengths = cache.lengths};
  assert_false(cache_read_pages(path[1], &p, 4, &other, &error));
  assert_non_null(
      strstr(error.text, "table.npy: element [1, 0] is 4, must be a page, from 0 to 3"));
  other.lengths[4] = p.kv_len = 49;
  assert_false(cache_read_pages(path[1], &p, 5, &other, &error));
  assert_non_null(strstr(error.text, "[6, 4] or more, as element [4] of lengths.npy is 49"));
  other.lengths = NULL;
  cache_free(&other);
  assert_false(cache_read_lengths(path[0], BATCH, 32, &other, &error));
  assert_non_null(strstr(error.text, "lengths.npy: element [4] is 33, must be from 0 to 32"));
  assert_false(cache_read_lengths(path[0], 5, 33, &other, &error));
  assert_non_null(strstr(error.text, "must be [B], one length for each sequence: [5]"));
  cache_free(&cache);
  unlink(path[0]);
  unlink(path[1]);
}

RUN_TESTS(create_test_directory, remove_test_directory)
