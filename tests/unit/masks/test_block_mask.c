/** @file Tests of host/masks/block_mask_build.c: the canonical block mask, block by block. */
#include <omp.h>

#include "host/base/memory.h"
#include "host/io/random.h"
#include "mask_testing.h"

/** The type that a block must have, from its entries alone. */
static BlockType classify(const Problem *p, const uint8_t *dense, int first_q, int first_k,
                          int q_size, int kv_size) {
  bool any = false, all = true, causal = true;
  for (int q = first_q; q < first_q + q_size && q < p->q_len; q++) {
    for (int k = first_k; k < first_k + kv_size && k < p->kv_len; k++) {
      const bool one = dense[(size_t)q * (size_t)p->kv_len + (size_t)k];
      any = any || one;
      all = all && one;
      causal = causal && one == (k <= q + p->kv_len - p->q_len);
    }
  }
  return !any ? BLOCK_MASKED : all ? BLOCK_FULL : causal ? BLOCK_CAUSAL : BLOCK_PARTIAL;
}

/** A tile must have the block's entries, and 0 past the lengths. */
static void check_tile(const Problem *p, const uint8_t *dense, int first_q, int first_k,
                       const BlockMask *m, int tile) {
  assert_in_range(tile, 0, m->tile_count - 1);
  const uint8_t *entry =
      m->partial_block_masks + (size_t)tile * (size_t)m->q_block_size * (size_t)m->kv_block_size;
  for (int q = first_q; q < first_q + m->q_block_size; q++) {
    for (int k = first_k; k < first_k + m->kv_block_size; k++) {
      const bool inside = q < p->q_len && k < p->kv_len;
      const uint8_t should = inside && dense[(size_t)q * (size_t)p->kv_len + (size_t)k];
      if (*entry++ != should) fail_msg("tile %d is wrong at q=%d k=%d", tile, q, k);
    }
  }
}

/** Checks one row of blocks; marks the tiles it uses and counts its types. */
static void check_row(const Problem *p, const uint8_t *dense, const BlockMask *m, int b, int h,
                      int q_block, bool *used, BlockMaskStatistics *s) {
  const int first_q = q_block * m->q_block_size;
  int slot = 0;
  for (int first_k = 0; first_k < p->kv_len; first_k += m->kv_block_size) {
    const BlockType type = classify(p, dense, first_q, first_k, m->q_block_size, m->kv_block_size);
    s->blocks++;
    s->full += type == BLOCK_FULL;
    s->causal += type == BLOCK_CAUSAL;
    s->partial += type == BLOCK_PARTIAL;
    s->active += type != BLOCK_MASKED;
    if (type == BLOCK_MASKED) continue;
    assert_true(slot < block_count(m, b, h, q_block));
    assert_int_equal(slot_value(m->kv_indices, m->index_strides, b, h, q_block, slot),
                     first_k / m->kv_block_size);
    assert_int_equal(slot_value(m->block_mask_types, m->type_strides, b, h, q_block, slot), type);
    const int tile =
        slot_value(m->partial_block_mask_indices, m->partial_strides, b, h, q_block, slot++);
    if (type == BLOCK_PARTIAL) {
      check_tile(p, dense, first_q, first_k, m, tile);
      used[tile] = true;
    } else {
      assert_int_equal(tile, -1);
    }
  }
  assert_int_equal(block_count(m, b, h, q_block), slot);
}

static void no_two_tiles_are_the_same(const BlockMask *m) {
  const size_t bytes = (size_t)m->q_block_size * (size_t)m->kv_block_size;
  for (size_t i = 0; i < (size_t)m->tile_count; i++) {
    for (size_t j = 0; j < i; j++) {
      assert_true(memcmp(m->partial_block_masks + i * bytes, m->partial_block_masks + j * bytes,
                         bytes) != 0);
    }
  }
}

static void check_statistics(const BlockMaskStatistics *is, const BlockMaskStatistics *should) {
  assert_int_equal(is->blocks, should->blocks);
  assert_int_equal(is->active, should->active);
  assert_int_equal(is->causal, should->causal);
  assert_int_equal(is->full, should->full);
  assert_int_equal(is->partial, should->partial);
}

/** Builds the block mask and checks everything that the interface promises. */
static void check_build(const Problem *p, const Mask *mask, int q_size, int kv_size) {
  HostBlockMask blocks;
  Error error = {0};
  assert_true(block_mask_build(mask, q_size, kv_size, &blocks, &error));
  const BlockMask *m = &blocks.mask;
  if (!block_mask_validate(m, p, &error)) fail_msg("%s", error.text);
  assert_int_equal(m->batches, mask->batches);
  assert_int_equal(m->heads, mask->heads);
  uint8_t *dense = dense_of_mask(mask, p->batch, p->q_heads);
  check_block_mask(m, p, dense); /* the same entries, with broadcasting */

  bool *used = calloc((size_t)m->tile_count + 1, sizeof *used);
  BlockMaskStatistics should = {0};
  for (int b = 0; b < m->batches; b++) {
    for (int h = 0; h < m->heads; h++) {
      const uint8_t *own =
          dense + (size_t)(b * p->q_heads + h) * (size_t)p->q_len * (size_t)p->kv_len;
      for (int q = 0; q < m->q_blocks; q++) check_row(p, own, m, b, h, q, used, &should);
    }
  }
  for (int i = 0; i < m->tile_count; i++) assert_true(used[i]);
  no_two_tiles_are_the_same(m);
  const BlockMaskStatistics is = block_mask_statistics(m, p->kv_len);
  check_statistics(&is, &should);
  free(used);
  free(dense);
  block_mask_free(&blocks);
  block_mask_free(&blocks); /* a second time is harmless */
}

