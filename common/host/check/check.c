/** @file The verdict: compares the outputs with the reference and applies the tolerances. */
#include "host/check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The rule for e4m3 adds these; docs/correctness.md explains it. */
/* The least r: rounding hits base by chance, and base may be lucky in all of a few rows. */
static const double E4M3_ERROR = 0x1p-6;
/* Of averages over many rows: the mean error may be so many times that of base; the sums of P V may
 * lose so much; chance may add so many standard deviations; and fewer rows are not judged. */
static const double MEAN_ERROR = 1.5, MEAN_LOSS = 0x1p-7, DEVIATIONS = 4, LEAST_ROWS = 16;

/* The least r, whatever base is. */
static double least_error(Dtype dtype) {
  return dtype == DTYPE_E4M3 ? E4M3_ERROR : unit_roundoff(dtype);
}

/* Counts NaN and Inf in one head of an input; `first` (may be NULL) is set to their first row. */
static int64_t count_not_finite(Dtype dtype, const uint16_t *x, const Strides *strides, int batch,
                                int head, int64_t rows, int dim, int64_t *first) {
  int64_t count = 0;
  if (first) *first = INT64_MAX;
  for (int64_t row = 0; row < rows; ++row) {
    const RowScan scan = scan_row(dtype, x + row_offset(strides, batch, head, row), dim);
    const int bad = scan.unwritten + scan.nan + scan.inf; /* in an input, the poison is any NaN */
    if (bad > 0 && first && *first == INT64_MAX) *first = row;
    count += bad;
  }
  return count;
}

/* Sets first_bad[batch * kv_heads + head] to the first row of V with NaN or Inf, INT64_MAX if there
 * is none; true if all of Q, K and V is finite. */
static bool scan_inputs(const Problem *p, const HostInputs *inputs, int64_t *first_bad) {
  int64_t bad = 0;
#pragma omp parallel for collapse(2) reduction(+ : bad)
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->q_heads; ++h) {
      bad +=
          count_not_finite(p->dtype, inputs->q, &p->q_strides, b, h, p->q_len, p->head_dim, NULL);
      if (h >= p->kv_heads) continue;
      bad += count_not_finite(cache_dtype(p), inputs->k, &p->k_strides, b, h, p->kv_len,
                              p->head_dim, NULL);
      bad += count_not_finite(cache_dtype(p), inputs->v, &p->v_strides, b, h, p->kv_len,
                              p->head_dim, &first_bad[(int64_t)b * p->kv_heads + h]);
    }
  }
  return bad == 0;
}

/* Scans all of O and LSE, whatever the plan. */
static void scan_outputs(const Problem *p, const HostOutputs *outputs, bool inputs_finite,
                         CheckResult *result) {
  int64_t unwritten = 0, nan = 0, unset = 0, inf = 0;
#pragma omp parallel for collapse(2) reduction(+ : unwritten, nan, unset, inf)
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->q_heads; ++h) {
      for (int q = 0; q < p->q_len; ++q) {
        const RowScan scan =
            scan_row(p->o_dtype, outputs->o + row_offset(&p->o_strides, b, h, q), p->head_dim);
        const float lse = outputs->lse[lse_index(p, (RowIndex){b, h, q})];
        unwritten += scan.unwritten + lse_is_unwritten(lse);
        nan += scan.nan + (isnan(lse) && !lse_is_unwritten(lse));
        unset += scan.unset + lse_is_unset(lse);
        inf += scan.inf;
      }
    }
  }
  result->values_unwritten = unwritten;
  if (inputs_finite) {
    result->values_nan = nan;
    result->values_unset = unset;
    result->values_inf = inf;
  }
}

typedef struct Comparison {
  Judgement *judgement;
  const int64_t *first_bad;
} Comparison;

/* True if NaN or Inf of a masked key may be in this row: a kernel that multiplies whole tiles, up
 * to the last key that its query tile attends, computes 0 * NaN = NaN. */
static bool reached_by_bad_v(const Judgement *j, RowIndex row, int64_t first_bad) {
  const Problem *p = j->problem;
  if (!j->tiles->multiplies_masked_keys || first_bad == INT64_MAX) return false;
  const int block_m = j->tiles->block_m, block_n = j->tiles->block_n;
  const int first = row.q / block_m * block_m;
  const int end = first + block_m < p->q_len ? first + block_m : p->q_len;
  for (int q = first; q < end; ++q) {
    const int64_t keys = mask_row_end(j->inputs->mask, row.batch, row.head, q, block_n);
    if (first_bad < (keys + block_n - 1) / block_n * block_n) return true;
  }
  return false;
}

/* Compares NaN, Inf and unwritten elements, and sets them to 0 in `o` and `expected`. */
static void compare_special(const uint16_t *bits, double *o, double *expected, int dim,
                            RowFinding *finding) {
  for (int d = 0; d < dim; ++d) {
    if (bits[d] == OUTPUT_POISON) {
      ++finding->unwritten;
    } else if (isnan(expected[d])) {
      finding->nan_expected = true;
      finding->misplaced_number |= !isnan(o[d]);
    } else if (isinf(expected[d])) { /* or NaN: a prob of 0 in fp32, times Inf */
      finding->misplaced_number |= o[d] != expected[d] && !isnan(o[d]);
    } else if (isnan(o[d])) {
      ++finding->nan;
    } else if (isinf(o[d])) {
      ++finding->inf;
    } else {
      continue;
    }
    o[d] = expected[d] = 0;
  }
}

