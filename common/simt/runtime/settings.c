#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

enum { DEFAULT_MULTIPROCESSORS = 4, MAX_MULTIPROCESSORS = 1024 };

static Settings settings;
static pthread_once_t settings_read = PTHREAD_ONCE_INIT;

_Noreturn static void refuse(const char *variable, const char *value, const char *right) {
  fprintf(stderr, "%s=%.60s: must be %s\n", variable, value, right);
  exit(2);
}

/** A plain decimal number: strtoull alone would accept signs and leading blanks. */
static bool parse_number(const char *text, unsigned long long *number, const char **end) {
  if (*text < '0' || *text > '9') return false;
  char *stopped;
  errno = 0;
  *number = strtoull(text, &stopped, 10);
  *end = stopped;
  return errno == 0;
}

static int default_workers(void) {
  cpu_set_t cpus;
  const int count = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
  return count < GUARDED_WORKERS ? count : GUARDED_WORKERS;
}

/** A whole number from 1 to `most`. */
static int read_count(const char *variable, int count, int most, const char *right) {
  const char *value = getenv(variable);
  if (value == NULL) return count;
  unsigned long long number = 0;
  const char *end;
  if (!parse_number(value, &number, &end) || *end != '\0' || number < 1 ||
      number > (unsigned long long)most) {
    refuse(variable, value, right);
  }
  return (int)number;
}

static Order read_order(uint64_t *seed) {
  const char *value = getenv("SIMT_ORDER");
  if (value == NULL || strcmp(value, "forward") == 0) return FORWARD;
  if (strcmp(value, "reverse") == 0) return REVERSE;
  unsigned long long number = 0;
  const char *end;
  if (strncmp(value, "random:", 7) != 0 || !parse_number(value + 7, &number, &end) ||
      *end != '\0') {
    refuse("SIMT_ORDER", value, "forward, reverse or random:SEED, SEED a whole number below 2^64");
  }
  *seed = number;
  return RANDOM;
}

static int shift_of_suffix(const char *suffix) {
  if (strcmp(suffix, "") == 0) return 0;
  if (strcmp(suffix, "K") == 0) return 10;
  if (strcmp(suffix, "M") == 0) return 20;
  if (strcmp(suffix, "G") == 0) return 30;
  return -1;
}

/** A number of bytes from `least` to `most`, with K, M, G or no suffix. */
static bool parse_size(const char *text, size_t least, size_t most, size_t *size) {
  unsigned long long number = 0;
  const char *end;
  if (!parse_number(text, &number, &end)) return false;
  const int shift = shift_of_suffix(end);
  if (shift < 0 || number > most >> shift) return false;
  *size = (size_t)number << shift;
  return *size >= least;
}

static size_t read_size(const char *variable, size_t size, size_t least, size_t most,
                        const char *right) {
  const char *value = getenv(variable);
  if (value != NULL && !parse_size(value, least, most, &size)) refuse(variable, value, right);
  return size;
}

static bool read_warps_complete_alone(void) {
  const char *value = getenv("SIMT_WGMMA");
  if (value == NULL || strcmp(value, "warpgroup") == 0) return false;
  if (strcmp(value, "warp") != 0) refuse("SIMT_WGMMA", value, "warpgroup or warp");
  return true;
}

void simt_read_settings(void) {
  settings.workers =
      read_count("SIMT_THREADS", default_workers(), GUARDED_WORKERS, "a whole number from 1 to 16");
  settings.multiprocessors = read_count("SIMT_SMS", DEFAULT_MULTIPROCESSORS, MAX_MULTIPROCESSORS,
                                        "a whole number from 1 to 1024");
  settings.order = read_order(&settings.seed);
  settings.memory_bytes =
      read_size("SIMT_MEMORY", (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 2,
                1, (size_t)1 << 40, "a number of bytes from 1 to 1024G, with K, M, G or no suffix");
  settings.shared_bytes =
      read_size("SIMT_SHARED", MAX_SHARED_BYTES, DEFAULT_SHARED_BYTES, MAX_SHARED_BYTES,
                "a number of bytes from 48K to 227K, with K or no suffix");
  settings.warps_complete_alone = read_warps_complete_alone();
}

const Settings *simt_settings(void) {
  pthread_once(&settings_read, simt_read_settings);
  return &settings;
}
