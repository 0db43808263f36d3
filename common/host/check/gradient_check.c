/** @file The verdict on dQ, dK and dV. */
#include "host/check/gradient_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of GradientRow::fp32_size: eight roundings to fp32, for exp and sums over up to 256 columns. */
static const double FP32_ERROR = 0x1p-21;

static int rows_of(const Problem *p, Gradient g) {
  return g == GRADIENT_Q ? p->q_len : p->kv_len;
}

static int heads_of(const Problem *p, Gradient g) {
  return g == GRADIENT_Q ? p->q_heads : p->kv_heads;
}

static int64_t not_finite(Dtype dtype, const uint16_t *x, int dim) {
  const RowScan scan = scan_row(dtype, x, dim);
  return scan.unwritten + scan.nan + scan.inf;
}

/* True if no input can make NaN: LSE is -inf only where nothing is attended. */
static bool scan_inputs(const Problem *p, const HostBackwardInputs *in) {
  int64_t bad = 0;
#pragma omp parallel for collapse(2) reduction(+ : bad)
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < p->q_heads; ++h) {
      for (int64_t q = 0; q < p->q_len; ++q) {
        const int64_t o = row_offset(&p->o_strides, b, h, q);
        const KeySpan keys = keys_of_query(p, in, b, h, q);
        bad += not_finite(p->dtype, in->q + row_offset(&p->q_strides, b, h, q), p->head_dim) +
               not_finite(p->dtype, in->o + o, p->head_dim) +
               not_finite(p->dtype, in->d_o + o, p->head_dim);
        bad += keys.first < keys.end && !isfinite(in->lse[lse_index(p, (RowIndex){b, h, (int)q})]);
      }
      for (int64_t k = 0; h < p->kv_heads && k < p->kv_len; ++k) {
        bad += not_finite(p->dtype, in->k + row_offset(&p->k_strides, b, h, k), p->head_dim) +
               not_finite(p->dtype, in->v + row_offset(&p->v_strides, b, h, k), p->head_dim);
      }
    }
  }
  return bad == 0;
}

/* Scans all of a gradient, whatever the plan. */
static void scan_outputs(GradientJudgement *j, Gradient g) {
  const Problem *p = j->problem;
  int64_t unwritten = 0, nan = 0, unset = 0, inf = 0;
#pragma omp parallel for collapse(2) reduction(+ : unwritten, nan, unset, inf)
  for (int b = 0; b < p->batch; ++b) {
    for (int h = 0; h < heads_of(p, g); ++h) {
      for (int row = 0; row < rows_of(p, g); ++row) {
        const RowScan scan =
            scan_row(p->dtype, gradient_row(j, g, (RowIndex){b, h, row}), p->head_dim);
        unwritten += scan.unwritten;
        nan += scan.nan;
        unset += scan.unset;
        inf += scan.inf;
      }
    }
  }
  GradientResult *result = &j->result.gradients[g];
  result->unwritten = unwritten;
  if (!j->inputs_finite) return;
  result->nan = nan;
  result->inf = inf;
  j->result.values_unset += unset;
}

/* Compares what is not a number, and sets it to 0 in `x` and `expected`. Where rounding to 16 bits
 * overflows, Inf is right. */
static void compare_special(const GradientRow *reference, const uint16_t *bits, double *x,
                            double *expected, int dim, GradientFinding *finding) {
  for (int d = 0; d < dim; ++d) {
    if (bits[d] == OUTPUT_POISON) {
      ++finding->unwritten;
    } else if (!isfinite(expected[d])) {
      finding->nan_expected = true;
      finding->misplaced_number |= isfinite(x[d]) != 0;
    } else if (isnan(x[d])) {
      ++finding->nan;
    } else if (isinf(x[d])) {
      finding->inf += x[d] != reference->base[d];
    } else {
      continue;
    }
    x[d] = expected[d] = 0;
  }
}

static void compare_row(const GradientJudgement *j, Gradient g, size_t index,
                        const GradientRow *reference) {
  const Problem *p = j->problem;
  const double u = unit_roundoff(p->dtype);
  const int dim = p->head_dim;
  GradientFinding *finding = &j->findings[g][index];
  const uint16_t *bits = gradient_row(j, g, j->plans[g]->rows[index]);
  double x[MAX_HEAD_DIM], expected[MAX_HEAD_DIM], base[MAX_HEAD_DIM];
  for (int d = 0; d < dim; ++d) x[d] = element_value(p->dtype, bits[d]);
  memcpy(expected, reference->value, sizeof(double) * (size_t)dim);
  *finding = (GradientFinding){0};
  compare_special(reference, bits, x, expected, dim, finding);
  /* A tensor core multiplies what is masked by 0, and 0 * NaN is NaN. */
  finding->not_compared = !j->inputs_finite && j->tiles->multiplies_masked_keys &&
                          !finding->nan_expected && !finding->unwritten;
  if (finding->nan_expected || finding->not_compared) return;
  for (int d = 0; d < dim; ++d) base[d] = isfinite(reference->base[d]) ? reference->base[d] : 0;
  finding->distance = row_distance(x, expected, dim);
  finding->norm = row_length(expected, dim);
  finding->limits = (RowLimits){.base = row_distance(base, expected, dim),
                                .most = row_length(reference->most, dim),
                                .likely = 2 * reference->spread};
  finding->fp32 = FP32_ERROR * reference->fp32_size;
  /* Less than this may be what sums of doubles have lost, or is 0 in 16 bits. */
  if (finding->norm > fmax(finding->fp32, (double)element_value(p->dtype, 1))) {
    finding->usual_error = fmin(finding->limits.base / finding->norm,
                                2 * reference->normal_spread / finding->norm + u);
  }
}

