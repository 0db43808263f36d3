/** @file The failure text of a backward step: what is wrong with dQ, dK and dV, and where. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "host/report/failure.h"

/* The first wrong row of a gradient while its elements are compared. */
typedef struct FirstRow {
  const GradientJudgement *judgement;
  Gradient gradient;
  RowIndex row;
  FILE *out;
} FirstRow;

static const char *value_text(uint16_t bits, double value, char text[32]) {
  if (bits == OUTPUT_POISON) return "never written";
  if (isnan(value)) return "nan";
  snprintf(text, 32, "%.8g", value);
  return text;
}

/* Writes the first element that is no number where one belongs, or else the first that is wrong by
 * more than half of the row's error for each column. */
static void write_first(void *context, size_t index, const GradientRow rows[2]) {
  const FirstRow *first = context;
  const GradientJudgement *j = first->judgement;
  const Problem *p = j->problem;
  const double *expected = rows[first->gradient == GRADIENT_V].value;
  const uint16_t *bits = gradient_row(j, first->gradient, first->row);
  double x[MAX_HEAD_DIM], squares = 0;
  char is[32], should[32];
  int d = 0;
  (void)index;
  for (int i = 0; i < p->head_dim; ++i) {
    x[i] = element_value(p->dtype, bits[i]);
    squares += (x[i] - expected[i]) * (x[i] - expected[i]);
  }
  const double share = isfinite(squares) ? 0.5 * sqrt(squares / p->head_dim) : INFINITY;
  while (d + 1 < p->head_dim && isfinite(x[d]) == isfinite(expected[d]) &&
         !(fabs(x[d] - expected[d]) > share)) {
    ++d;
  }
  fprintf(first->out, "  first: %s[b=%d, h=%d, %s=%d, d=%d] = %s, expected %s\n",
          gradient_name(first->gradient), first->row.batch, first->row.head,
          first->gradient == GRADIENT_Q ? "q" : "k", first->row.q, d, value_text(bits[d], x[d], is),
          value_text(0, expected[d], should));
}

/* Writes which rows, of which heads, are wrong. */
static bool describe_places(const GradientJudgement *j, Gradient g, FILE *out) {
  const Problem *p = j->problem;
  const CheckPlan *plan = j->plans[g];
  const bool of_keys = g != GRADIENT_Q;
  const int heads = of_keys ? p->kv_heads : p->q_heads, rows = of_keys ? p->kv_len : p->q_len;
  uint8_t *seen_heads = calloc((size_t)p->batch * (size_t)heads, 1);
  uint8_t *seen_rows = calloc((size_t)rows, 1);
  const bool ok = seen_heads != NULL && seen_rows != NULL;
  for (int of_rows = 0; ok && of_rows < 2; ++of_rows) {
    for (size_t i = 0; i < plan->count; ++i) {
      const GradientFinding *finding = &j->findings[g][i];
      const RowIndex row = plan->rows[i];
      uint8_t *head = &seen_heads[row.batch * heads + row.head];
      if (finding->not_compared) continue;
      const uint8_t flag = finding->wrong ? INDEX_FAULTY : INDEX_RIGHT;
      if (!of_rows) *head |= flag;
      if (of_rows && (*head & INDEX_FAULTY)) seen_rows[row.q] |= flag;
    }
  }
  if (ok) {
    fprintf(out, "  wrong %s: ", gradient_name(g));
    describe_indices(out, of_keys ? "key" : "row", seen_rows, rows,
                     of_keys ? "key tile" : "query tile",
                     of_keys ? j->tiles->block_n : j->tiles->block_m);
    fputs(" of ", out);
    describe_indices(out, "head", seen_heads, (int64_t)p->batch * heads, "batch entry", heads);
    fputs(p->batch > 1 ? " (heads counted through the batch)\n" : "\n", out);
  }
  free(seen_heads);
  free(seen_rows);
  return ok;
}

/* Writes where a gradient is wrong, its first wrong element, and the mistake that explains the
 * worst row. */
