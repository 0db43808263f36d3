/** @file How much memory this program may use. */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H

#include <stdbool.h>

#include "host/base/error.h"

/**
 * Bytes of memory that a new program could use: MemAvailable of the kernel, or the limit of the
 * memory cgroup (v1 or v2) of this process or of an ancestor, whichever is smaller.
 */
double memory_available_bytes(void);

/** Starts a run: measures the available memory; the run has taken none of it yet. */
void memory_start(void);

/**
 * Counts `bytes` as taken by the run; negative `bytes` give memory back. EXIT_USAGE if the run
 * would hold more than was available at its start; `what`, a file or an option, begins the message.
 */
bool memory_take(const char *what, double bytes, Error *error);

/** Bytes of the available memory that the run has not taken. */
double memory_left_bytes(void);

#endif
