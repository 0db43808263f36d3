/**
 * @file
 * The checker: compares outputs with the reference and reports where they are wrong.
 *
 * Before a checked run, the outputs and the guard bands around them are filled with OUTPUT_POISON.
 * This shows values that were never written and writes outside of the outputs.
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
} CheckResult;

/**
 * Checks the outputs and sets result->right. All of O and LSE is scanned for unwritten values and,
 * if the inputs are finite, for NaN and Inf; the rows of the plan, in check_plan()'s order, are
 * compared with the reference. If something is wrong, `failure` (may be NULL) gets a report: the
 * counts, the first wrong element as (b, h, q, d) with both values, the positions of the errors, a
 * text heat map of the tiles, and the known mistake, if any, that explains the worst row.
 * `progress` may be NULL. Returns false with EXIT_DEVICE if memory runs out.
 */
bool check_outputs(const Problem *problem, const HostInputs *inputs, const HostOutputs *outputs,
                   const CheckPlan *plan, const Description *tiles, ReferenceProgress *progress,
                   FILE *failure, CheckResult *result, Error *error);

#endif
