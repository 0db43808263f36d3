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

/** Which types a reader has a use for. */
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

/** The type as the header spells it, e.g. "<f2". */
const char *npy_type_name(NpyType type);

/** Bytes of one element. */
size_t npy_type_bytes(NpyType type);

/**
 * Reads the whole array if it is of one of the `types`. On failure returns false with EXIT_USAGE
 * and a text that names the file, what is wrong and what would be right: missing, no .npy,
 * truncated, trailing bytes, another type, Fortran order, big-endian, version > 3, a header that
 * lies about the size, a bool that is not 0 or 1. EXIT_DEVICE if memory runs out or the file system
 * fails. Nothing is allocated for data that the file is too short to hold.
 */
bool npy_read(const char *path, NpyTypes types, NpyArray *array, Error *error);

/**
 * Writes an array of C order, version 1.0, data at a multiple of 64 bytes. On failure (EXIT_DEVICE)
 * no half-written file is left and a file that was there before is kept.
 */
bool npy_write(const char *path, NpyType type, int rank, const int64_t *shape, const void *data,
               Error *error);

/** A whole file under a temporary name beside the place where it belongs. */
typedef struct NpyDraft {
  char *path, *temporary;
} NpyDraft;

/**
 * The first half of npy_write(): everything that a full disk can spoil. On failure nothing is left
 * and `draft` is zero.
 */
bool npy_draft(const char *path, NpyType type, int rank, const int64_t *shape, const void *data,
               NpyDraft *draft, Error *error);

/** The second half: puts the file in its place. `draft` is zero afterwards, whatever happens. */
bool npy_publish(NpyDraft *draft, Error *error);

/** Removes a draft that is not wanted after all; harmless on a zeroed one. */
void npy_discard(NpyDraft *draft);

/** Frees `data`; harmless on a zeroed array. */
void npy_free(NpyArray *array);

#endif
