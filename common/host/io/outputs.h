/**
 * @file
 * The results as files.
 */
#ifndef HOST_OUTPUTS_H
#define HOST_OUTPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "attention.h"
#include "host/base/error.h"

/**
 * Creates `directory` unless it is there; `created` says whether it was not. EXIT_USAGE, with the
 * name of the option that asked for it, if that cannot be, or if nothing can be written into it.
 * Meant for before the run: a long one must not end with an answer that has nowhere to go.
 */
bool outputs_directory_create(const char *option, const char *directory, bool *created,
                              Error *error);

/**
 * Writes o.npy, [B, H, N, D], and lse.npy, [B, H, N], into a directory, or neither of them. O is
 * <f2 for fp16 and <f4, which holds it exactly, for bf16. EXIT_DEVICE if that fails.
 */
bool outputs_write(const Problem *problem, const uint16_t *o, const float *lse,
                   const char *directory, Error *error);

#endif