static const int BLOCK_SIZES[][2] = {{1, 1}, {16, 5}, {7, 32}, {128, 256}};
enum { BLOCK_SIZE_COUNT = sizeof BLOCK_SIZES / sizeof BLOCK_SIZES[0] };

TEST(every_preset_is_built_as_defined) {
  static const char *const TEXTS[] = {
      "full",       "causal",   "window:1",     "window:20",  "window:999", "document:1",
      "document:5", "prefix:0", "prefix:13",    "prefix:31",  "dilated:1",  "dilated:3",
      "dilated:99", "blocks:0", "blocks:1",     "blocks:0.3", "random:0.4", "random:0",
      "random:1",   "empty",    "interleaved:1"};
  static const int LENGTHS[][2] = {{1, 31}, {40, 31}, {64, 64}, {17, 96}};
  for (size_t t = 0; t < sizeof TEXTS / sizeof TEXTS[0]; t++) {
    for (size_t l = 0; l < sizeof LENGTHS / sizeof LENGTHS[0]; l++) {
      for (int s = 0; s < BLOCK_SIZE_COUNT; s++) {
        const Problem p = mask_problem(1, 2, LENGTHS[l][0], LENGTHS[l][1]);
        FREED_BY(mask_free) Mask mask = open_mask(TEXTS[t], &p, 8, 16);
        check_build(&p, &mask, BLOCK_SIZES[s][0], BLOCK_SIZES[s][1]);
      }
    }
  }
}

static uint64_t draw(uint64_t seed, uint32_t stream, size_t index) {
  return random_bits(seed, stream, index) >> 32;
}

/**
 * Entry (q, k) of one mask whose blocks of 8 x 8 are empty, full, causal, random, or one of few
 * patterns; in some of them a single entry is flipped.
 */
static uint8_t mixed_entry(uint64_t seed, const Problem *p, int q, int k) {
  const size_t block = (size_t)(q / 8 * 1000 + k / 8), entry = (size_t)q * 4096 + (size_t)k;
  const bool flipped = draw(seed, 1, entry) % 400 == 0, causal = k <= q + p->kv_len - p->q_len;
  switch (draw(seed, 2, block) % 5) {
    case 0:
      return flipped;
    case 1:
      return !flipped;
    case 2:
      return causal != flipped;
    case 3:
      return (uint8_t)(draw(seed, 3, entry) % 2);
    default:
      return (uint8_t)((size_t)(q % 8 * 8 + k % 8) % (2 + draw(seed, 4, block) % 2) == 0);
  }
}

static Mask open_mixed(uint64_t seed, const Problem *p, int batches, int heads) {
  const int64_t shape[4] = {batches, heads, p->q_len, p->kv_len};
  uint8_t *data = malloc((size_t)(shape[0] * shape[1] * shape[2] * shape[3])), *entry = data;
  const TestPath path = test_path("dense.npy");
  for (int i = 0; i < batches * heads; i++) {
    for (int q = 0; q < p->q_len; q++) {
      for (int k = 0; k < p->kv_len; k++) {
        *entry++ = mixed_entry(seed * 100 + (uint64_t)i, p, q, k);
      }
    }
  }
  write_array(path.text, NPY_B1, 4, shape, data);
  free(data);
  Mask mask = open_mask(path.text, p, 8, 8);
  unlink(path.text);
  mask.text = "mixed"; /* the path goes out of scope */
  return mask;
}

TEST(dense_masks_of_all_kinds_are_built_as_defined) {
  for (uint64_t seed = 1; seed <= 15; seed++) {
    const Problem p =
        mask_problem(1 + (int)(draw(seed, 5, 0) % 2), 1 + (int)(draw(seed, 5, 1) % 3),
                     1 + (int)(draw(seed, 5, 2) % 50), 1 + (int)(draw(seed, 5, 3) % 60));
    FREED_BY(mask_free)
    Mask mask = open_mixed(seed, &p, draw(seed, 5, 4) % 2 ? p.batch : 1,
                           draw(seed, 5, 5) % 2 ? p.q_heads : 1);
    for (int s = 0; s < BLOCK_SIZE_COUNT; s++) {
      check_build(&p, &mask, BLOCK_SIZES[s][0], BLOCK_SIZES[s][1]);
    }
  }
}

TEST(one_tile_serves_all_equal_blocks) {
  const Problem p = mask_problem(1, 1, 256, 256);
  FREED_BY(mask_free) Mask mask = open_mask("dilated:4", &p, 64, 64);
  FREED_BY(block_mask_free) HostBlockMask blocks;
  Error error;
  assert_true(block_mask_build(&mask, 64, 64, &blocks, &error));
  assert_int_equal(blocks.mask.tile_count, 2); /* on the diagonal, and below it */
  assert_int_equal(block_mask_statistics(&blocks.mask, 256).partial, 10);
}

TEST(threads_do_not_change_the_blocks) {
  const Problem p = mask_problem(1, 1, 300, 200);
  HostBlockMask blocks[2];
  Error error;
  const int threads = omp_get_max_threads();
  for (int i = 0; i < 2; i++) {
    omp_set_num_threads(i == 0 ? 1 : 3);
    FREED_BY(mask_free) Mask mask = open_mask("random:0.3", &p, 64, 64);
    assert_true(block_mask_build(&mask, 64, 32, &blocks[i], &error));
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
  FREED_BY(mask_free) Mask mask = open_mask("dilated:4", &p, 64, 64);
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
}

RUN_TESTS(create_test_directory, remove_test_directory)
