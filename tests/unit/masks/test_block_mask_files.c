/** @file Tests of block masks as directories of files, and of masks with strides of any kind. */
#include <sys/stat.h>

#include "block_mask_testing.h"

/** The mask attends the entries of its definition, and so does its canonical form. */
static void check_own(const OwnMask *own, const Problem *p) {
  Error error = {0};
  if (!block_mask_validate(&own->mask, p, &error)) fail_msg("%s", error.text);
  const Mask mask = {.text = "own",
                     .preset = PRESET_DIRECTORY,
                     .q_len = p->q_len,
                     .kv_len = p->kv_len,
                     .batches = own->mask.batches,
                     .heads = own->mask.heads,
                     .blocks.mask = own->mask};
  uint8_t *dense = dense_of_mask(&mask, p->batch, p->q_heads);
  check_block_mask(&own->mask, p, dense);
  HostBlockMask canonical;
  assert_true(
      block_mask_build(&mask, own->mask.q_block_size, own->mask.kv_block_size, &canonical, &error));
  check_block_mask(&canonical.mask, p, dense);
  block_mask_free(&canonical);
  free(dense);
}

TEST(masks_of_any_order_and_strides_have_a_canonical_form) {
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
  for (int i = 0; i < MASK_FILES; i++) {
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

TEST(files_that_do_not_fit_are_refused) {
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
  files.tiles_shape[0] = 0; /* no bytes at all */
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

/** A row without slots attends nothing. */
TEST(masks_may_have_no_slots_at_all) {
  static const int32_t NO_BLOCKS[4] = {0};
  Files files = good_files();
  files.tensors[TENSOR_COUNTS] = NO_BLOCKS;
  for (int i = TENSOR_INDICES; i <= TENSOR_TILE_INDICES; i++) files.shapes[i][3] = 0;
  const TestPath directory = write_files(&files);
  Mask mask = open_mask(directory.text, &FILES_PROBLEM, 8, 4);
  assert_int_equal(mask.blocks.mask.max_slots, 0);
  assert_int_equal(mask_entries(&mask, 2, 2), 0);
  assert_int_equal(mask_row_end(&mask, 1, 1, 7, 1), 0);
  free(dense_of_mask(&mask, 2, 2));
  assert_int_equal(block_mask_statistics(&mask.blocks.mask, 8).active, 0);
  mask_free(&mask);
  remove_block_mask(directory.text);
  files.tensors[TENSOR_COUNTS] = ZERO_ONE;
  refuse_files(&files, ": kv_num_blocks[b=0, h=1, q_block=0] = 1, but a row has 0 slots");
}

TEST(without_tiles_the_given_sizes_hold) {
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
                         "partial_block_masks.npy is missing: without it no slot may be PARTIAL, "
                         "and the size of the blocks is that of --mask-block"));
  remove_block_mask(directory.text);
}

RUN_TESTS(create_test_directory, remove_test_directory)
