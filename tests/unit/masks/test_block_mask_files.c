/** @file Tests of block masks as directories of files, and of masks with strides of any kind. */
#define _POSIX_C_SOURCE 200809L

#include <sys/stat.h>

#include "block_mask_testing.h"

/** The entries of a block mask by its definition: [batch][q_heads][q_len][kv_len]. */
static uint8_t *dense_of_blocks(const BlockMask *m, const Problem *p) {
  uint8_t *dense =
      malloc((size_t)p->batch * (size_t)p->q_heads * (size_t)p->q_len * (size_t)p->kv_len);
  uint8_t *entry = dense;
  for (int b = 0; b < p->batch; b++) {
    for (int h = 0; h < p->q_heads; h++) {
      for (int q = 0; q < p->q_len; q++) {
        for (int k = 0; k < p->kv_len; k++) *entry++ = block_mask_attends(m, p, b, h, q, k);
      }
    }
  }
  return dense;
}

static void check_same_entries(const Problem *p, const uint8_t *x, const uint8_t *y) {
  const size_t count = (size_t)p->batch * (size_t)p->q_heads * (size_t)p->q_len * (size_t)p->kv_len;
  for (size_t i = 0; i < count; i++) {
    if (x[i] != y[i]) fail_msg("entry %zu is %d and %d", i, x[i], y[i]);
  }
}

/** Written, read, made canonical: the mask stays the same. */
static void check_own(const OwnMask *own, const Problem *p) {
  const TestPath directory = test_path("mask");
  Error error = {0};
  if (!block_mask_validate(&own->mask, p, &error)) fail_msg("%s", error.text);
  uint8_t *should = dense_of_blocks(&own->mask, p);
  if (!block_mask_write(directory.text, &own->mask, &error)) fail_msg("%s", error.text);
  Mask mask = open_mask(directory.text, p, 1, 1); /* the file of tiles knows better */
  assert_int_equal(mask.blocks.mask.q_block_size, own->mask.q_block_size);
  assert_int_equal(mask.blocks.mask.tile_count, own->mask.tile_count);
  uint8_t *is = dense_of_mask(&mask, p->batch, p->q_heads);
  check_same_entries(p, is, should);
  const int64_t entries = mask_entries(&mask, p->batch, p->q_heads);
  assert_int_equal(entries, count_ones(is, (size_t)p->batch * (size_t)p->q_heads *
                                               (size_t)p->q_len * (size_t)p->kv_len));
  HostBlockMask canonical;
  assert_true(block_mask_build(&mask, own->mask.q_block_size, own->mask.kv_block_size, 0,
                               &canonical, &error));
  check_block_mask(&canonical.mask, p, should);
  block_mask_free(&canonical);
  free(should);
  free(is);
  mask_free(&mask);
  remove_block_mask(directory.text);
}

static void masks_of_any_order_and_strides_survive_their_files(void **state) {
  (void)state;
  static const int SIZES[][2] = {{1, 1}, {4, 8}, {8, 4}, {16, 16}, {5, 7}};
  for (uint64_t seed = 1; seed <= 30; seed++) {
    Dice dice = {.seed = seed};
    const Problem p = mask_problem(1 + roll(&dice, 3), 1 + roll(&dice, 3), 1 + roll(&dice, 30),
                                   1 + roll(&dice, 30));
    const int *size = SIZES[roll(&dice, 5)];
    OwnMask own = draw_own(&dice, &p, size[0], size[1]);
    check_own(&own, &p);
    free_own(&own);
  }
}

/** A tensor of an int32 file must hold these 4 numbers. */
static void expect_numbers(const TestPath *directory, MaskTensor tensor, const int32_t *should) {
  char path[192];
  NpyArray array;
  Error error = {0};
  snprintf(path, sizeof path, "%s/%s", directory->text, BLOCK_MASK_FILES[tensor]);
  if (!npy_read(path, (NpyTypes){1 << NPY_I4, "<i4"}, &array, &error)) fail_msg("%s", error.text);
  assert_int_equal(array.bytes, 4 * sizeof *should);
  assert_memory_equal(array.data, should, 4 * sizeof *should);
  npy_free(&array);
}

