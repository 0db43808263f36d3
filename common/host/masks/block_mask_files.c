/** @file Block masks as directories of .npy files. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/io/npy.h"
#include "host/masks/host_block_mask.h"
#include "host/masks/mask.h"

static const struct {
  const char *name;
  NpyType type;
  const char *type_name;
  int rank;
} FILES[MASK_FILES] = {
    {"kv_num_blocks.npy", NPY_I4, "<i4 (int32)", 3},
    {"kv_indices.npy", NPY_I4, "<i4 (int32)", 4},
    {"block_mask_types.npy", NPY_I4, "<i4 (int32)", 4},
    {"partial_block_mask_indices.npy", NPY_I4, "<i4 (int32)", 4},
    {"partial_block_masks.npy", NPY_B1, "|b1 (bool)", 3},
};

/** Reads one file. The file of the tiles may be missing; its rank is then 0. */
static bool read_file(const char *directory, int file, NpyArray *array, Error *error) {
  char path[2 * PATH_MAX];
  const NpyTypes types = {1u << FILES[file].type, FILES[file].type_name};
  snprintf(path, sizeof path, "%s/%s", directory, FILES[file].name);
  if (file == TENSOR_TILES && access(path, F_OK) != 0) return true;
  if (!(file == TENSOR_TILES ? mask_read_bools(path, array, error)
                             : npy_read(path, types, array, error))) {
    return false;
  }
  if (array->rank == FILES[file].rank) return true;
  return fail(error, EXIT_USAGE, "%s: has %d dimension%s, must have %d", path, array->rank,
              array->rank == 1 ? "" : "s", FILES[file].rank);
}

/** Checks that NQB and MAXB are those of kv_indices.npy. MAXB may be 0: nothing is attended. */
static bool check_slots(const char *directory, const NpyArray *files, int file, Error *error) {
  static const char *const NAMES[4] = {"B", "H", "NQB", "MAXB"};
  const int64_t *shape = files[file].shape, *expected = files[TENSOR_INDICES].shape;
  for (int d = 0; d < FILES[file].rank; d++) {
    const int least = d < 3;
    if (shape[d] < least || shape[d] > INT32_MAX) {
      return fail(error, EXIT_USAGE, "%s/%s: %s is %lld, must be from %d to 2^31 - 1", directory,
                  FILES[file].name, NAMES[d], (long long)shape[d], least);
    }
    if (d >= 2 && shape[d] != expected[d]) {
      return fail(error, EXIT_USAGE, "%s/%s: %s is %lld, must be %lld as in kv_indices.npy",
                  directory, FILES[file].name, NAMES[d], (long long)shape[d],
                  (long long)expected[d]);
    }
  }
  return true;
}

/** Sets batches and heads of the mask. Each file must have the same or 1, which broadcasts. */
static bool check_shapes(const char *directory, const NpyArray *files, BlockMask *m, Error *error) {
  m->batches = m->heads = 1;
  for (int i = TENSOR_COUNTS; i <= TENSOR_TILE_INDICES; i++) {
    if (!check_slots(directory, files, i, error)) return false;
    if (files[i].shape[0] > m->batches) m->batches = (int)files[i].shape[0];
    if (files[i].shape[1] > m->heads) m->heads = (int)files[i].shape[1];
  }
  for (int i = TENSOR_COUNTS; i <= TENSOR_TILE_INDICES; i++) {
    const int64_t *shape = files[i].shape;
    if ((shape[0] != 1 && shape[0] != m->batches) || (shape[1] != 1 && shape[1] != m->heads)) {
      return fail(error, EXIT_USAGE,
                  "%s/%s: [B, H] is [%lld, %lld], but other files have up to [%d, %d] (1 stands "
                  "for all)",
                  directory, FILES[i].name, (long long)shape[0], (long long)shape[1], m->batches,
                  m->heads);
    }
  }
  return true;
}

