/** @file Writes the results as files. */
#ifndef HOST_OUTPUTS_H
#define HOST_OUTPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "attention.h"
#include "host/base/error.h"

/**
 * Creates `directory`, unless it exists or is NULL. Called before a run, so that a long run does
 * not fail when it writes its results. EXIT_USAGE names the `option` if the directory cannot be
 * created or written to; EXIT_DEVICE if the disk is full. A signal that ends the program, such as
 * that of Ctrl-C, removes the directory while it is empty.
 */
bool outputs_directory_create(const char *option, const char *directory, Error *error);

/** Ends a run: removes the directories that were created for it if they are still empty. */
void outputs_remove_empty(void);

/**
 * Writes o.npy, [B, H, N, D], and lse.npy, [B, H, N], into a directory, or neither of them. `o` has
 * the strides of the problem; o.npy has type <f2 for fp16 and <f4, which is exact, for bf16. `lse`
 * is dense. EXIT_DEVICE if that fails.
 */
bool outputs_write(const Problem *problem, const uint16_t *o, const float *lse,
                   const char *directory, Error *error);

/** Writes dq.npy, dk.npy and dv.npy: all or none of them, in the types of o.npy. */
bool outputs_write_gradients(const Problem *problem, const uint16_t *const gradients[3],
                             const char *directory, Error *error);

#endif
