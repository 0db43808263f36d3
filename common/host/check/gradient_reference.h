/**
 * @file
 * The reference for backward steps: rows of dQ, and of dK and dV, in fp64, on the inputs as the
 * step gets them, with O and LSE of the forward pass among them.
 */
#ifndef HOST_GRADIENT_REFERENCE_H
#define HOST_GRADIENT_REFERENCE_H

#include "host/check/reference.h"

/** Tensors in host memory: patterns of problem->dtype with the problem's strides; dO has those of
 * O. The masks are full and causal. */
typedef struct HostBackwardInputs {
  const uint16_t *q, *k, *v, *o, *d_o;
  const float *lse; /**< [batch, q_heads, q_len] */
} HostBackwardInputs;

/** A finished row of a gradient, a sum of terms x y: of dQ and dK x = scale dS and y is a row of K
 * or Q, of dV x = P and y is a row of dO. Pointers are valid during the call only. */
typedef struct GradientRow {
  const double *value;     /**< [head_dim] fp64 result; all 0 without terms */
  const double *base;      /**< [head_dim] the same with x and the result rounded to 16 bits */
  const double *magnitude; /**< [head_dim] sum of |x| |y| */
  double spread;           /**< root of the sum of (|x| ||y||)^2: length of independent terms */
  /** Sum of ||y|| times what |x| would be if dP and D did not cancel, and of ||x y|| times the size
   * of the scores: rounding in fp32 errs by parts of it. */
  double fp32_size;
} GradientRow;

/** D and the product of the lengths of dO and O, of every query: [batch, q_heads, q_len]. */
typedef struct RowDots {
  double *d, *size;
} RowDots;

/** Computes both. EXIT_DEVICE if memory runs out. Freed by row_dots_free(), after a failure, too.
 */
bool row_dots(const Problem *problem, const HostBackwardInputs *inputs, RowDots *dots,
              Error *error);
void row_dots_free(RowDots *dots);

/** Called once for each requested row, from several threads at once: with the row of dQ, or with
 * those of dK and dV. */
typedef void GradientConsumer(void *context, size_t index, const GradientRow rows[2]);

/**
 * Computes rows of dQ, or with `of_keys` of dK and dV: RowIndex::head is then a key/value head and
 * RowIndex::q a key. Like reference_rows(); rows sorted by batch and head are fastest.
 */
bool gradient_rows(const Problem *problem, const HostBackwardInputs *inputs, const RowDots *dots,
                   bool of_keys, const RowIndex *rows, size_t count, GradientConsumer *consume,
                   void *context, ReferenceProgress *progress, Error *error);

/** True if query q attends to the key. */
static inline bool attends(const Problem *p, int64_t q, int64_t key) {
  return p->mask != MASK_CAUSAL || key <= q + p->kv_len - p->q_len;
}

/** Sets the queries, first to end - 1, that attend to a key, or the keys that a query attends to.
 */
static inline void attended_range(const Problem *p, bool of_keys, int64_t row, int64_t *first,
                                  int64_t *end) {
  const int64_t shift = (int64_t)p->kv_len - p->q_len;
  *first = 0;
  *end = of_keys ? p->q_len : p->kv_len;
  if (p->mask != MASK_CAUSAL) return;
  if (of_keys && row - shift > 0) *first = row - shift < *end ? row - shift : *end;
  if (!of_keys && row + shift + 1 < *end) *end = row + shift + 1 > 0 ? row + shift + 1 : 0;
}

#endif
