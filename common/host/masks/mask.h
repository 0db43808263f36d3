/**
 * @file
 * Masks as dense rules: which keys each query attends. Independent of kernels and built masks.
 */
#ifndef HOST_MASK_H
#define HOST_MASK_H

#include <stdbool.h>
#include <stdint.h>

#include <stdio.h>
#include "attention.h"
#include "host/base/error.h"
#include "host/io/npy.h"
#include "host/masks/host_block_mask.h"

/**
 * The presets of --mask. With q' = q + kv_len - q_len, query q attends key k iff what follows; in a
 * decode step kv_len is the length of the sequence.
 *
 * - full: always
 * - causal: k <= q'
 * - window:W: q' - W < k <= q'
 * - document:L: q' >= 0, k <= q' and both lie in the same document. L lists lengths that add up to
 *   kv_len, or is a number of documents, whose lengths then differ by at most 1
 * - prefix:P: k < P or k <= q'
 * - interleaved:S: q' >= 0, and k <= q' or both lie in the same image. Runs of text and images
 *   alternate; their lengths are drawn from the seed S
 * - dilated:K: k <= q' and (q' - k) % K == 0
 * - blocks:X: the mask block of (q, k) was drawn, each with probability X
 * - random:X: the entry was drawn, each with probability X
 * - empty: never
 * - FILE.npy: its entry is 1; bool [Nq, Nkv], [H, Nq, Nkv] or [B, H, Nq, Nkv]
 * - a directory: its block mask attends it
 */
typedef enum MaskPreset {
  PRESET_FULL,
  PRESET_CAUSAL,
  PRESET_WINDOW,
  PRESET_DOCUMENT,
  PRESET_PREFIX,
  PRESET_INTERLEAVED,
  PRESET_DILATED,
  PRESET_BLOCKS,
  PRESET_RANDOM,
  PRESET_EMPTY,
  PRESET_DENSE_FILE,
  PRESET_DIRECTORY
} MaskPreset;

typedef struct Mask {
  const char *text; /**< as given to --mask; not owned */
  MaskPreset preset;
  int q_len, kv_len;
  const int *lengths; /**< of a decode step, in place of kv_len: [batches]; not owned; or NULL */
  int batches, heads; /**< distinct masks: 1 where all batch entries, or heads, share one */
  int64_t entries;    /**< attended pairs of all distinct masks */
  bool one_span;      /**< row_spans_build() takes it: each query attends at most one span of keys,
                           and the mask is not made of blocks */
  int64_t parameter;  /**< W, P or K */
  double density;
  uint64_t seed;
  int q_block_size, kv_block_size; /**< of blocks:X */
  /** Documents, or runs of text and images, text first: run i ends before key run_ends[i]. */
  int32_t *run_ends;
  int run_count;
  NpyArray dense;       /**< of FILE.npy */
  HostBlockMask blocks; /**< of a directory */
} Mask;

/** The mask of a problem that is full or causal. Owns nothing. */
Mask mask_simple(const Problem *problem);

/** The mask of a decode step's problem and its window, for sequences of these lengths, [batch]. */
Mask mask_of_lengths(const Problem *problem, const int *lengths);

/** The keys of a batch entry. */
static inline int mask_keys(const Mask *mask, int batch) {
  return mask->lengths != NULL ? mask->lengths[batch] : mask->kv_len;
}

/**
 * Reads a --mask value for a problem whose lengths, batch and heads are known. `mask_block_q` and
 * `mask_block_kv` are the block sizes of blocks:X and of a directory without tiles; blocks:X and
 * random:X are drawn from `seed`. EXIT_USAGE names the value and what is allowed;
 * EXIT_DEVICE if memory runs out. Freed by mask_free().
 */
bool mask_open(const char *text, const Problem *problem, int mask_block_q, int mask_block_kv,
               uint64_t seed, Mask *mask, Error *error);

/**
 * Reads a .npy file of bools. EXIT_USAGE as from npy_read(); for numbers it says which of them the
 * mask attends to. On failure `array->data` is NULL.
 */
bool mask_read_bools(const char *path, NpyArray *array, Error *error);

/** Kind of a --mask value: MASK_FULL or MASK_CAUSAL for these presets, else MASK_BLOCKS. */
MaskKind mask_kind(const char *text);

/** True if a --mask value names a directory, whose tiles may set the size of the blocks. */
bool mask_names_directory(const char *text);

/** Frees everything; harmless on a zeroed mask. */
void mask_free(Mask *mask);

/** Most spans that mask_row() writes. */
int mask_most_spans(const Mask *mask);

/**
 * Writes the keys that query q attends as ascending spans, none empty or adjacent to another, to
 * `spans`, [mask_most_spans()]. Returns their number.
 */
int mask_row(const Mask *mask, int batch, int head, int q, KeySpan *spans);

/**
 * One past the last key that query q attends, 0 if it attends none, for a kernel that reads tiles
 * of `kv_tile` keys and skips those whose mask has no 1. If a PARTIAL block of a directory has a 1
 * past kv_len in the last tile, the kernel visits that tile and the result is kv_len.
 */
int mask_row_end(const Mask *mask, int batch, int head, int q, int kv_tile);

/**
 * Number of queries from q on that are known to attend the same keys; 0 if q is known to attend the
 * same keys as q - 1. With it, blocks:X is not drawn anew for every query.
 */
int mask_rows_alike(const Mask *mask, int q);

/**
 * Draws one key for each query, from those that it attends, or from all if it attends none. The
 * caller frees `*keys`, [batch, q_heads, q_len]. EXIT_DEVICE if memory runs out.
 */
bool mask_draw_keys(const Mask *mask, const Problem *problem, uint64_t seed, int32_t **keys,
                    Error *error);

/** Attended (query, key) pairs of a problem with `batch` x `heads`. */
int64_t mask_entries(const Mask *mask, int batch, int heads);

/**
 * Prints one character per block of `q_block` x `kv_block` entries of the first mask. If that gives
 * more than 64 rows or columns, a character stands for several blocks. EXIT_DEVICE if memory runs
 * out.
 */
bool draw_mask(const Mask *mask, int q_block, int kv_block, FILE *out, Error *error);

#endif
