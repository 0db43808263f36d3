/**
 * @file
 * Decode: a few new queries at the end of a cache of keys and values, and what a step that computes
 * this provides in place of Step::forward.
 *
 * A model that generates text adds one key and one value for each token, and asks with one query
 * for each head; it asks with several if it guesses tokens ahead. So Problem::q_len is 1 to
 * MAX_NEW_QUERIES, and each sequence of the batch has a length of its own, which includes the new
 * tokens. Query i of sequence b is at position lengths[b] - q_len + i, and attends
 *
 *     MASK_FULL      to all lengths[b] keys
 *     MASK_CAUSAL    to the keys 0 .. position; with Problem::window to the last `window` of them
 *
 * A query that attends to no key, as in an empty cache or at a position below 0, has O = 0 and
 * LSE = -inf. No length is above Problem::kv_len; all may be below.
 *
 * Keys and values past a length are never read: they may hold anything, and may not be there. The
 * tests fill them with NaN. So it is with pages that no sequence has, and with entries of the page
 * table past the last page of a sequence.
 *
 * Keys before a window are not needed, but a step that loads whole tiles loads those that are in
 * one tile with the first key of the window. So they must be numbers, and their pages in the table:
 * they are multiplied by P = 0.
 */
#ifndef DECODE_H
#define DECODE_H

#include "attention.h"

enum {
  MAX_NEW_QUERIES = 16,
  MAX_GROUP_SIZE = 16, /**< query heads that share a key/value head, in decode steps */
  MIN_PAGE_SIZE = 16,  /**< a page has 16, 32, 64, 128 or 256 keys */
  MAX_PAGE_SIZE = 256
};

/**
 * Device pointers of one decode pass.
 *
 * Q and O are as in forward. K and V are [batch, kv_heads, kv_len, head_dim], with strides as in
 * forward; or in pages, [pages, page_size, kv_heads, head_dim], and then Strides::batch of K and V
 * is the distance from one page to the next, Strides::row from one key of a page to the next, and
 * Strides::head as ever. Pages are in any order, and several sequences may have the same page.
 */
typedef struct DecodeTensors {
  const void *q;      /**< of Problem::dtype, fp16 or bf16 */
  const void *k, *v;  /**< of cache_dtype() */
  const int *lengths; /**< [batch], each from 0 to kv_len */
  /** [batch, page_table_stride]: key j of sequence b is row j % page_size of the page whose number
   * is page_table[b * page_table_stride + j / page_size]. NULL: no pages. */
  const int *page_table;
  int page_table_stride; /**< pages that hold kv_len keys, or more */
  /** [batch, kv_heads], each from FLT_MIN to FLT_MAX, with DTYPE_E4M3 only, else NULL: the values
   * of K and V are their e4m3 numbers times these. */
  const float *k_scales, *v_scales;
  void *o;         /**< as Tensors::o, of Problem::o_dtype, which is Problem::dtype */
  float *lse;      /**< as Tensors::lse */
  void *workspace; /**< Step::workspace_bytes() in all, or NULL; else as Tensors::workspace. At most
                      1 % of the bytes of the cache, or 4 MB if that is more. */
  void *schedule;  /**< Step::schedule_bytes(): what schedule() wrote, or NULL */
} DecodeTensors;

/* A decode step sets Step::decode, which allocates nothing, waits for nothing, and does not read
 * the lengths on the host, so that a CUDA graph can hold it and replay it with other lengths. What
 * must know the lengths ahead is in Step::schedule, which enqueues kernels, too, and whose time is
 * not in that of a pass. A pass whose lengths are others than those of its schedule may be wrong,
 * or never end, because blocks wait for parts that no block has. All else that describes a step
 * keeps its meaning; Step::workspace_zero, too. */

/** The type of K and V. */
static inline Dtype cache_dtype(const Problem *problem) {
  return problem->kv_dtype == DTYPE_E4M3 ? DTYPE_E4M3 : problem->dtype;
}

/** Pages that hold so many keys. */
static inline int page_count(const Problem *problem, int keys) {
  return (keys + problem->page_size - 1) / problem->page_size;
}

#endif
