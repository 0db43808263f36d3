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

SIMT_FLOAT16(__nv_bfloat16, __nv_bfloat162, double_to_bf16_bits, bf16_bits_to_float)

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#define SIMT_T __nv_bfloat16
#define SIMT_T2 __nv_bfloat162
#define SIMT_NAME(before, after) before##bfloat16##after
#include <simt_float16_functions.h>

SIMT_FUNCTION(__nv_bfloat162, __bfloat162bfloat162, (__nv_bfloat16 x), {x, x})

#endif
