/**
 * @file
 * NumPy's .npy files (format versions 1.0 to 3.0; NEP 1 and numpy.lib.format): C-ordered,
 * little-endian arrays of bools, integers and floating-point numbers.
 */
#ifndef HOST_NPY_H
#define HOST_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "host/base/error.h"

typedef enum NpyType {
  NPY_F2,
  NPY_F4,
  NPY_F8,
  NPY_I1,
  NPY_I2,
  NPY_I4,
  NPY_I8,
  NPY_U1,
  NPY_U2,
  NPY_U4,
  NPY_U8,
  NPY_B1
} NpyType;

enum { NPY_ANY_TYPE = (2 << NPY_B1) - 1, NPY_MAX_RANK = 8 };

/** The types that a caller can use. */
typedef struct NpyTypes {
  unsigned set;      /**< 1 << NPY_F2 and so on */
  const char *names; /**< the same in words, for a refusal: "<f2 or <f4" */
} NpyTypes;

typedef struct NpyArray {
  NpyType type;
  int rank;
  int64_t shape[NPY_MAX_RANK];
  size_t bytes; /**< size of `data` */
  void *data;   /**< freed by npy_free() */
} NpyArray;

/**
 * Reads a whole array of one of the `types`. EXIT_USAGE names the file, the fault and what was
 * expected: the file is missing, is not .npy, has another type, Fortran order or big-endian data,
 * has another size than its header says, is larger than the available memory, or has a bool that is
 * not 0 or 1. EXIT_DEVICE if reading fails. On failure `array->data` is NULL.
 */
bool npy_read(const char *path, NpyTypes types, NpyArray *array, Error *error);

/** The name of a type in a header: "<f2". */
const char *npy_type_name(NpyType type);

/** The signs of the elements other than 0; a NaN has both. */
typedef struct NpySigns {
  bool positive, negative; /**< some are */
} NpySigns;

NpySigns npy_signs(const NpyArray *array);

/** Frees `data`; harmless on a zeroed array. */
void npy_free(NpyArray *array);

/** An array to be written. */
typedef struct NpyFile {
  const char *name; /**< in the directory, such as "o.npy" */
  NpyType type;
  int rank;
  const int64_t *shape;
  const void *data; /**< in C order */
} NpyFile;

/**
 * Writes all files into a directory, or none: each is written under a temporary name and renamed
 * when all are complete. EXIT_DEVICE on failure; existing files of these names are then kept.
 */
bool npy_write(const char *directory, const NpyFile *files, int count, Error *error);

#endif