static void compare_row(void *context, size_t index, const ReferenceRow *reference) {
  const Comparison *c = context;
  const Judgement *j = c->judgement;
  const Problem *p = j->problem;
  const RowIndex row = j->plan->rows[index];
  RowFinding *finding = &j->findings[index];
  const uint16_t *bits = output_row(j, row);
  const float lse = j->outputs->lse[lse_index(p, row)];
  *finding =
      (RowFinding){.lse_error = lse_distance(lse, reference->lse, reference->score_size),
                   .lse_nan = isnan(lse) && !isnan(reference->lse) && !lse_is_unwritten(lse)};
  const int64_t first_bad =
      c->first_bad[(int64_t)row.batch * p->kv_heads + kv_head_of(p, row.head)];
  if (reached_by_bad_v(j, row, first_bad)) {
    finding->not_compared = true;
    finding->unwritten = scan_row(p->o_dtype, bits, p->head_dim).unwritten;
    return;
  }
  double o[MAX_HEAD_DIM], expected[MAX_HEAD_DIM];
  for (int d = 0; d < p->head_dim; ++d) o[d] = element_value(p->o_dtype, bits[d]);
  memcpy(expected, reference->o, sizeof(double) * (size_t)p->head_dim);
  compare_special(bits, o, expected, p->head_dim, finding);
  if (finding->nan_expected) return;
  finding->distance = row_distance(o, expected, p->head_dim);
  finding->norm = row_length(expected, p->head_dim);
  finding->limits = row_limits(p, reference);
  if (finding->norm > 0) {
    const double norm = row_length(reference->o, p->head_dim), base = finding->limits.base;
    finding->base_error = base / norm;
    finding->usual_error =
        fmin(base / norm, finding->limits.likely / norm + unit_roundoff(p->o_dtype));
    double product = 0;
    for (int d = 0; d < p->head_dim; ++d) product += (o[d] - reference->base[d]) * expected[d];
    finding->gain = product / (finding->norm * finding->norm);
  }
  const double limit = row_tolerance(2 * least_error(p->dtype), finding->norm, &finding->limits);
  finding->values_wrong = finding->unwritten + finding->nan + finding->inf;
  for (int d = 0; d < p->head_dim; ++d) {
    finding->values_wrong += fabs(o[d] - expected[d]) > limit / sqrt(p->head_dim);
  }
  /* If the terms are parallel, their errors add up to twice the likely length. All keys are read
   * again to know this, so only where it may decide. */
  RowLimits *limits = &finding->limits;
  if (finding->distance > limit) {
    for (int d = 0; d < p->head_dim; ++d) o[d] = (o[d] - expected[d]) / finding->distance;
    limits->likely = fmax(limits->likely, 2 * unit_roundoff(p->dtype) * spread_along(reference, o));
  }
}

/* The faults of a row; finding->share must be set. */
static int faults_of(const RowFinding *finding) {
  int faults = 0;
  if (finding->unwritten) faults |= FAULT_UNWRITTEN;
  if (finding->nan || finding->inf) faults |= FAULT_NAN;
  if (!(finding->share <= 1) || finding->misplaced_number) faults |= FAULT_VALUE;
  if (!(finding->lse_error <= 1)) faults |= FAULT_LSE;
  return faults;
}

/* Compares the error of a row with its tolerance. */
static void compare_with_allowed(RowFinding *finding, double cap) {
  const double allowed = row_tolerance(cap, finding->norm, &finding->limits);
  finding->not_judged = finding->norm > 0 && allowed >= finding->norm;
  finding->share = finding->distance == 0 ? 0 : finding->distance / allowed;
  if (finding->nan || finding->inf) finding->share = INFINITY;
}

/* The averages over the rows `first` to `end` - 1, e4m3 only. The errors of P are large, but
 * independent, so that averages over many rows are sharper than the limits of a row: rounding P to
 * fewer bits makes the mean error larger, a wrong scale makes rows longer or shorter. */
static void judge_averages(const RowFinding *findings, size_t first, size_t end,
                           CheckResult *result) {
  double error = 0, base = 0, base_squares = 0, gain = 0, gain_squares = 0, count = 0;
  for (size_t i = first; i < end; ++i) {
    const RowFinding *f = &findings[i];
    if (f->norm == 0 || f->not_compared || f->nan_expected || f->not_judged) continue;
    ++count;
    error += f->distance / f->norm;
    base += f->base_error;
    base_squares += f->base_error * f->base_error;
    gain += f->gain;
    gain_squares += f->gain * f->gain;
  }
  if (count < LEAST_ROWS) return;
  /* DEVIATIONS standard deviations of the sums. */
  const double most_error =
      fmax(MEAN_ERROR * base + DEVIATIONS * sqrt(base_squares), MEAN_LOSS * count);
  const double most_gain = MEAN_LOSS * count + DEVIATIONS * sqrt(gain_squares);
  result->mean_error_share = fmax(result->mean_error_share, error / most_error);
  result->mean_gain_share = fmax(result->mean_gain_share, fabs(gain) / most_gain);
}

