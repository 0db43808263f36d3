/**
 * @file
 * The functions that the two 16-bit types have in common, overloaded. No include guard: included
 * once for each type, with SIMT_T and SIMT_T2 defined as the type and its vector of two, and
 * SIMT_NAME(before, after) as a name with that of the type in it, as in __float2half_rn.
 *
 * A GPU computes the transcendental ones with larger errors; the others are rounded once.
 */

#define SIMT_UNARY(function, function2, expression) \
  SIMT_INLINE SIMT_T function(SIMT_T a) {           \
    const float x = a;                              \
    return SIMT_T(expression);                      \
  }                                                 \
  SIMT_FUNCTION(SIMT_T2, function2, (SIMT_T2 a), {function(a.x), function(a.y)})

#define SIMT_BINARY(function, function2, expression)        \
  SIMT_INLINE SIMT_T function(SIMT_T a, SIMT_T b) {         \
    const float x = a, y = b;                               \
    return SIMT_T(expression);                              \
  }                                                         \
  SIMT_FUNCTION(SIMT_T2, function2, (SIMT_T2 a, SIMT_T2 b), \
                {function(a.x, b.x), function(a.y, b.y)})

#define SIMT_TERNARY(function, function2, expression)                  \
  SIMT_INLINE SIMT_T function(SIMT_T a, SIMT_T b, SIMT_T c) {          \
    const double sum = simt::fused(a, b, c);                           \
    return SIMT_T(expression);                                         \
  }                                                                    \
  SIMT_FUNCTION(SIMT_T2, function2, (SIMT_T2 a, SIMT_T2 b, SIMT_T2 c), \
                {function(a.x, b.x, c.x), function(a.y, b.y, c.y)})

