/** @file Internal to the inputs: single numbers of their files. */
#ifndef HOST_INPUT_FILES_H
#define HOST_INPUT_FILES_H

#include "host/base/elements.h"
#include "host/io/npy.h"

/** Element `index` of a file of floating-point numbers. */
static inline double file_number(const NpyArray *file, int64_t index) {
  return file->type == NPY_F8   ? ((const double *)file->data)[index]
         : file->type == NPY_F4 ? ((const float *)file->data)[index]
         : file->type == NPY_U2 ? bf16_bits_to_float(((const uint16_t *)file->data)[index])
                                : half_bits_to_float(((const uint16_t *)file->data)[index]);
}

/** The same in the problem's 16-bit dtype, rounded once. */
static inline uint16_t file_value(const NpyArray *file, Dtype dtype, int64_t index) {
  const bool same = file->type == NPY_U2 || (file->type == NPY_F2 && dtype == DTYPE_FP16);
  return same ? ((const uint16_t *)file->data)[index]
              : element_bits(dtype, file_number(file, index));
}

#endif