static void judge_heads(const CheckPlan *plan, const RowFinding *findings, CheckResult *result) {
  size_t first = 0;
  judge_averages(findings, 0, plan->count, result);
  for (size_t i = 1; i <= plan->count; ++i) {
    const RowIndex *row = &plan->rows[i], *before = &plan->rows[i - 1];
    if (i < plan->count && row->batch == before->batch && row->head == before->head) continue;
    judge_averages(findings, first, i, result);
    first = i;
  }
}

static void judge(const Problem *p, const CheckPlan *plan, RowFinding *findings, bool inputs_finite,
                  CheckResult *result) {
  double largest = least_error(p->dtype), sum = 0;
  for (size_t i = 0; i < plan->count; ++i) largest = fmax(largest, findings[i].usual_error);
  result->allowed_error = 2 * largest;
  size_t summed = 0;
  for (size_t i = 0; i < plan->count; ++i) {
    RowFinding *finding = &findings[i];
    compare_with_allowed(finding, result->allowed_error);
    finding->faults = faults_of(finding);
    result->max_lse_error = fmax(result->max_lse_error, finding->lse_error);
    result->lse_wrong += (finding->faults & FAULT_LSE) != 0;
    result->values_wrong += (size_t)finding->values_wrong + !(finding->lse_error <= 1);
    result->rows_wrong += (finding->faults & FAULTS_OF_O) != 0;
    result->rows_not_compared += finding->not_compared;
    result->rows_nan_expected += finding->nan_expected && !(finding->faults & FAULTS_OF_O);
    result->rows_not_judged += finding->not_judged;
    result->judged |= !finding->not_compared && !finding->nan_expected && !finding->not_judged;
    if (!inputs_finite) { /* else scan_outputs() has counted them in all rows */
      result->values_nan += finding->nan + finding->lse_nan;
      result->values_inf += finding->inf;
    }
    if (finding->not_compared || finding->nan_expected) continue;
    result->max_share = fmax(result->max_share, finding->share);
    const bool finite = !finding->nan && !finding->inf;
    const double error = finding->distance == 0 ? 0 : finding->distance / finding->norm;
    result->max_error = fmax(result->max_error, finite ? error : INFINITY);
    if (isfinite(error) && finite) {
      sum += error;
      ++summed;
    }
  }
  result->mean_error = summed ? sum / (double)summed : 0;
  if (p->dtype == DTYPE_E4M3) judge_heads(plan, findings, result);
  result->rows_checked = plan->count - result->rows_not_compared;
}

static void count_guards(const HostOutputs *outputs, CheckResult *result) {
  for (int i = 0; i < 2 * GUARD_BYTES; ++i) {
    const int side = i / GUARD_BYTES, byte = i % GUARD_BYTES;
    result->guard_bytes_touched += guard_is_touched(outputs->o_guard[side], byte);
    result->guard_bytes_touched += guard_is_touched(outputs->lse_guard[side], byte);
  }
}

/* check_outputs() with its buffer: first_bad [batch * kv_heads]. */
static bool check_with(Judgement *j, ReferenceProgress *progress, int64_t *first_bad,
                       Error *error) {
  CheckResult *result = &j->result;
  j->inputs_finite = scan_inputs(j->problem, j->inputs, first_bad);
  result->workspace_left = j->outputs->workspace_left;
  count_guards(j->outputs, result);
  scan_outputs(j->problem, j->outputs, j->inputs_finite, result);
  Comparison comparison = {j, first_bad};
  if (!reference_rows(j->problem, j->inputs, j->plan->rows, j->plan->count, compare_row,
                      &comparison, progress, error)) {
    return false;
  }
  judge(j->problem, j->plan, j->findings, j->inputs_finite, result);
  result->right = result->guard_bytes_touched == 0 && result->workspace_left == 0 &&
                  result->values_unwritten == 0 && result->values_nan == 0 &&
                  result->values_inf == 0 && result->rows_wrong == 0 && result->lse_wrong == 0 &&
                  result->mean_error_share <= 1 && result->mean_gain_share <= 1;
  return true;
}

bool check_outputs(Judgement *j, ReferenceProgress *progress, Error *error) {
  const size_t kv_heads = (size_t)j->problem->batch * (size_t)j->problem->kv_heads;
  int64_t *first_bad = calloc(kv_heads, sizeof *first_bad);
  j->findings = calloc(j->plan->count + 1, sizeof *j->findings); /* a plan may be empty */
  j->result = (CheckResult){0};
  const bool ok =
      first_bad && j->findings
          ? check_with(j, progress, first_bad, error)
          : fail(error, EXIT_DEVICE, "not enough memory to check %zu rows; use --check rows:R",
                 j->plan->count);
  free(first_bad);
  return ok;
}

void judgement_free(Judgement *judgement) {
  free(judgement->findings);
  judgement->findings = NULL;
}
