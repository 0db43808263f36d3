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

#define SIMT_T __half
#define SIMT_T2 __half2
#define SIMT_NAME(before, after) before##half##after
#include <simt_float16_functions.h>
#undef SIMT_T
#undef SIMT_T2
#undef SIMT_NAME

SIMT_FUNCTION(__half2, __half2half2, (__half x), {x, x})

#endif
