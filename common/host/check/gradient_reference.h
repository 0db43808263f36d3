/**
 * @file
 * The reference for backward steps: rows of dQ, and of dK and dV, in fp64, on the inputs as the
 * step gets them, with O and LSE of the forward pass among them.
 */
#ifndef HOST_GRADIENT_REFERENCE_H
#define HOST_GRADIENT_REFERENCE_H

#include "block_mask.h"
#include "host/check/reference.h"

/** Tensors in host memory: patterns of problem->dtype with the problem's strides; dO has those of
 * O. */
typedef struct HostBackwardInputs {
  const uint16_t *q, *k, *v, *o, *d_o;
  const float *lse; /**< [batch, q_heads, q_len] */
  const BlockMask
      *mask;      /**< BlockMask::row_spans in host memory; NULL: the mask is full or causal */
  bool rounded_p; /**< Step::rounded_p */
} HostBackwardInputs;

/** A finished row of a gradient, a sum of terms x y: of dQ and dK x = scale dS and y is a row of K
 * or Q, of dV x = P and y is a row of dO. Pointers are valid during the call only. */
typedef struct GradientRow {
  const double *value; /**< [head_dim] fp64 result; all 0 without terms */
  const double *base;  /**< [head_dim] the same with x and the result rounded to 16 bits */
  /** [head_dim] as far as rounding may move each element: sum of e |y|, and that of the result. e
   * is the most that rounding x errs by. */
  const double *most;
  /** Root of the sum of (e ||y||)^2: as far as independent errors move the row. Where x is rounded
   * twice, e^2 is here the sum of the squares of both errors. */
  double spread;
  double normal_spread; /**< the same if no x were rounded to a subnormal number */
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

/** The keys that query q of a query head attends to: none if first >= end. */
static inline KeySpan keys_of_query(const Problem *p, const HostBackwardInputs *inputs, int batch,
                                    int head, int64_t q) {
  const BlockMask *m = inputs->mask;
  if (m != NULL) return m->row_spans[batch * m->span_strides[0] + head * m->span_strides[1] + q];
  if (p->mask != MASK_CAUSAL) return (KeySpan){0, p->kv_len};
  const int64_t end = q + 1 + p->kv_len - p->q_len;
  return (KeySpan){0, (int32_t)(end < 0 ? 0 : end)};
}

/** True if query q of a query head attends to the key. */
static inline bool attends(const Problem *p, const HostBackwardInputs *inputs, int batch, int head,
                           int64_t q, int64_t key) {
  const KeySpan keys = keys_of_query(p, inputs, batch, head, q);
  return key >= keys.first && key < keys.end;
}

#endif
