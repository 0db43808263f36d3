#include "host/masks/mask.h"

#include <stdlib.h>

#include "host/io/random.h"

/* Streams of random numbers that the inputs do not use. */
enum { STREAM_KEYS = 24, STREAM_BLOCKS = 100, STREAM_ENTRIES = 101 };

/** Attended pairs under the causal rule: kv_len + (kv_len - 1) + ..., from the last query on. */
static int64_t causal_entries(int64_t q_len, int64_t kv_len) {
  const int64_t rows = q_len < kv_len ? q_len : kv_len;
  return rows * kv_len - rows * (rows - 1) / 2;
}

Mask mask_simple(const Problem *p) {
  const bool causal = p->mask == MASK_CAUSAL;
  return (Mask){
      .text = causal ? "causal" : "full",
      .preset = causal ? PRESET_CAUSAL : PRESET_FULL,
      .q_len = p->q_len,
      .kv_len = p->kv_len,
      .batches = 1,
      .heads = 1,
      .one_span = true,
      .entries = causal ? causal_entries(p->q_len, p->kv_len) : (int64_t)p->q_len * p->kv_len};
}

Mask mask_of_lengths(const Problem *p, const int *lengths) {
  Mask mask = mask_simple(p);
  mask.lengths = lengths;
  mask.batches = p->batch;
  mask.entries = 0;
  if (p->window > 0) {
    mask.preset = PRESET_WINDOW;
    mask.parameter = p->window;
  }
  for (int b = 0; b < p->batch; b++) {
    for (int q = 0; q < p->q_len; q++) {
      KeySpan span;
      if (mask_row(&mask, b, 0, q, &span) > 0) mask.entries += span.end - span.first;
    }
  }
  return mask;
}

void mask_free(Mask *mask) {
  free(mask->run_ends);
  npy_free(&mask->dense);
  block_mask_free(&mask->blocks);
  *mask = (Mask){0};
}

static int64_t drawn_blocks(const Mask *mask) {
  return (mask->kv_len + (int64_t)mask->kv_block_size - 1) / mask->kv_block_size;
}

int mask_most_spans(const Mask *mask) {
  if (mask->one_span) return 1;
  switch (mask->preset) {
    case PRESET_BLOCKS:
      return (int)((drawn_blocks(mask) + 1) / 2); /* every other block */
    case PRESET_DILATED:
    case PRESET_RANDOM:
    case PRESET_DENSE_FILE:
      return mask->kv_len / 2 + 1; /* every other key */
    case PRESET_DIRECTORY:
      return mask->kv_len; /* blocks of 1 in any order, before they are joined */
    default:
      return 1;
  }
}

static int32_t clamp(int64_t x, int64_t least, int64_t most) {
  return (int32_t)(x < least ? least : x > most ? most : x);
}

/** Appends keys first .. end - 1, joined to the last span if adjacent. Returns the new count. */
static int append(KeySpan *spans, int count, int64_t first, int64_t end) {
  if (first >= end) return count;
  if (count > 0 && spans[count - 1].end == first) {
    spans[count - 1].end = (int32_t)end;
    return count;
  }
  spans[count] = (KeySpan){(int32_t)first, (int32_t)end};
  return count + 1;
}

/** q' of mask.h: the key that query q ends with under the causal rule. */
static int64_t position_of(const Mask *mask, int batch, int q) {
  return (int64_t)q + mask_keys(mask, batch) - mask->q_len;
}

/** One past the last key that query q attends under the causal rule. */
static int32_t causal_limit(const Mask *mask, int batch, int q) {
  return clamp(position_of(mask, batch, q) + 1, 0, mask_keys(mask, batch));
}

