/**
 * @file
 * e4m3 as bit patterns (E4M3FN of the Open Compute Project): sign, 4 bits of exponent with bias 7,
 * 3 bits of mantissa. The largest number is 448; there is no infinity, and 0x7f is NaN. Conversion
 * from and to wider types, with the bits of the GPU. Used by the host programs and by the CPU
 * backend's type.
 */
#ifndef FLOAT8_H
#define FLOAT8_H

#include "float16.h"

#define E4M3_LARGEST 448

/** Rounds x once, to nearest even; beyond 448, infinity included, to 448. NaN becomes 0x7f. */
static inline uint8_t double_to_e4m3_bits(double x) {
  const double size = x < 0 ? -x : x;
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const unsigned sign = (unsigned)(bits >> 63) << 7;
  if (x != x) return 0x7f;
  if (size >= E4M3_LARGEST) return (uint8_t)(sign | 0x7e);

  int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  if (exponent < -6) exponent = -6; /* zero and subnormal numbers */
  /* In a sum with 2^(exponent + 49), the last bit of a double is the last bit of this e4m3. */
  uint64_t sum_bits = (uint64_t)(1023 + 49 + exponent) << 52;
  double sum;
  __builtin_memcpy(&sum, &sum_bits, sizeof sum);
  sum += size;
  __builtin_memcpy(&sum_bits, &sum, sizeof sum_bits);
  /* The leading 1, if there is one, adds 1 to the exponent. */
  return (uint8_t)(sign | (((unsigned)(exponent + 6) << 3) + (unsigned)(sum_bits & 31)));
}

static inline float e4m3_bits_to_float(uint8_t e4m3) {
  const uint32_t sign = (uint32_t)(e4m3 & 0x80) << 24;
  const uint32_t magnitude = e4m3 & 0x7f;
  /* As a float's bits the value is too small by 2^120; the product is exact, subnormals too. */
  const float scaled = float_from_bits(magnitude << 20) * 0x1p120f;
  return float_from_bits(sign | (magnitude == 0x7f ? 0x7fc00000 : float_bits(scaled)));
}

#endif