static void compare_query(void *context, size_t index, const GradientRow rows[2]) {
  compare_row(context, GRADIENT_Q, index, &rows[0]);
}

static void compare_key(void *context, size_t index, const GradientRow rows[2]) {
  compare_row(context, GRADIENT_K, index, &rows[0]);
  compare_row(context, GRADIENT_V, index, &rows[1]);
}

static void judge_row(GradientFinding *f, double allowed_error) {
  const double allowed = row_tolerance(allowed_error, f->norm, &f->limits) + f->fp32;
  f->not_judged = f->norm > 0 ? allowed >= f->norm : allowed > 0;
  f->share = f->distance == 0 ? 0 : f->distance / allowed;
  if (f->nan || f->inf) f->share = INFINITY;
  f->wrong = f->unwritten || f->misplaced_number || !(f->share <= 1);
}

static void judge(GradientJudgement *j, Gradient g) {
  const CheckPlan *plan = j->plans[g];
  GradientResult *result = &j->result.gradients[g];
  double largest = unit_roundoff(j->problem->dtype), sum = 0;
  for (size_t i = 0; i < plan->count; ++i) largest = fmax(largest, j->findings[g][i].usual_error);
  result->allowed_error = 2 * largest;
  size_t summed = 0;
  for (size_t i = 0; i < plan->count; ++i) {
    GradientFinding *f = &j->findings[g][i];
    j->result.rows_not_compared += f->not_compared;
    if (f->not_compared) continue;
    ++result->rows_checked;
    judge_row(f, result->allowed_error);
    result->rows_wrong += f->wrong;
    j->result.rows_nan_expected += f->nan_expected && !f->wrong;
    if (!j->inputs_finite) { /* else scan_outputs() has counted them in all rows */
      result->nan += f->nan;
      result->inf += f->inf;
    }
    if (f->nan_expected) continue;
    result->rows_not_judged += f->not_judged;
    j->result.judged |= !f->not_judged;
    result->max_share = fmax(result->max_share, f->share);
    if (f->norm == 0) continue;
    result->max_error = fmax(result->max_error, f->distance / f->norm);
    sum += f->distance / f->norm;
    ++summed;
  }
  result->mean_error = summed > 0 ? sum / (double)summed : 0;
}

/* The findings on all gradients as those of one result. */
static void combine(CheckResult *all) {
  const GradientResult *worst = &all->gradients[0];
  for (int g = 0; g < GRADIENTS; ++g) {
    const GradientResult *one = &all->gradients[g];
    all->rows_checked += one->rows_checked;
    all->rows_wrong += one->rows_wrong;
    all->rows_not_judged += one->rows_not_judged;
    all->values_unwritten += one->unwritten;
    all->values_nan += one->nan;
    all->values_inf += one->inf;
    if (one->max_share > worst->max_share) worst = one;
  }
  all->values_wrong = all->rows_wrong;
  all->max_error = worst->max_error;
  all->mean_error = worst->mean_error;
  all->allowed_error = worst->allowed_error;
  all->max_share = worst->max_share;
  all->right = all->guard_bytes_touched == 0 && all->workspace_left == 0 &&
               all->values_unwritten == 0 && all->values_nan == 0 && all->values_inf == 0 &&
               all->rows_wrong == 0;
}

static void count_guards(const HostOutputs *outputs, CheckResult *result) {
  for (int i = 0; i < GRADIENTS * 2 * GUARD_BYTES; ++i) {
    const uint8_t *guard = outputs->gradient_guards[i / GUARD_BYTES / 2][i / GUARD_BYTES % 2];
    result->guard_bytes_touched += guard_is_touched(guard, i % GUARD_BYTES);
  }
}

bool check_gradients(GradientJudgement *j, ReferenceProgress *progress, Error *error) {
  const CheckPlan *queries = j->plans[GRADIENT_Q], *keys = j->plans[GRADIENT_K];
  const Problem *p = j->problem;
  j->result = (CheckResult){.workspace_left = j->outputs->workspace_left};
  for (int g = 0; g < GRADIENTS; ++g) {
    j->findings[g] = calloc(j->plans[g]->count + 1, sizeof *j->findings[g]);
    if (j->findings[g] == NULL) {
      return fail(error, EXIT_DEVICE, "not enough memory to check %zu rows; use --check rows:R",
                  j->plans[g]->count);
    }
  }
  if (!row_dots(p, j->inputs, &j->dots, error)) return false;
  j->inputs_finite = scan_inputs(p, j->inputs);
  count_guards(j->outputs, &j->result);
  for (int g = 0; g < GRADIENTS; ++g) scan_outputs(j, g);
  if (!gradient_rows(p, j->inputs, &j->dots, false, queries->rows, queries->count, compare_query, j,
                     progress, error) ||
      !gradient_rows(p, j->inputs, &j->dots, true, keys->rows, keys->count, compare_key, j,
                     progress, error)) {
    return false;
  }
  for (int g = 0; g < GRADIENTS; ++g) judge(j, g);
  combine(&j->result);
  return true;
}

void gradient_judgement_free(GradientJudgement *j) {
  row_dots_free(&j->dots);
  for (int g = 0; g < GRADIENTS; ++g) free(j->findings[g]);
}
