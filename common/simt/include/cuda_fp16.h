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

SIMT_FLOAT16(__half, __half2, double_to_half_bits, half_bits_to_float)

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

SIMT_FUNCTION(__half2, __half2half2, (__half x), {x, x})

#endif
