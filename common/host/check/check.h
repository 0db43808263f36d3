/**
 * @file
 * When an answer is right: the rules, the failure text that says where it is wrong.
 *
 * Outputs are filled with OUTPUT_POISON before a checked run and lie between guard bands of the
 * same pattern, so that a value never written, or written out of place, is seen as such.
 */
#ifndef HOST_CHECK_H
#define HOST_CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "attention.h"
#include "host/check/reference.h"
#include "host/device/device.h"

/** Which rows to compare with the reference. */
typedef enum CheckMode { CHECK_DEFAULT, CHECK_ALL, CHECK_ROWS, CHECK_NONE } CheckMode;

/**
 * Speed assumed of the reference, in flops (4 * head_dim for each score) per second: what one core
 * does with room to spare. Fixed, so that a seed chooses the same rows on every machine.
 */
#define REFERENCE_SPEED 5e9

typedef struct CheckPlan {
  RowIndex *rows;
  size_t count;
  bool all; /**< every row of the output is among them */
} CheckPlan;

/**
 * Chooses the rows. CHECK_ALL: every row. CHECK_NONE: none. CHECK_ROWS: a sample of `wanted` rows.
 * CHECK_DEFAULT: every row if the reference takes under a second at REFERENCE_SPEED, else as many
 * as take 1.5 s, but up to four times as many where the edges of the tiles need it.
 *
 * A sample is random (by `seed`), spread evenly over the output, without repeats. It holds the
 * first and the last row of every tile of `block_m` rows in some head - evenly chosen tiles when
 * there are more edges than rows - and always the last row of the last head. The rows are in the
 * order of batch, head and q. Freed by check_plan_free().
 */
bool check_plan(const Problem *problem, const Mask *mask, CheckMode mode, int64_t wanted,
                int block_m, uint64_t seed, CheckPlan *plan, Error *error);
void check_plan_free(CheckPlan *plan);

/** Errors are relative: ||O - ref|| / ||ref|| of a row, Euclidean norm over the head dimension. */
typedef struct CheckResult {
  bool right;
  bool judged;              /**< at least one row told a right kernel from a wrong one */
  size_t rows_checked;      /**< compared with the reference */
  size_t rows_not_compared; /**< NaN or Inf of V may have reached them: counted, not compared */
  size_t rows_nan_expected; /**< rows where the reference itself is NaN, and the output is too */
  size_t rows_not_judged;   /**< allowed an error as large as the row: all 0 would pass */
  double max_error, mean_error, allowed_error;
  double max_share;     /**< error by what is allowed to its row, at worst: right if <= 1 */
  double max_lse_error; /**< |LSE - ref| at worst, relative to what is allowed: right if <= 1 */
  size_t guard_bytes_touched;
  int64_t values_unwritten; /**< elements of O and LSE that still hold the poison, over all rows */
  int64_t values_nan;       /**< NaN where the reference has a number */
  int64_t values_inf;       /**< infinite where the reference is not */
  size_t rows_wrong;        /**< rows of O over the tolerance */
  size_t lse_wrong;
} CheckResult;

/**
 * Judges the outputs. All of O and LSE is scanned for unwritten values and, if the inputs are
 * finite, for NaN and Inf; the rows of the plan (in the order that check_plan() gives them) are
 * compared with the reference. When something is wrong the report goes to `failure` (may be NULL):
 * the counts, the first wrong element as (b, h, q, d) with both values, where the errors lie, a
 * text heat map of the tiles, and the mistake that would explain the worst row if a known one does.
 * `progress` may be NULL. Returns false with EXIT_DEVICE if memory runs out; the verdict is
 * result->right.
 */
bool check_outputs(const Problem *problem, const HostInputs *inputs, const HostOutputs *outputs,
                   const CheckPlan *plan, const Description *tiles, ReferenceProgress *progress,
                   FILE *failure, CheckResult *result, Error *error);

#endif
