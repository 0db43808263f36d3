/* GPUs that a roofline can be drawn for. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "host/base/text_file.h"
#include "host/base/values.h"
#include "host/cli/report_request.h"

/** Names as --report=roofline: takes them. Peaks are dense, for 16-bit operands and fp32 sums. */
static const struct {
  const char *option;
  Gpu gpu;
} KNOWN[] = {
    {"h200",
     {"NVIDIA H200", 132, 1980, 646, 989, 67, 4270,
      "NVIDIA's H200 data sheet; mma.sync and device memory as measured by this project's "
      "ceilings"}},
    {"a100",
     {"NVIDIA A100 80 GB SXM", 108, 1410, 312, 312, 19.5, 2039,
      "NVIDIA's A100 data sheet and the white paper of the Ampere architecture"}},
    {"rtx4090",
     {"NVIDIA GeForce RTX 4090", 128, 2520, 165.2, 165.2, 82.6, 1008,
      "the white paper of NVIDIA's Ada architecture"}},
};
enum { KNOWN_COUNT = sizeof KNOWN / sizeof *KNOWN };

/** The keys of a file, besides the name. The last one may be left out. */
static const struct {
  const char *key;
  size_t offset; /* of a double in Gpu */
} NUMBERS[] = {
    {"multiprocessors", offsetof(Gpu, multiprocessors)},
    {"clock_mhz", offsetof(Gpu, clock_mhz)},
    {"mma_tflops", offsetof(Gpu, mma_tflops)},
    {"fp32_tflops", offsetof(Gpu, fp32_tflops)},
    {"memory_gb_per_s", offsetof(Gpu, memory_gb_per_s)},
    {"wgmma_tflops", offsetof(Gpu, wgmma_tflops)},
};
enum { NUMBER_COUNT = sizeof NUMBERS / sizeof *NUMBERS };

static double *number_at(Gpu *gpu, int i) {
  return (double *)(void *)((char *)gpu + NUMBERS[i].offset);
}

/** Sets the value of a key; false if the key is unknown or the number not greater than 0. */
static bool set_value(Gpu *gpu, const char *key, const char *value) {
  Error unused;
  if (strcmp(key, "name") == 0) {
    return snprintf(gpu->name, sizeof gpu->name, "%s", value) < (int)sizeof gpu->name;
  }
  for (int i = 0; i < NUMBER_COUNT; i++) {
    if (strcmp(key, NUMBERS[i].key) != 0) continue;
    return parse_real("", value, number_at(gpu, i), &unused) && *number_at(gpu, i) > 0;
  }
  return false;
}

/** Reads lines of "key = value"; a # begins a comment. */
static bool read_gpu(const char *path, Gpu *gpu, Error *error) {
  char line[256], key[64], value[192];
  FILE *file = text_file_open(path);
  if (file == NULL) {
    return fail(error, EXIT_USAGE,
                "--report=roofline:%s: must be h200, a100, rtx4090 or a file of a GPU: %s", path,
                strerror(errno));
  }
  *gpu = (Gpu){.name = ""};
  snprintf(gpu->source, sizeof gpu->source, "%s", path);
  int bad_line = 0;
  for (int number = 1; bad_line == 0 && fgets(line, sizeof line, file) != NULL; number++) {
    line[strcspn(line, "#\r\n")] = '\0';
    if (line[strspn(line, " \t")] == '\0') continue;
    const bool pair = sscanf(line, " %63[^= \t] = %191[^\n]", key, value) == 2;
    for (size_t n = pair ? strlen(value) : 0; n > 0 && strchr(" \t", value[n - 1]); n--) {
      value[n - 1] = '\0';
    }
    if (!pair || !set_value(gpu, key, value)) bad_line = number;
  }
  fclose(file);
  if (gpu->wgmma_tflops == 0) gpu->wgmma_tflops = gpu->mma_tflops;
  bool complete = gpu->name[0] != '\0';
  for (int i = 0; i < NUMBER_COUNT; i++) complete &= *number_at(gpu, i) > 0;
  if (bad_line == 0 && complete) return true;
  snprintf(line, sizeof line, bad_line > 0 ? "line %d: " : "", bad_line);
  return fail(error, EXIT_USAGE,
              "--report=roofline:%s: %smust hold lines \"key = value\" with name and, greater than "
              "0, multiprocessors, clock_mhz, mma_tflops, fp32_tflops and memory_gb_per_s",
              path, line);
}

bool gpu_find(const char *name, Gpu *gpu, Error *error) {
  for (int i = 0; i < KNOWN_COUNT; i++) {
    if (strcmp(KNOWN[i].option, name) != 0) continue;
    *gpu = KNOWN[i].gpu;
    return true;
  }
  return read_gpu(name, gpu, error);
}
