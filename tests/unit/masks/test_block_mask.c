/** @file Tests of host/masks/block_mask_build.c: tiles, threads, memory. The end-to-end tests
 * compare its block masks with NumPy's, byte by byte. */
#include <omp.h>

#include "host/base/memory.h"
#include "mask_testing.h"

TEST(one_tile_serves_all_equal_blocks) {
  const Problem p = mask_problem(1, 1, 256, 256);
  Mask mask = open_mask("dilated:4", &p, 64, 64);
  HostBlockMask blocks;
  Error error;
  assert_true(block_mask_build(&mask, 64, 64, &blocks, &error));
  assert_int_equal(blocks.mask.tile_count, 2); /* on the diagonal, and below it */
  assert_int_equal(block_mask_statistics(&blocks.mask, 256).partial, 10);
  block_mask_free(&blocks);
  mask_free(&mask);
}

TEST(threads_do_not_change_the_blocks) {
  const Problem p = mask_problem(1, 1, 300, 200);
  HostBlockMask blocks[2];
  Error error;
  const int threads = omp_get_max_threads();
  for (int i = 0; i < 2; i++) {
    omp_set_num_threads(i == 0 ? 1 : 3);
    Mask mask = open_mask("random:0.3", &p, 64, 64);
    assert_true(block_mask_build(&mask, 64, 32, &blocks[i], &error));
    mask_free(&mask);
  }
  omp_set_num_threads(threads);
  for (int i = 0; i < MASK_FILES; i++) {
    assert_int_equal(blocks[0].bytes[i], blocks[1].bytes[i]);
    assert_memory_equal(blocks[0].data[i], blocks[1].data[i], blocks[0].bytes[i]);
  }
  block_mask_free(&blocks[0]);
  block_mask_free(&blocks[1]);
}

TEST(blocks_beyond_memory_are_refused) {
  const Problem p = mask_problem(1, 1, 256, 256);
  Mask mask = open_mask("dilated:4", &p, 64, 64);
  HostBlockMask blocks;
  Error error = {0};
  memory_start();
  assert_true(memory_take("the rest of the run", memory_left_bytes(), &error));
  assert_false(block_mask_build(&mask, 64, 64, &blocks, &error));
  memory_start();
  assert_int_equal(error.code, EXIT_USAGE);
  assert_non_null(strstr(error.text, "--mask dilated:4 in blocks of 64 x 64, --seqlen 256, "));
  assert_non_null(strstr(error.text, " of memory, but only "));
  for (int t = 0; t < MASK_TENSORS; t++) assert_null(blocks.data[t]);
  mask_free(&mask);
}

RUN_TESTS(NULL, NULL)
