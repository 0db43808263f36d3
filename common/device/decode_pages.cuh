/**
 * @file
 * What step 20b introduces: where a key is, in a cache with pages or without.
 */
#ifndef DEVICE_DECODE_PAGES_CUH
#define DEVICE_DECODE_PAGES_CUH

#include <cuda_runtime.h>

#include "decode.h"

// As in steps/step20b_pages.cu:

/** The pages of a sequence. */
struct Pages {
  const int *table;        /**< their numbers; NULL: the cache is contiguous */
  int sequence;            /**< its number: the "page" of a contiguous cache */
  int log2_size, row_mask; /**< a key is row `key & row_mask` of page number `key >> log2_size` */
};

/** Those of a sequence of the batch. */
__device__ __forceinline__ Pages pages_of_sequence(const Problem &problem, const DecodeTensors &t,
                                                   int sequence) {
  if (t.page_table == NULL) return {NULL, sequence, 31, INT32_MAX};
  return {t.page_table + (int64_t)sequence * t.page_table_stride, sequence,
          __ffs(problem.page_size) - 1, problem.page_size - 1};
}

/** The page of a key, in the tensors of K and V. */
__device__ __forceinline__ int find_page(const Pages &pages, int key) {
  return pages.table == NULL ? pages.sequence : pages.table[key >> pages.log2_size];
}

/** Where a key is in K or V, in elements from the first row of page 0 of its head. */
__device__ __forceinline__ int64_t row_offset(const Strides &strides, const Pages &pages, int page,
                                              int key) {
  return page * strides.batch + (key & pages.row_mask) * strides.row;
}

#endif
