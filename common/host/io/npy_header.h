/**
 * @file
 * The dictionary in the header of a .npy file.
 */
#ifndef HOST_NPY_HEADER_H
#define HOST_NPY_HEADER_H

#include <stddef.h>

#include "host/base/error.h"
#include "host/io/npy.h"

/** The start of some bytes of a file in a form fit for a message: one line of printable ASCII. */
typedef struct Excerpt {
  char text[24 * sizeof "\\xff"];
} Excerpt;

/** Formats at most the first 24 bytes; returns out->text. */
const char *excerpt(const char *bytes, size_t length, Excerpt *out);

/**
 * Sets the type, which has to be one of `types`, the rank and the shape of `array`. EXIT_USAGE with
 * the place and what was expected there.
 */
bool npy_parse_header(const char *path, const char *text, size_t length, NpyTypes types,
                      NpyArray *array, Error *error);

#endif
