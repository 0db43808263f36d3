/** @file Q, K and V, dO of a backward step, and what a decode step needs to know of K and V: drawn
 * from the seed, or read from a directory. */
#ifndef HOST_INPUTS_H
#define HOST_INPUTS_H

#include <stdint.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/io/cache.h"
#include "host/io/npy.h"

/** What fills Q, K and V. */
typedef enum InputKind {
  INPUT_NORMAL,
  INPUT_OUTLIER,
  INPUT_SPIKY,
  INPUT_SINK,
  INPUT_CONSTANT,
  INPUT_DIRECTORY
} InputKind;

enum { INPUT_TENSORS = 5 };

typedef struct Inputs {
  /** Bit patterns of the problem's dtype, of K and V of cache_dtype(), with the strides of
   * without_pages(); those of e4m3 in 16 bits each, too. Past a sequence's length there is 0. */
  uint16_t *q, *k, *v;
  Cache cache;       /**< of a decode step */
  uint16_t *d_o;     /**< of a backward step, with the strides of O; else NULL */
  uint16_t *o;       /**< likewise, from a file or from a forward pass; NULL: neither yet */
  float *lse;        /**< of the same origin as o, [batch, q_heads, q_len] */
  float *scales[3];  /**< of Q, K and V, as in Tensors; NULL for one that is not DTYPE_E4M3 */
  int64_t nan_count; /**< number of NaN in q, k, v and d_o */
  /** q.npy, k.npy, v.npy and, of a backward step, do.npy, o.npy: from inputs_open() to
   * inputs_fill() */
  NpyArray files[INPUT_TENSORS];
} Inputs;

/**
 * Reads q.npy, k.npy and v.npy from a directory and checks that they fit each other and the types
 * of `problem`. Sets its sizes: batch, heads, lengths and head dimension. EXIT_USAGE names the file
 * at fault, and the element if a number is too large for the dtype. A file with bits of e4m3 has a
 * file of scales beside it, q_scales.npy for q.npy. A backward step has do.npy, too, and may have
 * o.npy and lse.npy. A decode step has lengths.npy, and page_table.npy if K and V are in pages,
 * [pages, page_size, Hkv, D].
 */
bool inputs_open(const char *directory, Problem *problem, Inputs *inputs, Error *error);

/**
 * Allocates and fills q, k and v, and d_o of a backward step, which is drawn like Q but for spiky
 * and sink; sets nan_count. A decode step's `cache` is set already. EXIT_DEVICE if memory runs out.
 *
 * The value of an element depends on the seed, the tensor and the element's index in [B, H, N, D]
 * order, but not on the layout. normal: N(0,1). outlier: N(0,1), plus N(0,100) with probability
 * 0.001. spiky: a query is four times its key of `spiky_keys` plus N(0,0.01), so that most rows of
 * P are nearly one-hot; `spiky_keys`, [batch, q_heads, q_len], is NULL for other kinds. sink:
 * N(0,1), but of key 0 V is 0 and K is (sqrt(D), 0, 0, ...), column 0 of the other keys is 0, and
 * that of a query is uniform from 0 to 11: with the default scale this is its score of key 0, where
 * other scores are about N(0,1). constant: 0.5 everywhere. A directory: what inputs_open() read.
 *
 * For DTYPE_E4M3, numbers are divided by the scale of their key/value head, the largest magnitude
 * there / 448, or with `one_scale` by that of the whole tensor. For a cache from files in pages it
 * is the largest magnitude in this head of all sequences.
 */
bool inputs_fill(const Problem *problem, InputKind kind, uint64_t seed, const int32_t *spiky_keys,
                 bool one_scale, Inputs *inputs, Error *error);

/** Frees everything; harmless on a zeroed struct. */
void inputs_free(Inputs *inputs);

#endif
