/** @file Internal to the reference: single rows of Q, K and V. */
#ifndef HOST_REFERENCE_ROWS_H
#define HOST_REFERENCE_ROWS_H

#include <math.h>

#include "host/check/reference.h"

/** Converts a row of `dim` elements to doubles, which are written `stride` elements apart. */
static inline void convert_row(Dtype dtype, const uint16_t *from, double scale, int dim, double *to,
                               int stride) {
  if (dtype == DTYPE_FP16) {
    for (int d = 0; d < dim; ++d) to[d * stride] = half_bits_to_float(from[d]);
  } else if (dtype == DTYPE_BF16) {
    for (int d = 0; d < dim; ++d) to[d * stride] = bf16_bits_to_float(from[d]);
  } else { /* the product is exact */
    for (int d = 0; d < dim; ++d) to[d * stride] = scale * e4m3_bits_to_float((uint8_t)from[d]);
  }
}

/** The terms of a row of O: P V of the keys that it attends. */
typedef struct RowTerms {
  const Problem *problem;
  const HostInputs *inputs;
  RowIndex row;
  const KeySpan *spans;
  int span_count;
  const double *scores; /**< by key */
  double max, sum;      /**< of the scores, and of P */
} RowTerms;

/** |x|^2 of a vector whose elements are `stride` apart. */
static inline double squares(const double *x, int dim, int stride) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += x[d * stride] * x[d * stride];
  return sum;
}

/** |v|^2 without infinities and NaN. */
static inline double finite_squares(const double *v, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += isfinite(v[d]) ? v[d] * v[d] : 0;
  return sum;
}

/** |k|^2 of the longest key of a block. */
static inline double longest_key(const double *k_transposed, int stride, int keys, int dim) {
  double most = 0;
  for (int key = 0; key < keys; ++key) most = fmax(most, squares(k_transposed + key, dim, stride));
  return most;
}

#endif
