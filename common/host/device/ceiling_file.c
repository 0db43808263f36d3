#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "host/device/ceiling.h"

/** Sets the path of the file; creates its directory if `create`. False if HOME is not set. */
static bool find_path(bool create, char path[PATH_MAX]) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char directory[PATH_MAX / 2];
  const bool standard = cache == NULL || cache[0] != '/'; /* a relative path is ignored */
  if (standard && home == NULL) return false;
  snprintf(directory, sizeof directory, "%s%s", standard ? home : cache, standard ? "/.cache" : "");
  if (create) mkdir(directory, 0777);
  snprintf(path, PATH_MAX, "%s/attention-steps", directory);
  if (create) mkdir(path, 0777);
  strncat(path, "/ceilings.txt", PATH_MAX - strlen(path) - 1);
  return true;
}

bool ceilings_read(const char *device_name, Ceilings *ceilings) {
  char path[PATH_MAX], name[256];
  Ceilings c = {0};
  FILE *file = find_path(false, path) ? fopen(path, "r") : NULL;
  if (file == NULL) return false;
  const bool complete =
      fscanf(
          file,
          "mma_tflops %lf wgmma_tflops %lf wgmma_e4m3_tflops %lf ffma_tflops %lf exp_g_per_s %lf "
          "copy_gb_per_s %lf date %23s "
          "device %255[^\n]",
          &c.mma_tflops, &c.wgmma_tflops, &c.wgmma_e4m3_tflops, &c.ffma_tflops, &c.exp_g_per_s,
          &c.copy_gb_per_s, c.date, name) == 8;
  fclose(file);
  if (!complete || strcmp(name, device_name) != 0) return false;
  *ceilings = c;
  return true;
}

bool ceilings_write(const char *device_name, Ceilings *c, char path[PATH_MAX]) {
  const time_t now = time(NULL);
  struct tm utc;
  strftime(c->date, sizeof c->date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  FILE *file = find_path(true, path) ? fopen(path, "w") : NULL;
  if (file == NULL) return false;
  /* The device comes last, so a file that a full disk truncated names no device. */
  const bool written =
      fprintf(file,
              "mma_tflops %.17g\nwgmma_tflops %.17g\nwgmma_e4m3_tflops %.17g\nffma_tflops "
              "%.17g\nexp_g_per_s %.17g\ncopy_gb_per_s %.17g\n"
              "date %s\ndevice %s\n",
              c->mma_tflops, c->wgmma_tflops, c->wgmma_e4m3_tflops, c->ffma_tflops, c->exp_g_per_s,
              c->copy_gb_per_s, c->date, device_name) > 0;
  return fclose(file) == 0 && written;
}
