/** @file Block masks in host memory: building, statistics, validation, files. */
#ifndef HOST_BLOCK_MASK_H
#define HOST_BLOCK_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "block_mask.h"
#include "host/base/error.h"

/** Largest number of queries, and of keys, in a block. */
enum { LARGEST_MASK_BLOCK = 1 << 14 };

/** The tensors of a block mask: those of blocks, in the order of their files, or that of spans. */
typedef enum MaskTensor {
  TENSOR_COUNTS,
  TENSOR_INDICES,
  TENSOR_TYPES,
  TENSOR_TILE_INDICES,
  TENSOR_TILES,
  TENSOR_ROW_SPANS,
  MASK_TENSORS,
  MASK_FILES = TENSOR_ROW_SPANS
} MaskTensor;

/** A block mask whose tensors lie in host memory. */
typedef struct HostBlockMask {
  BlockMask mask; /**< points to `data` */
  void *data[MASK_TENSORS];
  size_t bytes[MASK_TENSORS];
} HostBlockMask;

/** Sets the pointers of a mask to its tensors, in host or device memory. */
void block_mask_set_pointers(BlockMask *mask, void *const data[MASK_TENSORS]);

/** Sets dense strides; 0 for batch entries or heads that share one mask. */
void block_mask_set_strides(BlockMask *mask);

/** Numbers of blocks, over all distinct masks. */
typedef struct BlockMaskStatistics {
  int64_t blocks; /**< listed or not */
  int64_t active; /**< listed and not MASKED: the three kinds below */
  int64_t causal, full, partial;
} BlockMaskStatistics;

struct Mask;

/**
 * Builds the canonical block mask of a dense mask. Slots ascend; a block with all entries attended
 * is FULL, one that follows the causal rule is CAUSAL, one with no entry is not listed, every other
 * is PARTIAL. Identical tiles are stored once. Entries past the lengths do not count and are 0 in
 * the tiles. EXIT_USAGE if this needs more than the available memory. Freed by block_mask_free().
 */
bool block_mask_build(const struct Mask *mask, int q_block_size, int kv_block_size,
                      HostBlockMask *blocks, Error *error);

/**
 * Lists the keys of each query in BlockMask::row_spans. Every query must attend at most one span:
 * see Mask::one_span. EXIT_USAGE if this needs more than the available memory. Freed by
 * block_mask_free().
 */
bool row_spans_build(const struct Mask *mask, HostBlockMask *spans, Error *error);

/** Frees the tensors; harmless on a zeroed struct. */
void block_mask_free(HostBlockMask *blocks);

/**
 * Checks tensors in host memory against a problem: sizes, then counts, types, indices and tiles
 * row by row. EXIT_USAGE with the coordinates of the first fault.
 */
bool block_mask_validate(const BlockMask *mask, const Problem *problem, Error *error);

/** Counts the blocks of a valid mask for `kv_len` keys; none if it has spans. */
BlockMaskStatistics block_mask_statistics(const BlockMask *mask, int kv_len);

/**
 * Reads kv_num_blocks.npy, kv_indices.npy, block_mask_types.npy, partial_block_mask_indices.npy and
 * partial_block_masks.npy from a directory, and validates the mask. A first or second dimension of
 * size 1 broadcasts. The tiles give the size of the blocks; without the last file, blocks have the
 * size passed and none may be PARTIAL. EXIT_USAGE names the file and the fault.
 */
bool block_mask_read(const char *directory, const Problem *problem, int q_block_size,
                     int kv_block_size, HostBlockMask *blocks, Error *error);

/** Writes a mask of block_mask_build() as five files into a directory. On failure, EXIT_DEVICE and
 * no file. */
bool block_mask_write(const char *directory, const HostBlockMask *blocks, Error *error);

/** Number of slots of a row of blocks: an element of kv_num_blocks, [B, H, NQB]. */
static inline int32_t block_count(const BlockMask *m, int batch, int head, int q_block) {
  return m->kv_num_blocks[batch * m->num_strides[0] + head * m->num_strides[1] +
                          q_block * m->num_strides[2]];
}

/** Element of a [B, H, NQB, MAXB] tensor. */
static inline int32_t slot_value(const int32_t *tensor, const int64_t *strides, int batch, int head,
                                 int q_block, int slot) {
  return tensor[batch * strides[0] + head * strides[1] + q_block * strides[2] + slot * strides[3]];
}

typedef struct DeviceMask {
  BlockMask mask; /**< in host memory; its tensors are on the device */
  void *tensors[MASK_TENSORS];
  void *prepared;
  size_t mask_bytes, prepared_bytes;
  double upload_ms;  /**< for allocating and copying the tensors, by the host clock */
  double prepare_ms; /**< for allocating for prepare() and running it, by the host clock */
} DeviceMask;

/**
 * Copies a valid mask to the device and runs prepare() of the step that it is for. EXIT_DEVICE if
 * memory runs out or a kernel fails. Freed by device_mask_free().
 */
bool device_mask_create(const Problem *problem, const Step *step, const HostBlockMask *blocks,
                        DeviceMask *mask, Error *error);

/** Frees everything; harmless on a zeroed struct. */
void device_mask_free(DeviceMask *mask);

#endif
