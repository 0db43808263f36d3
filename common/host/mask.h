/**
 * @file
 * Dense meaning of the masks: which keys each query attends. Independent of any kernel.
 */
#ifndef HOST_MASK_H
#define HOST_MASK_H

#include <stdbool.h>
#include <stdint.h>

#include "attention.h"
#include "host/error.h"

/** Parses a --mask value into `kind`; EXIT_USAGE with the accepted values otherwise. */
bool mask_parse(const char *text, MaskKind *kind, Error *error);

/** "full" or "causal". */
const char *mask_name(MaskKind kind);

/** Number of keys that query q attends, 0 .. kv_len; both masks attend the keys 0 .. count-1. */
int64_t mask_row_count(const Problem *problem, int64_t q);

/** Unmasked (query, key) pairs of one head. */
int64_t mask_entries(const Problem *problem);

#endif
