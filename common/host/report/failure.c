/** @file The failure text: what is wrong, and where. */
#include "host/report/failure.h"

#include <math.h>
#include <stdlib.h>

enum { EXAMINED_ROWS = 16 };

/* Positions of the rows with one fault. */
typedef struct FaultPlaces {
  const Problem *problem;
  int fault;
  int64_t rows;          /* with the fault */
  uint8_t *heads;        /* [batch * q_heads] */
  uint8_t *rows_of_head; /* [q_len], of the heads with the fault */
} FaultPlaces;

static int64_t head_number(const Problem *problem, RowIndex row) {
  return (int64_t)row.batch * problem->q_heads + row.head;
}

static void note_head(void *context, const RowView *view) {
  FaultPlaces *places = context;
  const bool faulty = view->faults & places->fault;
  if (!faulty && !view->checked) return;
  places->rows += faulty;
  places->heads[head_number(places->problem, view->row)] |= faulty ? INDEX_FAULTY : INDEX_RIGHT;
}

static void note_row(void *context, const RowView *view) {
  FaultPlaces *places = context;
  const bool faulty = view->faults & places->fault;
  if (!faulty && !view->checked) return;
  if (!(places->heads[head_number(places->problem, view->row)] & INDEX_FAULTY)) return;
  places->rows_of_head[view->row.q] |= faulty ? INDEX_FAULTY : INDEX_RIGHT;
}

static bool describe_places(const Judgement *j, int fault, const char *name, FILE *out) {
  const Problem *p = j->problem;
  const int64_t heads = (int64_t)p->batch * p->q_heads;
  FaultPlaces places = {.problem = p, .fault = fault};
  places.heads = calloc((size_t)heads, 1);
  places.rows_of_head = calloc((size_t)p->q_len, 1);
  const bool ok = places.heads && places.rows_of_head;
  if (ok) {
    visit_rows(j, note_head, &places);
    visit_rows(j, note_row, &places);
  }
  if (places.rows > 0) {
    fprintf(out, "  %s in %lld row%s: ", name, (long long)places.rows, places.rows == 1 ? "" : "s");
    describe_indices(out, "row", places.rows_of_head, p->q_len, "query tile", j->tiles->block_m);
    fputs(" of ", out);
    describe_indices(out, "head", places.heads, heads, "batch entry", p->q_heads);
    if (p->batch > 1) fputs(" (heads counted through the batch)", out);
    fputc('\n', out);
  }
  free(places.heads);
  free(places.rows_of_head);
  return ok;
}

/* The first few rows with faults in O, and the first with a fault in LSE. */
typedef struct Examined {
  const Judgement *judgement;
  FILE *out;
  RowIndex rows[EXAMINED_ROWS];
  size_t count;
  bool has_lse_row;
  RowIndex lse_row;
  uint8_t columns[MAX_HEAD_DIM];
} Examined;

static void note_examined(void *context, const RowView *view) {
  Examined *examined = context;
  if (view->faults & FAULTS_OF_O && examined->count < EXAMINED_ROWS) {
    examined->rows[examined->count++] = view->row;
  }
  if (view->faults & FAULT_LSE && !examined->has_lse_row) {
    examined->has_lse_row = true;
    examined->lse_row = view->row;
  }
}

/* Absolute error of an element; INFINITY if it is unwritten or a misplaced NaN. */
static double element_error(uint16_t bits, double o, double expected) {
  if (bits == OUTPUT_POISON) return INFINITY;
  if (isnan(expected)) return isnan(o) ? 0 : INFINITY;
  if (o == expected) return 0; /* infinities too */
  return isnan(o) ? INFINITY : fabs(o - expected);
}

static const char UNWRITTEN[] = "never written";
static const char UNSET[] = "nan, written, from a value that was never set";

/* A value as text; the sign of NaN has no meaning and is left out. */
static const char *value_text(double value, char text[32]) {
  if (isnan(value)) return "nan";
  snprintf(text, 32, "%.8g", value);
  return text;
}

static const char *o_text(const Judgement *j, uint16_t bits, char text[32]) {
  if (bits == OUTPUT_POISON) return UNWRITTEN;
  if (bits == OUTPUT_UNSET && j->inputs_finite) return UNSET;
  return value_text(element_value(j->problem->o_dtype, bits), text);
}

static const char *lse_text(const Judgement *j, float lse, char text[32]) {
  if (lse_is_unwritten(lse)) return UNWRITTEN;
  if (lse_is_unset(lse) && j->inputs_finite) return UNSET;
  return value_text(lse, text);
}

/* Only scales of V in e4m3 let O be so large: otherwise V ends there, too. */
static const char *overflow_hint(const Problem *p, double expected) {
  return p->o_dtype == DTYPE_FP16 && fabs(expected) > 65504
             ? ": fp16 ends at 65504; --out-dtype bf16 has room"
             : "";
}

