/**
 * @file
 * The reference, compared with closed forms and with a second implementation that shares no code
 * with it.
 */
#include "reference_fixture.h"

static double v_at(const Fixture *f, int b, int head, int key, int d) {
  return element_value(f->p.dtype, f->v[row_offset(&f->p.v_strides, b, head, key) + d]);
}

static void assert_close(double a, double b, double relative) {
  if (!(fabs(a - b) <= relative * (1 + fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

TEST(one_large_score_selects_its_row_of_v) {
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_BF16, 1, 1, 40, 130, 160);
  memset(f.q, 0, row_count(&f.p) * 160 * 2);
  memset(f.k, 0, 2 * 130 * 160 * 2);
  for (int b = 0; b < 2; ++b) { /* query q and key 3q + 1 are 1 in dimension q alone */
    for (int q = 0; q < 40; ++q) {
      f.q[(b * 40 + q) * 160 + q] = element_bits(DTYPE_BF16, 1024);
      f.k[(b * 130 + 3 * q + 1) * 160 + q] = element_bits(DTYPE_BF16, 1024);
    }
  }
  run(&f);
  for (size_t i = 0; i < row_count(&f.p); ++i) {
    const RowIndex row = row_at(&f.p, i);
    assert_close(f.lse[i], 1024.0 * 1024.0 * f.p.scale, 1e-14);
    for (int d = 0; d < 160; ++d) {
      const double picked = v_at(&f, row.batch, 0, 3 * row.q + 1, d);
      assert_true(f.o[i * 160 + (size_t)d] == picked);
      assert_true(f.base[i * 160 + (size_t)d] == picked);
    }
  }
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
      FREED_BY(free_fixture)
      Fixture f = new_fixture(variant & 1 ? DTYPE_BF16 : DTYPE_FP16, cases[i].q_heads,
                              cases[i].kv_heads, cases[i].q_len, cases[i].kv_len, cases[i].dim);
      f.p.mask = variant & 2 ? MASK_CAUSAL : MASK_FULL;
      assert_same_as_naive(&f);
    }
  }
}

RUN_TESTS(NULL, NULL)
