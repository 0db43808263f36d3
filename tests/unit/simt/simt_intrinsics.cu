/** @file Tests of intrinsics with a rounding mode, of conversions, and of 16-bit functions. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <climits>

#include "../tests/unit/simt/simt_testing.h"

/* --- Rounding of floats ----------------------------------------------------------------------- */

/** Random floats of magnitudes that leave all sums and products exact in double. */
static float random_float() {
  static uint32_t state = 1;
  state = state * 1664525 + 1013904223;
  const uint32_t exponent = 127 - 8 + state % 16;
  state = state * 1664525 + 1013904223;
  float x;
  const uint32_t bits = exponent << 23 | state >> 9 | (state & 1) << 31;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/** Checks the four roundings of an exact value: `side(x)` is the sign of x minus it. */
template <typename Side>
static void check_roundings(float nearest, float zero, float up, float down, Side side) {
  assert_true(side(up) >= 0 && side(nextafterf(up, -INFINITY)) < 0);
  assert_true(side(down) <= 0 && side(nextafterf(down, INFINITY)) > 0);
  assert_true(zero == (up > 0 ? down : up));
  assert_true(nearest == up || nearest == down);
}

static int sign(double x) {
  return (x > 0) - (x < 0);
}

#define ROUNDINGS(f, ...) \
  f##_rn(__VA_ARGS__), f##_rz(__VA_ARGS__), f##_ru(__VA_ARGS__), f##_rd(__VA_ARGS__)

TEST(operations_on_floats_are_rounded_as_their_names_say) {
  for (int i = 0; i < 2000; i++) {
    const float x = random_float(), y = random_float(), z = fabsf(x);
    const double dx = x, dy = y;
    check_roundings(ROUNDINGS(__fadd, x, y), [=](float r) { return sign(r - (dx + dy)); });
    check_roundings(ROUNDINGS(__fsub, x, y), [=](float r) { return sign(r - (dx - dy)); });
    check_roundings(ROUNDINGS(__fmul, x, y), [=](float r) { return sign(r - dx * dy); });
    check_roundings(ROUNDINGS(__fdiv, x, y),
                    [=](float r) { return sign(r * dy - dx) * (y > 0 ? 1 : -1); });
    check_roundings(ROUNDINGS(__frcp, y),
                    [=](float r) { return sign(r * dy - 1) * (y > 0 ? 1 : -1); });
    check_roundings(ROUNDINGS(__fsqrt, z), [=](float r) { return sign((double)r * r - z); });
    const float root = __frsqrt_rn(z);
    for (const float other : {nextafterf(root, 0), nextafterf(root, INFINITY)}) {
      const long double exact = 1 / sqrtl(z);
      assert_true(fabsl(root - exact) <= fabsl(other - exact));
    }
  }
  assert_true(__fmaf_rd(1, 1, -0x1p-40f) == nextafterf(1, 0) && __fmaf_ru(1, 1, -0x1p-40f) == 1);
  assert_true(__fmaf_rn(0x1.000002p0f, 0x1.000002p0f, -0x1.000004p0f) == 0x1p-46f);
  assert_true(__fadd_ru(FLT_MAX, 1) == INFINITY && __fadd_rz(FLT_MAX, 1) == FLT_MAX);
  assert_true(__dadd_rn(1, 0x1p-60) == 1 && __dmul_rn(3, 5) == 15 && __ddiv_rn(1, 4) == 0.25);
  assert_true(__dsqrt_rn(9) == 3 && __fma_rn(2, 3, 4) == 10 && __drcp_rn(8) == 0.125);
}

TEST(floats_are_saturated_and_divided_as_documented) {
  assert_true(__saturatef(-1) == 0 && __saturatef(0.25f) == 0.25f && __saturatef(7) == 1);
  assert_true(__saturatef(NAN) == 0);
  assert_true(__fdividef(1, 4) == 0.25f && __fdividef(1, 0x1p126f) == 0x1p-126f);
  assert_true(__fdividef(3, 0x1.8p126f) == 0 && std::isnan(__fdividef(INFINITY, 0x1p127f)));
}

TEST(floats_become_integers_and_back) {
  assert_int_equal(__float2int_rn(2.5f), 2);
  assert_int_equal(__float2int_rz(-2.9f), -2);
  assert_int_equal(__float2int_ru(-2.9f), -2);
  assert_int_equal(__float2int_rd(-2.1f), -3);
  assert_int_equal(__float2int_rn(3e9f), INT_MAX);
  assert_int_equal(__float2int_rn(-INFINITY), INT_MIN);
  assert_int_equal(__float2int_rn(NAN), 0);
  assert_int_equal(__double2int_rn(NAN), INT_MIN);
  assert_int_equal(__float2uint_rn(-1), 0);
  assert_true(__float2uint_rz(4e9f) == 4000000000u && __float2uint_rn(5e9f) == UINT_MAX);
  assert_true(__float2ll_rn(1e18f) == (long long)1e18f && __float2ll_rd(NAN) == LLONG_MIN);
  assert_true(__float2ull_ru(1e30f) == ULLONG_MAX);
  assert_true(__int2float_rn(16777217) == 16777216 && __int2float_ru(16777217) == 16777218);
  assert_true(__uint2float_rz(UINT_MAX) == 4294967040.0f && __uint2float_ru(UINT_MAX) == 0x1p32f);
  assert_true(__double2float_rd(1 + 0x1p-30) == 1 && __double2float_ru(1 + 0x1p-30) > 1);
}

TEST(words_are_split_multiplied_and_shifted) {
  assert_int_equal(__double2hiint(-0x1.00000f0000001p0), (int)0xbff00000);
  assert_int_equal(__double2loint(-0x1.00000f0000001p0), (int)0xf0000001);
  assert_true(__hiloint2double((int)0xbff00000, (int)0xf0000001) == -0x1.00000f0000001p0);
  assert_int_equal(__mulhi(INT_MIN, 4), -2);
  assert_int_equal(__umulhi(0x80000000u, 6), 3);
  assert_int_equal(__byte_perm(0x33221100, 0x77665544, 0x7250), 0x77225500);
  assert_int_equal(__funnelshift_l(0x80000000, 0x1, 4), 0x18);
  assert_int_equal(__funnelshift_r(0x10, 0x3, 36), 0x30000001);
}

/* --- 16-bit types ----------------------------------------------------------------------------- */

template <typename T>
static T of_bits(uint16_t bits) {
  T x;
  x.bits = bits;
  return x;
}

#ifdef __SIZEOF_FLOAT128__
typedef __float128 Wide;
#else
typedef long double Wide;
#endif

/** Checks that no neighbour of `rounded` is nearer to the exact a b + c, and that a tie is even. */
template <typename T>
static void check_fused(T a, T b, T c) {
  const Wide exact = (Wide)(float)a * (float)b + (float)c;
  const T rounded = __hfma(a, b, c);
  if (!std::isfinite((float)rounded)) return;
  for (const int step : {-1, 1}) {
    const T other = of_bits<T>((uint16_t)(rounded.bits + step));
    if (!std::isfinite((float)other)) continue;
    const Wide own = (float)rounded - exact, its = (float)other - exact;
    const Wide distance = own < 0 ? -own : own, further = its < 0 ? -its : its;
    assert_true(distance < further || (distance == further && rounded.bits % 2 == 0));
  }
}

TEST(a_fused_product_and_sum_is_rounded_once) {
  uint64_t state = 1;
  for (int i = 0; i < 20000; i++) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint16_t a = (uint16_t)(state >> 16), b = (uint16_t)(state >> 32),
                   c = (uint16_t)(state >> 48);
    if (a % 0x8000 < 0x7c00 && b % 0x8000 < 0x7c00 && c % 0x8000 < 0x7c00) {
      check_fused(of_bits<__half>(a), of_bits<__half>(b), of_bits<__half>(c));
    }
    /* exponents near 0, so that the sum is exact in 113 bits */
    check_fused(of_bits<__nv_bfloat16>(a % 0x1000 | 0x3800),
                of_bits<__nv_bfloat16>(b % 0x1000 | 0x3800),
                of_bits<__nv_bfloat16>((uint16_t)(c % 0x8000 < 0x4800 ? c | 0x2000 : c % 0x4000)));
  }
  /* (1 + 1/16)^2 lies between two bf16; the least summand decides */
  const __nv_bfloat16 x = 1.0625f, least = 0x1p-100f;
  assert_true((float)__hfma(x, x, least) == 1.1328125f);
  assert_true((float)__hfma(x, x, -least) == 1.125f && (float)__hfma(x, x, 0) == 1.125f);
  assert_true((float)__hfma(-x, x, -least) == -1.1328125f);
}

