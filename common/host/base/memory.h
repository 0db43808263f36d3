/**
 * @file
 * How much memory this program may use.
 */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H

#include <stdbool.h>

#include "host/base/error.h"

/**
 * Bytes of memory that a new program could use: what the kernel calls available, or the limit of
 * the memory cgroup (v1 or v2) of this process or of one above it, if that is less.
 */
double memory_available_bytes(void);

/** Begins a run, which has taken no memory yet. */
void memory_start(void);

/**
 * Notes that `bytes` are about to be taken. EXIT_USAGE if the run would then hold more than was
 * available at its start, in one line that begins with `what`, such as a file or an option.
 */
bool memory_take(const char *what, double bytes, Error *error);

/** What is left of the available memory. */
double memory_left_bytes(void);

#endif
