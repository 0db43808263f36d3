/**
 * @file
 * Arithmetic that CUDA has and C has not, for the CPU backend: intrinsics with a rounding mode,
 * conversions, operations on bits, minimum and maximum.
 */
#ifndef SIMT_ARITHMETIC_H
#define SIMT_ARITHMETIC_H

#include <math.h>
#include <simt.h>

#include <cmath>
#include <ctime>
#include <limits>

/* Macros, because the C library declares functions of these names in some versions. A GPU computes
   them with larger errors. */
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf

SIMT_FUNCTION(float, rsqrtf, (float x), 1.0f / sqrtf(x))
SIMT_FUNCTION(double, rsqrt, (double x), 1.0 / sqrt(x))

/** As documented, 0 for a divisor beyond 2^126, and NaN if the dividend is infinite, too. */
SIMT_INLINE float __fdividef(float x, float y) {
  return fabsf(y) > 0x1p126f && !isinf(y) ? x * copysignf(0.0f, y) : x / y;
}

/** NaN becomes 0. */
SIMT_FUNCTION(float, __saturatef, (float x), x > 0.0f ? fminf(x, 1.0f) : 0.0f)

/* --- Rounding ------------------------------------------------------------------------------- */

#define SIMT_NEAREST(T, suffix)                           \
  SIMT_FUNCTION(T, __##suffix##add_rn, (T x, T y), x + y) \
  SIMT_FUNCTION(T, __##suffix##sub_rn, (T x, T y), x - y) \
  SIMT_FUNCTION(T, __##suffix##mul_rn, (T x, T y), x *y)  \
  SIMT_FUNCTION(T, __##suffix##div_rn, (T x, T y), x / y) \
  SIMT_FUNCTION(T, __##suffix##rcp_rn, (T x), 1 / x)

SIMT_NEAREST(float, f)
SIMT_NEAREST(double, d)

SIMT_FUNCTION(float, __fsqrt_rn, (float x), sqrtf(x))
SIMT_FUNCTION(double, __dsqrt_rn, (double x), sqrt(x))
SIMT_FUNCTION(float, __fmaf_rn, (float x, float y, float z), fmaf(x, y, z))
SIMT_FUNCTION(double, __fma_rn, (double x, double y, double z), fma(x, y, z))

/** The wider type has bits enough that the second rounding changes nothing. */
SIMT_FUNCTION(float, __frsqrt_rn, (float x), (float)(1 / sqrtl(x)))

#define SIMT_ROUNDED(function, parameters, ...) \
  SIMT_FUNCTION(float, function, parameters, simt_round(__VA_ARGS__))

/* The same towards zero, up and down: the runtime changes the rounding mode of the processor. */
#define SIMT_DIRECTED(suffix, rounding)                                               \
  SIMT_ROUNDED(__fadd_##suffix, (float x, float y), SIMT_ADD, rounding, x, y, 0)      \
  SIMT_ROUNDED(__fsub_##suffix, (float x, float y), SIMT_ADD, rounding, x, -y, 0)     \
  SIMT_ROUNDED(__fmul_##suffix, (float x, float y), SIMT_MULTIPLY, rounding, x, y, 0) \
  SIMT_ROUNDED(__fdiv_##suffix, (float x, float y), SIMT_DIVIDE, rounding, x, y, 0)   \
  SIMT_ROUNDED(__frcp_##suffix, (float x), SIMT_DIVIDE, rounding, 1, x, 0)            \
  SIMT_ROUNDED(__fsqrt_##suffix, (float x), SIMT_SQUARE_ROOT, rounding, x, 0, 0)      \
  SIMT_ROUNDED(__fmaf_##suffix, (float x, float y, float z), SIMT_FUSED, rounding, x, y, z)

SIMT_DIRECTED(rz, SIMT_TOWARDS_ZERO)
SIMT_DIRECTED(ru, SIMT_UP)
SIMT_DIRECTED(rd, SIMT_DOWN)

namespace simt {

/** The nearest number of an integer type to an integral x. NaN becomes 0, or the highest bit if one
 * of the types has 8 bytes, as the PTX manual says of cvt. */
template <typename Integer, typename T>
SIMT_INLINE Integer saturated(T x) {
  constexpr Integer least = std::numeric_limits<Integer>::min();
  constexpr Integer most = std::numeric_limits<Integer>::max();
  constexpr bool small = sizeof(T) + sizeof(Integer) == 8;
  if (x != x) return small ? 0 : (Integer)(1ull << (8 * sizeof(Integer) - 1));
  if ((double)x <= (double)least) return least;
  return (double)x >= (double)most ? most : (Integer)x;
}

}  // namespace simt

#define SIMT_CONVERSIONS(name, Integer, suffix, function)        \
  SIMT_FUNCTION(Integer, __float2##name##_##suffix, (float x),   \
                simt::saturated<Integer>(function(x)))           \
  SIMT_FUNCTION(Integer, __double2##name##_##suffix, (double x), \
                simt::saturated<Integer>(function(x)))
#define SIMT_TO_INTEGER(name, Integer)           \
  SIMT_CONVERSIONS(name, Integer, rn, nearbyint) \
  SIMT_CONVERSIONS(name, Integer, rz, trunc)     \
  SIMT_CONVERSIONS(name, Integer, ru, ceil)      \
  SIMT_CONVERSIONS(name, Integer, rd, floor)

SIMT_TO_INTEGER(int, int)
SIMT_TO_INTEGER(uint, unsigned)
SIMT_TO_INTEGER(ll, long long)
SIMT_TO_INTEGER(ull, unsigned long long)

#define SIMT_FLOAT_FROM(suffix, rounding)                                             \
  SIMT_ROUNDED(__int2float_##suffix, (int x), SIMT_TO_FLOAT, rounding, x, 0, 0)       \
  SIMT_ROUNDED(__uint2float_##suffix, (unsigned x), SIMT_TO_FLOAT, rounding, x, 0, 0) \
  SIMT_ROUNDED(__double2float_##suffix, (double x), SIMT_TO_FLOAT, rounding, x, 0, 0)

SIMT_FLOAT_FROM(rn, SIMT_NEAREST_EVEN)
SIMT_FLOAT_FROM(rz, SIMT_TOWARDS_ZERO)
SIMT_FLOAT_FROM(ru, SIMT_UP)
SIMT_FLOAT_FROM(rd, SIMT_DOWN)

/* --- Bits ----------------------------------------------------------------------------------- */

SIMT_FUNCTION(unsigned, __float_as_uint, (float x), simt::bits_of<unsigned>(x))
SIMT_FUNCTION(int, __float_as_int, (float x), (int)simt::bits_of<unsigned>(x))
SIMT_FUNCTION(float, __uint_as_float, (unsigned x), simt::from_bits<float>(x))
SIMT_FUNCTION(float, __int_as_float, (int x), simt::from_bits<float>(x))
/** The two words of a double. */
SIMT_FUNCTION(int, __double2hiint, (double x), (int)(simt::bits_of<unsigned long long>(x) >> 32))
SIMT_FUNCTION(int, __double2loint, (double x), (int)simt::bits_of<unsigned long long>(x))
SIMT_INLINE double __hiloint2double(int high, int low) {
  return simt::from_bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}

SIMT_FUNCTION(int, __popc, (unsigned x), __builtin_popcount(x))
SIMT_FUNCTION(int, __ffs, (int x), __builtin_ffs(x))
SIMT_FUNCTION(int, __clz, (int x), x == 0 ? 32 : __builtin_clz((unsigned)x))
SIMT_FUNCTION(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
SIMT_FUNCTION(int, __ffsll, (long long x), __builtin_ffsll(x))
SIMT_FUNCTION(int, __clzll, (long long x), x == 0 ? 64 : __builtin_clzll((unsigned long long)x))

/** Swaps adjacent bits, pairs, and groups of four; then reverses the bytes. */
SIMT_INLINE unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
SIMT_INLINE unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}

/** The high half of a product. */
SIMT_FUNCTION(int, __mulhi, (int x, int y), (int)((long long)x *y >> 32))
SIMT_INLINE unsigned __umulhi(unsigned x, unsigned y) {
  return (unsigned)((unsigned long long)x * y >> 32);
}

/** Four of the eight bytes of the two words, by the lowest three bits of each digit. */
SIMT_INLINE unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)high << 32 | low;
  unsigned selected = 0;
  for (int i = 0; i < 4; i++) {
    selected |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return selected;
}

/** The high or the low word of two words that are shifted together. */
SIMT_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
SIMT_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

/** Nanoseconds on this machine; a GPU counts its clock cycles. */
SIMT_INLINE long long clock64() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1000000000ll * time.tv_sec + time.tv_nsec;
}

/* As in the CUDA toolkit: signed and unsigned give unsigned; a number is preferred to NaN. */
#define SIMT_MIN_MAX(T, A, B)                                  \
  SIMT_FUNCTION(T, min, (A a, B b), (T)b < (T)a ? (T)b : (T)a) \
  SIMT_FUNCTION(T, max, (A a, B b), (T)a < (T)b ? (T)b : (T)a)
#define SIMT_MIN_MAX_INTEGERS(Signed, Unsigned) \
  SIMT_MIN_MAX(Signed, Signed, Signed)          \
  SIMT_MIN_MAX(Unsigned, Unsigned, Unsigned)    \
  SIMT_MIN_MAX(Unsigned, Signed, Unsigned)      \
  SIMT_MIN_MAX(Unsigned, Unsigned, Signed)
#define SIMT_MIN_MAX_FLOATING(T, A, B, suffix)          \
  SIMT_FUNCTION(T, min, (A a, B b), fmin##suffix(a, b)) \
  SIMT_FUNCTION(T, max, (A a, B b), fmax##suffix(a, b))

SIMT_MIN_MAX_INTEGERS(int, unsigned)
SIMT_MIN_MAX_INTEGERS(long, unsigned long)
SIMT_MIN_MAX_INTEGERS(long long, unsigned long long)
SIMT_MIN_MAX_FLOATING(float, float, float, f)
SIMT_MIN_MAX_FLOATING(double, double, double, )
SIMT_MIN_MAX_FLOATING(double, float, double, )
SIMT_MIN_MAX_FLOATING(double, double, float, )

#endif
