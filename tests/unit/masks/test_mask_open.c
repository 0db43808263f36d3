/** @file Tests of host/masks/mask_open.c: what it refuses, and masks from files. */
#include <math.h>
#include <sys/stat.h>

#include "host/base/memory.h"
#include "mask_testing.h"

#define KNOWN_MASKS                                                                             \
  "must be full, causal, window:W, document:COUNT or L1,L2,..., prefix:P, interleaved:SEED, "   \
  "dilated:K, blocks:DENSITY, random:DENSITY, empty, a .npy file or a directory of them; as a " \
  "file: No such file or directory"

/** For 2 batch entries, 3 heads, 4 queries and 10 keys. */
static void refuse(const char *text, const char *why) {
  const Problem p = mask_problem(2, 3, 4, 10);
  Mask mask;
  Error error = {0};
  assert_false(mask_open(text, &p, 64, 64, 1, &mask, &error));
  assert_string_equal(error.text, why);
  assert_int_equal(error.code, EXIT_USAGE);
  assert_null(mask.run_ends); /* nothing is left to be freed */
  assert_null(mask.dense.data);
  assert_null(mask.blocks.data[0]);
}

TEST(unknown_presets_are_refused) {
  static const char *const TEXTS[] = {"",       "Full",   "causal2", "window",     "windows:3",
                                      "blocks", "empty:", "empty:1", "missing.npy"};
  for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
    char why[512];
    snprintf(why, sizeof why, "--mask %s: " KNOWN_MASKS, TEXTS[i]);
    refuse(TEXTS[i], why);
  }
}

