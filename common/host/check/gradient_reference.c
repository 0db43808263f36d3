/**
 * @file
 * The gradients in fp64 for any set of rows.
 *
 * dQ and dK are the same sums with the sides exchanged. A row has two vectors, `a` and `b`: of a
 * query q and dO, of a key k and v. So have the rows of the other side, A and B. Then S = a . A and
 * dP = b . B; dQ or dK is a sum of dS A, and dV a sum of P B.
 *
 * Rows that read the same key/value head form a group, which converts a block of the other side
 * once: as it is, and transposed, so that all inner loops vectorise without changing the order of
 * any sum.
 */
#include "host/check/gradient_reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/values.h"
#include "host/check/check.h"
#include "host/check/reference_rows.h"
#include "vector_width.h"

enum { BLOCK = 32, MAX_GROUP = 16 };

/* What all threads share. */
typedef struct Job {
  const Problem *problem;
  const HostBackwardInputs *inputs;
  const RowDots *dots;
  bool of_keys;
  const RowIndex *rows;
  size_t count;
  GradientConsumer *consume;
  void *context;
  ReferenceProgress *progress;
  size_t next, done;
  bool failed;
} Job;

/* The sums of one row of a gradient. */
typedef struct Sums {
  double value[MAX_HEAD_DIM], base[MAX_HEAD_DIM], most[MAX_HEAD_DIM];
  double spread, normal_spread, fp32_size;
} Sums;

/* A row of the group. */
typedef struct Row {
  double a[MAX_HEAD_DIM], b[MAX_HEAD_DIM];
  double b_length;
  Sums sums[2];
} Row;

/* Scratch memory of one thread. */
typedef struct Work {
  const RowIndex *rows; /* consecutive, of one key/value head */
  size_t index;         /* of the first in the job */
  int count;
  double a[BLOCK][MAX_HEAD_DIM], b[BLOCK][MAX_HEAD_DIM];
  double a_transposed[MAX_HEAD_DIM][BLOCK], b_transposed[MAX_HEAD_DIM][BLOCK];
  double a_length[BLOCK], b_length[BLOCK];
  Row row[MAX_GROUP];
} Work;

/* The two tensors of a side, and where its head begins in them. */
typedef struct Side {
  const uint16_t *a, *b;
  int64_t a_stride, b_stride;
} Side;

static Side side_of(const Job *job, bool keys, int batch, int head) {
  const Problem *p = job->problem;
  const HostBackwardInputs *in = job->inputs;
  if (keys) {
    return (Side){in->k + row_offset(&p->k_strides, batch, head, 0),
                  in->v + row_offset(&p->v_strides, batch, head, 0), p->k_strides.row,
                  p->v_strides.row};
  }
  return (Side){in->q + row_offset(&p->q_strides, batch, head, 0),
                in->d_o + row_offset(&p->o_strides, batch, head, 0), p->q_strides.row,
                p->o_strides.row};
}

static int kv_head_of_row(const Job *job, RowIndex row) {
  return job->of_keys ? row.head : kv_head_of(job->problem, row.head);
}

static void load_rows(const Job *job, Work *work) {
  const Problem *p = job->problem;
  for (int r = 0; r < work->count; ++r) {
    const RowIndex index = work->rows[r];
    const Side side = side_of(job, job->of_keys, index.batch, index.head);
    Row *row = &work->row[r];
    memset(row->sums, 0, sizeof row->sums);
    convert_row(p->dtype, side.a + index.q * side.a_stride, 1, p->head_dim, row->a, 1);
    convert_row(p->dtype, side.b + index.q * side.b_stride, 1, p->head_dim, row->b, 1);
    row->b_length = sqrt(finite_squares(row->b, p->head_dim));
  }
}

static void load_block(const Job *job, Work *work, const Side *side, int64_t first, int rows) {
  const Problem *p = job->problem;
  for (int j = 0; j < BLOCK; ++j) {
    const int64_t row = first + (j < rows ? j : 0); /* rows past the end are not used */
    convert_row(p->dtype, side->a + row * side->a_stride, 1, p->head_dim, work->a[j], 1);
    convert_row(p->dtype, side->b + row * side->b_stride, 1, p->head_dim, work->b[j], 1);
    work->a_length[j] = sqrt(finite_squares(work->a[j], p->head_dim));
    work->b_length[j] = sqrt(finite_squares(work->b[j], p->head_dim));
    for (int d = 0; d < p->head_dim; ++d) {
      work->a_transposed[d][j] = work->a[j][d];
      work->b_transposed[d][j] = work->b[j][d];
    }
  }
}

/* products[j] = x . column j */
ANY_VECTOR_WIDTH
static void multiply_block(const double *x, const double (*columns)[BLOCK], int dim,
                           double *restrict products) {
  for (int j = 0; j < BLOCK; ++j) products[j] = 0;
  for (int d = 0; d < dim; ++d) {
#pragma omp simd
    for (int j = 0; j < BLOCK; ++j) products[j] = products[j] + x[d] * columns[d][j];
  }
}

