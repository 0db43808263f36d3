/**
 * @file
 * Makes a step's program append what the lab counted to the file that LAB_COUNTS names, by kernel
 * and by line of source, a JSON object each. The linker puts this in the place of
 * lab_take_results() (--wrap), so that a run with --report is counted as it is.
 */
#include <stdio.h>
#include <stdlib.h>

#include "host/base/json.h"
#include "simt/lab/lab.h"

void __real_lab_take_results(LabResults *results);
void __wrap_lab_take_results(LabResults *results);

static void add(JsonObject *row, const char *what, const char *field, uint64_t value) {
  char key[64];
  snprintf(key, sizeof key, "%s_%s", what, field);
  json_integer(row, key, (int64_t)value);
}

static void add_traffic(JsonObject *row, const char *what, const LabTraffic *traffic) {
  add(row, what, "requests", traffic->requests);
  add(row, what, "sectors", traffic->sectors);
  add(row, what, "wavefronts", traffic->wavefronts);
  add(row, what, "ideal_wavefronts", traffic->ideal_wavefronts);
}

static void append(const char *kernel, const char *file, int line, const LabCounts *counts) {
  JsonObject row;
  json_begin(&row);
  json_string(&row, "kernel", kernel);
  json_string(&row, "file", file);
  json_integer(&row, "line", line);
  add_traffic(&row, "global_load", &counts->global_load);
  add_traffic(&row, "global_store", &counts->global_store);
  add_traffic(&row, "shared_load", &counts->shared_load);
  add_traffic(&row, "shared_store", &counts->shared_store);
  add_traffic(&row, "ldmatrix", &counts->ldmatrix);
  add_traffic(&row, "copy_global", &counts->copy_global);
  add_traffic(&row, "copy_shared", &counts->copy_shared);
  json_integer(&row, "copy_lookups", (int64_t)counts->copy_lookups);
  json_integer(&row, "mma", (int64_t)counts->mma);
  json_integer(&row, "shuffles", (int64_t)counts->shuffles);
  json_integer(&row, "barriers", (int64_t)counts->barriers);
  const char *text = json_end(&row), *path = getenv("LAB_COUNTS");
  Error error;
  if (text == NULL || path == NULL || !json_append_line(path, text, &error)) {
    fputs("LAB_COUNTS: must name a file that can be written\n", stderr);
    exit(EXIT_FAILURE);
  }
  json_free(&row);
}

/** Totals of a kernel have no file and no line. */
void __wrap_lab_take_results(LabResults *results) {
  __real_lab_take_results(results);
  for (size_t i = 0; i < results->kernel_count; i++) {
    append(results->kernels[i].name, "", 0, &results->kernels[i].counts);
  }
  for (size_t i = 0; i < results->line_count; i++) {
    const LabLine *line = &results->lines[i];
    append(line->kernel, line->file, line->line, &line->counts);
  }
}
