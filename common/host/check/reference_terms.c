/** @file The terms of a row of the reference, read a second time. */
#include <math.h>

#include "host/check/reference_rows.h"

double spread_along(const ReferenceRow *row, const double *direction) {
  const RowTerms *terms = row->terms;
  const Problem *p = terms->problem;
  const int batch = terms->row.batch, kv_head = kv_head_of(p, terms->row.head);
  const double scale = scale_of(p, terms->inputs->v_scales, batch, kv_head);
  double squares = 0, v[MAX_HEAD_DIM];
  for (int i = 0; i < terms->span_count; ++i) {
    for (int64_t key = terms->spans[i].first; key < terms->spans[i].end; ++key) {
      convert_row(cache_dtype(p), terms->inputs->v + row_offset(&p->v_strides, batch, kv_head, key),
                  scale, p->head_dim, v, 1);
      double along = 0;
      for (int d = 0; d < p->head_dim; ++d) along += isfinite(v[d]) ? v[d] * direction[d] : 0;
      along *= exp(terms->scores[key] - terms->max);
      squares += along * along;
    }
  }
  return sqrt(squares) / terms->sum;
}