/* A term x y of a row. */
typedef struct Term {
  double x, rounded; /* x in base */
  double most;       /* the most that rounding errs by */
  /* Two roundings are independent: root of the sum of the squares of both; `normal`: if there were
   * no subnormal numbers. */
  double likely, normal;
} Term;

ANY_VECTOR_WIDTH
static void add_term(Term term, const double *y, double length, int dim, Sums *restrict sums) {
#pragma omp simd
  for (int d = 0; d < dim; ++d) {
    sums->value[d] = sums->value[d] + term.x * y[d];
    sums->base[d] = sums->base[d] + term.rounded * y[d];
    sums->most[d] = sums->most[d] + term.most * fabs(y[d]);
  }
  sums->spread += term.likely * length * term.likely * length;
  sums->normal_spread += term.normal * length * term.normal * length;
}

/* As far as rounding to 16 bits moves x: a part of it, or half of the smallest number. */
static double rounding_error(Dtype dtype, double x) {
  const double half = element_value(dtype, 1) / 2;
  return fmax(unit_roundoff(dtype) * fabs(x), fmin(fabs(x), half));
}

/* What becomes 0 in fp32, in units of the 2^-21 that fp32_size is multiplied with. */
#define FLUSHED 0x1p-105

/* x in fp32, then in the dtype; x is P, or has it as a factor. ex2.approx.ftz makes a small P 0. */
static double round_to(Dtype dtype, double x, double prob) {
  const float x32 = fmin(fabs(x), prob) < FLT_MIN ? 0 : (float)x;
  return element_value(dtype, element_bits(dtype, x32));
}

/* In fp16, kernels multiply a P that dS is made of by this, so that few of them are subnormal. */
#define P_FACTOR 2048.0

/* dS = P `factor` in base, and what rounding moves. */
static Term term_of_ds(const Job *job, double prob, double factor) {
  const Dtype dtype = job->problem->dtype;
  const double x = prob * factor, normal = unit_roundoff(dtype) * fabs(x);
  const double of_ds = rounding_error(dtype, x);
  Term term = {.x = x, .most = of_ds, .likely = of_ds, .normal = normal};
  double p = prob;
  if (job->inputs->rounded_p) {
    const double larger = dtype == DTYPE_FP16 ? P_FACTOR : 1;
    p = round_to(dtype, prob * larger, prob) / larger;
    const double of_p = rounding_error(dtype, prob * larger) / larger * fabs(factor);
    term.most = of_ds + of_p;
    term.likely = hypot(of_ds, of_p);
    term.normal = hypot(normal, normal);
  }
  term.rounded = round_to(dtype, p * factor, prob);
  return term;
}

/* Adds the terms of a block, rows first to first + rows - 1 of the other side; `own` is the row,
 * with its query head. */
static void add_block(const Job *job, Work *work, Row *row, RowIndex own, int64_t first, int rows) {
  const Problem *p = job->problem;
  double s[BLOCK], dp[BLOCK];
  bool attended[BLOCK], some = false;
  for (int j = 0; j < rows; ++j) {
    const int64_t q = job->of_keys ? first + j : own.q, key = job->of_keys ? own.q : first + j;
    attended[j] = attends(p, job->inputs, own.batch, own.head, q, key);
    some |= attended[j];
  }
  if (!some) return;
  multiply_block(row->a, (const double(*)[BLOCK])work->a_transposed, p->head_dim, s);
  multiply_block(row->b, (const double(*)[BLOCK])work->b_transposed, p->head_dim, dp);
  for (int j = 0; j < rows; ++j) {
    if (!attended[j]) continue;
    const int64_t query =
        lse_index(p, (RowIndex){own.batch, own.head, job->of_keys ? (int)(first + j) : own.q});
    const double lse = (double)job->inputs->lse[query], prob = exp(p->scale * s[j] - lse);
    const Term ds = term_of_ds(job, prob, dp[j] - job->dots->d[query]);
    const double size = row->b_length * work->b_length[j] + job->dots->size[query];
    const double of_score = (1 + p->head_dim / 64.0) * fabs(lse); /* docs/correctness.md */
    Sums *sums = row->sums;
    add_term(ds, work->a[j], work->a_length[j], p->head_dim, sums);
    sums->fp32_size += (prob * size + of_score * fabs(ds.x) + FLUSHED) * work->a_length[j];
    if (!job->of_keys) continue;
    const double e = rounding_error(p->dtype, prob);
    const Term of_p = {prob, round_to(p->dtype, prob, prob), e, e, unit_roundoff(p->dtype) * prob};
    add_term(of_p, work->b[j], work->b_length[j], p->head_dim, sums + 1);
    sums[1].fp32_size += ((1 + of_score) * prob + FLUSHED) * work->b_length[j];
  }
}

