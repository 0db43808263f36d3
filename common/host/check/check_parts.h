/**
 * @file
 * What the parts of the checker share: check.c judges, check_report.c tells, check_map.c draws,
 * check_pattern.c puts sets of rows into words, check_diagnose.c looks for the mistake. Of interest
 * to nobody else.
 */
#ifndef HOST_CHECK_PARTS_H
#define HOST_CHECK_PARTS_H

#include "host/check/check.h"

/** What can be wrong with a row; a row may have several faults. */
enum {
  FAULT_UNWRITTEN = 1, /**< elements of O still hold the poison */
  FAULT_NAN = 2,       /**< NaN or Inf in O that the reference does not have */
  FAULT_VALUE = 4,     /**< O is over the tolerance, or a number where NaN or Inf belongs */
  FAULT_LSE = 8,       /**< LSE unwritten or over the tolerance */
  FAULTS_OF_O = FAULT_UNWRITTEN | FAULT_NAN | FAULT_VALUE
};

/** One row of the plan, compared with the reference. */
typedef struct RowFinding {
  double distance;   /**< ||O - ref|| */
  double norm;       /**< ||ref|| */
  double base_error; /**< ||base - ref|| / ||ref||; 0 where ref is 0 */
  double own_limit;  /**< what rounding can do to this row at most, see row_limit() */
  double share;      /**< of what the row is allowed; right if <= 1 */
  bool not_judged;   /**< the row is allowed an error as large as itself */
  double lse_error;  /**< |LSE - ref| relative to what is allowed */
  int unwritten, nan, inf;
  bool lse_nan;          /**< NaN, neither expected nor the poison */
  bool misplaced_number; /**< a number where the reference is NaN or infinite */
  bool nan_expected;
  bool not_compared;
  int faults;
} RowFinding;

/** How the checker sees a row of the output, of the plan or not. */
typedef struct RowView {
  RowIndex row;
  bool checked;      /**< compared with the reference */
  bool not_compared; /**< V holds NaN or Inf */
  int faults;
  double share; /**< error by what is allowed; 0 if not checked */
} RowView;

/** Everything known when the verdict is reached. */
typedef struct Judgement {
  const Problem *problem;
  const HostInputs *inputs;
  const HostOutputs *outputs;
  const CheckPlan *plan;
  const Description *tiles;
  const RowFinding *findings; /**< one for each row of the plan */
  bool inputs_finite;         /**< no NaN, no Inf in Q, K and V: none may be in the output */
  const CheckResult *result;
} Judgement;

/** Counts of special values in one row of O. */
typedef struct RowScan {
  int unwritten, nan, inf;
} RowScan;

RowScan scan_row(Dtype dtype, const uint16_t *o, int head_dim);

/** True if the bits are the poison that LSE was filled with. */
bool lse_is_unwritten(float lse);

/** Index of a row in LSE. */
static inline int64_t lse_index(const Problem *problem, RowIndex row) {
  return ((int64_t)row.batch * problem->q_heads + row.head) * problem->q_len + row.q;
}

/** First element of a row of O. */
static inline const uint16_t *output_row(const Judgement *judgement, RowIndex row) {
  return judgement->outputs->o +
         row_offset(&judgement->problem->o_strides, row.batch, row.head, row.q);
}

/**
 * What rounding can do to a row by its own numbers: each P and O rounded once, u (||P |V||| +
 * ||ref||), or what it did to the baseline if that is more (subnormal numbers round more coarsely).
 * Half of what is allowed; the other half is for the order of the sums.
 */
double row_limit(const Problem *problem, const ReferenceRow *reference);

/** ||a - b|| / ||b||; 0 if both are zero. */
double relative_distance(const double *a, const double *b, int dim);

typedef void RowVisitor(void *context, const RowView *view);

/** Visits every row of the output, in the order of batch, head and q. */
void visit_rows(const Judgement *judgement, RowVisitor *visit, void *context);

/** Draws heads and query tiles as text, at most 40 lines of 64 columns. */
void draw_fault_map(const Judgement *judgement, FILE *out);

/** Writes the failure text. */
bool report_failure(const Judgement *judgement, FILE *out, Error *error);

/** What is known of an index: of a row, a head, a column. */
enum { INDEX_RIGHT = 1, INDEX_FAULTY = 2 };

/**
 * Writes which of `n` indices are faulty in the fewest words that are true: "row 5", "the last 17
 * rows", "rows 8..15 of every 16", "every head but 0". `seen` holds INDEX_RIGHT, INDEX_FAULTY, both
 * or neither. `tile` indices make a `tile_noun`; 0 if there are none.
 */
void describe_indices(FILE *out, const char *noun, const uint8_t *seen, int64_t n,
                      const char *tile_noun, int tile);

/** Writes the known mistake that explains a wrong row best, if one explains it within the
 * tolerance. */
bool diagnose_row(const Judgement *judgement, RowIndex row, FILE *out, Error *error);

#endif
