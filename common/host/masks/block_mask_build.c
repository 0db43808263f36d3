/**
 * @file
 * Builds the canonical block mask of a dense mask.
 *
 * A row of blocks is classified from the spans of its queries: a running sum counts the blocks that
 * a span covers, and only the span's two ends are added one by one. A causal, window or document
 * mask thus costs a few operations per query. Mixed blocks are then written out as tiles.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/memory.h"
#include "host/masks/host_block_mask.h"
#include "host/masks/mask.h"

/** One active block. */
typedef struct Slot {
  int32_t block, type, tile;
} Slot;

/** Distinct tiles, in a hash table with open addressing; entry_count is a power of two. */
typedef struct TileTable {
  uint8_t *tiles;
  size_t tile_bytes, capacity;
  int32_t count;
  int32_t *entries; /**< index of a tile, or -1 */
  size_t entry_count;
} TileTable;

typedef struct Builder {
  const Mask *mask;
  int q_size, kv_size, q_blocks, kv_blocks;
  int most_rows; /**< most queries in a row of blocks: q_size or q_len */
  int most_spans;
  KeySpan *spans;                 /**< [most_rows][most_spans] */
  int *span_counts, *next_span;   /**< [most_rows] */
  int64_t *attended, *whole_rows; /**< [kv_blocks + 1] */
  uint8_t *tile, *causal_tile;    /**< [q_size][kv_size], zeros from row most_rows on */
  Slot *slots;                    /**< of all rows, in order */
  size_t slot_count, slot_capacity;
  int32_t *row_slots; /**< [batches][heads][q_blocks]: slots of the row */
  int32_t longest;    /**< most slots of a row, at least 1 */
  TileTable table;
  double taken_bytes; /**< by take() */
  const char *what;   /**< begins a message */
  Error *error;       /**< set if memory is not available */
} Builder;

