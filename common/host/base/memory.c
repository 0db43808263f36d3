#include "host/base/memory.h"

#include <unistd.h>

double machine_memory_bytes(void) {
  return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

bool fits_memory(const char *file, const char *phrase, double bytes, Error *error) {
  const double memory = machine_memory_bytes();
  if (bytes <= memory) return true;
  return fail(error, EXIT_USAGE, "%s: %s %.3g GB, must be at most the %.3g GB of this machine",
              file, phrase, bytes / 1e9, memory / 1e9);
}
