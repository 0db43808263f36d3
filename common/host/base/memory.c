#include "host/base/memory.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** Code, libraries and the stacks of threads and simulated threads: about 25 MB were measured. */
static const double PROGRAM_BYTES = 32e6;

/** MemAvailable of /proc/meminfo: free memory and caches that can be dropped. */
static double machine_available_bytes(void) {
  char line[256];
  double kilobytes = 0;
  FILE *file = fopen("/proc/meminfo", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "MemAvailable: %lf kB", &kilobytes) == 1) break;
  }
  if (file != NULL) fclose(file);
  return kilobytes > 0 ? 1024 * kilobytes
                       : (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}

/** Smallest limit of a cgroup and its ancestors, up to the visible root; "max" is no limit. */
static double least_limit(const char *root, char *group, const char *file_name) {
  double least = INFINITY;
  for (;;) {
    char path[2 * PATH_MAX];
    double limit;
    snprintf(path, sizeof path, "%s%s/%s", root, group, file_name);
    FILE *file = fopen(path, "r");
    if (file != NULL && fscanf(file, "%lf", &limit) == 1) least = fmin(least, limit);
    if (file != NULL) fclose(file);
    char *slash = strrchr(group, '/');
    if (slash == NULL) return least;
    *slash = '\0';
  }
}

double memory_available_bytes(void) {
  double available = machine_available_bytes();
  char line[PATH_MAX], controllers[256], group[PATH_MAX];
  FILE *file = fopen("/proc/self/cgroup", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    /* Version 2: "0::/group". Version 1: "4:memory:/group". */
    if (sscanf(line, "0::%4095[^\n]", group) == 1) {
      available = fmin(available, least_limit("/sys/fs/cgroup", group, "memory.max"));
    } else if (sscanf(line, "%*d:%255[^:]:%4095[^\n]", controllers, group) == 2 &&
               strcmp(controllers, "memory") == 0) {
      available =
          fmin(available, least_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  if (file != NULL) fclose(file);
  return available;
}

static double available_bytes = INFINITY, taken_bytes;

void memory_start(void) {
  available_bytes = memory_available_bytes();
  taken_bytes = PROGRAM_BYTES;
}

double memory_left_bytes(void) {
  return available_bytes - taken_bytes;
}

bool memory_take(const char *what, double bytes, Error *error) {
  const double needed = taken_bytes + bytes;
  const bool small = needed < 1e9;
  const double unit = small ? 1e6 : 1e9;
  if (needed > available_bytes) {
    return fail(error, EXIT_USAGE, "%s: needs %.3g %s of memory, but only %.3g are available", what,
                needed / unit, small ? "MB" : "GB", available_bytes / unit);
  }
  taken_bytes = needed;
  return true;
}
