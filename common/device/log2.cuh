/**
 * @file
 * The GPU computes powers of two and logarithms to base 2. So e^x is 2^(x * LOG2_E), and ln(x) is
 * log2(x) * LN_2.
 */
#ifndef DEVICE_LOG2_CUH
#define DEVICE_LOG2_CUH

constexpr float LOG2_E = 1.4426950408889634f; /**< log2(e) */
constexpr float LN_2 = 0.6931471805599453f;   /**< ln(2) */

#endif
