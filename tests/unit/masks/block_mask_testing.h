/**
 * @file
 * For the tests of block masks: masks made by hand, with different strides for every tensor.
 * Includes cmocka.h.
 */
#ifndef BLOCK_MASK_TESTING_H
#define BLOCK_MASK_TESTING_H

#include <limits.h>

#include "host/io/random.h"
#include "mask_testing.h"

enum { POISON = INT_MIN + 12345 };

/** A sequence of random numbers. */
typedef struct Dice {
  uint64_t seed, count;
} Dice;

/** 0 .. sides - 1 */
static inline int roll(Dice *dice, int sides) {
  return (int)((random_bits(dice->seed, 77, dice->count++) >> 16) % (uint64_t)sides);
}

/** A block mask with writable tensors. */
typedef struct OwnMask {
  BlockMask mask;
  int32_t *tensors[TENSOR_TILES]; /**< counts, indices, types, tile indices */
  uint8_t *tiles;
} OwnMask;

/** Strides for `rank` dimensions in any order, with gaps. If one of the first two dimensions is 1,
 * it broadcasts. Returns the elements needed. */
static inline size_t draw_strides(Dice *dice, int rank, const int *sizes, int64_t *strides) {
  int order[4] = {0, 1, 2, 3};
  for (int i = rank - 1; i > 0; i--) {
    const int j = roll(dice, i + 1), swapped = order[i];
    order[i] = order[j];
    order[j] = swapped;
  }
  int64_t stride = 1 + roll(dice, 2);
  for (int i = 0; i < rank; i++) {
    const int d = order[i];
    strides[d] = d < 2 && sizes[d] == 1 ? 0 : stride;
    stride = stride * sizes[d] + (sizes[d] == 1 ? 0 : roll(dice, 3));
  }
  size_t last = 0;
  for (int d = 0; d < rank; d++) last += (size_t)strides[d] * (size_t)(sizes[d] - 1);
  return last + 1;
}

/** An element of one of the four tensors; `slot` is ignored for the counts. */
static inline int32_t *element(const OwnMask *own, int tensor, int b, int h, int q, int slot) {
  const BlockMask *m = &own->mask;
  const int64_t *strides[TENSOR_TILES] = {m->num_strides, m->index_strides, m->type_strides,
                                          m->partial_strides};
  const int64_t *s = strides[tensor];
  return own->tensors[tensor] + b * s[0] + h * s[1] + q * s[2] +
         (tensor == TENSOR_COUNTS ? 0 : slot * s[3]);
}

/** Tensors of the sizes in `own->mask`, each with its strides; all elements are poison, tiles are
 * random. Broadcast dimensions of `mask` are 1. */
static inline void allocate_own(OwnMask *own, Dice *dice) {
  BlockMask *m = &own->mask;
  const int sizes[4] = {m->batches, m->heads, m->q_blocks, m->max_slots};
  int64_t *strides[TENSOR_TILES] = {m->num_strides, m->index_strides, m->type_strides,
                                    m->partial_strides};
  for (int i = 0; i < TENSOR_TILES; i++) {
    const size_t count = draw_strides(dice, i == TENSOR_COUNTS ? 3 : 4, sizes, strides[i]);
    own->tensors[i] = malloc(count * sizeof(int32_t));
    for (size_t e = 0; e < count; e++) own->tensors[i][e] = POISON;
  }
  const size_t bytes = (size_t)m->tile_count * (size_t)m->q_block_size * (size_t)m->kv_block_size;
  own->tiles = malloc(bytes + 1);
  for (size_t e = 0; e < bytes; e++) own->tiles[e] = (uint8_t)roll(dice, 2);
  void *const data[MASK_TENSORS] = {own->tensors[0], own->tensors[1], own->tensors[2],
                                    own->tensors[3], own->tiles};
  block_mask_set_pointers(m, data);
}

static inline void free_own(OwnMask *own) {
  for (int i = 0; i < TENSOR_TILES; i++) free(own->tensors[i]);
  free(own->tiles);
}

/** One row: blocks in any order, MASKED slots anywhere, poison in what must not be read. */
static inline void draw_row(OwnMask *own, Dice *dice, int kv_blocks, int b, int h, int q) {
  const BlockMask *m = &own->mask;
  const int count = roll(dice, m->max_slots + 1);
  int *unlisted = malloc((size_t)kv_blocks * sizeof *unlisted), left = kv_blocks;
  for (int i = 0; i < kv_blocks; i++) unlisted[i] = i;
  *element(own, TENSOR_COUNTS, b, h, q, 0) = count;
  for (int i = 0; i < count; i++) {
    int type = left == 0 ? BLOCK_MASKED : roll(dice, BLOCK_TYPES);
    if (type == BLOCK_PARTIAL && m->tile_count == 0) type = BLOCK_CAUSAL;
    *element(own, TENSOR_TYPES, b, h, q, i) = type;
    if (type == BLOCK_MASKED) continue;
    const int at = roll(dice, left);
    *element(own, TENSOR_INDICES, b, h, q, i) = unlisted[at];
    unlisted[at] = unlisted[--left];
    if (type == BLOCK_PARTIAL) {
      *element(own, TENSOR_TILE_INDICES, b, h, q, i) = roll(dice, m->tile_count);
    }
  }
  free(unlisted);
}

/** A valid mask for the problem, with one batch entry and head for all, or one for each. */
static inline OwnMask draw_own(Dice *dice, const Problem *p, int q_size, int kv_size) {
  const int kv_blocks = (p->kv_len + kv_size - 1) / kv_size;
  OwnMask own = {.mask = {.q_block_size = q_size,
                          .kv_block_size = kv_size,
                          .q_blocks = (p->q_len + q_size - 1) / q_size,
                          .max_slots = 1 + roll(dice, kv_blocks + 3),
                          .tile_count = roll(dice, 4),
                          .batches = roll(dice, 2) ? p->batch : 1,
                          .heads = roll(dice, 2) ? p->q_heads : 1}};
  allocate_own(&own, dice);
  for (int b = 0; b < own.mask.batches; b++) {
    for (int h = 0; h < own.mask.heads; h++) {
      for (int q = 0; q < own.mask.q_blocks; q++) draw_row(&own, dice, kv_blocks, b, h, q);
    }
  }
  return own;
}

#endif
