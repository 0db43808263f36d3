/**
 * @file
 * What this machine has room for.
 */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H

#include <stdbool.h>

#include "attention.h"
#include "host/base/error.h"

/** How often this machine's memory holds what goes to the device: the CPU backend's lies in it. */
#ifdef SIMT_BACKEND
enum { DEVICE_COPIES = 2 };
#else
enum { DEVICE_COPIES = 1 };
#endif

/** Bytes of memory of this machine, free or not. */
double machine_memory_bytes(void);

/**
 * True if this machine has that much memory. Otherwise EXIT_USAGE and a line that begins with the
 * name of a file and a phrase with its verb: "mask.npy", "the mask takes".
 */
bool fits_memory(const char *file, const char *phrase, double bytes, Error *error);

#endif
