/**
 * @file
 * The reference for every step: attention in fp64, row by row, on the inputs as the step gets them.
 */
#ifndef HOST_REFERENCE_H
#define HOST_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "host/base/elements.h"
#include "host/base/error.h"
#include "host/io/cache.h"
#include "host/masks/mask.h"

/** One row of the output. */
typedef struct RowIndex {
  int batch, head, q;
} RowIndex;

/** P of a kernel in e4m3 is rounded relative to this, so that small P are no subnormal numbers. */
enum { E4M3_P_FACTOR = 256 };

/** A variant of attention. Functions left NULL change nothing. */
typedef struct ReferenceRule {
  /** The score that takes the place of `score`, which is scale * q . k of an attended key. */
  double (*score)(const Problem *problem, RowIndex row, int64_t key, double score);
  /** The score of one more key, whose value is 0: an attention sink. */
  double (*sink)(const Problem *problem, RowIndex row);
} ReferenceRule;

/** Tensors in host memory: patterns of problem->dtype, of K and V of cache_dtype(), 16 bits each,
 * with the problem's strides. */
typedef struct HostInputs {
  const uint16_t *q, *k, *v;
  const Mask *mask; /**< which keys each query attends, whatever problem->mask says */
  const float *q_scales, *k_scales, *v_scales; /**< as in Tensors; NULL: none */
  ReferenceRule rule;                          /**< no functions: plain attention */
  const Cache *cache; /**< with pages, whose numbers a diagnosis names; or NULL */
} HostInputs;

/** A finished row. Pointers are valid during the call only. */
typedef struct ReferenceRow {
  const double *o;    /**< [head_dim] fp64 result; all zero if the row is fully masked */
  const double *base; /**< [head_dim] the same with the roundings of a tensor-core kernel */
  /** [head_dim] sum of P |V| divided by the sum of P: |o| if no terms cancelled. */
  const double *magnitude;
  /** Length of independent terms: root of the sum of (P ||V||)^2, divided by the sum of P. */
  double spread;
  const struct RowTerms *terms; /**< for spread_along() */
  double lse; /**< natural log of the softmax denominator; -inf if the row is fully masked */
  /** With e4m3, the sums of a tensor core may be wrong by 2^-13 of this: scale |q| |k| of the
   * longest k near the attended ones, plus head_dim / 8 times the largest score. Else 0. */
  double score_size;
} ReferenceRow;

/** ReferenceRow::spread along a `direction`, [head_dim] of length 1: the root of the sum of
 * (P V . direction)^2, divided by the sum of P. Reads all keys of the row again. */
double spread_along(const ReferenceRow *row, const double *direction);

/** Called once for each requested row, from several threads at once, in any order. */
typedef void ReferenceConsumer(void *context, size_t index, const ReferenceRow *row);

/** Called now and then, by one thread at a time, with the number of finished rows. */
typedef void ReferenceProgress(size_t done, size_t total);

/**
 * Computes `count` rows (any subset, any order, repeats allowed) with OpenMP. Consecutive rows of
 * one key/value head share the work of converting it, so rows sorted by batch and head are fastest.
 * The bits of a row do not depend on the other rows, the threads or the vector width.
 *
 * `base` rounds as a tensor-core kernel does: P = exp(s - final row max) to dtype, unnormalised,
 * with e4m3 times E4M3_P_FACTOR; its sum from unrounded fp32 P; the quotient to o_dtype. A score of
 * -inf from infinite inputs counts as masked; NaN in a score gives a row of NaN. `progress` may be
 * NULL. Returns false with EXIT_DEVICE if memory runs out: a thread needs 8 bytes per key for each
 * of up to 16 rows, at most 16 MiB unless a single row needs more.
 */
bool reference_rows(const Problem *problem, const HostInputs *inputs, const RowIndex *rows,
                    size_t count, ReferenceConsumer *consume, void *context,
                    ReferenceProgress *progress, Error *error);

/** Offset of a row in a tensor with these strides, in elements. */
static inline int64_t row_offset(const Strides *strides, int batch, int head, int64_t row) {
  return batch * strides->batch + head * strides->head + row * strides->row;
}

/** The key/value head that a query head reads. */
static inline int kv_head_of(const Problem *problem, int q_head) {
  return q_head / (problem->q_heads / problem->kv_heads);
}

/** The scale of a key/value head; 1 if there are no scales. */
static inline double scale_of(const Problem *problem, const float *scales, int batch, int kv_head) {
  return scales == NULL ? 1 : (double)scales[(int64_t)batch * problem->kv_heads + kv_head];
}

#endif
