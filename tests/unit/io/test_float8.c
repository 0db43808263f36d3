/** @file Tests of float8.h: every value, and every double at which the rounding changes. */
#include "float8.h"

#include <math.h>

#include "../testing.h" /* last */

/* The value by the definition of the format. */
static double defined(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const double size = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -size : size;
}

TEST(values) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = e4m3_bits_to_float((uint8_t)bits);
    if ((bits & 0x7f) == 0x7f) {
      assert_true(isnan(value));
      assert_int_equal(double_to_e4m3_bits(value), 0x7f);
      continue;
    }
    assert_true(value == defined(bits) && !signbit(value) == !(bits & 0x80));
    assert_int_equal(double_to_e4m3_bits(value), bits);
  }
}

TEST(rounding) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const double middle = (defined(bits) + defined(bits + 1)) / 2;
    assert_int_equal(double_to_e4m3_bits(nextafter(middle, 0)), bits);
    assert_int_equal(double_to_e4m3_bits(middle), bits + bits % 2);
    assert_int_equal(double_to_e4m3_bits(-middle), 0x80 + bits + bits % 2);
    assert_int_equal(double_to_e4m3_bits(nextafter(middle, 1e3)), bits + 1);
  }
}

TEST(too_large_and_too_small) {
  assert_int_equal(double_to_e4m3_bits(449), 0x7e);
  assert_int_equal(double_to_e4m3_bits(1e300), 0x7e);
  assert_int_equal(double_to_e4m3_bits(-INFINITY), 0xfe);
  assert_int_equal(double_to_e4m3_bits(-5e-324), 0x80);
}

RUN_TESTS(NULL, NULL)