/* Adds the terms of one head of the other side to all rows of the group that read it. */
static void add_head(const Job *job, Work *work, int batch, int other_head) {
  const Problem *p = job->problem;
  const Side side = side_of(job, !job->of_keys, batch, other_head);
  const int64_t others = job->of_keys ? p->q_len : p->kv_len;
  for (int64_t first = 0; first < others; first += BLOCK) {
    const int rows = (int)min_int64(BLOCK, others - first);
    load_block(job, work, &side, first, rows);
    for (int r = 0; r < work->count; ++r) {
      RowIndex own = work->rows[r];
      if (job->of_keys) own.head = other_head;
      add_block(job, work, &work->row[r], own, first, rows);
    }
  }
}

/* Applies the scale, rounds base, and passes the rows on. */
static void finish_rows(const Job *job, Work *work) {
  const Problem *p = job->problem;
  for (int r = 0; r < work->count; ++r) {
    GradientRow rows[2] = {{0}};
    for (int g = 0; g < (job->of_keys ? 2 : 1); ++g) {
      Sums *sums = &work->row[r].sums[g];
      const double scale = g == 0 ? (double)p->scale : 1;
      for (int d = 0; d < p->head_dim; ++d) {
        sums->value[d] *= scale;
        sums->most[d] = sums->most[d] * scale + rounding_error(p->dtype, sums->value[d]);
        sums->base[d] = element_value(p->dtype, element_bits(p->dtype, scale * sums->base[d]));
      }
      rows[g] = (GradientRow){sums->value,
                              sums->base,
                              sums->most,
                              scale * sqrt(sums->spread),
                              scale * sqrt(sums->normal_spread),
                              scale * sums->fp32_size};
    }
    job->consume(job->context, work->index + (size_t)r, rows);
  }
}

/* Takes the next rows of one key/value head; false if none are left. */
static bool take_rows(Job *job, Work *work) {
#pragma omp critical(gradient_job)
  {
    job->done += (size_t)work->count;
    if (job->progress && work->count) job->progress(job->done, job->count);
    work->rows = job->rows + job->next;
    work->index = job->next;
    work->count = 0;
    const size_t left = job->failed ? 0 : job->count - job->next;
    while (work->count < MAX_GROUP && (size_t)work->count < left) {
      const RowIndex *first = work->rows, *row = work->rows + work->count;
      if (row->batch != first->batch || kv_head_of_row(job, *row) != kv_head_of_row(job, *first)) {
        break;
      }
      ++work->count;
    }
    job->next += (size_t)work->count;
  }
  return work->count > 0;
}

static void work_on_rows(Job *job) {
  const int group = job->problem->q_heads / job->problem->kv_heads;
  Work *work = malloc(sizeof *work);
  if (work == NULL) {
#pragma omp critical(gradient_job)
    job->failed = true;
    return;
  }
  work->count = 0;
  while (take_rows(job, work)) {
    const int batch = work->rows[0].batch, kv_head = kv_head_of_row(job, work->rows[0]);
    load_rows(job, work);
    if (!job->of_keys) add_head(job, work, batch, kv_head);
    for (int h = 0; job->of_keys && h < group; ++h) {
      add_head(job, work, batch, kv_head * group + h);
    }
    finish_rows(job, work);
  }
  free(work);
}

bool gradient_rows(const Problem *problem, const HostBackwardInputs *inputs, const RowDots *dots,
                   bool of_keys, const RowIndex *rows, size_t count, GradientConsumer *consume,
                   void *context, ReferenceProgress *progress, Error *error) {
  Job job = {problem, inputs, dots, of_keys, rows, count, consume, context, progress, 0, 0, false};
#pragma omp parallel if (count > 1)
  work_on_rows(&job);
  return !job.failed || fail(error, EXIT_DEVICE, "not enough memory for the reference");
}

bool row_dots(const Problem *p, const HostBackwardInputs *inputs, RowDots *dots, Error *error) {
  const int64_t count = (int64_t)p->batch * p->q_heads * p->q_len;
  dots->d = malloc(sizeof(double) * (size_t)count);
  dots->size = malloc(sizeof(double) * (size_t)count);
  if (dots->d == NULL || dots->size == NULL) {
    return fail(error, EXIT_DEVICE, "not enough memory for the reference");
  }
#pragma omp parallel for
  for (int64_t row = 0; row < count; ++row) {
    double o[MAX_HEAD_DIM], d_o[MAX_HEAD_DIM], sum = 0;
    const int64_t offset = row_offset(&p->o_strides, (int)(row / p->q_len / p->q_heads),
                                      (int)(row / p->q_len % p->q_heads), row % p->q_len);
    convert_row(p->dtype, inputs->o + offset, 1, p->head_dim, o, 1);
    convert_row(p->dtype, inputs->d_o + offset, 1, p->head_dim, d_o, 1);
    for (int d = 0; d < p->head_dim; ++d) sum += d_o[d] * o[d];
    dots->d[row] = sum;
    dots->size[row] = sqrt(finite_squares(o, p->head_dim) * finite_squares(d_o, p->head_dim));
  }
  return true;
}

void row_dots_free(RowDots *dots) {
  free(dots->d);
  free(dots->size);
  *dots = (RowDots){0};
}