/* Marks the wrong columns of a row. Their error exceeds the row's tolerance / sqrt(head_dim), as at
 * least one does in a wrong row, and a tenth of the largest error, which excludes mere rounding. */
static void blame_columns(Examined *examined, size_t index, const ReferenceRow *reference) {
  const Judgement *j = examined->judgement;
  const Problem *p = j->problem;
  const RowIndex row = examined->rows[index];
  const uint16_t *bits = output_row(j, row);
  double errors[MAX_HEAD_DIM] = {0}, largest = 0;
  for (int d = 0; d < p->head_dim; ++d) {
    errors[d] = element_error(bits[d], element_value(p->o_dtype, bits[d]), reference->o[d]);
    largest = fmax(largest, errors[d]);
  }
  const double norm = row_length(reference->o, p->head_dim);
  const RowLimits limits = row_limits(p, reference);
  const double limit = row_tolerance(j->result.allowed_error, norm, &limits);
  const double share = limit / sqrt(p->head_dim);
  const double least = fmax(share, largest / 10); /* fmax() ignores a share of NaN */
  bool told = index > 0;
  for (int d = 0; d < p->head_dim; ++d) {
    const bool blame = errors[d] > least || errors[d] == INFINITY;
    examined->columns[d] |= blame ? INDEX_FAULTY : INDEX_RIGHT;
    if (!blame || told) continue;
    char is[32], should[32];
    fprintf(examined->out, "  first: O[b=%d, h=%d, q=%d, d=%d] = %s, expected %s%s\n", row.batch,
            row.head, row.q, d, o_text(j, bits[d], is), value_text(reference->o[d], should),
            overflow_hint(p, reference->o[d]));
    told = true;
  }
}

static void examine_o(void *context, size_t index, const ReferenceRow *reference) {
#pragma omp critical(examine_rows)
  blame_columns(context, index, reference);
}

/* What a wrong LSE is instead, if it is a known mistake. */
static const char *lse_mistake(double lse, double expected) {
  const double log2_e = 1.4426950408889634, near = 1e-4 * (1 + fabs(expected));
  if (isinf(expected)) return ": the row attends to no key";
  if (fabs(lse - expected * log2_e) < near) return ": it is a log2, not a natural logarithm";
  if (fabs(lse - expected / log2_e) < near) return ": it has the factor ln 2 once too often";
  return "";
}

static void examine_lse(void *context, size_t index, const ReferenceRow *reference) {
  (void)index;
  const Examined *examined = context;
  const Judgement *j = examined->judgement;
  const RowIndex row = examined->lse_row;
  const float lse = j->outputs->lse[lse_index(j->problem, row)];
  char is[32], should[32];
  fprintf(examined->out, "  first: LSE[b=%d, h=%d, q=%d] = %s, expected %s%s\n", row.batch,
          row.head, row.q, lse_text(j, lse, is), value_text(reference->lse, should),
          lse_mistake(lse, reference->lse));
}

/* Writes the first wrong elements, and the wrong columns of the first wrong rows. */
static bool describe_elements(const Judgement *j, FILE *out, Error *error) {
  Examined examined = {.judgement = j, .out = out};
  visit_rows(j, note_examined, &examined);
  if (!reference_rows(j->problem, j->inputs, examined.rows, examined.count, examine_o, &examined,
                      NULL, error)) {
    return false;
  }
  if (examined.has_lse_row && !reference_rows(j->problem, j->inputs, &examined.lse_row, 1,
                                              examine_lse, &examined, NULL, error)) {
    return false;
  }
  if (examined.count > 0) {
    if (examined.count == 1) {
      fputs("  in the wrong row: ", out);
    } else {
      fprintf(out, "  in the first %zu wrong rows: ", examined.count);
    }
    for (int d = 0; d < j->problem->head_dim; ++d) { /* wrong in one row is wrong */
      if (examined.columns[d] & INDEX_FAULTY) examined.columns[d] = INDEX_FAULTY;
    }
    describe_indices(out, "column", examined.columns, j->problem->head_dim, "", 0);
    fputs(" of D\n", out);
  }
  return true;
}

static void report_guards(const HostOutputs *outputs, FILE *out) {
  static const char *const names[2][2] = {{"before O", "after O"}, {"before LSE", "after LSE"}};
  for (int tensor = 0; tensor < 2; ++tensor) {
    for (int side = 0; side < 2; ++side) {
      const uint8_t *guard = tensor ? outputs->lse_guard[side] : outputs->o_guard[side];
      int count = 0, nearest = 0;
      for (int i = 0; i < GUARD_BYTES; ++i) {
        if (!guard_is_touched(guard, i)) continue;
        if (count == 0 || side == 0) nearest = side ? i : GUARD_BYTES - 1 - i;
        ++count;
      }
      if (count == 0) continue;
      fprintf(out, "  %d guard byte%s %s overwritten, the nearest %d bytes away\n", count,
              count == 1 ? "" : "s", names[tensor][side], nearest);
    }
  }
}