/** The tensors end where the last look is due, so that AddressSanitizer sees any other. */
static void what_is_not_looked_at_is_written_as_minus_one(void **state) {
  (void)state;
  const TestPath directory = test_path("mask");
  int32_t *count = malloc(sizeof *count), *types = malloc(3 * sizeof *types);
  int32_t *indices = malloc(2 * sizeof *indices), *tiles = malloc(sizeof *tiles);
  uint8_t tile[8 * 4] = {1};
  *count = 3;
  *tiles = 0;
  memcpy(types, (int32_t[]){BLOCK_PARTIAL, BLOCK_FULL, BLOCK_MASKED}, 3 * sizeof *types);
  memcpy(indices, (int32_t[]){5, 3}, 2 * sizeof *indices);
  BlockMask m = {.q_block_size = 8,
                 .kv_block_size = 4,
                 .q_blocks = 1,
                 .max_slots = 4,
                 .tile_count = 1,
                 .batches = 1,
                 .heads = 1};
  block_mask_set_strides(&m);
  block_mask_set_pointers(&m, (void *const[]){count, indices, types, tiles, tile});
  Error error = {0};
  assert_true(block_mask_write(directory.text, &m, &error));
  expect_numbers(&directory, TENSOR_INDICES, (int32_t[]){5, 3, -1, -1});
  expect_numbers(&directory, TENSOR_TYPES,
                 (int32_t[]){BLOCK_PARTIAL, BLOCK_FULL, BLOCK_MASKED, -1});
  expect_numbers(&directory, TENSOR_TILE_INDICES, (int32_t[]){0, -1, -1, -1});
  free(count);
  free(types);
  free(indices);
  free(tiles);
  remove_block_mask(directory.text);
}

/** Files of 2 batch entries and 2 heads, 1 block of queries, 2 slots. */
typedef struct Files {
  const int32_t *tensors[TENSOR_TILES];
  int64_t shapes[TENSOR_TILES][4];
  int64_t tiles_shape[3];
} Files;

static const int32_t TWOS[8] = {2, 2, 2, 2, 2, 2, 2, 2};
static const int32_t ZERO_ONE[8] = {0, 1, 0, 1, 0, 1, 0, 1};

static Files good_files(void) {
  return (Files){.tensors = {TWOS, ZERO_ONE, TWOS, TWOS},
                 .shapes = {{2, 2, 1}, {2, 2, 1, 2}, {2, 2, 1, 2}, {2, 2, 1, 2}},
                 .tiles_shape = {1, 8, 4}};
}

static const Problem FILES_PROBLEM = {
    .batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 8, .kv_len = 8};

static TestPath write_files(const Files *files) {
  static const uint8_t TILES[64];
  const TestPath directory = test_path("mask");
  mkdir(directory.text, 0777);
  for (int i = 0; i < MASK_TENSORS; i++) {
    char path[192];
    snprintf(path, sizeof path, "%s/%s", directory.text, BLOCK_MASK_FILES[i]);
    if (i < TENSOR_TILES) {
      write_array(path, NPY_I4, i == TENSOR_COUNTS ? 3 : 4, files->shapes[i], files->tensors[i]);
    } else {
      write_array(path, NPY_B1, 3, files->tiles_shape, TILES);
    }
  }
  return directory;
}

static void refuse_files(const Files *files, const char *text) {
  const TestPath directory = write_files(files);
  HostBlockMask blocks;
  Error error = {0};
  char why[512];
  assert_false(block_mask_read(directory.text, &FILES_PROBLEM, 8, 4, &blocks, &error));
  snprintf(why, sizeof why, "%s%s", directory.text, text);
  assert_string_equal(error.text, why);
  assert_int_equal(error.code, EXIT_USAGE);
  for (int i = 0; i < MASK_TENSORS; i++) assert_null(blocks.data[i]);
  remove_block_mask(directory.text);
}

static void files_that_do_not_fit_are_refused(void **state) {
  (void)state;
  Files files = good_files();
  files.shapes[TENSOR_TYPES][2] = 2;
  files.shapes[TENSOR_TYPES][1] = 1;
  refuse_files(&files, "/block_mask_types.npy: NQB is 2, must be 1 as in kv_indices.npy");
  files = good_files();
  files.shapes[TENSOR_COUNTS][2] = 2;
  files.shapes[TENSOR_COUNTS][1] = 1;
  refuse_files(&files, "/kv_num_blocks.npy: NQB is 2, must be 1 as in kv_indices.npy");
  files = good_files();
  files.shapes[TENSOR_COUNTS][2] = 0;
  refuse_files(&files, "/kv_num_blocks.npy: NQB is 0, must be from 1 to 2^31 - 1");
  files = good_files();
  files.shapes[TENSOR_COUNTS][0] = 3;
  files.shapes[TENSOR_COUNTS][1] = 1;
  refuse_files(&files,
               "/kv_indices.npy: [B, H] is [2, 2], but other files have up to [3, 2] (1 stands "
               "for all)");
  files = good_files();
  files.tiles_shape[0] = 0; /* what takes no bytes */
  files.tiles_shape[1] = 1 << 20;
  files.tiles_shape[2] = 1 << 20;
  refuse_files(&files,
               "/partial_block_masks.npy: the shape is [0, 1048576, 1048576], must be at most "
               "[2^31 - 1, 16384, 16384] with blocks of 1 x 1 or more");
  files = good_files();
  files.tiles_shape[1] = 4;
  refuse_files(&files, ": NQB is 1, must be 2: --seqlen 8 in blocks of 4");
  files = good_files();
  files.tensors[TENSOR_INDICES] = TWOS;
  refuse_files(&files,
               ": kv_indices[b=0, h=0, q_block=0, slot=0] = 2, but there are only 2 "
               "key/value blocks");
}

