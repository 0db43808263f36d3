/** @file For the tests of masks: opens masks and expands them to dense ones. Includes cmocka.h. */
#ifndef MASK_TESTING_H
#define MASK_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/masks/host_block_mask.h"
#include "host/masks/mask.h"

#include "../files_testing.h" /* last */

static inline Problem mask_problem(int batch, int heads, int q_len, int kv_len) {
  return (Problem){
      .batch = batch, .q_heads = heads, .kv_heads = 1, .q_len = q_len, .kv_len = kv_len};
}

/** Opens a mask, with seed 1; it must succeed. */
static inline Mask open_mask(const char *text, const Problem *p, int q_block, int kv_block) {
  Mask mask;
  Error error = {0};
  if (!mask_open(text, p, q_block, kv_block, 1, &mask, &error)) fail_msg("%s", error.text);
  return mask;
}

/**
 * The first `batches` x `heads` of a mask as [batches][heads][q_len][kv_len] bytes, 1 = attended.
 * Checks that spans ascend, are not empty and do not touch, that there are no more than announced,
 * that they end at mask_row_end(), and that rows said to be equal are equal. The caller frees it.
 */
static inline uint8_t *dense_of_mask(const Mask *mask, int batches, int heads) {
  const size_t most = (size_t)mask_most_spans(mask), kv_len = (size_t)mask->kv_len;
  KeySpan *spans = malloc(most * sizeof *spans); /* exactly: the sanitizer notices one more */
  uint8_t *dense = calloc((size_t)batches * (size_t)heads * (size_t)mask->q_len, kv_len);
  uint8_t *row = dense;
  assert_true(spans != NULL && dense != NULL);
  for (int b = 0; b < batches; b++) {
    for (int h = 0; h < heads; h++) {
      for (int q = 0; q < mask->q_len; q++, row += kv_len) {
        const int count = mask_row(mask, b, h, q, spans);
        assert_in_range(count, 0, most);
        int end = -1;
        for (int i = 0; i < count; i++) {
          assert_true(spans[i].first > end && spans[i].first >= 0);
          assert_true(spans[i].end > spans[i].first && spans[i].end <= mask->kv_len);
          memset(row + spans[i].first, 1, (size_t)(spans[i].end - spans[i].first));
          end = spans[i].end;
        }
        assert_int_equal(mask_row_end(mask, b, h, q, 1), count == 0 ? 0 : end);
        if (q > 0 && mask_rows_alike(mask, q) == 0) assert_memory_equal(row, row - kv_len, kv_len);
      }
    }
  }
  free(spans);
  return dense;
}

static inline int64_t count_ones(const uint8_t *bytes, size_t count) {
  int64_t ones = 0;
  for (size_t i = 0; i < count; i++) ones += bytes[i];
  return ones;
}

/** Whether a block mask attends one entry, from the definition of its tensors alone. */
static inline bool block_mask_attends(const BlockMask *m, const Problem *p, int b, int h, int q,
                                      int k) {
  const int row = q / m->q_block_size;
  const int64_t count =
      m->kv_num_blocks[b * m->num_strides[0] + h * m->num_strides[1] + row * m->num_strides[2]];
  for (int64_t i = 0; i < count; i++) {
    const int64_t *is = m->index_strides, *ts = m->type_strides, *ps = m->partial_strides;
    const int type = m->block_mask_types[b * ts[0] + h * ts[1] + row * ts[2] + i * ts[3]];
    if (type == BLOCK_MASKED) continue;
    const int block = m->kv_indices[b * is[0] + h * is[1] + row * is[2] + i * is[3]];
    if (block != k / m->kv_block_size) continue;
    if (type == BLOCK_FULL) return true;
    if (type == BLOCK_CAUSAL) return k <= q + p->kv_len - p->q_len;
    const int64_t tile =
        m->partial_block_mask_indices[b * ps[0] + h * ps[1] + row * ps[2] + i * ps[3]];
    return m
        ->partial_block_masks[(tile * m->q_block_size + q % m->q_block_size) * m->kv_block_size +
                              k % m->kv_block_size];
  }
  return false;
}

/** `dense` is [batch][q_heads][q_len][kv_len], as of dense_of_mask(). */
static inline void check_block_mask(const BlockMask *m, const Problem *p, const uint8_t *dense) {
  for (int b = 0; b < p->batch; b++) {
    for (int h = 0; h < p->q_heads; h++) {
      for (int q = 0; q < p->q_len; q++) {
        for (int k = 0; k < p->kv_len; k++) {
          if (block_mask_attends(m, p, b, h, q, k) == *dense++) continue;
          fail_msg("b=%d h=%d q=%d k=%d differs: %d queries, %d keys, blocks of %d x %d", b, h, q,
                   k, p->q_len, p->kv_len, m->q_block_size, m->kv_block_size);
        }
      }
    }
  }
}

/** A path in the directory of the tests. */
typedef struct TestPath {
  char text[128];
} TestPath;

static inline TestPath test_path(const char *name) {
  TestPath path;
  snprintf(path.text, sizeof path.text, "%s/%s", test_directory, name);
  return path;
}

static inline void write_array(const char *path, NpyType type, int rank, const int64_t *shape,
                               const void *data) {
  char directory[128];
  Error error = {0};
  snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(path, '/') - path), path);
  const NpyFile file = {strrchr(path, '/') + 1, type, rank, shape, data};
  if (!npy_write(directory, &file, 1, &error)) fail_msg("%s", error.text);
}

static const char *const BLOCK_MASK_FILES[MASK_FILES] = {
    "kv_num_blocks.npy", "kv_indices.npy", "block_mask_types.npy", "partial_block_mask_indices.npy",
    "partial_block_masks.npy"};

/** Removes the files of a block mask and their directory. */
static inline void remove_block_mask(const char *directory) {
  for (int i = 0; i < MASK_FILES; i++) {
    TestPath path;
    snprintf(path.text, sizeof path.text, "%.90s/%s", directory, BLOCK_MASK_FILES[i]);
    unlink(path.text);
  }
  assert_int_equal(rmdir(directory), 0);
}

#endif
