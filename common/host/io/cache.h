/** @file The cache of a decode step: how long its sequences are, and which pages they have. */
#ifndef HOST_CACHE_H
#define HOST_CACHE_H

#include <stdint.h>

#include "decode.h"
#include "host/base/error.h"

/** In host memory; all 0 for other steps. */
typedef struct Cache {
  int *lengths;    /**< [batch] */
  int *page_table; /**< [batch][table_stride], as DecodeTensors::page_table; NULL: no pages */
  int table_stride;
  int pages;      /**< of K, and of V */
  int *page_rows; /**< [pages]: how many rows of a page some sequence has; 0: nobody owns it */
} Cache;

/** In the page table, past the last page of a sequence: the number of no page. */
enum { NO_PAGE = INT32_MIN + 7 };

/** True for a size that pages may have. */
bool is_page_size(int64_t keys);

/**
 * Sets the lengths of `batch` sequences by the value of --lengths, none above `most`: "5,9", one
 * for each sequence; "A-B", drawn from these; "log:A-B", drawn so that the logarithm is uniform; or
 * the path of a .npy file. NULL: all are `most`. EXIT_USAGE says what is wrong.
 */
bool cache_set_lengths(const char *text, int batch, int most, uint64_t seed, Cache *cache,
                       Error *error);

/** Reads them from a file, likewise. */
bool cache_read_lengths(const char *path, int batch, int most, Cache *cache, Error *error);

/** The longest of the sequences, or 1 if all are empty. */
int cache_longest(const Cache *cache, int batch);

/** Gives each sequence the pages that it needs, in random order. Some pages have no owner. */
bool cache_draw_pages(const Problem *problem, uint64_t seed, Cache *cache, Error *error);

/** Reads the page table from a file; each page that a sequence needs must be one of `pages`. */
bool cache_read_pages(const char *path, const Problem *problem, int pages, Cache *cache,
                      Error *error);

/** Rows of K, and of V, that a pass must read, over all sequences but not over heads: a page that
 * several sequences have counts once, unless there is a window. */
int64_t cache_rows(const Problem *problem, const Cache *cache);

/** Offset of a key in K or V with these strides, in pages or not. */
static inline int64_t cache_offset(const Problem *p, const Cache *cache, const Strides *strides,
                                   int batch, int head, int key) {
  int64_t block = batch;
  if (cache->page_table != NULL) {
    block = cache->page_table[(int64_t)batch * cache->table_stride + key / p->page_size];
    key %= p->page_size;
  }
  return block * strides->batch + head * strides->head + key * strides->row;
}

/** The problem as the host has its tensors: without pages, for the reference and the inputs. */
Problem without_pages(const Problem *problem);

/** Frees everything; harmless on a zeroed struct. */
void cache_free(Cache *cache);

#endif