/** The functions that both types have. */
template <typename T, typename T2>
static void check_functions(T2 pair) {
  const T a = 3, b = 0.75f, nan = NAN, zero = 0, minus_zero = -0.0f;
  assert_true((float)__hadd(a, b) == 3.75f && (float)__hsub(a, b) == 2.25f);
  assert_true((float)__hmul(a, b) == 2.25f && (float)__hdiv(a, b) == 4);
  assert_true((float)__hadd_sat(a, b) == 1 && (float)__hsub_sat(b, a) == 0);
  assert_true((float)__hmul_sat(b, b) == 0.5625f && (float)__hadd_sat(a, nan) == 0);
  assert_true((float)__hfma(a, b, b) == 3 && (float)__hfma_sat(a, b, b) == 1);
  assert_true((float)__hfma_relu(a, b, -a) == 0 && (float)__hfma_relu(a, b, a) == 5.25f);
  assert_true((float)__hneg(a) == -3 && (float)__habs(-a) == 3);
  assert_true((float)__hmax(a, b) == 3 && (float)__hmin(a, b) == 0.75f);
  assert_true((float)__hmax(nan, b) == 0.75f && (float)__hmin(a, nan) == 3);
  assert_true(__hisnan(__hmax_nan(nan, b)) && __hisnan(__hmin_nan(a, nan)));
  assert_true(__hmax(minus_zero, zero).bits == 0 && __hmax(zero, minus_zero).bits == 0);
  assert_true(__hmin(minus_zero, zero).bits == 0x8000 && __hmin(zero, minus_zero).bits == 0x8000);
  assert_true(__hlt(b, a) && __hle(a, a) && __hgt(a, b) && __hge(a, a) && __heq(a, a) &&
              __hne(a, b));
  assert_false(__hlt(nan, a) || __hgt(nan, a) || __heq(nan, nan) || __hisnan(a));
  assert_true(__hisinf(T(INFINITY)) == 1 && __hisinf(T(-INFINITY)) == -1 && !__hisinf(a));
  for (const float x : {0.5f, 1.0f, 2.0f, 5.0f}) {
    const T t = x;
    assert_true(hexp(t).bits == T(exp((double)x)).bits);
    assert_true(hexp2(t).bits == T(exp2((double)x)).bits);
    assert_true(hexp10(t).bits == T(exp10((double)x)).bits);
    assert_true(hlog(t).bits == T(log((double)x)).bits);
    assert_true(hlog2(t).bits == T(log2((double)x)).bits);
    assert_true(hlog10(t).bits == T(log10((double)x)).bits);
    assert_true(hsqrt(t).bits == T(sqrt((double)x)).bits);
    assert_true(hrsqrt(t).bits == T(1 / sqrt((double)x)).bits);
    assert_true(hrcp(t).bits == T(1 / (double)x).bits);
    assert_true(hsin(t).bits == T(sin((double)x)).bits && hcos(t).bits == T(cos((double)x)).bits);
    assert_true(htanh(t).bits == T(tanh((double)x)).bits);
  }
  assert_true((float)hceil(b) == 1 && (float)hfloor(b) == 0 && (float)htrunc(-a) == -3);
  assert_true((float)hrint(T(2.5f)) == 2);

  /* of pairs: (3, 0.75) and (0.75, 3) */
  pair = {a, b};
  const T2 other = __lowhigh2highlow(pair);
  const auto is = [](T2 p, float low, float high) {
    return __low2float(p) == low && __high2float(p) == high;
  };
  assert_true(is(__hadd2(pair, other), 3.75f, 3.75f) && is(__hsub2(pair, other), 2.25f, -2.25f));
  assert_true(is(__hmul2(pair, pair), 9, 0.5625f) && is(__h2div(pair, other), 4, 0.25f));
  assert_true(is(__hfma2(pair, other, pair), 5.25f, 3) && is(__hneg2(pair), -3, -0.75f));
  assert_true(is(__hmax2(pair, other), 3, 3) && is(__hmin2(pair, other), 0.75f, 0.75f));
  assert_true(is(__hadd2_sat(pair, -other), 1, 0) && is(__habs2(-pair), 3, 0.75f));
  assert_true(is(__hgt2(pair, other), 1, 0) && is(__hle2(pair, other), 0, 1));
  assert_true(__hbeq2(pair, pair) && !__hblt2(pair, other) && pair == pair && pair != other);
  assert_true(h2exp(pair).x.bits == hexp(a).bits && h2exp(pair).y.bits == hexp(b).bits);
  assert_true(is(h2rcp(other), 1.3330078f, 0.33325195f) ||
              is(h2rcp(other), 1.3359375f, 0.33398438f));
  T2 sum = pair;
  sum += other;
  sum *= pair;
  sum -= other;
  sum /= pair;
  assert_true(__low2float(sum) == 3.5f && __high2float(sum) == -0.25f);
}