/** Every tensor may broadcast on its own, and such a mask can be written again. */
static void every_file_broadcasts_on_its_own(void **state) {
  (void)state;
  for (int combination = 0; combination < 1 << 2 * TENSOR_TILES; combination += 5) {
    Files files = good_files();
    int batches = 1, heads = 1;
    for (int i = 0; i < TENSOR_TILES; i++) {
      if (combination >> 2 * i & 1) files.shapes[i][0] = 1;
      if (combination >> 2 * i & 2) files.shapes[i][1] = 1;
      if (files.shapes[i][0] > batches) batches = 2;
      if (files.shapes[i][1] > heads) heads = 2;
    }
    const TestPath directory = write_files(&files);
    HostBlockMask blocks, again;
    Error error = {0};
    for (int pass = 0; pass < 2; pass++) {
      HostBlockMask *read = pass == 0 ? &blocks : &again;
      if (!block_mask_read(directory.text, &FILES_PROBLEM, 8, 4, read, &error)) {
        fail_msg("%s", error.text);
      }
      assert_int_equal(read->mask.batches, batches);
      assert_int_equal(read->mask.heads, heads);
      assert_int_equal(block_mask_statistics(&read->mask, 8).full, 2 * batches * heads);
      if (pass == 0) assert_true(block_mask_write(directory.text, &read->mask, &error));
    }
    block_mask_free(&blocks);
    block_mask_free(&again);
    remove_block_mask(directory.text);
  }
}

/** A row of no slots attends nothing, and so does the mask that is written of it. */
static void masks_may_have_no_slots_at_all(void **state) {
  (void)state;
  static const int32_t NO_BLOCKS[4] = {0};
  Files files = good_files();
  files.tensors[TENSOR_COUNTS] = NO_BLOCKS;
  for (int i = TENSOR_INDICES; i <= TENSOR_TILE_INDICES; i++) files.shapes[i][3] = 0;
  for (int pass = 0; pass < 2; pass++) {
    const TestPath directory = write_files(&files);
    Mask mask = open_mask(directory.text, &FILES_PROBLEM, 8, 4);
    Error error = {0};
    assert_int_equal(mask.blocks.mask.max_slots, 0);
    assert_int_equal(mask_entries(&mask, 2, 2), 0);
    assert_int_equal(mask_row_end(&mask, 1, 1, 7, 1), 0);
    free(dense_of_mask(&mask, 2, 2));
    assert_int_equal(block_mask_statistics(&mask.blocks.mask, 8).active, 0);
    assert_true(block_mask_write(directory.text, &mask.blocks.mask, &error));
    mask_free(&mask);
    remove_block_mask(directory.text);
  }
  files.tensors[TENSOR_COUNTS] = ZERO_ONE;
  refuse_files(&files, ": kv_num_blocks[b=0, h=1, q_block=0] = 1, but a row has 0 slots");
}

static void without_tiles_the_given_sizes_hold(void **state) {
  (void)state;
  const Files files = good_files();
  const TestPath directory = write_files(&files);
  TestPath path;
  HostBlockMask blocks;
  Error error = {0};
  snprintf(path.text, sizeof path.text, "%.90s/partial_block_masks.npy", directory.text);
  unlink(path.text);
  assert_true(block_mask_read(directory.text, &FILES_PROBLEM, 8, 4, &blocks, &error));
  assert_int_equal(blocks.mask.q_block_size, 8);
  assert_int_equal(blocks.mask.kv_block_size, 4);
  assert_int_equal(blocks.mask.tile_count, 0);
  block_mask_free(&blocks);
  assert_false(block_mask_read(directory.text, &FILES_PROBLEM, 4, 4, &blocks, &error));
  assert_non_null(strstr(error.text,
                         ": NQB is 1, must be 2: --seqlen 8 in blocks of 4; "
                         "partial_block_masks.npy is missing: without it "));
  remove_block_mask(directory.text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(masks_of_any_order_and_strides_survive_their_files),
      cmocka_unit_test(what_is_not_looked_at_is_written_as_minus_one),
      cmocka_unit_test(files_that_do_not_fit_are_refused),
      cmocka_unit_test(every_file_broadcasts_on_its_own),
      cmocka_unit_test(masks_may_have_no_slots_at_all),
      cmocka_unit_test(without_tiles_the_given_sizes_hold),
  };
  return cmocka_run_group_tests(tests, create_test_directory, remove_test_directory);
}
