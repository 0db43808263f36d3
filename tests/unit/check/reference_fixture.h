/**
 * @file
 * Random tensors and the results of all their rows, for the tests of the reference. Includes
 * cmocka.h.
 */
#ifndef REFERENCE_FIXTURE_H
#define REFERENCE_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/reference.h"
#include "host/io/random.h"

#include "../testing.h" /* last */

/* Tensors and the results of all rows: o and base [rows][head_dim], lse [rows]. */
typedef struct Fixture {
  Problem p;
  uint16_t *q, *k, *v;
  double *o, *base, *lse;
} Fixture;

static inline Strides dense(int heads, int rows, int dim) {
  const int64_t n = rows;
  return (Strides){.batch = heads * n * dim, .head = n * dim, .row = dim};
}

static inline uint16_t *draw(Dtype dtype, uint32_t tensor, size_t count) {
  uint16_t *x = malloc(count * sizeof *x);
  for (size_t i = 0; i < count; ++i) x[i] = element_bits(dtype, random_normal(5, tensor, i));
  return x;
}

static inline size_t row_count(const Problem *p) {
  return (size_t)p->batch * (size_t)p->q_heads * (size_t)p->q_len;
}

static inline Fixture new_fixture(Dtype dtype, int q_heads, int kv_heads, int q_len, int kv_len,
                                  int dim) {
  Fixture f = {.p = {.batch = 2,
                     .q_heads = q_heads,
                     .kv_heads = kv_heads,
                     .q_len = q_len,
                     .kv_len = kv_len,
                     .head_dim = dim,
                     .dtype = dtype,
                     .o_dtype = dtype,
                     .scale = 1 / sqrtf((float)dim)}};
  f.p.q_strides = f.p.o_strides = dense(q_heads, q_len, dim);
  f.p.k_strides = f.p.v_strides = dense(kv_heads, kv_len, dim);
  const size_t rows = row_count(&f.p), width = (size_t)dim;
  const size_t kv_count = 2 * (size_t)kv_heads * (size_t)kv_len * width;
  f.q = draw(dtype, 0, rows * width);
  f.k = draw(dtype, 1, kv_count);
  f.v = draw(dtype, 2, kv_count);
  f.o = malloc(rows * width * sizeof(double));
  f.base = malloc(rows * width * sizeof(double));
  f.lse = malloc(rows * sizeof(double));
  return f;
}

static inline void free_fixture(Fixture *f) {
  free(f->q);
  free(f->k);
  free(f->v);
  free(f->o);
  free(f->base);
  free(f->lse);
}

static inline RowIndex row_at(const Problem *p, size_t i) {
  const int head = (int)(i / (size_t)p->q_len);
  return (RowIndex){head / p->q_heads, head % p->q_heads, (int)(i % (size_t)p->q_len)};
}

static inline void store(void *context, size_t index, const ReferenceRow *row) {
  Fixture *f = context;
  const size_t dim = (size_t)f->p.head_dim;
  memcpy(f->o + index * dim, row->o, dim * sizeof(double));
  memcpy(f->base + index * dim, row->base, dim * sizeof(double));
  f->lse[index] = row->lse;
}

static inline void run(Fixture *f) {
  const size_t count = row_count(&f->p);
  RowIndex *rows = malloc(count * sizeof *rows);
  for (size_t i = 0; i < count; ++i) rows[i] = row_at(&f->p, i);
  const Mask mask = mask_simple(&f->p);
  const HostInputs inputs = {f->q, f->k, f->v, &mask};
  Error error;
  assert_true(reference_rows(&f->p, &inputs, rows, count, store, f, NULL, &error));
  free(rows);
}
#endif