/** Dense strides of a file; 0 for B or H of size 1, which broadcasts. */
static void set_file_strides(const NpyArray *file, int64_t *strides) {
  int64_t stride = 1;
  for (int d = file->rank - 1; d >= 0; d--) {
    strides[d] = d < 2 && file->shape[d] == 1 ? 0 : stride;
    stride *= file->shape[d];
  }
}

static bool set_sizes(const char *directory, const NpyArray *files, BlockMask *m, Error *error) {
  if (!check_shapes(directory, files, m, error)) return false;
  m->q_blocks = (int)files[TENSOR_INDICES].shape[2];
  m->max_slots = (int)files[TENSOR_INDICES].shape[3];
  if (files[TENSOR_TILES].rank != 0) { /* the file is there */
    const int64_t *shape = files[TENSOR_TILES].shape;
    const int most = LARGEST_MASK_BLOCK;
    if (shape[0] > INT32_MAX || shape[1] < 1 || shape[1] > most || shape[2] < 1 ||
        shape[2] > most) {
      return fail(error, EXIT_USAGE,
                  "%s/%s: the shape is [%lld, %lld, %lld], must be at most [2^31 - 1, %d, %d] with "
                  "blocks of 1 x 1 or more",
                  directory, FILES[TENSOR_TILES].name, (long long)shape[0], (long long)shape[1],
                  (long long)shape[2], most, most);
    }
    m->tile_count = (int)shape[0];
    m->q_block_size = (int)shape[1];
    m->kv_block_size = (int)shape[2];
  }
  set_file_strides(&files[TENSOR_COUNTS], m->num_strides);
  set_file_strides(&files[TENSOR_INDICES], m->index_strides);
  set_file_strides(&files[TENSOR_TYPES], m->type_strides);
  set_file_strides(&files[TENSOR_TILE_INDICES], m->partial_strides);
  return true;
}

bool block_mask_read(const char *directory, const Problem *problem, int q_block_size,
                     int kv_block_size, HostBlockMask *blocks, Error *error) {
  *blocks = (HostBlockMask){.mask = {.q_block_size = q_block_size, .kv_block_size = kv_block_size}};
  NpyArray files[MASK_FILES] = {{0}};
  bool ok = true;
  for (int i = 0; i < MASK_FILES && ok; i++) ok = read_file(directory, i, &files[i], error);
  ok = ok && set_sizes(directory, files, &blocks->mask, error);
  for (int i = 0; i < MASK_FILES; i++) { /* after a failure too: they are freed below */
    blocks->data[i] = files[i].data;
    blocks->bytes[i] = files[i].bytes;
  }
  block_mask_set_pointers(&blocks->mask, blocks->data);
  Error fault = {0};
  if (ok && !block_mask_validate(&blocks->mask, problem, &fault)) {
    ok = fail(error, fault.code, "%s: %.900s%s", directory, fault.text,
              files[TENSOR_TILES].rank != 0
                  ? ""
                  : "; partial_block_masks.npy is missing: without it no slot may be PARTIAL, and "
                    "the size of the blocks is that of --mask-block");
  }
  if (!ok) block_mask_free(blocks);
  return ok;
}

bool block_mask_write(const char *directory, const HostBlockMask *blocks, Error *error) {
  const BlockMask *m = &blocks->mask;
  const int64_t slots[4] = {m->batches, m->heads, m->q_blocks, m->max_slots};
  const int64_t tiles[3] = {m->tile_count, m->q_block_size, m->kv_block_size};
  NpyFile files[MASK_FILES];
  for (int i = 0; i < MASK_FILES; i++) {
    const int64_t *shape = i == TENSOR_TILES ? tiles : slots;
    files[i] = (NpyFile){FILES[i].name, FILES[i].type, FILES[i].rank, shape, blocks->data[i]};
  }
  return npy_write(directory, files, MASK_FILES, error);
}
