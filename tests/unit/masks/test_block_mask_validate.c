/** @file Tests of block_mask_validate(): every refusal, with its exact text and coordinates. */
#include "block_mask_testing.h"

enum { BATCH = 2, HEADS = 3, SLOTS = 5 };

/* 3 blocks of 8 queries, the last cut off; 16 blocks of 4 keys. */
static const Problem PROBLEM = {
    .batch = BATCH, .q_heads = HEADS, .kv_heads = 1, .q_len = 20, .kv_len = 64};

/** Every row: blocks 9, 0 and 15, as FULL, CAUSAL and PARTIAL, with a MASKED slot in between. */
static OwnMask make_valid(void) {
  static const int32_t INDICES[4] = {9, POISON, 0, 15};
  static const int32_t TYPES[4] = {BLOCK_FULL, BLOCK_MASKED, BLOCK_CAUSAL, BLOCK_PARTIAL};
  static const int32_t TILES[4] = {POISON, POISON, POISON, 1};
  OwnMask own = {.mask = {.q_block_size = 8,
                          .kv_block_size = 4,
                          .q_blocks = 3,
                          .max_slots = SLOTS,
                          .tile_count = 2,
                          .batches = BATCH,
                          .heads = HEADS}};
  Dice dice = {.seed = 1};
  allocate_own(&own, &dice);
  for (int row = 0; row < BATCH * HEADS * 3; row++) {
    const int b = row / (HEADS * 3), h = row / 3 % HEADS, q = row % 3;
    *element(&own, TENSOR_COUNTS, b, h, q, 0) = 4;
    for (int i = 0; i < 4; i++) {
      *element(&own, TENSOR_INDICES, b, h, q, i) = INDICES[i];
      *element(&own, TENSOR_TYPES, b, h, q, i) = TYPES[i];
      *element(&own, TENSOR_TILE_INDICES, b, h, q, i) = TILES[i];
    }
  }
  return own;
}

static void expect(const BlockMask *mask, const Problem *problem, const char *text) {
  Error error = {0};
  if (text == NULL) {
    if (!block_mask_validate(mask, problem, &error)) fail_msg("%s", error.text);
    return;
  }
  assert_false(block_mask_validate(mask, problem, &error));
  assert_string_equal(error.text, text);
  assert_int_equal(error.code, EXIT_USAGE);
}

/** Expects this refusal of a mask with another value in slot 3, PARTIAL, or slot 0, FULL. */
static void with_value(MaskTensor tensor, int slot, int32_t value, const char *text) {
  FREED_BY(free_own) OwnMask own = make_valid();
  *element(&own, tensor, 1, 2, 1, slot) = value;
  expect(&own.mask, &PROBLEM, text);
}

TEST(valid_masks_pass) {
  OwnMask own = make_valid();
  expect(&own.mask, &PROBLEM, NULL);
  free_own(&own);
  with_value(TENSOR_COUNTS, 0, 0, NULL);
  with_value(TENSOR_INDICES, 0, 14, NULL);
  with_value(TENSOR_INDICES, 3, 1, NULL);
  with_value(TENSOR_TILE_INDICES, 3, 0, NULL);
}

TEST(counts_must_lie_in_the_row) {
  with_value(TENSOR_COUNTS, 0, -1,
             "kv_num_blocks[b=1, h=2, q_block=1] = -1, but a row has 5 slots");
  with_value(TENSOR_COUNTS, 0, SLOTS + 1,
             "kv_num_blocks[b=1, h=2, q_block=1] = 6, but a row has 5 slots");
}

TEST(blocks_must_exist) {
  with_value(TENSOR_INDICES, 2, 16,
             "kv_indices[b=1, h=2, q_block=1, slot=2] = 16, but there are only 16 key/value "
             "blocks");
  with_value(TENSOR_INDICES, 0, -1,
             "kv_indices[b=1, h=2, q_block=1, slot=0] = -1, but there are only 16 key/value "
             "blocks");
}

TEST(a_row_lists_a_block_once) {
  with_value(TENSOR_INDICES, 2, 9,
             "kv_indices[b=1, h=2, q_block=1, slot=2] = 9, but the row lists that block already");
  with_value(TENSOR_INDICES, 1, 9, NULL); /* MASKED: not read */
}

