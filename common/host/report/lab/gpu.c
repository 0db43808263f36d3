/*
 * GPUs that a roofline can be drawn for.
 */
#include <errno.h>
#include <string.h>

#include "host/base/values.h"
#include "host/report/lab/parts.h"

/** Names as --report=roofline: takes them. Peaks are dense, for 16-bit operands and fp32 sums. */
static const struct {
  const char *option;
  Gpu gpu;
} KNOWN[] = {
    {"h200",
     {"NVIDIA H200", 132, 1980, 646, 67, 4270,
      "NVIDIA's H200 data sheet; mma.sync and device memory as measured by this project's "
      "ceilings"}},
    {"a100",
     {"NVIDIA A100 80 GB SXM", 108, 1410, 312, 19.5, 2039,
      "NVIDIA's A100 data sheet and the white paper of the Ampere architecture"}},
    {"rtx4090",
     {"NVIDIA GeForce RTX 4090", 128, 2520, 165.2, 82.6, 1008,
      "the white paper of NVIDIA's Ada architecture"}},
};
enum { KNOWN_COUNT = sizeof KNOWN / sizeof *KNOWN };

static const char *const NUMBERS[] = {"multiprocessors", "clock_mhz", "mma_tflops", "fp32_tflops",
                                      "memory_gb_per_s"};
enum { NUMBER_COUNT = sizeof NUMBERS / sizeof *NUMBERS };

static const char KEYS[] =
    "name, multiprocessors, clock_mhz, mma_tflops, fp32_tflops and memory_gb_per_s";

/** The text without white space around it. */
static char *trim(char *text) {
  text += strspn(text, " \t\r\n");
  size_t length = strlen(text);
  while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL) length--;
  text[length] = '\0';
  return text;
}

/** The number with that name, or NULL. */
static double *number_named(Gpu *gpu, const char *key) {
  double *const numbers[NUMBER_COUNT] = {&gpu->multiprocessors, &gpu->clock_mhz, &gpu->mma_tflops,
                                         &gpu->fp32_tflops, &gpu->memory_gb_per_s};
  for (int i = 0; i < NUMBER_COUNT; i++) {
    if (strcmp(NUMBERS[i], key) == 0) return numbers[i];
  }
  return NULL;
}

static bool set_number(double *number, const char *place, const char *key, const char *value,
                       Error *error) {
  Error unused;
  if (*number != 0) return fail(error, EXIT_USAGE, "%s: %s: given twice", place, key);
  if (!parse_real("", value, number, &unused) || *number <= 0) {
    return fail(error, EXIT_USAGE, "%s: %s = %s: must be a number greater than 0", place, key,
                value);
  }
  return true;
}

/** One "key = value"; `text` is changed. */
static bool read_line(Gpu *gpu, const char *place, char *text, Error *error) {
  text[strcspn(text, "#")] = '\0';
  char *key = trim(text);
  if (*key == '\0') return true;
  char *value = strchr(key, '=');
  if (value == NULL) return fail(error, EXIT_USAGE, "%s: %s: must be key = value", place, key);
  *value++ = '\0';
  key = trim(key);
  value = trim(value);
  double *number = number_named(gpu, key);
  if (number != NULL) return set_number(number, place, key, value, error);
  if (strcmp(key, "name") != 0) {
    return fail(error, EXIT_USAGE, "%s: %s: no such key; must be %s", place, key, KEYS);
  }
  if (gpu->name[0] != '\0') return fail(error, EXIT_USAGE, "%s: name: given twice", place);
  if (*value == '\0' || strlen(value) >= sizeof gpu->name) {
    return fail(error, EXIT_USAGE, "%s: name: must have 1 to %zu characters", place,
                sizeof gpu->name - 1);
  }
  memcpy(gpu->name, value, strlen(value) + 1);
  return true;
}

static bool check_complete(const char *path, Gpu *gpu, Error *error) {
  const char *missing = gpu->name[0] == '\0' ? "name" : NULL;
  for (int i = 0; i < NUMBER_COUNT && missing == NULL; i++) {
    if (*number_named(gpu, NUMBERS[i]) == 0) missing = NUMBERS[i];
  }
  if (missing == NULL) return true;
  return fail(error, EXIT_USAGE, "--report=roofline:%s: %s is missing; must hold %s", path, missing,
              KEYS);
}

static bool read_lines(FILE *file, const char *path, Gpu *gpu, Error *error) {
  char line[256], place[320];
  for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
    snprintf(place, sizeof place, "--report=roofline:%.250s: line %d", path, number);
    if (strlen(line) == sizeof line - 1 && line[sizeof line - 2] != '\n') {
      return fail(error, EXIT_USAGE, "%s: longer than %zu characters", place, sizeof line - 2);
    }
    if (!read_line(gpu, place, line, error)) return false;
  }
  return true;
}

static bool read_gpu(const char *path, Gpu *gpu, Error *error) {
  FILE *file = fopen(path, "r");
  *gpu = (Gpu){.name = ""};
  errno = file == NULL ? errno : 0;
  bool ok = file != NULL && read_lines(file, path, gpu, error);
  const int cause = file == NULL || ferror(file) ? errno : 0;
  if (file != NULL) fclose(file);
  if (cause != 0) {
    return fail(error, EXIT_USAGE,
                "--report=roofline:%s: must be h200, a100, rtx4090 or a file of a GPU: %s", path,
                strerror(cause));
  }
  ok = ok && check_complete(path, gpu, error);
  snprintf(gpu->source, sizeof gpu->source, "%s", path);
  return ok;
}

bool gpu_find(const char *name, Gpu *gpu, Error *error) {
  for (int i = 0; i < KNOWN_COUNT; i++) {
    if (strcmp(KNOWN[i].option, name) != 0) continue;
    *gpu = KNOWN[i].gpu;
    return true;
  }
  return read_gpu(name, gpu, error);
}