static void report_counts(const Judgement *j, FILE *out) {
  const CheckResult *r = &j->result;
  fprintf(out, "WRONG: %zu of %zu checked rows of O, %zu of LSE\n", r->rows_wrong, r->rows_checked,
          r->lse_wrong);
  report_guards(j->outputs, out);
  if (r->workspace_left) {
    fprintf(out,
            "  not 0 after the pass: %zu byte%s of the workspace, the first is byte %zu; "
            "Step::workspace_zero promises it\n",
            r->workspace_left, r->workspace_left == 1 ? "" : "s", j->outputs->workspace_first);
  }
  if (r->values_unwritten) {
    fprintf(out, "  %lld values never written\n", (long long)r->values_unwritten);
  }
  if (r->values_nan) {
    fprintf(out, "  %lld NaN where a number belongs\n", (long long)r->values_nan);
  }
  if (r->values_unset) {
    fprintf(out, "  %lld of them from values that were never set; --report may name the line\n",
            (long long)r->values_unset);
  }
  if (r->values_inf) {
    fprintf(out, "  %lld Inf where a finite number belongs\n", (long long)r->values_inf);
  }
  if (r->rows_wrong) {
    fprintf(out, "  largest error of a row %.3g, allowed %.3g (relative, Euclidean norm)\n",
            r->max_error, r->allowed_error);
  }
  if (r->mean_error_share > 1) {
    fprintf(out, "  mean error of a head or of all rows: %.2f times what rounding P explains\n",
            r->mean_error_share);
  }
  if (r->mean_gain_share > 1) {
    fprintf(out,
            "  mean length of rows of a head or of all: wrong by %.2f times what is allowed; "
            "look at the scales\n",
            r->mean_gain_share);
  }
}

/* Tells what the right results exclude, and whether all wrong rows attend to no key. */
static bool report_hints(const Judgement *j, FILE *out) {
  const CheckResult *r = &j->result;
  KeySpan *spans = malloc(sizeof *spans * (size_t)mask_most_spans(j->inputs->mask));
  size_t wrong = 0, empty = 0;
  if (spans == NULL) return false;
  for (size_t i = 0; i < j->plan->count; ++i) {
    const RowIndex row = j->plan->rows[i];
    if (j->findings[i].faults == 0) continue;
    ++wrong;
    empty += mask_row(j->inputs->mask, row.batch, row.head, row.q, spans) == 0;
  }
  free(spans);
  if (wrong > 0 && empty == wrong && j->inputs->rule.sink == NULL) {
    fputs("  all wrong rows attend to no key: their O must be 0 and their LSE -inf\n", out);
  } else if (r->rows_wrong > 0 && r->lse_wrong == 0) {
    fputs("  LSE is right: the scores and l are, so look at P V, the rescale of O, its store\n",
          out);
  } else if (wrong > 0 && r->rows_wrong == 0) {
    fputs("  O is right: look at what is stored as LSE\n", out);
  }
  return true;
}

/* Finds the row to diagnose: the one with the largest finite error. False if there is none. */
static bool worst_row(const Judgement *j, RowIndex *row) {
  double worst = 0;
  for (size_t i = 0; i < j->plan->count; ++i) {
    const RowFinding *finding = &j->findings[i];
    if ((finding->faults & FAULTS_OF_O) != FAULT_VALUE || finding->nan_expected) continue;
    if (isinf(finding->share) || finding->share <= worst) continue;
    worst = finding->share;
    *row = j->plan->rows[i];
  }
  return worst > 0;
}

/* Names the mistake that explains a row, if a known one does. */
static bool report_diagnosis(const Judgement *j, RowIndex row, FILE *out, Error *error) {
  Diagnosis d;
  if (!diagnose_row(j, row, &d, error)) return false;
  if (d.text[0] == '\0') return true;
  fprintf(out, "  O[b=%d, h=%d, q=%d] is explained (to %.2g) by this: %s%s\n", row.batch, row.head,
          row.q, d.distance, d.text, d.lse_agrees ? "" : " (LSE does not agree)");
  return true;
}

bool report_failure(const Judgement *judgement, FILE *out, Error *error) {
  report_counts(judgement, out);
  if (!describe_elements(judgement, out, error)) return false;
  RowIndex row = {0};
  if (!report_hints(judgement, out) ||
      !describe_places(judgement, FAULT_UNWRITTEN, "unwritten O", out) ||
      !describe_places(judgement, FAULT_NAN, "NaN or Inf in O", out) ||
      !describe_places(judgement, FAULT_VALUE, "wrong O", out) ||
      !describe_places(judgement, FAULT_LSE, "wrong LSE", out)) {
    return fail(error, EXIT_DEVICE, "not enough memory for the report of the failure");
  }
  draw_fault_map(judgement, out);
  return !worst_row(judgement, &row) || report_diagnosis(judgement, row, out, error);
}
