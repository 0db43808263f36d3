/**
 * @file
 * What the two 16-bit floating-point types have in common: operators, and vectors of two.
 */
#ifndef SIMT_FLOAT16_H
#define SIMT_FLOAT16_H

#include <vector_types.h>

#include <cmath>

namespace simt {

/** fmaxf() with -0 less than 0. */
SIMT_INLINE float larger(float x, float y) {
  return x == y ? (std::signbit(x) ? y : x) : fmaxf(x, y);
}

/**
 * a b + c in double, rounded to odd: if it is not exact, the last bit is 1. Rounding this to 16
 * bits gives the same as rounding the exact sum. The product of two 16-bit numbers is exact.
 */
SIMT_INLINE double fused(double a, double b, double c) {
  const double product = a * b, sum = product + c;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (c - part);
  uint64_t bits;
  __builtin_memcpy(&bits, &sum, sizeof bits);
  if (error == 0 || error != error || bits % 2 == 1) return sum;
  bits += (error > 0) == (sum > 0) ? 1 : -1; /* towards the exact sum */
  double odd;
  __builtin_memcpy(&odd, &bits, sizeof odd);
  return odd;
}

}  // namespace simt

#define SIMT_OPERATOR(T, op)                 \
  SIMT_INLINE T operator op(T a, T b) {      \
    return T((float)a op(float) b);          \
  }                                          \
  SIMT_INLINE T &operator op##=(T &a, T b) { \
    return a = a op b;                       \
  }

#define SIMT_COMPARISON(T, op)             \
  SIMT_INLINE bool operator op(T a, T b) { \
    return (float)a op(float) b;           \
  }

/** Says what to use instead, where it is called. */
#define SIMT_NO_ATOMICS(T)                                                              \
  template <int CALLED = 1>                                                             \
  SIMT_INLINE T atomicAdd(T *, T) {                                                     \
    static_assert(CALLED == 0,                                                          \
                  "no atomicAdd() of 16-bit floats on the CPU backend: add to floats"); \
    return {};                                                                          \
  }

#define SIMT_ARITHMETIC(T)                         \
  SIMT_NO_ATOMICS(T)                               \
  SIMT_OPERATOR(T, +)                              \
  SIMT_OPERATOR(T, -)                              \
  SIMT_OPERATOR(T, *)                              \
  SIMT_OPERATOR(T, /)                              \
  SIMT_FUNCTION(T, operator-, (T a), T(-(float)a)) \
  SIMT_COMPARISON(T, ==)                           \
  SIMT_COMPARISON(T, !=)                           \
  SIMT_COMPARISON(T, <)                            \
  SIMT_COMPARISON(T, <=)                           \
  SIMT_COMPARISON(T, >)                            \
  SIMT_COMPARISON(T, >=)

#define SIMT_VECTOR_OPERATOR(Vector, op)                    \
  SIMT_INLINE Vector operator op(Vector a, Vector b) {      \
    return {a.x op b.x, a.y op b.y};                        \
  }                                                         \
  SIMT_INLINE Vector &operator op##=(Vector &a, Vector b) { \
    return a = a op b;                                      \
  }

#define SIMT_FLOAT16_VECTOR2(Vector, T)               \
  struct alignas(4) Vector {                          \
    T x, y;                                           \
    SIMT_VECTOR_MEMBERS(Vector, Word4)                \
    SIMT_INLINE Vector(T a, T b) : x(a), y(b) {}      \
  };                                                  \
  template <>                                         \
  inline constexpr bool simt::is_word<Vector> = true; \
  SIMT_NO_ATOMICS(Vector)                             \
  SIMT_VECTOR_OPERATOR(Vector, +)                     \
  SIMT_VECTOR_OPERATOR(Vector, -)                     \
  SIMT_VECTOR_OPERATOR(Vector, *)                     \
  SIMT_VECTOR_OPERATOR(Vector, /)

/** A type, and its vector of two; the last two are functions of float16.h. */
#define SIMT_FLOAT16(T, Vector, from_double, to_float)                                            \
  struct T {                                                                                      \
    uint16_t bits;                                                                                \
    T() = default;                                                                                \
    SIMT_INLINE T(double x) : bits(simt::is_unset(simt::checked(x)) ? 0xffff : from_double(x)) {} \
    SIMT_INLINE operator float() const { return to_float(bits); }                                 \
  };                                                                                              \
  SIMT_ARITHMETIC(T)                                                                              \
  SIMT_FLOAT16_VECTOR2(Vector, T)

#endif
