#include "host/masks/host_block_mask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void block_mask_set_strides(BlockMask *m) {
  const int64_t head = m->q_blocks, batch = head * m->heads, slots = m->max_slots;
  m->num_strides[0] = m->batches == 1 ? 0 : batch;
  m->num_strides[1] = m->heads == 1 ? 0 : head;
  m->num_strides[2] = 1;
  for (int i = 0; i < 3; i++) m->index_strides[i] = m->num_strides[i] * slots;
  m->index_strides[3] = 1;
  memcpy(m->type_strides, m->index_strides, sizeof m->type_strides);
  memcpy(m->partial_strides, m->index_strides, sizeof m->partial_strides);
}

void block_mask_set_pointers(BlockMask *m, void *const data[MASK_TENSORS]) {
  m->kv_num_blocks = data[TENSOR_COUNTS];
  m->kv_indices = data[TENSOR_INDICES];
  m->block_mask_types = data[TENSOR_TYPES];
  m->partial_block_mask_indices = data[TENSOR_TILE_INDICES];
  m->partial_block_masks = data[TENSOR_TILES];
  m->row_spans = data[TENSOR_ROW_SPANS];
}

void block_mask_free(HostBlockMask *blocks) {
  for (int i = 0; i < MASK_TENSORS; i++) free(blocks->data[i]);
  *blocks = (HostBlockMask){0};
}

BlockMaskStatistics block_mask_statistics(const BlockMask *m, int kv_len) {
  if (m->row_spans != NULL) return (BlockMaskStatistics){0};
  const int64_t kv_blocks = ((int64_t)kv_len + m->kv_block_size - 1) / m->kv_block_size;
  BlockMaskStatistics s = {.blocks = (int64_t)m->batches * m->heads * m->q_blocks * kv_blocks};
  for (int b = 0; b < m->batches; b++) {
    for (int h = 0; h < m->heads; h++) {
      for (int q = 0; q < m->q_blocks; q++) {
        const int slots = block_count(m, b, h, q);
        for (int i = 0; i < slots; i++) {
          const int type = slot_value(m->block_mask_types, m->type_strides, b, h, q, i);
          s.causal += type == BLOCK_CAUSAL;
          s.full += type == BLOCK_FULL;
          s.partial += type == BLOCK_PARTIAL;
        }
      }
    }
  }
  s.active = s.causal + s.full + s.partial;
  return s;
}

/** A place in the tensors, for messages. */
typedef struct Place {
  int batch, head, q_block, slot;
} Place;

/** Name of an element for messages: "kv_indices[b=0, h=1, q_block=3, slot=2]". */
static const char *name_slot(const char *tensor, Place at) {
  static char text[128];
  snprintf(text, sizeof text, "%s[b=%d, h=%d, q_block=%d, slot=%d]", tensor, at.batch, at.head,
           at.q_block, at.slot);
  return text;
}

static bool validate_slot(const BlockMask *m, Place at, int64_t kv_blocks, int32_t *seen_in,
                          int32_t row, Error *error) {
  const int b = at.batch, h = at.head, q = at.q_block, i = at.slot;
  const int type = slot_value(m->block_mask_types, m->type_strides, b, h, q, i);
  if (type < 0 || type >= BLOCK_TYPES) {
    return fail(error, EXIT_USAGE,
                "%s = %d, must be 0 (MASKED), 1 (CAUSAL), 2 (FULL) or 3 (PARTIAL)",
                name_slot("block_mask_types", at), type);
  }
  if (type == BLOCK_MASKED) return true;
  const int block = slot_value(m->kv_indices, m->index_strides, b, h, q, i);
  if (block < 0 || block >= kv_blocks) {
    return fail(error, EXIT_USAGE, "%s = %d, but there %s only %lld key/value block%s",
                name_slot("kv_indices", at), block, kv_blocks == 1 ? "is" : "are",
                (long long)kv_blocks, kv_blocks == 1 ? "" : "s");
  }
  if (seen_in[block] == row) {
    return fail(error, EXIT_USAGE, "%s = %d, but the row lists that block already",
                name_slot("kv_indices", at), block);
  }
  seen_in[block] = row;
  if (type != BLOCK_PARTIAL) return true;
  const int tile = slot_value(m->partial_block_mask_indices, m->partial_strides, b, h, q, i);
  if (tile < 0 || tile >= m->tile_count) {
    return fail(error, EXIT_USAGE, "%s = %d, but the slot is PARTIAL and there %s %d tile%s",
                name_slot("partial_block_mask_indices", at), tile,
                m->tile_count == 1 ? "is" : "are", m->tile_count, m->tile_count == 1 ? "" : "s");
  }
  return true;
}

static bool validate_row(const BlockMask *m, Place at, int64_t kv_blocks, int32_t *seen_in,
                         int32_t row, Error *error) {
  const int count = block_count(m, at.batch, at.head, at.q_block);
  if (count < 0 || count > m->max_slots) {
    return fail(error, EXIT_USAGE,
                "kv_num_blocks[b=%d, h=%d, q_block=%d] = %d, but a row has %d slot%s", at.batch,
                at.head, at.q_block, count, m->max_slots, m->max_slots == 1 ? "" : "s");
  }
  for (at.slot = 0; at.slot < count; at.slot++) {
    if (!validate_slot(m, at, kv_blocks, seen_in, row, error)) return false;
  }
  return true;
}

static bool validate_rows(const BlockMask *m, int64_t kv_blocks, int32_t *seen_in, Error *error) {
  int32_t row = 0;
  for (int b = 0; b < m->batches; b++) {
    for (int h = 0; h < m->heads; h++) {
      for (int q = 0; q < m->q_blocks; q++, row++) {
        const Place at = {b, h, q, 0};
        if (!validate_row(m, at, kv_blocks, seen_in, row, error)) return false;
      }
    }
  }
  return true;
}

static bool validate_shape(const BlockMask *m, const Problem *p, Error *error) {
  if (m->q_block_size < 1 || m->kv_block_size < 1) {
    return fail(error, EXIT_USAGE, "mask blocks of %d x %d: must be positive", m->q_block_size,
                m->kv_block_size);
  }
  const int64_t q_blocks = ((int64_t)p->q_len + m->q_block_size - 1) / m->q_block_size;
  if (m->q_blocks != q_blocks) {
    return fail(error, EXIT_USAGE, "NQB is %d, must be %lld: --seqlen %d in blocks of %d",
                m->q_blocks, (long long)q_blocks, p->q_len, m->q_block_size);
  }
  if ((m->batches != 1 && m->batches != p->batch) || (m->heads != 1 && m->heads != p->q_heads)) {
    return fail(error, EXIT_USAGE,
                "[B, H] is [%d, %d], but the problem has [%d, %d] (1 stands for all)", m->batches,
                m->heads, p->batch, p->q_heads);
  }
  return true;
}

bool block_mask_validate(const BlockMask *m, const Problem *p, Error *error) {
  if (!validate_shape(m, p, error)) return false;
  const int64_t kv_blocks = ((int64_t)p->kv_len + m->kv_block_size - 1) / m->kv_block_size;
  int32_t *seen_in =
      malloc(sizeof *seen_in * (size_t)kv_blocks); /* [kv_blocks]: last row that lists the block */
  if (seen_in == NULL) return fail(error, EXIT_DEVICE, "out of host memory to validate the mask");
  memset(seen_in, 0xff, sizeof *seen_in * (size_t)kv_blocks);
  const bool ok = validate_rows(m, kv_blocks, seen_in, error);
  free(seen_in);
  return ok;
}
