/**
 * @file
 * Single rows of O and LSE: special values in them, and their distance from the reference with its
 * tolerance. docs/correctness.md explains the rules.
 */
#ifndef HOST_ROW_MATH_H
#define HOST_ROW_MATH_H

#include "host/check/reference.h"

/** Counts of special values in one row of O; `nan` includes `unset`. */
typedef struct RowScan {
  int unwritten, nan, unset, inf;
} RowScan;

RowScan scan_row(Dtype dtype, const uint16_t *o, int head_dim);

/** True if the bits are the poison that LSE was filled with. */
bool lse_is_unwritten(float lse);

/** True if it comes from memory of the CPU backend that was never set: of 4 bytes, or of 2. */
bool lse_is_unset(float lse);

/** The largest relative error of rounding to this type. */
double unit_roundoff(Dtype dtype);

/** ||x||, Euclidean. */
double row_length(const double *x, int dim);

/** ||a - b|| */
double row_distance(const double *a, const double *b, int dim);

/** ||a - b|| / ||b||; 0 if both are zero. */
double relative_distance(const double *a, const double *b, int dim);

/** |LSE - expected| divided by its tolerance; 0 for equal infinities and for an expected NaN.
 * `score_size` is that of ReferenceRow. */
double lse_distance(float lse, double expected, double score_size);

/** How far rounding P and O may move a row, by its own numbers. */
typedef struct RowLimits {
  double base;   /**< ||base - ref||: what it did to the rounded reference */
  double most;   /**< u_P ||P |V||| + u_O ||ref||: each P and O rounded once, to normal numbers */
  double likely; /**< u_P ReferenceRow::spread: as far as independent errors of P move it */
} RowLimits;

RowLimits row_limits(const Problem *problem, const ReferenceRow *reference);

/**
 * The tolerance of a row as a distance; `allowed_error` is that of CheckResult, `norm` is ||ref||.
 * A row may be as wrong as any row of the rounded reference, and more if independent errors of its
 * P explain it, whatever m they are relative to. But what its own numbers exclude is wrong: a row
 * that nearly cancels must not excuse others. Subnormal numbers round more coarsely, so twice the
 * error of the rounded reference is right in any case.
 */
double row_tolerance(double allowed_error, double norm, const RowLimits *limits);

#endif
