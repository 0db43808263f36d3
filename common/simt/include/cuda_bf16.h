/**
 * @file
 * CUDA's bfloat16 type, for the CPU backend: the upper half of a float. Arithmetic is done in float
 * and rounded once more, which for + - * / gives the same as rounding once.
 */
#ifndef CUDA_BF16_H
#define CUDA_BF16_H

#include <cuda_runtime.h>
#include <float16.h>
#include <simt_float16.h>

struct __nv_bfloat16 {
  uint16_t bits;

  __nv_bfloat16() = default;
  SIMT_INLINE __nv_bfloat16(double x)
      : bits(simt::is_unset(simt::checked(x)) ? 0xffff : double_to_bf16_bits(x)) {}
  SIMT_INLINE operator float() const { return bf16_bits_to_float(bits); }
};

SIMT_ARITHMETIC(__nv_bfloat16)
SIMT_FLOAT16_VECTOR2(__nv_bfloat162, __nv_bfloat16)

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

SIMT_INLINE __nv_bfloat16 __float2bfloat16(float x) {
  return {x};
}
SIMT_INLINE __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {x};
}
SIMT_INLINE __nv_bfloat16 __double2bfloat16(double x) {
  return {x};
}
SIMT_INLINE float __bfloat162float(__nv_bfloat16 x) {
  return x;
}
SIMT_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.bits;
}
SIMT_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 x;
  x.bits = bits;
  return x;
}

SIMT_INLINE __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {low, high};
}
SIMT_INLINE __nv_bfloat162 __float2bfloat162_rn(float x) {
  return {x, x};
}
SIMT_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return {v.x, v.y};
}
SIMT_INLINE float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {v.x, v.y};
}
SIMT_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
  return {x, x};
}
SIMT_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) {
  return {low, high};
}
SIMT_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) {
  return v.x;
}
SIMT_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) {
  return v.y;
}

SIMT_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) {
  return {low, high};
}
SIMT_INLINE __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) {
  return {v.x, v.x};
}
SIMT_INLINE __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) {
  return {v.y, v.y};
}
SIMT_INLINE __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {a.x, b.x};
}
SIMT_INLINE __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {a.y, b.y};
}
SIMT_INLINE short __bfloat16_as_short(__nv_bfloat16 x) {
  return (short)x.bits;
}
SIMT_INLINE __nv_bfloat16 __short_as_bfloat16(short bits) {
  return __ushort_as_bfloat16((unsigned short)bits);
}
SIMT_INLINE __nv_bfloat16 __int2bfloat16_rn(int x) {
  return {(double)x};
}
SIMT_INLINE int __bfloat162int_rn(__nv_bfloat16 x) {
  return __float2int_rn(x);
}
SIMT_INLINE int __bfloat162int_rz(__nv_bfloat16 x) {
  return __float2int_rz(x);
}

#define SIMT_T __nv_bfloat16
#define SIMT_T2 __nv_bfloat162
#include <simt_float16_functions.h>
#undef SIMT_T
#undef SIMT_T2

#endif