/** Of vectors: 1 or 0 for each half, and whether both are true. */
#define SIMT_RELATION(name, op)                                \
  SIMT_FUNCTION(bool, __h##name, (SIMT_T a, SIMT_T b), a op b) \
  SIMT_FUNCTION(SIMT_T2, __h##name##2, (SIMT_T2 a, SIMT_T2 b), \
                {SIMT_T(a.x op b.x), SIMT_T(a.y op b.y)})      \
  SIMT_FUNCTION(bool, __hb##name##2, (SIMT_T2 a, SIMT_T2 b), (a.x op b.x) && (a.y op b.y))

SIMT_BINARY(__hadd, __hadd2, x + y)
SIMT_BINARY(__hsub, __hsub2, x - y)
SIMT_BINARY(__hmul, __hmul2, (float)x *y)
SIMT_BINARY(__hdiv, __h2div, x / y)
SIMT_BINARY(__hadd_rn, __hadd2_rn, x + y)
SIMT_BINARY(__hsub_rn, __hsub2_rn, x - y)
SIMT_BINARY(__hmul_rn, __hmul2_rn, (float)x *y)
SIMT_BINARY(__hadd_sat, __hadd2_sat, __saturatef(x + y))
SIMT_BINARY(__hsub_sat, __hsub2_sat, __saturatef(x - y))
SIMT_BINARY(__hmul_sat, __hmul2_sat, __saturatef((float)x *y))
SIMT_TERNARY(__hfma, __hfma2, sum)
SIMT_TERNARY(__hfma_sat, __hfma2_sat, sum > 0 ? fmin(sum, 1) : 0)
SIMT_TERNARY(__hfma_relu, __hfma2_relu, sum < 0 ? 0 : sum)
SIMT_UNARY(__hneg, __hneg2, -x)
SIMT_UNARY(__habs, __habs2, fabsf(x))

/* A number is preferred to NaN, but not by the last two; -0 is less than 0. */
SIMT_BINARY(__hmax, __hmax2, simt::larger(x, y))
SIMT_BINARY(__hmin, __hmin2, -simt::larger(-x, -y))
SIMT_BINARY(__hmax_nan, __hmax2_nan, x != x || y != y ? NAN : simt::larger(x, y))
SIMT_BINARY(__hmin_nan, __hmin2_nan, x != x || y != y ? NAN : -simt::larger(-x, -y))

SIMT_RELATION(eq, ==)
SIMT_RELATION(lt, <)
SIMT_RELATION(le, <=)
SIMT_RELATION(gt, >)
SIMT_RELATION(ge, >=)
SIMT_RELATION(ne, !=)

SIMT_FUNCTION(bool, __hisnan, (SIMT_T a), a != a)
SIMT_INLINE int __hisinf(SIMT_T a) {
  const float x = a;
  return isinf(x) ? (x > 0 ? 1 : -1) : 0;
}

SIMT_UNARY(hexp, h2exp, expf(x))
SIMT_UNARY(hexp2, h2exp2, exp2f(x))
SIMT_UNARY(hexp10, h2exp10, exp10f(x))
SIMT_UNARY(hlog, h2log, logf(x))
SIMT_UNARY(hlog2, h2log2, log2f(x))
SIMT_UNARY(hlog10, h2log10, log10f(x))
SIMT_UNARY(hsin, h2sin, sinf(x))
SIMT_UNARY(hcos, h2cos, cosf(x))
SIMT_UNARY(htanh, h2tanh, tanhf(x))
SIMT_UNARY(hsqrt, h2sqrt, sqrtf(x))
SIMT_UNARY(hrsqrt, h2rsqrt, 1 / sqrt((double)x))
SIMT_UNARY(hrcp, h2rcp, 1 / x)
SIMT_UNARY(hceil, h2ceil, ceilf(x))
SIMT_UNARY(hfloor, h2floor, floorf(x))
SIMT_UNARY(htrunc, h2trunc, truncf(x))
SIMT_UNARY(hrint, h2rint, rintf(x))

SIMT_FUNCTION(SIMT_T2, operator-, (SIMT_T2 a), {-a.x, -a.y})
SIMT_FUNCTION(bool, operator==, (SIMT_T2 a, SIMT_T2 b), a.x == b.x && a.y == b.y)
SIMT_FUNCTION(bool, operator!=, (SIMT_T2 a, SIMT_T2 b), !(a == b))
SIMT_FUNCTION(SIMT_T2, __lowhigh2highlow, (SIMT_T2 a), {a.y, a.x})
SIMT_FUNCTION(float, __low2float, (SIMT_T2 a), a.x)
SIMT_FUNCTION(float, __high2float, (SIMT_T2 a), a.y)

/* --- Named after the type --------------------------------------------------------------------- */

SIMT_FUNCTION(SIMT_T, SIMT_NAME(__float2, ), (float x), {x})
SIMT_FUNCTION(SIMT_T, SIMT_NAME(__float2, _rn), (float x), {x})
SIMT_FUNCTION(SIMT_T, SIMT_NAME(__double2, ), (double x), {x})
SIMT_FUNCTION(float, SIMT_NAME(__, 2float), (SIMT_T x), x)
SIMT_FUNCTION(unsigned short, SIMT_NAME(__, _as_ushort), (SIMT_T x), x.bits)
SIMT_INLINE SIMT_T SIMT_NAME(__ushort_as_, )(unsigned short bits) {
  SIMT_T x;
  x.bits = bits;
  return x;
}

SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__floats2, 2_rn), (float low, float high), {low, high})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__float2, 2_rn), (float x), {x, x})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__float22, 2_rn), (float2 v), {v.x, v.y})
SIMT_FUNCTION(float2, SIMT_NAME(__, 22float2), (SIMT_T2 v), {v.x, v.y})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__halves2, 2), (SIMT_T low, SIMT_T high), {low, high})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(make_, 2), (SIMT_T low, SIMT_T high), {low, high})
SIMT_FUNCTION(SIMT_T, SIMT_NAME(__low2, ), (SIMT_T2 v), v.x)
SIMT_FUNCTION(SIMT_T, SIMT_NAME(__high2, ), (SIMT_T2 v), v.y)

SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__low2, 2), (SIMT_T2 v), {v.x, v.x})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__high2, 2), (SIMT_T2 v), {v.y, v.y})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__lows2, 2), (SIMT_T2 a, SIMT_T2 b), {a.x, b.x})
SIMT_FUNCTION(SIMT_T2, SIMT_NAME(__highs2, 2), (SIMT_T2 a, SIMT_T2 b), {a.y, b.y})
SIMT_FUNCTION(short, SIMT_NAME(__, _as_short), (SIMT_T x), (short)x.bits)
SIMT_INLINE SIMT_T SIMT_NAME(__short_as_, )(short bits) {
  return SIMT_NAME(__ushort_as_, )((unsigned short)bits);
}
SIMT_FUNCTION(SIMT_T, SIMT_NAME(__int2, _rn), (int x), {(double)x})
SIMT_FUNCTION(int, SIMT_NAME(__, 2int_rn), (SIMT_T x), __float2int_rn(x))
SIMT_FUNCTION(int, SIMT_NAME(__, 2int_rz), (SIMT_T x), __float2int_rz(x))

#undef SIMT_T
#undef SIMT_T2
#undef SIMT_NAME
#undef SIMT_UNARY
#undef SIMT_BINARY
#undef SIMT_TERNARY
#undef SIMT_RELATION
