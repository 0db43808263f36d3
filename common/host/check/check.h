/**
 * @file
 * The checker: compares outputs with the reference and judges them; report/failure.h prints why
 * they are wrong.
 *
 * Before a checked run, the outputs and the guard bands around them are filled with OUTPUT_POISON.
 * This shows values that were never written and writes outside of the outputs.
 */
#ifndef HOST_CHECK_H
#define HOST_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "host/check/reference.h"
#include "host/check/row_math.h"
#include "host/device/device.h"

/** Which rows to compare with the reference. */
typedef enum CheckMode { CHECK_DEFAULT, CHECK_ALL, CHECK_ROWS, CHECK_NONE } CheckMode;

/**
 * Assumed speed of the reference in FLOP/s, with 4 * head_dim FLOP for each score; one core is
 * faster. A constant, so that a seed chooses the same rows on every machine.
 */
#define REFERENCE_SPEED 5e9

typedef struct CheckPlan {
  RowIndex *rows;
  size_t count;
  bool all; /**< every row of the output is among them */
} CheckPlan;

/**
 * Chooses the rows. CHECK_ALL: every row. CHECK_NONE: none. CHECK_ROWS: a sample of `wanted` rows.
 * CHECK_DEFAULT: every row if the reference takes under a second at REFERENCE_SPEED, else a sample
 * that takes 1.5 s, or up to four times as many rows to include all tile edges.
 *
 * A sample is random (by `seed`), spread evenly over the output, without repeats. It holds the
 * first and the last row of every tile of `block_m` rows in some head (of evenly chosen tiles if
 * there are more edges than rows) and the last row of the last head. Rows are in the order of
 * batch, head and q. EXIT_DEVICE if memory runs out. Freed by check_plan_free().
 */
bool check_plan(const Problem *problem, const Mask *mask, CheckMode mode, int64_t wanted,
                int block_m, uint64_t seed, CheckPlan *plan, Error *error);
void check_plan_free(CheckPlan *plan);

/** The same for rows of dQ, and of dK and dV: RowIndex then has a key/value head and a key. */
bool check_plan_gradients(const Problem *problem, const Mask *mask, CheckMode mode, int64_t wanted,
                          const Description *tiles, uint64_t seed, CheckPlan *queries,
                          CheckPlan *keys, Error *error);

/** What was found of dQ, dK or dV; errors as in CheckResult. */
typedef struct GradientResult {
  size_t rows_checked, rows_wrong, rows_not_judged;
  double max_error, mean_error, allowed_error, max_share;
  int64_t unwritten, nan, inf; /**< elements, over all rows as in CheckResult */
} GradientResult;

/** Errors are relative: ||O - ref|| / ||ref|| of a row, Euclidean norm over the head dimension. */
typedef struct CheckResult {
  bool right;
  bool judged;              /**< at least one row could be judged */
  size_t rows_checked;      /**< compared with the reference */
  size_t rows_not_compared; /**< NaN or Inf of masked keys may be in them */
  size_t rows_nan_expected; /**< rows where the reference itself is NaN, and the output is too */
  size_t rows_not_judged;   /**< tolerance as large as the row: all 0 would pass */
  double max_error, mean_error, allowed_error;
  double max_share;     /**< largest error divided by its row's tolerance: right if <= 1 */
  double max_lse_error; /**< largest |LSE - ref| divided by its tolerance: right if <= 1 */
  /** With e4m3, of the rows of a head and of all rows, the largest: mean error, and mean change of
   * the length of a row, divided by what it may be; right if <= 1. */
  double mean_error_share, mean_gain_share;
  size_t guard_bytes_touched;
  size_t workspace_left;    /**< as in HostOutputs */
  int64_t values_unwritten; /**< elements of O and LSE that still hold the poison, over all rows */
  int64_t values_nan;       /**< NaN where the reference has a number */
  int64_t values_unset; /**< of these, what the CPU backend fills memory with before it is set */
  int64_t values_inf;   /**< infinite where the reference is not */
  size_t rows_wrong;    /**< rows of O over the tolerance */
  size_t lse_wrong;
  /** Elements of the compared rows of O over their part of the tolerance, and lse_wrong. Only to
   * compare runs with: few of a right row may be over it, too. */
  size_t values_wrong;
  /** Of a backward step. The errors above are those of the gradient with the largest share, the
   * counts those of all three. */
  GradientResult gradients[GRADIENTS];
} CheckResult;

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

/** What is to be judged, and the judgement. */
typedef struct Judgement {
  const Problem *problem;
  const HostInputs *inputs;
  const HostOutputs *outputs;
  const CheckPlan *plan;
  const Description *tiles;
  RowFinding *findings; /**< one for each row of the plan */
  bool inputs_finite;   /**< no NaN, no Inf in Q, K and V: none may be in the output */
  CheckResult result;
} Judgement;

/**
 * Judges the outputs: sets all but the first five fields, which the caller has set. All of O and
 * LSE is scanned for unwritten values and, if the inputs are finite, for NaN and Inf; the rows of
 * the plan, in check_plan()'s order, are compared with the reference. `progress` may be NULL.
 * Returns false with EXIT_DEVICE if memory runs out. Freed by judgement_free(), also after a
 * failure.
 */
bool check_outputs(Judgement *judgement, ReferenceProgress *progress, Error *error);
void judgement_free(Judgement *judgement);

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

/** The mistake that explains a wrong row within the tolerance. */
typedef struct Diagnosis {
  char text[160];  /**< empty: no known mistake does */
  double distance; /**< of the explanation from the row, relative to its norm */
  bool lse_agrees; /**< with the explanation */
} Diagnosis;

/** Computes the row again with each common mistake of attention kernels. EXIT_DEVICE if memory runs
 * out. */
bool diagnose_row(const Judgement *judgement, RowIndex row, Diagnosis *diagnosis, Error *error);

#endif
