/**
 * @file
 * What the two 16-bit floating-point types have in common: operators, and vectors of two.
 */
#ifndef SIMT_FLOAT16_H
#define SIMT_FLOAT16_H

#include <vector_types.h>

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

#define SIMT_ARITHMETIC(T)       \
  SIMT_OPERATOR(T, +)            \
  SIMT_OPERATOR(T, -)            \
  SIMT_OPERATOR(T, *)            \
  SIMT_OPERATOR(T, /)            \
  SIMT_INLINE T operator-(T a) { \
    return T(-(float)a);         \
  }                              \
  SIMT_COMPARISON(T, ==)         \
  SIMT_COMPARISON(T, !=)         \
  SIMT_COMPARISON(T, <)          \
  SIMT_COMPARISON(T, <=)         \
  SIMT_COMPARISON(T, >)          \
  SIMT_COMPARISON(T, >=)

#define SIMT_VECTOR_OPERATOR(Vector, op)               \
  SIMT_INLINE Vector operator op(Vector a, Vector b) { \
    return {a.x op b.x, a.y op b.y};                   \
  }

#define SIMT_FLOAT16_VECTOR2(Vector, T)          \
  struct alignas(4) Vector {                     \
    T x, y;                                      \
    SIMT_VECTOR_MEMBERS(Vector, Word4)           \
    SIMT_INLINE Vector(T x, T y) : x(x), y(y) {} \
  };                                             \
  SIMT_VECTOR_OPERATOR(Vector, +)                \
  SIMT_VECTOR_OPERATOR(Vector, -)                \
  SIMT_VECTOR_OPERATOR(Vector, *)                \
  SIMT_VECTOR_OPERATOR(Vector, /)

#endif