static bool report_gradient(const GradientJudgement *j, Gradient g, FILE *out, Error *error) {
  const CheckPlan *plan = j->plans[g];
  const GradientResult *result = &j->result.gradients[g];
  size_t first = plan->count, worst = plan->count;
  for (size_t i = 0; i < plan->count; ++i) {
    const GradientFinding *f = &j->findings[g][i];
    if (f->wrong && first == plan->count) first = i;
    if (!f->wrong || f->unwritten || !isfinite(f->share)) continue;
    if (worst == plan->count || f->share > j->findings[g][worst].share) worst = i;
  }
  if (first == plan->count) return true;
  fprintf(out, "  %s: %zu of %zu rows, largest error %.3g, allowed %.3g\n", gradient_name(g),
          result->rows_wrong, result->rows_checked, result->max_error, result->allowed_error);
  FirstRow row = {j, g, plan->rows[first], out};
  if (!gradient_rows(j->problem, j->inputs, &j->dots, g != GRADIENT_Q, &row.row, 1, write_first,
                     &row, NULL, error)) {
    return false;
  }
  if (!describe_places(j, g, out)) {
    return fail(error, EXIT_DEVICE, "not enough memory for the report of the failure");
  }
  if (worst == plan->count) return true;
  char text[160];
  double distance;
  row.row = plan->rows[worst];
  explain_gradient(j, g, row.row, text, &distance);
  if (text[0] == '\0') return true;
  fprintf(out, "  %s[b=%d, h=%d, %s=%d] is explained (to %.2g) by this: %s\n", gradient_name(g),
          row.row.batch, row.row.head, g == GRADIENT_Q ? "q" : "k", row.row.q, distance, text);
  return true;
}

static void report_guards(const HostOutputs *outputs, FILE *out) {
  for (int i = 0; i < 2 * GRADIENTS; ++i) {
    const int side = i % 2;
    int count = 0, nearest = 0;
    for (int byte = 0; byte < GUARD_BYTES; ++byte) {
      if (!guard_is_touched(outputs->gradient_guards[i / 2][side], byte)) continue;
      if (count == 0 || side == 0) nearest = side ? byte : GUARD_BYTES - 1 - byte;
      ++count;
    }
    if (count == 0) continue;
    fprintf(out, "  %d guard byte%s %s %s overwritten, the nearest %d bytes away\n", count,
            count == 1 ? "" : "s", side ? "after" : "before", gradient_name(i / 2), nearest);
  }
}

bool report_gradient_failure(const GradientJudgement *j, FILE *out, Error *error) {
  const CheckResult *r = &j->result;
  fprintf(out, "WRONG: %zu of %zu checked rows of dQ, %zu of %zu of dK, %zu of dV\n",
          r->gradients[GRADIENT_Q].rows_wrong, r->gradients[GRADIENT_Q].rows_checked,
          r->gradients[GRADIENT_K].rows_wrong, r->gradients[GRADIENT_K].rows_checked,
          r->gradients[GRADIENT_V].rows_wrong);
  report_guards(j->outputs, out);
  if (r->workspace_left) {
    fprintf(out,
            "  not 0 after the pass: %zu byte%s of the workspace, the first is byte %zu; "
            "Step::workspace_zero promises it\n",
            r->workspace_left, r->workspace_left == 1 ? "" : "s", j->outputs->workspace_first);
  }
  for (int g = 0; g < GRADIENTS; ++g) {
    const GradientResult *one = &r->gradients[g];
    if (one->unwritten + one->nan + one->inf == 0) continue;
    fprintf(out,
            "  %s: %" PRId64 " values never written, %" PRId64 " NaN and %" PRId64
            " Inf where a number belongs\n",
            gradient_name(g), one->unwritten, one->nan, one->inf);
  }
  if (r->values_unset) {
    fprintf(out, "  %" PRId64 " NaN from values that were never set; --report may name the line\n",
            r->values_unset);
  }
  for (int g = 0; g < GRADIENTS; ++g) {
    if (!report_gradient(j, g, out, error)) return false;
  }
  return true;
}
