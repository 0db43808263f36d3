/**
 * @file
 * Attention in fp64 for any set of rows.
 *
 * Rows that read the same key/value head form a group. A group reads K and V in blocks of keys, and
 * converts a block to double once for all its rows. K is transposed within its block: the inner
 * loop of Q K^T runs over keys and that of P V over columns, so both vectorise without changing the
 * order of any sum.
 */
#include "host/check/reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/values.h"
#include "host/check/reference_rows.h"
#include "vector_width.h"

enum {
  KEY_BLOCK = 64, /* K and V blocks stay in the L2 cache up to a head dimension of 256 */
  MAX_GROUP = 16, /* rows that share one conversion of K and V */
  MAX_SCORE_BYTES = 16 << 20,
  VECTOR_BYTES = 64
};

/* What all threads share. */
typedef struct Job {
  const Problem *problem;
  const HostInputs *inputs;
  const RowIndex *rows;
  size_t count;
  ReferenceConsumer *consume;
  void *context;
  ReferenceProgress *progress;
  int group_size;
  int most_spans;
  int64_t score_stride; /* doubles from one row of scores to the next */
  int padded_dim;       /* the inner loop of Q K^T takes four dimensions at a time */
  size_t next, done;
  bool failed;
} Job;

/* Consecutive entries of job->rows with one batch index and key/value head. */
typedef struct Group {
  const RowIndex *rows;
  size_t first;
  int count;
  int64_t first_key, end_key; /* all attended keys; first_key begins a block */
} Group;

typedef struct RowSums {
  KeySpan *spans; /* the keys that the row attends */
  int span_count, next_span;
  double max, sum, base_sum;
  double spread;               /* sum of (P ||V||)^2 */
  double q_squares, k_squares; /* |q|^2, and |k|^2 of the longest k; with e4m3 */
} RowSums;

/* Scratch memory of one thread. */
typedef struct Workspace {
  double *q;                    /* [group_size][padded_dim] */
  double *scores;               /* [group_size][score_stride] */
  double *block;                /* K as [padded_dim][KEY_BLOCK], later V as [KEY_BLOCK][head_dim] */
  double *o, *base, *magnitude; /* [group_size][head_dim] */
  KeySpan *spans;               /* [group_size][most_spans] */
  RowSums sums[MAX_GROUP];
} Workspace;

