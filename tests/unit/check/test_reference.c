/** @file The reference, compared with a second implementation that shares no code with it; each row
 * is delivered once. The end-to-end tests have NaN, infinities, layouts and masks. */
#include <math.h>
#include <omp.h>
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

static Strides dense(int heads, int rows, int dim) {
  const int64_t n = rows;
  return (Strides){.batch = heads * n * dim, .head = n * dim, .row = dim};
}

static uint16_t *draw(Dtype dtype, uint32_t tensor, size_t count) {
  uint16_t *x = malloc(count * sizeof *x);
  for (size_t i = 0; i < count; ++i) x[i] = element_bits(dtype, random_normal(5, tensor, i));
  return x;
}

static size_t row_count(const Problem *p) {
  return (size_t)p->batch * (size_t)p->q_heads * (size_t)p->q_len;
}

static Fixture new_fixture(Dtype dtype, int q_heads, int kv_heads, int q_len, int kv_len, int dim) {
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

static void free_fixture(Fixture *f) {
  free(f->q);
  free(f->k);
  free(f->v);
  free(f->o);
  free(f->base);
  free(f->lse);
}

static RowIndex row_at(const Problem *p, size_t i) {
  const int head = (int)(i / (size_t)p->q_len);
  return (RowIndex){head / p->q_heads, head % p->q_heads, (int)(i % (size_t)p->q_len)};
}

static void store(void *context, size_t index, const ReferenceRow *row) {
  Fixture *f = context;
  const size_t dim = (size_t)f->p.head_dim;
  memcpy(f->o + index * dim, row->o, dim * sizeof(double));
  memcpy(f->base + index * dim, row->base, dim * sizeof(double));
  f->lse[index] = row->lse;
}

static void run(Fixture *f) {
  const size_t count = row_count(&f->p);
  RowIndex *rows = malloc(count * sizeof *rows);
  for (size_t i = 0; i < count; ++i) rows[i] = row_at(&f->p, i);
  const Mask mask = mask_simple(&f->p);
  const HostInputs inputs = {f->q, f->k, f->v, &mask};
  Error error;
  assert_true(reference_rows(&f->p, &inputs, rows, count, store, f, NULL, &error));
  free(rows);
}

static double v_at(const Fixture *f, int b, int head, int key, int d) {
  return element_value(f->p.dtype, f->v[row_offset(&f->p.v_strides, b, head, key) + d]);
}

static void assert_close(double a, double b, double relative) {
  if (!(fabs(a - b) <= relative * (1 + fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

/* Three plain loops, with the definitions of mask, grouping and rounding written again. */
static void naive_row(const Fixture *f, RowIndex row, double *o, double *base, double *lse) {
  const Problem *p = &f->p;
  const int kv_head = row.head * p->kv_heads / p->q_heads;
  double s[512], max = -INFINITY, sum = 0, base_sum = 0;
  for (int key = 0; key < p->kv_len; ++key) {
    s[key] = -INFINITY;
    if (p->mask == MASK_CAUSAL && key > row.q + p->kv_len - p->q_len) continue;
    const int64_t qi =
        row.batch * p->q_strides.batch + row.head * p->q_strides.head + row.q * p->q_strides.row;
    const int64_t ki =
        row.batch * p->k_strides.batch + kv_head * p->k_strides.head + key * p->k_strides.row;
    s[key] = 0;
    for (int d = 0; d < p->head_dim; ++d) {
      s[key] += (double)element_value(p->dtype, f->q[qi + d]) *
                (double)element_value(p->dtype, f->k[ki + d]);
    }
    s[key] *= (double)p->scale;
    if (s[key] > max) max = s[key];
  }
  memset(o, 0, sizeof *o * (size_t)p->head_dim);
  memset(base, 0, sizeof *base * (size_t)p->head_dim);
  *lse = -INFINITY;
  if (max == -INFINITY) return;
  for (int key = 0; key < p->kv_len; ++key) {
    const double prob = exp(s[key] - max);
    const float prob32 = (float)prob;
    const double rounded = element_value(p->dtype, element_bits(p->dtype, (double)prob32));
    sum += prob;
    base_sum += (double)prob32;
    for (int d = 0; d < p->head_dim; ++d) {
      o[d] += prob * v_at(f, row.batch, kv_head, key, d);
      base[d] += rounded * v_at(f, row.batch, kv_head, key, d);
    }
  }
  *lse = max + log(sum);
  for (int d = 0; d < p->head_dim; ++d) {
    o[d] /= sum;
    base[d] = element_value(p->dtype, element_bits(p->dtype, base[d] / base_sum));
  }
}

static void assert_same_as_naive(Fixture *f) {
  run(f);
  const size_t dim = (size_t)f->p.head_dim;
  for (size_t i = 0; i < row_count(&f->p); ++i) {
    double o[256], base[256], lse;
    naive_row(f, row_at(&f->p, i), o, base, &lse);
    if (isinf(lse)) {
      assert_true(f->lse[i] == lse);
    } else {
      assert_close(f->lse[i], lse, 1e-14);
    }
    for (size_t d = 0; d < dim; ++d) {
      assert_close(f->o[i * dim + d], o[d], 1e-13);
      /* The same sums in the same order have the same bits, so no rounding differs. */
      assert_true(f->base[i * dim + d] == base[d]);
    }
  }
}

TEST(random_problems_agree_with_naive_loops) {
  static const struct {
    int q_heads, kv_heads, q_len, kv_len, dim;
  } cases[] = {{1, 1, 1, 1, 32},    {2, 1, 33, 64, 64},  {6, 2, 20, 65, 96}, {4, 4, 70, 63, 32},
               {3, 3, 9, 300, 128}, {2, 2, 200, 7, 256}, {8, 2, 17, 129, 5}, {1, 1, 130, 130, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    for (int variant = 0; variant < 4; ++variant) {
      Fixture f = new_fixture(variant & 1 ? DTYPE_BF16 : DTYPE_FP16, cases[i].q_heads,
                              cases[i].kv_heads, cases[i].q_len, cases[i].kv_len, cases[i].dim);
      f.p.mask = variant & 2 ? MASK_CAUSAL : MASK_FULL;
      assert_same_as_naive(&f);
      free_fixture(&f);
    }
  }
}

static void ignore_row(void *context, size_t index, const ReferenceRow *row) {
  (void)index;
  (void)row;
#pragma omp atomic
  ++*(int *)context;
}

static size_t last_done, last_total;

static void note_progress(size_t done, size_t total) {
  assert_true(done > last_done && done <= total);
  last_done = done;
  last_total = total;
}

TEST(every_row_is_delivered_once_and_progress_ends_at_all) {
  Fixture f = new_fixture(DTYPE_FP16, 2, 1, 40, 20, 32);
  RowIndex rows[160];
  for (size_t i = 0; i < 160; ++i) rows[i] = row_at(&f.p, i);
  const Mask mask = mask_simple(&f.p);
  const HostInputs inputs = {f.q, f.k, f.v, &mask};
  int delivered = 0;
  Error error;
  omp_set_num_threads(1); /* assertions in the callback */
  assert_true(
      reference_rows(&f.p, &inputs, rows, 160, ignore_row, &delivered, note_progress, &error));
  assert_int_equal(delivered, 160);
  assert_int_equal(last_done, 160);
  assert_int_equal(last_total, 160);
  assert_true(reference_rows(&f.p, &inputs, NULL, 0, ignore_row, &delivered, NULL, &error));
  assert_int_equal(delivered, 160);
  free_fixture(&f);
}

RUN_TESTS(NULL, NULL)
