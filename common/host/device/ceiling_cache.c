#define _POSIX_C_SOURCE 200809L
#include "host/device/ceiling_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ceiling_version.h"
#include "host/device/gpu_state.h"

enum { KEY_SIZE = 1024, TEXT_SIZE = 2048 };

/** FNV-1a. */
static uint64_t hash_text(const char *text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  return hash;
}

/** The whole file. False if it is too long for TEXT_SIZE bytes. */
static bool format(const char *key, const Ceilings *c, char *text) {
  const int length =
      snprintf(text, TEXT_SIZE,
               "ceilings of %s\ndate %s\nmma_tflops %.17g\nffma_tflops %.17g\n"
               "exp_g_per_s %.17g\ncopy_gb_per_s %.17g\n",
               key, c->date, c->mma_tflops, c->ffma_tflops, c->exp_g_per_s, c->copy_gb_per_s);
  if (length < 0 || length + 32 > TEXT_SIZE) return false;
  snprintf(text + length, 32, "checksum %016" PRIx64 "\n", hash_text(text));
  return true;
}

bool ceilings_read(const char *path, const char *key, Ceilings *ceilings) {
  char text[TEXT_SIZE], expected[TEXT_SIZE];
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  const size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = '\0';
  Ceilings read = {0};
  const char *values = strchr(text, '\n');
  if (values == NULL ||
      sscanf(values,
             "\ndate %23s\nmma_tflops %lf\nffma_tflops %lf\nexp_g_per_s %lf\ncopy_gb_per_s %lf",
             read.date, &read.mma_tflops, &read.ffma_tflops, &read.exp_g_per_s,
             &read.copy_gb_per_s) != 5) {
    return false;
  }
  /* Written anew, the same values under this key give the same bytes, checksum and all. */
  if (!format(key, &read, expected) || strcmp(text, expected) != 0) return false;
  *ceilings = read;
  return true;
}

/** Creates the directories on the way to a file; those that are missing at most. */
static void create_parents(const char *path) {
  char parent[PATH_MAX];
  snprintf(parent, sizeof parent, "%s", path);
  for (char *slash = strchr(parent + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(parent, 0777);
    *slash = '/';
  }
}

bool ceilings_write(const char *path, const char *key, const Ceilings *ceilings) {
  char text[TEXT_SIZE], fresh[PATH_MAX];
  if (!format(key, ceilings, text)) return false;
  if (snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid()) >= PATH_MAX) return false;
  create_parents(path);
  FILE *file = fopen(fresh, "w");
  if (file == NULL) return false;
  const bool written = fputs(text, file) >= 0;
  if (fclose(file) == 0 && written && rename(fresh, path) == 0) return true;
  unlink(fresh);
  return false;
}

void ceilings_path(const char *uuid, char *path, size_t size) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int length = 0;
  if (cache != NULL && cache[0] == '/') { /* the standard wants others ignored */
    length = snprintf(path, size, "%s/attention-steps/ceilings-%s.txt", cache, uuid);
  } else if (home != NULL && home[0] == '/') {
    length = snprintf(path, size, "%s/.cache/attention-steps/ceilings-%s.txt", home, uuid);
  }
  if (length <= 0 || (size_t)length >= size || uuid[0] == '\0') path[0] = '\0';
}

/** All that the ceilings depend on. */
static void make_key(const Device *device, const char *uuid, char *key) {
  char state[256];
  if (!gpu_query("driver_version,clocks.max.sm,clocks.max.memory,power.limit", state,
                 sizeof state)) {
    snprintf(state, sizeof state, "unknown");
  }
  snprintf(key, KEY_SIZE, "%s %s; driver and limits %s; CUDA %d; loops %s", device->name, uuid,
           state, device->runtime, CEILING_VERSION);
}

/** Measured by this process, or read by it. */
static Ceilings found;
static bool is_found;

bool ceilings_renew(const Device *device, Ceilings *ceilings, char *path, size_t path_size,
                    Error *error) {
  char uuid[33], key[KEY_SIZE];
  gpu_uuid(uuid);
  make_key(device, uuid, key);
  if (!ceilings_measure(&found, error)) return false;
  const time_t now = time(NULL);
  struct tm utc;
  strftime(found.date, sizeof found.date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  is_found = true;
  *ceilings = found;
  ceilings_path(uuid, path, path_size);
  if (path[0] != '\0' && !ceilings_write(path, key, &found)) path[0] = '\0';
  return true;
}

bool ceilings_find(const Device *device, Ceilings *ceilings, Error *error) {
  char uuid[33], key[KEY_SIZE], path[PATH_MAX];
  if (!is_found) {
    gpu_uuid(uuid);
    make_key(device, uuid, key);
    ceilings_path(uuid, path, sizeof path);
    is_found = path[0] != '\0' && ceilings_read(path, key, &found);
  }
  if (!is_found) return ceilings_renew(device, ceilings, path, sizeof path, error);
  *ceilings = found;
  return true;
}
