/** @file Single rows: what is in them, and how far they may be from the reference. */
#include "host/check/row_math.h"

#include <math.h>

#include "host/device/device.h"

/* The tolerance of LSE; docs/correctness.md explains the rules. */
static const double LSE_ABSOLUTE = 1e-4, LSE_RELATIVE = 1e-5;

/* The rule for e4m3 adds these: a tensor core of Hopper adds products with 13 bits of fraction. */
static const double E4M3_SUM = 0x1p-13;

double unit_roundoff(Dtype dtype) {
  static const double UNITS[] = {0x1p-11, 0x1p-8, 0x1p-4};
  return UNITS[dtype];
}

RowScan scan_row(Dtype dtype, const uint16_t *o, int head_dim) {
  if (dtype == DTYPE_E4M3) {
    RowScan scan = {0};
    for (int d = 0; d < head_dim; ++d) scan.nan += (o[d] & 0x7f) == 0x7f;
    return scan;
  }
  const uint16_t infinity = dtype == DTYPE_FP16 ? 0x7c00 : 0x7f80;
  int unwritten = 0, unset = 0, nan = 0, inf = 0;
#pragma omp simd reduction(+ : unwritten, unset, nan, inf)
  for (int d = 0; d < head_dim; ++d) {
    const int magnitude = o[d] & 0x7fff;
    unwritten += o[d] == OUTPUT_POISON;
    unset += o[d] == OUTPUT_UNSET;
    nan += magnitude > infinity;
    inf += magnitude == infinity;
  }
  return (RowScan){unwritten, nan - unwritten, unset, inf};
}

bool lse_is_unwritten(float lse) {
  return float_bits(lse) == OUTPUT_POISON * 0x10001u;
}

bool lse_is_unset(float lse) {
  return float_bits(lse) >> 16 == OUTPUT_UNSET;
}

double row_length(const double *x, int dim) {
  double squares = 0;
  for (int d = 0; d < dim; ++d) squares += x[d] * x[d];
  return sqrt(squares);
}

double row_distance(const double *a, const double *b, int dim) {
  double squares = 0;
  for (int d = 0; d < dim; ++d) squares += (a[d] - b[d]) * (a[d] - b[d]);
  return sqrt(squares);
}

double relative_distance(const double *a, const double *b, int dim) {
  const double difference = row_distance(a, b, dim);
  return difference == 0 ? 0 : difference / row_length(b, dim);
}

RowLimits row_limits(const Problem *p, const ReferenceRow *reference) {
  const double u_p = unit_roundoff(p->dtype), u_o = unit_roundoff(p->o_dtype);
  const int dim = p->head_dim;
  return (RowLimits){
      .base = row_distance(reference->base, reference->o, dim),
      .most = u_p * row_length(reference->magnitude, dim) + u_o * row_length(reference->o, dim),
      .likely = u_p * reference->spread};
}

double row_tolerance(double allowed_error, double norm, const RowLimits *limits) {
  const double usual = fmax(allowed_error * norm, limits->likely);
  return fmax(fmin(usual, 2 * limits->most), 2 * limits->base);
}

double lse_distance(float lse, double expected, double score_size) {
  if (isnan(expected)) return isnan(lse) && !lse_is_unwritten(lse) ? 0 : INFINITY;
  if (isinf(expected)) return lse == expected ? 0 : INFINITY;
  const double allowed = LSE_ABSOLUTE + LSE_RELATIVE * fabs(expected) + E4M3_SUM * score_size;
  const double error = fabs(lse - expected) / allowed;
  return isnan(error) ? INFINITY : error;
}
