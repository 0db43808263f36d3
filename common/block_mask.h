/**
 * @file
 * Block masks, and what a step that takes them has in addition to attention.h.
 */
#ifndef BLOCK_MASK_H
#define BLOCK_MASK_H

#include "attention.h"

/** Keys first .. end - 1. */
typedef struct KeySpan {
  int32_t first; /**< the first key */
  int32_t end;   /**< one past the last */
} KeySpan;

/** The mask of one block; a slot is one entry of a query block's list of key/value blocks. */
typedef enum BlockType {
  BLOCK_MASKED,  /**< no entry is attended: the slot is skipped, its index and tile are not read */
  BLOCK_CAUSAL,  /**< the causal rule, applied to positions in the whole sequence */
  BLOCK_FULL,    /**< all entries */
  BLOCK_PARTIAL, /**< each entry has its own value, in a tile of partial_block_masks */
  BLOCK_TYPES
} BlockType;

/**
 * A sparse description of any mask, in one of two forms. Where `row_spans` is not NULL, it alone
 * says which keys each query attends to, the sizes of blocks are 0 and there are no slots.
 *
 * Otherwise queries and keys are cut into mask blocks; for each block of queries, each of
 * `kv_num_blocks` slots names a key/value block and a BlockType, in any order. Slots past
 * kv_num_blocks are never read. B and H below are the batch and the query heads; a stride of 0
 * broadcasts. Strides are in elements, each tensor has its own.
 */
typedef struct BlockMask {
  int q_block_size, kv_block_size; /**< rows and columns of a mask block */
  int q_blocks;                    /**< ceil(q_len / q_block_size) */
  int max_slots;                   /**< slots that a row has room for */
  int tile_count;                  /**< tiles in partial_block_masks */
  int batches, heads; /**< distinct masks: 1 if all batch entries, or all heads, share one */

  const int32_t *kv_num_blocks;              /**< [B, H, q_blocks] */
  const int32_t *kv_indices;                 /**< [B, H, q_blocks, max_slots] */
  const int32_t *block_mask_types;           /**< the same shape: BlockType */
  const int32_t *partial_block_mask_indices; /**< the same shape: tile of a PARTIAL slot */
  const uint8_t *partial_block_masks; /**< [tile_count, q_block_size, kv_block_size], 1 = attend */
  int64_t num_strides[3];             /**< of kv_num_blocks: batch, head, row of blocks */
  int64_t index_strides[4];           /**< of kv_indices: batch, head, row of blocks, slot */
  int64_t type_strides[4];            /**< of block_mask_types, likewise */
  int64_t partial_strides[4];         /**< of partial_block_mask_indices, likewise */

  /** [B, H, q_len]: the keys of each query, none if first >= end. Only for steps that say
   * BlockMaskSupport::takes_spans. */
  const KeySpan *row_spans;
  int64_t span_strides[2]; /**< of row_spans: batch, head */
} BlockMask;

/** What a step that takes block masks has in addition. */
typedef struct BlockMaskSupport {
  /**
   * Bytes of device memory for what prepare() makes of a mask. Neither this memory nor the time of
   * prepare() counts as part of the forward pass: they serve every pass with that mask.
   */
  size_t (*prepared_bytes)(const Problem *problem, const BlockMask *mask);

  /**
   * Enqueues the work that is done once per mask. `mask` lies in host memory, its tensors in device
   * memory; both must stay until the last pass. Trusts a mask that the host has validated.
   */
  cudaError_t (*prepare)(const Problem *problem, const BlockMask *mask, void *prepared,
                         cudaStream_t stream);

  bool takes_spans; /**< it takes masks with BlockMask::row_spans, and no others */
} BlockMaskSupport;

#endif