static double *new_doubles(int64_t count) {
  const size_t bytes = (size_t)count * sizeof(double);
  return aligned_alloc(VECTOR_BYTES, (bytes + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES);
}

static void free_workspace(Workspace *work) {
  free(work->q);
  free(work->scores);
  free(work->block);
  free(work->o);
  free(work->base);
  free(work->magnitude);
  free(work->spans);
}

static bool new_workspace(const Job *job, Workspace *work) {
  const int64_t dim = job->problem->head_dim;
  work->q = new_doubles(job->group_size * job->padded_dim);
  work->scores = new_doubles(job->group_size * job->score_stride);
  work->block = new_doubles((int64_t)job->padded_dim * KEY_BLOCK);
  work->o = new_doubles(job->group_size * dim);
  work->base = new_doubles(job->group_size * dim);
  work->magnitude = new_doubles(job->group_size * dim);
  work->spans = malloc(sizeof(KeySpan) * (size_t)job->group_size * (size_t)job->most_spans);
  if (work->q && work->scores && work->block && work->o && work->base && work->magnitude &&
      work->spans) {
    return true;
  }
  free_workspace(work);
  return false;
}

/* scores[key] = q . k[key] for a whole block; scores past the last key are not used. */
ANY_VECTOR_WIDTH
static void score_block(const double *q, const double *k_transposed, int padded_dim,
                        double *scores) {
  for (int key = 0; key < KEY_BLOCK; ++key) scores[key] = 0;
  for (int d = 0; d < padded_dim; d += 4) {
    const double q0 = q[d], q1 = q[d + 1], q2 = q[d + 2], q3 = q[d + 3];
    const double *k0 = k_transposed + d * KEY_BLOCK;
    const double *k1 = k0 + KEY_BLOCK, *k2 = k1 + KEY_BLOCK, *k3 = k2 + KEY_BLOCK;
#pragma omp simd
    for (int key = 0; key < KEY_BLOCK; ++key) {
      scores[key] = scores[key] + q0 * k0[key] + q1 * k1[key] + q2 * k2[key] + q3 * k3[key];
    }
  }
}

/* o += p V, base += rounded_p V and magnitude += p |V| for `keys` rows of V. */
ANY_VECTOR_WIDTH
static void add_values(const double *p, const double *rounded_p, const double *v, int keys, int dim,
                       double *restrict o, double *restrict base, double *restrict magnitude) {
  int key = 0;
  for (; key + 4 <= keys; key += 4) { /* four keys for one load and store of the sums */
    const double *v0 = v + key * dim, *v1 = v0 + dim, *v2 = v1 + dim, *v3 = v2 + dim;
    const double p0 = p[key], p1 = p[key + 1], p2 = p[key + 2], p3 = p[key + 3];
    const double r0 = rounded_p[key], r1 = rounded_p[key + 1];
    const double r2 = rounded_p[key + 2], r3 = rounded_p[key + 3];
#pragma omp simd
    for (int d = 0; d < dim; ++d) {
      o[d] = o[d] + p0 * v0[d] + p1 * v1[d] + p2 * v2[d] + p3 * v3[d];
      base[d] = base[d] + r0 * v0[d] + r1 * v1[d] + r2 * v2[d] + r3 * v3[d];
      magnitude[d] =
          magnitude[d] + p0 * fabs(v0[d]) + p1 * fabs(v1[d]) + p2 * fabs(v2[d]) + p3 * fabs(v3[d]);
    }
  }
  for (; key < keys; ++key) {
    for (int d = 0; d < dim; ++d) {
      o[d] += p[key] * v[key * dim + d];
      base[d] += rounded_p[key] * v[key * dim + d];
      magnitude[d] += p[key] * fabs(v[key * dim + d]);
    }
  }
}

static void load_queries(const Job *job, Group *group, Workspace *work) {
  const Problem *problem = job->problem;
  memset(work->q, 0, sizeof(double) * (size_t)(group->count * job->padded_dim));
  memset(work->o, 0, sizeof(double) * (size_t)(group->count * problem->head_dim));
  memset(work->base, 0, sizeof(double) * (size_t)(group->count * problem->head_dim));
  memset(work->magnitude, 0, sizeof(double) * (size_t)(group->count * problem->head_dim));
  for (int r = 0; r < group->count; ++r) {
    const RowIndex row = group->rows[r];
    const int64_t offset = row_offset(&problem->q_strides, row.batch, row.head, row.q);
    double *q = work->q + r * job->padded_dim;
    const double scale =
        scale_of(problem, job->inputs->q_scales, row.batch, kv_head_of(problem, row.head));
    convert_row(problem->dtype, job->inputs->q + offset, scale, problem->head_dim, q, 1);
    RowSums *sums = &work->sums[r];
    *sums = (RowSums){.spans = work->spans + (size_t)r * (size_t)job->most_spans, .max = -INFINITY};
    if (problem->dtype == DTYPE_E4M3) sums->q_squares = squares(q, problem->head_dim, 1);
    sums->span_count = mask_row(job->inputs->mask, row.batch, row.head, row.q, sums->spans);
    if (sums->span_count == 0) continue;
    const int64_t first = sums->spans[0].first / KEY_BLOCK * KEY_BLOCK;
    const int64_t end = sums->spans[sums->span_count - 1].end;
    group->first_key = min_int64(group->first_key, first);
    if (end > group->end_key) group->end_key = end;
  }
}

/* Advances to the first span that ends past key `first`; true if it begins before `last`. */
static bool attends_any(RowSums *sums, int64_t first, int64_t last) {
  while (sums->next_span < sums->span_count && sums->spans[sums->next_span].end <= first) {
    ++sums->next_span;
  }
  return sums->next_span < sums->span_count && sums->spans[sums->next_span].first < last;
}

/* True if any row of the group attends any of the keys first .. last - 1. */
static bool group_attends(const Group *group, Workspace *work, int64_t first, int64_t last) {
  bool any = false;
  for (int r = 0; r < group->count; ++r) any |= attends_any(&work->sums[r], first, last);
  return any;
}

/* Sets `from` and `to` - 1 to the first and last key of span `i` within first .. last - 1, relative
 * to `first`; false if there are none. */
static bool span_in_block(const RowSums *sums, int i, int64_t first, int64_t last, int *from,
                          int *to) {
  if (i >= sums->span_count || sums->spans[i].first >= last) return false;
  *from = sums->spans[i].first > first ? (int)(sums->spans[i].first - first) : 0;
  *to = (int)(min_int64(sums->spans[i].end, last) - first);
  return true;
}

/* First pass: computes all scores of the group and the maximum of each row. */
static void compute_scores(const Job *job, const Group *group, Workspace *work) {
  const Problem *problem = job->problem;
  const ReferenceRule *rule = &job->inputs->rule;
  const RowIndex row = group->rows[0];
  const int kv_head = kv_head_of(problem, row.head);
  const uint16_t *k = job->inputs->k + row_offset(&problem->k_strides, row.batch, kv_head, 0);
  const double scale = scale_of(problem, job->inputs->k_scales, row.batch, kv_head);
  memset(work->block, 0, sizeof(double) * (size_t)job->padded_dim * KEY_BLOCK);
  for (int64_t first = group->first_key; first < group->end_key; first += KEY_BLOCK) {
    const int64_t last = min_int64(first + KEY_BLOCK, group->end_key);
    if (!group_attends(group, work, first, last)) continue;
    for (int64_t key = first; key < last; ++key) {
      convert_row(cache_dtype(problem), k + key * problem->k_strides.row, scale, problem->head_dim,
                  work->block + (key - first), KEY_BLOCK);
    }
    const double k_squares =
        problem->dtype != DTYPE_E4M3
            ? 0
            : longest_key(work->block, KEY_BLOCK, (int)(last - first), problem->head_dim);
    for (int r = 0; r < group->count; ++r) {
      RowSums *sums = &work->sums[r];
      if (!attends_any(sums, first, last)) continue;
      sums->k_squares = fmax(sums->k_squares, k_squares);
      double *scores = work->scores + r * job->score_stride + first;
      score_block(work->q + r * job->padded_dim, work->block, job->padded_dim, scores);
      int from, to;
      for (int i = sums->next_span; span_in_block(sums, i, first, last, &from, &to); ++i) {
        for (int key = from; key < to; ++key) {
          scores[key] *= problem->scale;
          if (rule->score != NULL) {
            scores[key] = rule->score(problem, group->rows[r], first + key, scores[key]);
          }
          if (scores[key] > sums->max) sums->max = scores[key];
        }
      }
    }
  }
  for (int r = 0; r < group->count; ++r) {
    RowSums *sums = &work->sums[r];
    sums->next_span = 0; /* for the second pass */
    if (rule->sink != NULL) {
      const double sink = rule->sink(problem, group->rows[r]);
      sums->max = fmax(sums->max, sink);
      sums->sum = sums->base_sum = exp(sink - sums->max);
    }
  }
}

/* P of one row and one block: exact, and as a tensor-core kernel rounds it. Its ex2.approx.ftz
 * gives 0 for what is subnormal in fp32. */
static void exponentiate(Dtype dtype, const double *scores, int keys, RowSums *sums, double *p,
                         double *rounded_p) {
  const double shift = sums->max == -INFINITY ? 0 : sums->max; /* -inf - -inf would be NaN */
  for (int key = 0; key < keys; ++key) {
    p[key] = exp(scores[key] - shift);
    const float p32 = p[key] < FLT_MIN ? 0 : (float)p[key];
    const float factor = dtype == DTYPE_E4M3 ? E4M3_P_FACTOR : 1;
    rounded_p[key] = element_value(dtype, element_bits(dtype, p32 * factor)) / factor;
    sums->sum += p[key];
    sums->base_sum += p32;
  }
}

/* Second pass: P V with P relative to the final maximum of the row. */
static void weigh_values(const Job *job, const Group *group, Workspace *work) {
  const Problem *problem = job->problem;
  const int dim = problem->head_dim;
  const RowIndex row = group->rows[0];
  const int kv_head = kv_head_of(problem, row.head);
  const uint16_t *v = job->inputs->v + row_offset(&problem->v_strides, row.batch, kv_head, 0);
  const double scale = scale_of(problem, job->inputs->v_scales, row.batch, kv_head);
  double v_squares[KEY_BLOCK]; /* of each key */
  for (int64_t first = group->first_key; first < group->end_key; first += KEY_BLOCK) {
    const int64_t last = min_int64(first + KEY_BLOCK, group->end_key);
    if (!group_attends(group, work, first, last)) continue;
    for (int64_t key = first; key < last; ++key) {
      convert_row(cache_dtype(problem), v + key * problem->v_strides.row, scale, dim,
                  work->block + (key - first) * dim, 1);
      v_squares[key - first] = finite_squares(work->block + (key - first) * dim, dim);
    }
    for (int r = 0; r < group->count; ++r) {
      RowSums *sums = &work->sums[r];
      if (!attends_any(sums, first, last)) continue;
      const double *scores = work->scores + r * job->score_stride + first;
      double p[KEY_BLOCK], rounded_p[KEY_BLOCK];
      int from, to;
      for (int i = sums->next_span; span_in_block(sums, i, first, last, &from, &to); ++i) {
        exponentiate(problem->dtype, scores + from, to - from, sums, p, rounded_p);
        add_values(p, rounded_p, work->block + from * dim, to - from, dim, work->o + r * dim,
                   work->base + r * dim, work->magnitude + r * dim);
        for (int key = 0; key < to - from; ++key)
          sums->spread += p[key] * p[key] * v_squares[from + key];
      }
    }
  }
}

/* Divides by the sums and passes the rows to the consumer. */
static void finish_rows(const Job *job, const Group *group, Workspace *work) {
  const Dtype dtype = job->problem->o_dtype;
  const int dim = job->problem->head_dim;
  for (int r = 0; r < group->count; ++r) {
    const RowSums *sums = &work->sums[r];
    double *o = work->o + r * dim, *base = work->base + r * dim;
    double *magnitude = work->magnitude + r * dim;
    const bool attends = sums->sum != 0; /* true for NaN */
    for (int d = 0; d < dim; ++d) {
      o[d] = attends ? o[d] / sums->sum : 0;
      magnitude[d] = attends ? magnitude[d] / sums->sum : 0;
      base[d] = attends ? element_value(dtype, element_bits(dtype, base[d] / sums->base_sum)) : 0;
    }
    const bool e4m3 = job->problem->dtype == DTYPE_E4M3 && attends;
    const double length = job->problem->scale * sqrt(sums->q_squares * sums->k_squares);
    const RowTerms terms = {.problem = job->problem,
                            .inputs = job->inputs,
                            .row = group->rows[r],
                            .spans = sums->spans,
                            .span_count = sums->span_count,
                            .scores = work->scores + r * job->score_stride,
                            .max = sums->max,
                            .sum = sums->sum};
    const ReferenceRow row = {.o = o,
                              .base = base,
                              .magnitude = magnitude,
                              .spread = attends ? sqrt(sums->spread) / sums->sum : 0,
                              .terms = &terms,
                              .lse = attends ? sums->max + log(sums->sum) : -INFINITY,
                              .score_size = e4m3 ? length + dim / 8.0 * fabs(sums->max) : 0};
    job->consume(job->context, group->first + (size_t)r, &row);
  }
}

/* Takes the next rows; false if none are left. `finished` rows are reported as done. */
static bool take_group(Job *job, int finished, Group *group) {
  const Problem *problem = job->problem;
#pragma omp critical(reference_job)
  {
    job->done += (size_t)finished;
    if (job->progress && finished) job->progress(job->done, job->count);
    *group =
        (Group){.rows = job->rows + job->next, .first = job->next, .first_key = problem->kv_len};
    const size_t left = job->failed ? 0 : job->count - job->next;
    while (group->count < job->group_size && (size_t)group->count < left) {
      const RowIndex *first = group->rows, *row = group->rows + group->count;
      if (row->batch != first->batch ||
          kv_head_of(problem, row->head) != kv_head_of(problem, first->head)) {
        break;
      }
      ++group->count;
    }
    job->next += (size_t)group->count;
  }
  return group->count > 0;
}

static void work_on_groups(Job *job) {
  Workspace work;
  if (!new_workspace(job, &work)) {
#pragma omp critical(reference_job)
    job->failed = true;
    return;
  }
  Group group = {.count = 0};
  while (take_group(job, group.count, &group)) {
    load_queries(job, &group, &work);
    compute_scores(job, &group, &work);
    weigh_values(job, &group, &work);
    finish_rows(job, &group, &work);
  }
  free_workspace(&work);
}

bool reference_rows(const Problem *problem, const HostInputs *inputs, const RowIndex *rows,
                    size_t count, ReferenceConsumer *consume, void *context,
                    ReferenceProgress *progress, Error *error) {
  Job job = {.problem = problem,
             .inputs = inputs,
             .rows = rows,
             .count = count,
             .consume = consume,
             .context = context,
             .progress = progress,
             .most_spans = mask_most_spans(inputs->mask)};
  job.padded_dim = (problem->head_dim + 3) / 4 * 4;
  job.score_stride = ((int64_t)problem->kv_len + KEY_BLOCK - 1) / KEY_BLOCK * KEY_BLOCK;
  const int64_t fitting = MAX_SCORE_BYTES / (job.score_stride * (int64_t)sizeof(double));
  job.group_size = fitting < 1 ? 1 : (int)min_int64(fitting, MAX_GROUP);

#pragma omp parallel if (count > 1)
  work_on_groups(&job);

  if (job.failed) {
    return fail(error, EXIT_DEVICE, "not enough memory for the reference of %d keys",
                problem->kv_len);
  }
  return true;
}
