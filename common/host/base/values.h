/**
 * @file
 * Numbers from text and as text. On failure, each parse function returns false with EXIT_USAGE and
 * one line that names the option, given without its dashes, the value and what is allowed.
 */
#ifndef HOST_VALUES_H
#define HOST_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "host/base/error.h"

static inline int64_t min_int64(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/** A decimal integer in [least, most]. */
bool parse_integer(const char *option, const char *text, int64_t least, int64_t most,
                   int64_t *value, Error *error);

/** A finite decimal number that a double can hold without underflow. */
bool parse_real(const char *option, const char *text, double *value, Error *error);

/** The value of --seed: any 64-bit unsigned integer. */
bool parse_seed(const char *text, uint64_t *seed, Error *error);

/** The index of `text` among `count` names. */
bool parse_name(const char *option, const char *text, const char *const *names, int count,
                int *index, Error *error);

/** Two sizes with an x between them, such as 128x64, each from 1 to `most`. */
bool parse_sizes(const char *option, const char *text, int most, int *first, int *second,
                 Error *error);

/** "1.50 MFLOP" and the like, with the prefix that suits, written to `text` and returned. */
const char *human_number(double value, const char *unit, char text[40]);

#endif
