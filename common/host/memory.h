/**
 * @file
 * What this machine has room for.
 */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H

#include <unistd.h>

/** Bytes of memory of this machine, free or not. */
static inline double machine_memory_bytes(void) {
  return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

#endif
