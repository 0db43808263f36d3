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

/**
 * True if `bytes` and what the program needs beside its data fit into the available memory.
 * Otherwise EXIT_USAGE and one line that begins with `what`, such as a file or an option.
 */
bool memory_fits(const char *what, double bytes, Error *error);

#endif
