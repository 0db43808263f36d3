/**
 * @file
 * The rows of the reference: rows that attend nothing or something infinite, in any layout and
 * order, each delivered once.
 */
#include <omp.h>

#include "reference_fixture.h"

TEST(a_row_with_nothing_to_attend_is_zero) {
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_FP16, 1, 1, 10, 4, 32);
  f.p.mask = MASK_CAUSAL; /* rows 0..5 attend nothing */
  f.v[0] = element_bits(DTYPE_FP16, NAN);
  run(&f);
  for (size_t q = 0; q < 6; ++q) {
    assert_true(f.lse[q] == -INFINITY);
    for (size_t d = 0; d < 32; ++d) assert_true(f.o[q * 32 + d] == 0 && f.base[q * 32 + d] == 0);
  }
  assert_true(isfinite(f.lse[6]) && isnan(f.o[6 * 32]) && isfinite(f.o[6 * 32 + 1]));
}

TEST(masked_keys_are_never_read) {
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_BF16, 1, 1, 70, 70, 32);
  f.p.mask = MASK_CAUSAL;
  for (int d = 0; d < 32; ++d) f.k[69 * 32 + d] = f.v[69 * 32 + d] = 0x7fff;
  run(&f);
  for (size_t i = 0; i < 69 * 32; ++i) assert_true(isfinite(f.o[i]) && isfinite(f.base[i]));
  for (size_t i = 69 * 32; i < 70 * 32; ++i) assert_true(isnan(f.o[i]));
  assert_true(isnan(f.lse[69]));
}

TEST(infinite_scores_follow_the_formula) {
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_FP16, 1, 1, 2, 3, 32);
  for (int i = 0; i < 2 * 32; ++i) f.q[i] = element_bits(DTYPE_FP16, i < 32 ? 1 : -1);
  for (int i = 0; i < 3 * 32; ++i) f.k[i] = element_bits(DTYPE_FP16, INFINITY);
  run(&f);
  assert_true(isnan(f.lse[0]) && isnan(f.o[0]));      /* inf - inf */
  assert_true(f.lse[1] == -INFINITY && f.o[32] == 0); /* every score is -inf, as if masked */
}

/* Moves tensors from [B, H, N, D] to [B, N, H, D]. */
static uint16_t *interleave(const uint16_t *from, Strides *strides, int heads, int rows, int dim) {
  uint16_t *to = malloc(2 * (size_t)heads * (size_t)rows * (size_t)dim * sizeof *to);
  const Strides bnhd = {strides->batch, dim, (int64_t)heads * dim};
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < heads; ++h) {
      for (int row = 0; row < rows; ++row) {
        memcpy(to + row_offset(&bnhd, b, h, row), from + row_offset(strides, b, h, row),
               sizeof *to * (size_t)dim);
      }
    }
  }
  *strides = bnhd;
  return to;
}

TEST(the_layout_does_not_matter) {
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_FP16, 4, 2, 35, 70, 64);
  f.p.mask = MASK_CAUSAL;
  run(&f);
  FREED_BY(free_fixture) Fixture g = f;
  const size_t bytes = row_count(&f.p) * 64 * sizeof(double);
  g.q = interleave(f.q, &g.p.q_strides, 4, 35, 64);
  g.k = interleave(f.k, &g.p.k_strides, 2, 70, 64);
  g.v = interleave(f.v, &g.p.v_strides, 2, 70, 64);
  g.o = malloc(bytes);
  g.base = malloc(bytes);
  g.lse = malloc(row_count(&f.p) * sizeof(double));
  run(&g);
  assert_memory_equal(f.o, g.o, bytes);
  assert_memory_equal(f.base, g.base, bytes);
  assert_memory_equal(f.lse, g.lse, row_count(&f.p) * sizeof(double));
}

static void assert_row_is(void *context, size_t index, const ReferenceRow *row) {
  const Fixture *f = context;
  const size_t dim = (size_t)f->p.head_dim, i = (index * 37) % row_count(&f->p);
#pragma omp critical(cmocka) /* its assertions may not run in two threads at once */
  {
    assert_memory_equal(row->o, f->o + i * dim, dim * sizeof(double));
    assert_memory_equal(row->base, f->base + i * dim, dim * sizeof(double));
    assert_memory_equal(&row->lse, &f->lse[i], sizeof(double));
  }
}

TEST(a_row_does_not_depend_on_the_other_rows) {
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_BF16, 4, 2, 50, 150, 96);
  f.p.mask = MASK_CAUSAL;
  run(&f);
  RowIndex rows[500]; /* any order, with repeats, several rows of one head in sequence */
  for (size_t i = 0; i < 500; ++i) rows[i] = row_at(&f.p, i * 37 % row_count(&f.p));
  const Mask mask = mask_simple(&f.p);
  const HostInputs inputs = {f.q, f.k, f.v, &mask};
  Error error;
  for (int threads = 1; threads <= 2; ++threads) {
    omp_set_num_threads(threads);
    assert_true(reference_rows(&f.p, &inputs, rows, 500, assert_row_is, &f, NULL, &error));
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
  FREED_BY(free_fixture) Fixture f = new_fixture(DTYPE_FP16, 2, 1, 40, 20, 32);
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
}

RUN_TESTS(NULL, NULL)
