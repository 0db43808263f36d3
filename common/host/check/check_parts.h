/**
 * @file
 * Internal to the checker: check.c decides, check_report.c writes the failure text, check_map.c
 * draws, check_pattern.c describes sets of rows, check_diagnose.c looks for the mistake.
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

/** How far rounding P and O may move a row, by its own numbers. */
typedef struct RowLimits {
  double base;   /**< ||base - ref||: what it did to the rounded reference */
  double most;   /**< u_P ||P |V||| + u_O ||ref||: each P and O rounded once, to normal numbers */
  double likely; /**< u_P ReferenceRow::spread: as far as independent errors of P move it */
} RowLimits;

/** One row of the plan, compared with the reference. */
typedef struct RowFinding {
  double distance;    /**< ||O - ref|| */
  double norm;        /**< ||ref|| */
  double base_error;  /**< ||base - ref|| / ||ref||; 0 where ref is 0 */
  double usual_error; /**< the same, but at most what rounding explains without subnormal numbers */
  RowLimits limits;
  double gain;      /**< (O - base) . ref / ||ref||^2: how much longer than base it is along ref */
  double share;     /**< error divided by the row's tolerance; right if <= 1 */
  bool not_judged;  /**< the tolerance is as large as the row */
  double lse_error; /**< |LSE - ref| divided by its tolerance */
  int unwritten, nan, inf;
  int values_wrong;      /**< as in CheckResult, without LSE */
  bool lse_nan;          /**< NaN, neither expected nor the poison */
  bool misplaced_number; /**< a number where the reference is NaN or infinite */
  bool nan_expected;
  bool not_compared;
  int faults;
} RowFinding;

/** The state of a row of the output, in the plan or not. */
typedef struct RowView {
  RowIndex row;
  bool checked;      /**< compared with the reference */
  bool not_compared; /**< V holds NaN or Inf */
  int faults;
  double share; /**< error divided by the row's tolerance; 0 if not checked */
} RowView;

/** The inputs and the results of a finished check. */
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

/** Counts of special values in one row of O; `nan` includes `unset`. */
typedef struct RowScan {
  int unwritten, nan, unset, inf;
} RowScan;

RowScan scan_row(Dtype dtype, const uint16_t *o, int head_dim);

/** True if the bits are the poison that LSE was filled with. */
bool lse_is_unwritten(float lse);

/** True if it comes from memory of the CPU backend that was never set: of 4 bytes, or of 2. */
bool lse_is_unset(float lse);

/** True if a byte of a guard is no longer the poison. */
static inline bool guard_is_touched(const uint8_t *guard, int i) {
  return guard[i] != (uint8_t)(OUTPUT_POISON >> i % 2 * 8);
}

/** Index of a row in LSE. */
static inline int64_t lse_index(const Problem *problem, RowIndex row) {
  return ((int64_t)row.batch * problem->q_heads + row.head) * problem->q_len + row.q;
}

/** First element of a row of O. */
static inline const uint16_t *output_row(const Judgement *judgement, RowIndex row) {
  return judgement->outputs->o +
         row_offset(&judgement->problem->o_strides, row.batch, row.head, row.q);
}

RowLimits row_limits(const Problem *problem, const ReferenceRow *reference);

/**
 * The tolerance of a row as a distance; `allowed_error` is that of CheckResult, `norm` is ||ref||.
 * A row may be as wrong as any row of the rounded reference, and more if independent errors of its
 * P explain it, whatever m they are relative to. But what its own numbers exclude is wrong: a row
 * that nearly cancels must not excuse others. Subnormal numbers round more coarsely, so twice the
 * error of the rounded reference is right in any case.
 */
double row_tolerance(double allowed_error, double norm, const RowLimits *limits);

/** ||a - b|| / ||b||; 0 if both are zero. */
double relative_distance(const double *a, const double *b, int dim);

/** |LSE - expected| divided by its tolerance; 0 for equal infinities and for an expected NaN.
 * `score_size` is that of ReferenceRow. */
double lse_distance(float lse, double expected, double score_size);

typedef void RowVisitor(void *context, const RowView *view);

/** Visits every row of the output, in the order of batch, head and q. */
void visit_rows(const Judgement *judgement, RowVisitor *visit, void *context);

/** Draws heads and query tiles as text, at most 40 lines of 64 columns. */
void draw_fault_map(const Judgement *judgement, FILE *out);

/** Writes the failure text. EXIT_DEVICE if memory runs out. */
bool report_failure(const Judgement *judgement, FILE *out, Error *error);

/** Flags of an index of a row, a head or a column. */
enum { INDEX_RIGHT = 1, INDEX_FAULTY = 2 };

/**
 * Writes which of `n` indices are faulty as a short phrase: "row 5", "the last 17 rows", "rows
 * 8..15 of every 16", "every head but 0". `seen`, [n], holds INDEX_RIGHT, INDEX_FAULTY, both or
 * neither. A `tile_noun` has `tile` indices; 0 if there are no tiles.
 */
void describe_indices(FILE *out, const char *noun, const uint8_t *seen, int64_t n,
                      const char *tile_noun, int tile);

/** Writes the mistake that explains a wrong row within the tolerance, if a known one does. */
bool diagnose_row(const Judgement *judgement, RowIndex row, FILE *out, Error *error);

#endif