TEST(functions_of_16_bit_types_are_those_of_cuda) {
  check_functions<__half>(__half2());
  check_functions<__nv_bfloat16>(__nv_bfloat162());
}

TEST(halves_of_pairs_are_picked_and_converted) {
  const __half2 h = make_half2(1, 2), g = make_half2(3, 4);
  assert_true(__low2half2(h) == make_half2(1, 1) && __high2half2(h) == make_half2(2, 2));
  assert_true(__lows2half2(h, g) == make_half2(1, 3) && __highs2half2(h, g) == make_half2(2, 4));
  assert_int_equal(__half_as_short(__half(-2)), (short)0xc000);
  assert_true((float)__short_as_half((short)0xc000) == -2 && (float)__int2half_rn(2049) == 2048);
  assert_int_equal(__half2int_rn(__half(2.5f)), 2);
  assert_int_equal(__half2int_rz(__half(-2.75f)), -2);
  const __nv_bfloat162 b = make_bfloat162(1, 2), c = make_bfloat162(3, 4);
  assert_true(__low2bfloat162(b) == make_bfloat162(1, 1));
  assert_true(__high2bfloat162(b) == make_bfloat162(2, 2));
  assert_true(__lows2bfloat162(b, c) == make_bfloat162(1, 3));
  assert_true(__highs2bfloat162(b, c) == make_bfloat162(2, 4));
  assert_int_equal(__bfloat16_as_short(__nv_bfloat16(-2)), (short)0xc000);
  assert_true((float)__short_as_bfloat16((short)0xc000) == -2);
  assert_true((float)__int2bfloat16_rn(257) == 256);
  assert_int_equal(__bfloat162int_rn(__nv_bfloat16(2.5f)), 2);
  assert_int_equal(__bfloat162int_rz(__nv_bfloat16(-2.75f)), -2);
}

RUN_TESTS(nullptr, nullptr)