TEST(types_must_be_known) {
  with_value(TENSOR_TYPES, 2, 4,
             "block_mask_types[b=1, h=2, q_block=1, slot=2] = 4, must be 0 (MASKED), 1 (CAUSAL), "
             "2 (FULL) or 3 (PARTIAL)");
  with_value(TENSOR_TYPES, 0, -1,
             "block_mask_types[b=1, h=2, q_block=1, slot=0] = -1, must be 0 (MASKED), 1 (CAUSAL), "
             "2 (FULL) or 3 (PARTIAL)");
  with_value(TENSOR_TYPES, 3, BLOCK_FULL, NULL);
}

TEST(partial_slots_need_a_tile) {
  with_value(TENSOR_TILE_INDICES, 3, -1,
             "partial_block_mask_indices[b=1, h=2, q_block=1, slot=3] = -1, but the slot is "
             "PARTIAL and there are 2 tiles");
  with_value(TENSOR_TILE_INDICES, 3, 2,
             "partial_block_mask_indices[b=1, h=2, q_block=1, slot=3] = 2, but the slot is "
             "PARTIAL and there are 2 tiles");
  FREED_BY(free_own) OwnMask own = make_valid();
  own.mask.tile_count = 0;
  expect(&own.mask, &PROBLEM,
         "partial_block_mask_indices[b=0, h=0, q_block=0, slot=3] = 1, but the slot is PARTIAL "
         "and there are 0 tiles");
}

/** Each change makes one size wrong. */
TEST(sizes_must_fit_the_problem) {
  FREED_BY(free_own) OwnMask own = make_valid();
  BlockMask m = own.mask;
  m.q_block_size = 0;
  expect(&m, &PROBLEM, "mask blocks of 0 x 4: must be positive");
  m = own.mask;
  m.q_blocks = 2;
  expect(&m, &PROBLEM, "NQB is 2, must be 3: --seqlen 20 in blocks of 8");
  m = own.mask;
  m.batches = 3;
  expect(&m, &PROBLEM, "[B, H] is [3, 3], but the problem has [2, 3] (1 stands for all)");
  Problem longer = PROBLEM;
  longer.q_len = 25;
  expect(&own.mask, &longer, "NQB is 3, must be 4: --seqlen 25 in blocks of 8");
  longer.q_len = 24;
  expect(&own.mask, &longer, NULL);
  Problem fewer_keys = PROBLEM;
  fewer_keys.kv_len = 60;
  expect(&own.mask, &fewer_keys,
         "kv_indices[b=0, h=0, q_block=0, slot=3] = 15, but there are only 15 key/value blocks");
  fewer_keys.kv_len = 61;
  expect(&own.mask, &fewer_keys, NULL);
}

/**
 * The tensors end where the counts do: one row, without gaps, so that AddressSanitizer notices any
 * read of a slot past the count, and of the index or the tile of the MASKED slot, which is the
 * last.
 */
TEST(slots_past_the_count_are_not_read) {
  const Problem p = mask_problem(1, 1, 8, 64);
  FREED int32_t *count = malloc(sizeof *count), *types = malloc(3 * sizeof *types);
  FREED int32_t *indices = malloc(2 * sizeof *indices), *tiles = malloc(2 * sizeof *tiles);
  *count = 3;
  memcpy(types, (int32_t[]){BLOCK_FULL, BLOCK_PARTIAL, BLOCK_MASKED}, 3 * sizeof *types);
  memcpy(indices, (int32_t[]){5, 3}, 2 * sizeof *indices);
  memcpy(tiles, (int32_t[]){POISON, 0}, 2 * sizeof *tiles);
  BlockMask m = {.q_block_size = 8,
                 .kv_block_size = 4,
                 .q_blocks = 1,
                 .max_slots = 100,
                 .tile_count = 1,
                 .batches = 1,
                 .heads = 1};
  block_mask_set_strides(&m);
  block_mask_set_pointers(&m, (void *const[MASK_TENSORS]){count, indices, types, tiles});
  expect(&m, &p, NULL);
  const BlockMaskStatistics s = block_mask_statistics(&m, p.kv_len);
  assert_int_equal(s.blocks, 16);
  assert_int_equal(s.active, 2);
  assert_int_equal(s.full, 1);
  assert_int_equal(s.partial, 1);
}

RUN_TESTS(NULL, NULL)
