/** @file Elements of tensors: patterns of a dtype, in 16 bits each, those of e4m3 too. */
#ifndef HOST_ELEMENTS_H
#define HOST_ELEMENTS_H

#include "attention.h"
#include "float8.h"

/** Value of a pattern. */
static inline float element_value(Dtype dtype, uint16_t bits) {
  return dtype == DTYPE_FP16   ? half_bits_to_float(bits)
         : dtype == DTYPE_BF16 ? bf16_bits_to_float(bits)
                               : e4m3_bits_to_float((uint8_t)bits);
}

/** x rounded once to the type. */
static inline uint16_t element_bits(Dtype dtype, double x) {
  return dtype == DTYPE_FP16   ? double_to_half_bits(x)
         : dtype == DTYPE_BF16 ? double_to_bf16_bits(x)
                               : double_to_e4m3_bits(x);
}

#endif