/** Index of the document, or the run of text or image, that contains a key. */
static int run_of(const Mask *mask, int64_t key) {
  int low = 0, high = mask->run_count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (key < mask->run_ends[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/** True with probability mask->density; a function of the seed and the index. */
static bool drawn(const Mask *mask, uint32_t stream, int64_t index) {
  return random_uniform(mask->seed, stream, (uint64_t)index) < mask->density;
}

static int drawn_block_row(const Mask *mask, int q, KeySpan *spans) {
  const int64_t blocks = drawn_blocks(mask);
  const int64_t row = q / mask->q_block_size * blocks;
  int count = 0;
  for (int64_t block = 0; block < blocks; block++) {
    if (!drawn(mask, STREAM_BLOCKS, row + block)) continue;
    const int64_t first = block * mask->kv_block_size;
    count = append(spans, count, first, clamp(first + mask->kv_block_size, 0, mask->kv_len));
  }
  return count;
}

static int drawn_entry_row(const Mask *mask, int q, KeySpan *spans) {
  int count = 0;
  for (int64_t k = 0; k < mask->kv_len; k++) {
    if (drawn(mask, STREAM_ENTRIES, (int64_t)q * mask->kv_len + k)) {
      count = append(spans, count, k, k + 1);
    }
  }
  return count;
}

static int dense_row(const uint8_t *row, int64_t keys, int64_t first_key, KeySpan *spans,
                     int count) {
  for (int64_t k = 0; k < keys; k++) {
    if (row[k]) count = append(spans, count, first_key + k, first_key + k + 1);
  }
  return count;
}

/** One past the last entry that is 1; 0 if there is none. */
static int64_t last_one(const uint8_t *row, int64_t keys) {
  while (keys > 0 && !row[keys - 1]) keys--;
  return keys;
}

/** The keys that a query attends by one slot: first .. end - 1, or those of them with a 1 in `row`.
 * None if first >= end. */
typedef struct SlotKeys {
  int64_t first, end;
  const uint8_t *row; /**< NULL: all of them */
} SlotKeys;

static SlotKeys slot_keys(const BlockMask *m, int batch, int head, int q, int slot,
                          int64_t causal_end, int64_t kv_len) {
  const int q_block = q / m->q_block_size;
  const int64_t first = (int64_t)m->kv_block_size *
                        slot_value(m->kv_indices, m->index_strides, batch, head, q_block, slot);
  const int64_t end = first + m->kv_block_size < kv_len ? first + m->kv_block_size : kv_len;
  switch (slot_value(m->block_mask_types, m->type_strides, batch, head, q_block, slot)) {
    case BLOCK_MASKED:
      return (SlotKeys){0, 0, NULL};
    case BLOCK_FULL:
      return (SlotKeys){first, end, NULL};
    case BLOCK_CAUSAL:
      return (SlotKeys){first, causal_end < end ? causal_end : end, NULL};
    default:
      break;
  }
  const int64_t tile =
      slot_value(m->partial_block_mask_indices, m->partial_strides, batch, head, q_block, slot);
  const uint8_t *row = m->partial_block_masks +
                       (tile * m->q_block_size + q % m->q_block_size) * (int64_t)m->kv_block_size;
  return (SlotKeys){first, end, row};
}

static int compare_spans(const void *a, const void *b) {
  const int32_t x = ((const KeySpan *)a)->first, y = ((const KeySpan *)b)->first;
  return (x > y) - (x < y);
}

static int directory_row(const Mask *mask, int batch, int head, int q, int64_t causal_end,
                         KeySpan *spans) {
  const BlockMask *m = &mask->blocks.mask;
  const int slots = block_count(m, batch, head, q / m->q_block_size);
  int count = 0, joined = 0;
  bool ascending = true;
  for (int i = 0; i < slots; i++) {
    const SlotKeys keys = slot_keys(m, batch, head, q, i, causal_end, mask->kv_len);
    const int before = count;
    count = keys.row == NULL ? append(spans, count, keys.first, keys.end)
                             : dense_row(keys.row, keys.end - keys.first, keys.first, spans, count);
    ascending = ascending &&
                (before == 0 || before == count || spans[before].first > spans[before - 1].first);
  }
  if (ascending) return count;
  qsort(spans, (size_t)count, sizeof *spans, compare_spans);
  for (int i = 0; i < count; i++) joined = append(spans, joined, spans[i].first, spans[i].end);
  return joined;
}

/** See mask_row_end(). A kernel visits a tile if its part of a PARTIAL block has a 1 at all. */
static int32_t directory_row_end(const Mask *mask, int batch, int head, int q, int kv_tile) {
  const BlockMask *m = &mask->blocks.mask;
  const int slots = block_count(m, batch, head, q / m->q_block_size);
  const int64_t causal_end = causal_limit(mask, batch, q);
  const int64_t seen_end = ((int64_t)mask->kv_len + kv_tile - 1) / kv_tile * kv_tile;
  int64_t row_end = 0;
  for (int i = 0; i < slots; i++) {
    const SlotKeys keys = slot_keys(m, batch, head, q, i, causal_end, mask->kv_len);
    const int64_t seen = seen_end - keys.first;
    const int64_t count =
        keys.row == NULL ? keys.end - keys.first
                         : last_one(keys.row, seen < m->kv_block_size ? seen : m->kv_block_size);
    if (count > 0 && keys.first + count > row_end) row_end = keys.first + count;
  }
  return clamp(row_end, 0, mask->kv_len);
}

/** Row of query q in FILE.npy: [kv_len]. */
static const uint8_t *dense_entries(const Mask *mask, int batch, int head, int q) {
  const int64_t row =
      ((int64_t)(batch % mask->batches) * mask->heads + head % mask->heads) * mask->q_len + q;
  return (const uint8_t *)mask->dense.data + row * mask->kv_len;
}

int mask_row(const Mask *mask, int batch, int head, int q, KeySpan *spans) {
  const int64_t position = position_of(mask, batch, q);
  const int64_t end = causal_limit(mask, batch, q);
  const int keys = mask_keys(mask, batch);
  switch (mask->preset) {
    case PRESET_FULL:
      return append(spans, 0, 0, keys);
    case PRESET_CAUSAL:
      return append(spans, 0, 0, end);
    case PRESET_WINDOW:
      return append(spans, 0, clamp(position + 1 - mask->parameter, 0, keys), end);
    case PRESET_PREFIX:
      return append(spans, 0, 0, mask->parameter > end ? mask->parameter : end);
    case PRESET_DOCUMENT: {
      if (position < 0) return 0;
      const int run = run_of(mask, position);
      return append(spans, 0, run == 0 ? 0 : mask->run_ends[run - 1], end);
    }
    case PRESET_INTERLEAVED: {
      if (position < 0) return 0;
      const int run = run_of(mask, position);
      return append(spans, 0, 0, run % 2 == 1 ? mask->run_ends[run] : end);
    }
    case PRESET_DILATED: {
      int count = 0;
      if (position < 0) return 0;
      for (int64_t k = position % mask->parameter; k < end; k += mask->parameter) {
        count = append(spans, count, k, k + 1);
      }
      return count;
    }
    case PRESET_BLOCKS:
      return drawn_block_row(mask, q, spans);
    case PRESET_RANDOM:
      return drawn_entry_row(mask, q, spans);
    case PRESET_EMPTY:
      return 0;
    case PRESET_DENSE_FILE:
      return dense_row(dense_entries(mask, batch, head, q), mask->kv_len, 0, spans, 0);
    case PRESET_DIRECTORY:
      return directory_row(mask, batch, head, q, end, spans);
  }
  return 0;
}

int mask_row_end(const Mask *mask, int batch, int head, int q, int kv_tile) {
  if (mask->preset == PRESET_DIRECTORY) return directory_row_end(mask, batch, head, q, kv_tile);
  KeySpan *spans = malloc(sizeof *spans * (size_t)mask_most_spans(mask));
  if (spans == NULL) return mask->kv_len;
  const int count = mask_row(mask, batch, head, q, spans);
  const int end = count > 0 ? spans[count - 1].end : 0;
  free(spans);
  return end;
}

int mask_rows_alike(const Mask *mask, int q) {
  if (mask->preset != PRESET_BLOCKS) return 1;
  if (q % mask->q_block_size != 0) return 0;
  return clamp(mask->q_len - (int64_t)q, 0, mask->q_block_size);
}

/** Draws a key for one query; `row` numbers queries over batch and heads. */
static int32_t draw_key(const Mask *mask, const Problem *p, uint64_t seed, int64_t row,
                        KeySpan *spans) {
  int count = mask_row(mask, (int)(row / p->q_len / p->q_heads), (int)(row / p->q_len % p->q_heads),
                       (int)(row % p->q_len), spans);
  if (count == 0) count = append(spans, 0, 0, p->kv_len);
  int64_t attended = 0;
  for (int i = 0; i < count; i++) attended += spans[i].end - spans[i].first;
  const uint64_t bits = random_bits(seed, STREAM_KEYS, (uint64_t)row);
  /* There is at least one span, and spans are not empty. */
  /* cppcheck-suppress zerodiv */
  int64_t chosen = (int64_t)(bits % (uint64_t)attended);
  int i = 0;
  for (; chosen >= spans[i].end - spans[i].first; i++) chosen -= spans[i].end - spans[i].first;
  return (int32_t)(spans[i].first + chosen);
}

bool mask_draw_keys(const Mask *mask, const Problem *p, uint64_t seed, int32_t **keys,
                    Error *error) {
  const int64_t rows = (int64_t)p->batch * p->q_heads * p->q_len;
  int32_t *drawn_keys = malloc(sizeof *drawn_keys * (size_t)rows);
  int failures = drawn_keys == NULL;
#pragma omp parallel reduction(+ : failures)
  {
    KeySpan *spans = malloc(sizeof *spans * (size_t)mask_most_spans(mask));
    failures += spans == NULL;
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
      if (spans != NULL && drawn_keys != NULL)
        drawn_keys[row] = draw_key(mask, p, seed, row, spans);
    }
    free(spans);
  }
  *keys = drawn_keys;
  return failures == 0 ||
         fail(error, EXIT_DEVICE, "out of host memory for the keys of --input spiky");
}

int64_t mask_entries(const Mask *mask, int batch, int heads) {
  return mask->entries * (batch / mask->batches) * (heads / mask->heads);
}
