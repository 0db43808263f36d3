/**
 * @file
 * CUDA's half-precision type, for the CPU backend: IEEE binary16. Arithmetic is done in float and
 * rounded once more, which for + - * / gives the same as rounding once.
 */
#ifndef CUDA_FP16_H
#define CUDA_FP16_H

#include <cuda_runtime.h>
#include <float16.h>
#include <simt_float16.h>

struct __half {
  uint16_t bits;

  __half() = default;
  SIMT_INLINE __half(double x)
      : bits(simt::is_unset(simt::checked(x)) ? 0xffff : double_to_half_bits(x)) {}
  SIMT_INLINE operator float() const { return half_bits_to_float(bits); }
};

SIMT_ARITHMETIC(__half)
SIMT_FLOAT16_VECTOR2(__half2, __half)

// In a namespace, so that a local variable named `half` shadows nothing.
namespace simt_short_names {
typedef __half half;
typedef __half2 half2;
}  // namespace simt_short_names
using namespace simt_short_names;

SIMT_INLINE __half __float2half(float x) {
  return {x};
}
SIMT_INLINE __half __float2half_rn(float x) {
  return {x};
}
SIMT_INLINE __half __double2half(double x) {
  return {x};
}
SIMT_INLINE float __half2float(__half x) {
  return x;
}
SIMT_INLINE unsigned short __half_as_ushort(__half x) {
  return x.bits;
}
SIMT_INLINE __half __ushort_as_half(unsigned short bits) {
  __half x;
  x.bits = bits;
  return x;
}

SIMT_INLINE __half2 __floats2half2_rn(float low, float high) {
  return {low, high};
}
SIMT_INLINE __half2 __float2half2_rn(float x) {
  return {x, x};
}
SIMT_INLINE __half2 __float22half2_rn(float2 v) {
  return {v.x, v.y};
}
SIMT_INLINE float2 __half22float2(__half2 v) {
  return {v.x, v.y};
}
SIMT_INLINE __half2 __half2half2(__half x) {
  return {x, x};
}
SIMT_INLINE __half2 __halves2half2(__half low, __half high) {
  return {low, high};
}
SIMT_INLINE __half2 make_half2(__half low, __half high) {
  return {low, high};
}
SIMT_INLINE __half __low2half(__half2 v) {
  return v.x;
}
SIMT_INLINE __half __high2half(__half2 v) {
  return v.y;
}

SIMT_INLINE __half2 __low2half2(__half2 v) {
  return {v.x, v.x};
}
SIMT_INLINE __half2 __high2half2(__half2 v) {
  return {v.y, v.y};
}
SIMT_INLINE __half2 __lows2half2(__half2 a, __half2 b) {
  return {a.x, b.x};
}
SIMT_INLINE __half2 __highs2half2(__half2 a, __half2 b) {
  return {a.y, b.y};
}
SIMT_INLINE short __half_as_short(__half x) {
  return (short)x.bits;
}
SIMT_INLINE __half __short_as_half(short bits) {
  return __ushort_as_half((unsigned short)bits);
}
SIMT_INLINE __half __int2half_rn(int x) {
  return {(double)x};
}
SIMT_INLINE int __half2int_rn(__half x) {
  return __float2int_rn(x);
}
SIMT_INLINE int __half2int_rz(__half x) {
  return __float2int_rz(x);
}

#define SIMT_T __half
#define SIMT_T2 __half2
#include <simt_float16_functions.h>
#undef SIMT_T
#undef SIMT_T2

#endif
