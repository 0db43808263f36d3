/** @file Tests of float16.h: every 16-bit value, and every double at which the rounding changes. */
#include "float16.h"

#include <math.h>

#include "../testing.h" /* last */

/** One of the two formats. */
typedef struct Format {
  uint16_t (*round)(double x);
  float (*widen)(uint16_t bits);
  uint16_t infinity; /**< also the number of finite values of one sign, which are 0 .. infinity-1 */
  double overflow;   /**< the number that would follow the largest finite value */
} Format;

static const Format FORMATS[] = {{double_to_half_bits, half_bits_to_float, 0x7c00, 0x1p16},
                                 {double_to_bf16_bits, bf16_bits_to_float, 0x7f80, 0x1p128}};

TEST(all_values_survive_a_round_trip) {
  for (const Format *format = FORMATS; format < FORMATS + 2; format++) {
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
      const float wide = format->widen((uint16_t)bits);
      if ((bits & 0x7fff) > format->infinity) {
        assert_true(isnan(wide));
        assert_int_equal(format->round((double)wide), 0x7fff);
      } else {
        assert_int_equal(format->round((double)wide), bits);
      }
    }
  }
}

/** Neighbouring values a < b, and the doubles at and next to their midpoint. */
TEST(ties_go_to_even_and_all_else_to_the_nearest) {
  for (const Format *format = FORMATS; format < FORMATS + 2; format++) {
    for (uint16_t a = 0; a < format->infinity; a++) {
      const uint16_t b = (uint16_t)(a + 1), sign = 0x8000;
      const double upper = b == format->infinity ? format->overflow : (double)format->widen(b);
      const double middle = ((double)format->widen(a) + upper) / 2;
      const uint16_t even = a % 2 == 0 ? a : b;
      assert_int_equal(format->round(middle), even);
      assert_int_equal(format->round(nextafter(middle, 0)), a);
      assert_int_equal(format->round(nextafter(middle, INFINITY)), b);
      assert_int_equal(format->round(-middle), even | sign);
      assert_int_equal(format->round(-nextafter(middle, 0)), a | sign);
      assert_int_equal(format->round(-nextafter(middle, INFINITY)), b | sign);
    }
  }
}

TEST(values_are_those_of_the_standards) {
  assert_true(half_bits_to_float(0x3c00) == 1.0f);
  assert_true(half_bits_to_float(0x7bff) == 65504.0f);
  assert_true(half_bits_to_float(0x0400) == 0x1p-14f);
  assert_true(half_bits_to_float(0x0001) == 0x1p-24f);
  assert_true(half_bits_to_float(0xc248) == -3.140625f);
  assert_true(bf16_bits_to_float(0x3f80) == 1.0f);
  assert_true(bf16_bits_to_float(0x7f7f) == 0x1.fep127f);
  assert_true(bf16_bits_to_float(0x0001) == 0x1p-133f);
  assert_true(bf16_bits_to_float(0xc049) == -3.140625f);
  /* Every value, compared with the definition: sign, exponent, fraction. */
  for (int bits = 0; bits < 0x7c00; bits++) {
    const int exponent = bits >> 10, fraction = bits & 0x3ff;
    const double expected = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    assert_true((double)half_bits_to_float((uint16_t)bits) == expected);
  }
}

TEST(zeros_infinities_and_nan_keep_their_meaning) {
  for (const Format *format = FORMATS; format < FORMATS + 2; format++) {
    const uint16_t sign = 0x8000;
    assert_int_equal(format->round(0.0), 0);
    assert_int_equal(format->round(-0.0), sign);
    assert_true(signbit(format->widen(sign)));
    assert_int_equal(format->round(INFINITY), format->infinity);
    assert_int_equal(format->round(-INFINITY), format->infinity | sign);
    assert_true(isinf(format->widen(format->infinity)));
    assert_int_equal(format->round(1e300), format->infinity);
    assert_int_equal(format->round(-1e300), format->infinity | sign);
    assert_int_equal(format->round(0x1p-1074), 0);
    assert_int_equal(format->round(-1e-300), sign);
    assert_int_equal(format->round((double)NAN), 0x7fff);
    assert_int_equal(format->round(-(double)NAN), 0x7fff);
  }
}

RUN_TESTS(NULL, NULL)