static uint64_t hash_bytes(const uint8_t *bytes, size_t count) {
  uint64_t hash = 0xcbf29ce484222325; /* FNV-1a, eight bytes at a time */
  for (size_t i = 0; i + 8 <= count; i += 8) {
    uint64_t word;
    memcpy(&word, bytes + i, sizeof word);
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  for (size_t i = count / 8 * 8; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

/** Doubles a table that is half full. */
static bool grow_entries(TileTable *t) {
  if ((size_t)t->count * 2 < t->entry_count) return true;
  const size_t larger = t->entry_count == 0 ? 64 : 2 * t->entry_count;
  int32_t *entries = malloc(sizeof *entries * larger);
  if (entries == NULL) return false;
  memset(entries, 0xff, sizeof *entries * larger);
  for (int32_t i = 0; i < t->count; i++) {
    size_t at = hash_bytes(t->tiles + (size_t)i * t->tile_bytes, t->tile_bytes) & (larger - 1);
    while (entries[at] >= 0) at = (at + 1) & (larger - 1);
    entries[at] = i;
  }
  free(t->entries);
  t->entries = entries;
  t->entry_count = larger;
  return true;
}

static bool take(Builder *b, double bytes) {
  if (!memory_take(b->what, bytes, b->error)) return false;
  b->taken_bytes += bytes;
  return true;
}

/** Index of a tile, stored if it is new; -1 if memory runs out. */
static int32_t find_tile(Builder *b, const uint8_t *tile) {
  TileTable *t = &b->table;
  if (!grow_entries(t)) return -1;
  size_t at = hash_bytes(tile, t->tile_bytes) & (t->entry_count - 1);
  for (; t->entries[at] >= 0; at = (at + 1) & (t->entry_count - 1)) {
    const uint8_t *known = t->tiles + (size_t)t->entries[at] * t->tile_bytes;
    if (memcmp(known, tile, t->tile_bytes) == 0) return t->entries[at];
  }
  if ((size_t)t->count == t->capacity) {
    const size_t capacity = t->capacity == 0 ? 16 : t->capacity + t->capacity / 2;
    const double more = (double)(capacity - t->capacity) * (double)t->tile_bytes;
    uint8_t *tiles = take(b, more) ? realloc(t->tiles, capacity * t->tile_bytes) : NULL;
    if (tiles == NULL) return -1;
    t->tiles = tiles;
    t->capacity = capacity;
  }
  memcpy(t->tiles + (size_t)t->count * t->tile_bytes, tile, t->tile_bytes);
  t->entries[at] = t->count;
  return t->count++;
}

/** Number of rows of blocks, over all distinct masks. */
static size_t count_rows(const Builder *b) {
  return (size_t)b->mask->batches * (size_t)b->mask->heads * (size_t)b->q_blocks;
}

static bool add_slot(Builder *b, Slot slot) {
  if (b->slot_count == b->slot_capacity) {
    const size_t capacity = b->slot_capacity == 0 ? 1024 : 2 * b->slot_capacity;
    const double more = (double)((capacity - b->slot_capacity) * sizeof *b->slots);
    Slot *slots = take(b, more) ? realloc(b->slots, sizeof *slots * capacity) : NULL;
    if (slots == NULL) return false;
    b->slots = slots;
    b->slot_capacity = capacity;
  }
  b->slots[b->slot_count++] = slot;
  return true;
}

/** Counts the attended entries of every block in a row of blocks of `rows` queries. */
static void count_attended(Builder *b, int rows) {
  memset(b->attended, 0, sizeof *b->attended * (size_t)(b->kv_blocks + 1));
  memset(b->whole_rows, 0, sizeof *b->whole_rows * (size_t)(b->kv_blocks + 1));
  for (int r = 0; r < rows; r++) {
    for (int i = 0; i < b->span_counts[r]; i++) {
      const KeySpan span = b->spans[(size_t)r * (size_t)b->most_spans + (size_t)i];
      const int first = span.first / b->kv_size, last = (span.end - 1) / b->kv_size;
      if (first == last) {
        b->attended[first] += span.end - span.first;
        continue;
      }
      b->attended[first] += (first + 1) * (int64_t)b->kv_size - span.first;
      b->attended[last] += span.end - last * (int64_t)b->kv_size;
      b->whole_rows[first + 1]++;
      b->whole_rows[last]--;
    }
  }
  for (int block = 1; block < b->kv_blocks; block++)
    b->whole_rows[block] += b->whole_rows[block - 1];
  for (int block = 0; block < b->kv_blocks; block++) {
    b->attended[block] += b->whole_rows[block] * b->kv_size;
  }
}

/** Finds the spans of row r, or copies those of row r - 1 if they are known to be equal. */
static void find_spans(Builder *b, int batch, int head, int first_q, int r) {
  KeySpan *spans = b->spans + (size_t)r * (size_t)b->most_spans;
  if (r > 0 && mask_rows_alike(b->mask, first_q + r) == 0) {
    b->span_counts[r] = b->span_counts[r - 1];
    memcpy(spans, spans - b->most_spans, sizeof *spans * (size_t)b->span_counts[r]);
  } else {
    b->span_counts[r] = mask_row(b->mask, batch, head, first_q + r, spans);
  }
  b->next_span[r] = 0;
}

/** Writes the entries of a mixed block to b->tile. Blocks must be passed in ascending order. */
static void fill_tile(Builder *b, int rows, int block) {
  const int64_t first = (int64_t)block * b->kv_size, end = first + b->kv_size;
  memset(b->tile, 0, (size_t)b->most_rows * (size_t)b->kv_size);
  for (int r = 0; r < rows; r++) {
    const KeySpan *spans = b->spans + (size_t)r * (size_t)b->most_spans;
    int i = b->next_span[r];
    while (i < b->span_counts[r] && spans[i].end <= first) i++;
    b->next_span[r] = i;
    for (; i < b->span_counts[r] && spans[i].first < end; i++) {
      const int64_t from = spans[i].first > first ? spans[i].first : first;
      const int64_t to = spans[i].end < end ? spans[i].end : end;
      memset(b->tile + (size_t)r * (size_t)b->kv_size + (from - first), 1, (size_t)(to - from));
    }
  }
}

/** True if the entries in b->tile are those of the causal rule. */
static bool is_causal(Builder *b, int first_q, int rows, int block) {
  const Mask *m = b->mask;
  const int64_t first = (int64_t)block * b->kv_size;
  const int64_t width = first + b->kv_size <= m->kv_len ? b->kv_size : m->kv_len - first;
  memset(b->causal_tile, 0, (size_t)b->most_rows * (size_t)b->kv_size);
  for (int r = 0; r < rows; r++) {
    const int64_t keys = (int64_t)first_q + r + m->kv_len - m->q_len + 1 - first;
    const int64_t attended = keys < 0 ? 0 : keys < width ? keys : width;
    memset(b->causal_tile + (size_t)r * (size_t)b->kv_size, 1, (size_t)attended);
  }
  return memcmp(b->tile, b->causal_tile, (size_t)b->most_rows * (size_t)b->kv_size) == 0;
}

static bool build_row(Builder *b, int batch, int head, int q_block) {
  const Mask *m = b->mask;
  const int first_q = q_block * b->q_size;
  const int rows = m->q_len - first_q < b->q_size ? m->q_len - first_q : b->q_size;
  const size_t slots_before = b->slot_count;
  /* Other masks are too fast for threads to help, or copy the spans of the previous row. */
#pragma omp parallel for if (m->preset == PRESET_RANDOM)
  for (int r = 0; r < rows; r++) find_spans(b, batch, head, first_q, r);
  count_attended(b, rows);
  for (int block = 0; block < b->kv_blocks; block++) {
    if (b->attended[block] == 0) continue;
    const int64_t first = (int64_t)block * b->kv_size;
    const int64_t width = first + b->kv_size <= m->kv_len ? b->kv_size : m->kv_len - first;
    Slot slot = {block, BLOCK_FULL, -1};
    if (b->attended[block] < rows * width) {
      fill_tile(b, rows, block);
      slot.type = is_causal(b, first_q, rows, block) ? BLOCK_CAUSAL : BLOCK_PARTIAL;
      if (slot.type == BLOCK_PARTIAL) slot.tile = find_tile(b, b->tile);
      if (slot.type == BLOCK_PARTIAL && slot.tile < 0) return false;
    }
    if (!add_slot(b, slot)) return false;
    const int32_t count = (int32_t)(b->slot_count - slots_before);
    if (count > b->longest) b->longest = count;
  }
  b->row_slots[(batch * m->heads + head) * b->q_blocks + q_block] =
      (int32_t)(b->slot_count - slots_before);
  return true;
}

static bool build_rows(Builder *b) {
  for (int batch = 0; batch < b->mask->batches; batch++) {
    for (int head = 0; head < b->mask->heads; head++) {
      for (int q = 0; q < b->q_blocks; q++) {
        if (!build_row(b, batch, head, q)) return false;
      }
    }
  }
  return true;
}

/** Copies the slots to tensors in which every row has room for the longest. The counts and the
 * tiles are moved, not copied. */
static bool lay_out(Builder *b, HostBlockMask *result) {
  const Mask *m = b->mask;
  const size_t rows = count_rows(b);
  result->mask = (BlockMask){.q_block_size = b->q_size,
                             .kv_block_size = b->kv_size,
                             .q_blocks = b->q_blocks,
                             .max_slots = b->longest,
                             .tile_count = b->table.count,
                             .batches = m->batches,
                             .heads = m->heads};
  block_mask_set_strides(&result->mask);
  const size_t slot_bytes = sizeof(int32_t) * rows * (size_t)b->longest;
  if (!take(b, 3.0 * (double)slot_bytes)) return false;
  for (int i = TENSOR_INDICES; i <= TENSOR_TILE_INDICES; i++) {
    result->data[i] = malloc(slot_bytes);
    result->bytes[i] = slot_bytes;
    if (result->data[i] == NULL) return false;
    memset(result->data[i], 0xff, slot_bytes); /* unused slots are -1 */
  }
  const int32_t *counts = b->row_slots;
  int32_t *indices = result->data[TENSOR_INDICES], *types = result->data[TENSOR_TYPES];
  int32_t *tiles = result->data[TENSOR_TILE_INDICES];
  size_t next = 0;
  for (size_t row = 0; row < rows; row++) {
    for (int32_t i = 0; i < counts[row]; i++, next++) {
      const size_t at = row * (size_t)b->longest + (size_t)i;
      indices[at] = b->slots[next].block;
      types[at] = b->slots[next].type;
      tiles[at] = b->slots[next].tile;
    }
  }
  result->data[TENSOR_COUNTS] = b->row_slots;
  result->bytes[TENSOR_COUNTS] = sizeof(int32_t) * rows;
  result->data[TENSOR_TILES] = b->table.tiles;
  result->bytes[TENSOR_TILES] = (size_t)b->table.count * b->table.tile_bytes;
  b->row_slots = NULL;
  b->table.tiles = NULL;
  block_mask_set_pointers(&result->mask, result->data);
  return true;
}

static bool allocate(Builder *b) {
  const size_t rows = (size_t)b->most_rows, blocks = (size_t)b->kv_blocks + 1;
  const double row_bytes = (double)sizeof *b->spans * b->most_spans + 2 * sizeof(int);
  if (!take(b, row_bytes * (double)rows + 2.0 * sizeof(int64_t) * (double)blocks +
                   2.0 * (double)b->table.tile_bytes + sizeof(int32_t) * (double)count_rows(b))) {
    return false;
  }
  b->spans = malloc(sizeof *b->spans * rows * (size_t)b->most_spans);
  b->span_counts = malloc(sizeof *b->span_counts * rows);
  b->next_span = malloc(sizeof *b->next_span * rows);
  b->attended = malloc(sizeof *b->attended * blocks);
  b->whole_rows = malloc(sizeof *b->whole_rows * blocks);
  b->tile = calloc(b->table.tile_bytes, 1);
  b->causal_tile = calloc(b->table.tile_bytes, 1);
  b->row_slots = malloc(sizeof *b->row_slots * count_rows(b));
  return b->spans != NULL && b->span_counts != NULL && b->next_span != NULL &&
         b->attended != NULL && b->whole_rows != NULL && b->tile != NULL &&
         b->causal_tile != NULL && b->row_slots != NULL;
}

static void free_builder(Builder *b) {
  free(b->spans);
  free(b->span_counts);
  free(b->next_span);
  free(b->attended);
  free(b->whole_rows);
  free(b->tile);
  free(b->causal_tile);
  free(b->slots);
  free(b->row_slots);
  free(b->table.tiles);
  free(b->table.entries);
}

bool block_mask_build(const Mask *mask, int q_block_size, int kv_block_size, HostBlockMask *blocks,
                      Error *error) {
  char what[512];
  snprintf(what, sizeof what, "--mask %.200s in blocks of %d x %d, --seqlen %d, --seqlen-kv %d",
           mask->text, q_block_size, kv_block_size, mask->q_len, mask->kv_len);
  *blocks = (HostBlockMask){0};
  error->text[0] = '\0';
  Builder b = {.mask = mask,
               .q_size = q_block_size,
               .kv_size = kv_block_size,
               .q_blocks = (mask->q_len - 1) / q_block_size + 1,
               .kv_blocks = (mask->kv_len - 1) / kv_block_size + 1,
               .most_rows = q_block_size < mask->q_len ? q_block_size : mask->q_len,
               .most_spans = mask_most_spans(mask),
               .longest = 1,
               .table.tile_bytes = (size_t)q_block_size * (size_t)kv_block_size,
               .what = what,
               .error = error};
  double kept = 0;
  const bool ok = allocate(&b) && build_rows(&b) && lay_out(&b, blocks);
  free_builder(&b);
  for (int i = 0; ok && i < MASK_TENSORS; i++) kept += (double)blocks->bytes[i];
  memory_take(what, kept - b.taken_bytes, error); /* gives the rest back */
  if (ok) return true;
  block_mask_free(blocks);
  return error->text[0] == '\0' ? fail(error, EXIT_DEVICE, "%s: out of host memory", what) : false;
}
