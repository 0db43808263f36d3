/**
 * @file
 * NumPy's .npy files (format versions 1.0 to 3.0; NEP 1 and numpy.lib.format): C-ordered,
 * little-endian arrays of the few types the gallery exchanges.
 */
#ifndef HOST_NPY_H
#define HOST_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "host/base/error.h"

typedef enum NpyType { NPY_F2, NPY_F4, NPY_F8, NPY_U2, NPY_I4, NPY_B1 } NpyType;

enum { NPY_MAX_RANK = 8 };

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
 * Reads a whole array of one of the `types`. Refuses with EXIT_USAGE, the name of the file, what is
 * wrong and what would be right: a file that is missing, that is not .npy, of another type, in Fortran
 * order or big-endian, of a size that is not what its header says, larger than the available
 * memory, or with a bool that is not 0 or 1. EXIT_DEVICE if reading fails. On failure
 * `array->data` is NULL.
 */
bool npy_read(const char *path, NpyTypes types, NpyArray *array, Error *error);

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
 * Writes all the files into a directory, or none of them: each is written under a temporary name,
 * and renamed when all are complete. EXIT_DEVICE on failure; files of these names that were there
 * before are then kept.
 */
bool npy_write(const char *directory, const NpyFile *files, int count, Error *error);

#endif