/** Refused before anything is drawn. */
TEST(tiles_beyond_memory_are_refused) {
  memory_start();
  const Problem p = mask_problem(1, 1, 1 << 26, 1 << 26);
  Mask mask;
  Error error = {0};
  assert_false(mask_open("random:0.5", &p, 64, 64, 1, &mask, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_non_null(strstr(error.text,
                         "--mask random:0.5, --seqlen 67108864, --seqlen-kv 67108864: needs "
                         "4.5e+06 GB of memory, but only "));
}

TEST(numbers_must_be_in_range_and_lengths_add_up) {
  refuse("window:", "--mask window:: W must be an integer from 1 to 2147483647");
  refuse("window:1.5", "--mask window:1.5: W must be an integer from 1 to 2147483647");
  refuse("window:2147483648",
         "--mask window:2147483648: W must be an integer from 1 to 2147483647");
  refuse("dilated:0", "--mask dilated:0: K must be an integer from 1 to 2147483647");
  refuse("prefix:-1", "--mask prefix:-1: P must be an integer from 0 to 10");
  refuse("prefix:11", "--mask prefix:11: P must be an integer from 0 to 10");
  refuse("interleaved:-1", "--mask interleaved:-1: the seed must be an integer from 0 to 2^64 - 1");
  refuse("blocks:-0.1", "--mask blocks:-0.1: the density must be a number from 0 to 1");
  refuse("random:1.01", "--mask random:1.01: the density must be a number from 0 to 1");
  refuse("random:nan", "--mask random:nan: the density must be a number from 0 to 1");
  refuse("document:11", "--mask document:11: COUNT must be an integer from 1 to 10");
  refuse("document:4,5", "--mask document:4,5: the lengths add up to 9, must be --seqlen-kv 10");
  refuse("document:9,9,9,x",
         "--mask document:9,9,9,x: the lengths add up to at least 18, must be --seqlen-kv 10");
  refuse("document:5,0,5", "--mask document:5,0,5: each length must be an integer from 1 to 10");
  refuse("document:5,5,", "--mask document:5,5,: each length must be an integer from 1 to 10");
}

/** The file at `path` is refused; the message has `text` after the file's name. */
static void refuse_file(const char *path, const char *text) {
  char why[512];
  snprintf(why, sizeof why, "%s: %s", path, text);
  refuse(path, why);
  unlink(path);
}

static void refuse_shape(int rank, const int64_t *shape, const char *text) {
  static const uint8_t ZEROS[2 * 3 * 4 * 10 * 2];
  const TestPath path = test_path("a.npy");
  write_array(path.text, NPY_B1, rank, shape, ZEROS);
  refuse_file(path.text, text);
}

TEST(dense_files_must_fit_the_problem) {
  refuse_shape(1, (int64_t[]){10},
               "has 1 dimension, must be [Nq, Nkv], [H, Nq, Nkv] or [B, H, Nq, Nkv]");
  refuse_shape(5, (int64_t[]){1, 1, 1, 4, 10},
               "has 5 dimensions, must be [Nq, Nkv], [H, Nq, Nkv] or [B, H, Nq, Nkv]");
  refuse_shape(2, (int64_t[]){10, 4},
               "is a mask of [Nq, Nkv] = [10, 4], but the problem has [4, 10]");
  refuse_shape(3, (int64_t[]){2, 4, 10},
               "is a mask of [B, H] = [1, 2], but the problem has [2, 3] (1 stands for all)");
  refuse_shape(4, (int64_t[]){3, 1, 4, 10},
               "is a mask of [B, H] = [3, 1], but the problem has [2, 3] (1 stands for all)");
}

/** A file of numbers is refused, with the words that come after its type. */
static void refuse_numbers(NpyType type, const void *numbers, const char *words) {
  const TestPath path = test_path("a.npy");
  char text[256];
  write_array(path.text, type, 1, (int64_t[]){2}, numbers);
  snprintf(text, sizeof text,
           "element type '%s': expected |b1 (bool), True where a query attends to "
           "a key: %s",
           npy_type_name(type), words);
  refuse_file(path.text, text);
}

TEST(numbers_are_refused_with_the_conversion_that_is_right) {
  const char *const ones = "save mask != 0";
  const char *const additive =
      "this mask is additive, so save mask == 0 (.astype(bool) would invert it)";
  const char *const zeros =
      "all are 0: save mask == 0 if the mask is additive, mask != 0 if 0 means masked";
  const char *const mixed = "numbers of both signs, or NaN, cannot be a mask";
  refuse_numbers(NPY_U1, (uint8_t[]){0, 255}, ones);
  refuse_numbers(NPY_U8, (uint64_t[]){0, UINT64_MAX}, ones);
  refuse_numbers(NPY_I8, (int64_t[]){0, 1}, ones);
  refuse_numbers(NPY_I2, (int16_t[]){0, 0}, ones);
  refuse_numbers(NPY_F4, (float[]){0, 1}, ones);
  refuse_numbers(NPY_I1, (int8_t[]){0, -128}, additive);
  refuse_numbers(NPY_F2, (uint16_t[]){0, 0xfc00}, additive); /* -inf */
  refuse_numbers(NPY_F4, (float[]){-0.0f, -1e9f}, additive);
  refuse_numbers(NPY_F8, (double[]){-0.0, -0.5}, additive);
  refuse_numbers(NPY_F8, (double[]){-0.0, 0.0}, zeros);
  refuse_numbers(NPY_F4, (float[]){1, -1e9f}, mixed);
  refuse_numbers(NPY_F2, (uint16_t[]){0, 0x7e00}, mixed);    /* NaN */
  refuse_numbers(NPY_F4, (float[]){-NAN, -INFINITY}, mixed); /* 0 * -inf */
  refuse_numbers(NPY_F8, (double[]){0, NAN}, mixed);
  refuse_numbers(NPY_F8, (double[]){INFINITY, 0}, ones);
}

/** Entry i of a dense file, pseudo-random. */
static uint8_t bit(size_t i) {
  return (uint8_t)((i * 2654435761u >> 13) % 3 == 0);
}

/** A file of `batches` x `heads` masks, with `rank` dimensions. */
static void check_dense_file(int rank, int batches, int heads) {
  enum { B = 2, H = 3, NQ = 5, NKV = 7 };
  uint8_t data[B * H * NQ * NKV];
  for (size_t i = 0; i < sizeof data; i++) data[i] = bit(i);
  const int64_t shape[4] = {batches, heads, NQ, NKV};
  const TestPath path = test_path("a.npy");
  write_array(path.text, NPY_B1, rank, shape + 4 - rank, data);
  const Problem p = mask_problem(B, H, NQ, NKV);
  Mask mask = open_mask(path.text, &p, 64, 64);
  unlink(path.text);
  assert_int_equal(mask.batches, batches);
  assert_int_equal(mask.heads, heads);
  uint8_t *dense = dense_of_mask(&mask, B, H);
  for (int b = 0; b < B; b++) {
    for (int h = 0; h < H; h++) {
      const uint8_t *should = data + (b % batches * heads + h % heads) * NQ * NKV;
      assert_memory_equal(dense + (b * H + h) * NQ * NKV, should, NQ * NKV);
    }
  }
  assert_int_equal(mask_entries(&mask, B, H), count_ones(dense, sizeof data));
  free(dense);
  mask_free(&mask);
}

TEST(dense_files_are_read_entry_by_entry) {
  check_dense_file(2, 1, 1);
  check_dense_file(3, 1, 1);
  check_dense_file(3, 1, 3);
  check_dense_file(4, 1, 1);
  check_dense_file(4, 1, 3);
  check_dense_file(4, 2, 1);
  check_dense_file(4, 2, 3);
}

TEST(saved_block_masks_are_read_back) {
  static const char *const TEXTS[] = {"full",     "causal",       "window:5",   "document:3",
                                      "prefix:4", "dilated:2",    "random:0.4", "blocks:0.5",
                                      "empty",    "interleaved:2"};
  const TestPath directory = test_path("mask");
  const Problem p = mask_problem(2, 3, 21, 34);
  for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++) {
    Mask mask = open_mask(TEXTS[i], &p, 8, 4);
    HostBlockMask blocks;
    Error error = {0};
    assert_true(block_mask_build(&mask, 8, 4, &blocks, &error));
    assert_int_equal(mkdir(directory.text, 0777), 0);
    assert_true(block_mask_write(directory.text, &blocks, &error));
    Mask again = open_mask(directory.text, &p, 8, 4);
    uint8_t *x = dense_of_mask(&mask, 2, 3), *y = dense_of_mask(&again, 2, 3);
    assert_memory_equal(x, y, 2 * 3 * 21 * 34);
    assert_int_equal(mask_entries(&again, 2, 3), mask_entries(&mask, 2, 3));
    assert_true(again.preset == PRESET_DIRECTORY && mask_names_directory(directory.text));
    assert_false(again.one_span); /* it stays as it is */
    free(x);
    free(y);
    block_mask_free(&blocks);
    mask_free(&mask);
    mask_free(&again);
    remove_block_mask(directory.text);
  }
}

TEST(directories_without_the_files_are_refused) {
  const TestPath directory = test_path("mask");
  char why[512];
  assert_int_equal(mkdir(directory.text, 0777), 0);
  snprintf(why, sizeof why, "%s/kv_num_blocks.npy: cannot open: No such file or directory",
           directory.text);
  refuse(directory.text, why);
  assert_int_equal(rmdir(directory.text), 0);
}

RUN_TESTS(create_test_directory, remove_test_directory)
