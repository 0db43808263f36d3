/**
 * @file
 * Makes a step's program append the lab's counts to the file that LAB_COUNTS names: one JSON object
 * for each kernel and each source line. The linker replaces lab_take_results() with this (--wrap),
 * so a run with --report needs no other change.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/base/json.h"
#include "simt/lab/lab.h"

void __real_lab_take_results(LabResults *results);
void __wrap_lab_take_results(LabResults *results);
static void add(JsonObject *record, const char *what, const char *field, uint64_t value) {
  char key[64];
  snprintf(key, sizeof key, "%s_%s", what, field);
  json_integer(record, key, (int64_t)value);
}

static void add_traffic(JsonObject *record, const char *what, const LabTraffic *traffic) {
  add(record, what, "requests", traffic->requests);
  add(record, what, "sectors", traffic->sectors);
  add(record, what, "wavefronts", traffic->wavefronts);
  add(record, what, "ideal_wavefronts", traffic->ideal_wavefronts);
}

static void append(const char *kernel, const char *file, int line, const LabCounts *counts) {
  JsonObject record;
  json_begin(&record);
  json_string(&record, "kernel", kernel);
  json_string(&record, "file", file);
  json_integer(&record, "line", line);
  add_traffic(&record, "global_load", &counts->global_load);
  add_traffic(&record, "global_store", &counts->global_store);
  add_traffic(&record, "shared_load", &counts->shared_load);
  add_traffic(&record, "shared_store", &counts->shared_store);
  add_traffic(&record, "ldmatrix", &counts->ldmatrix);
  add_traffic(&record, "copy_global", &counts->copy_global);
  add_traffic(&record, "copy_shared", &counts->copy_shared);
  add_traffic(&record, "tensor_load", &counts->tensor_load);
  add_traffic(&record, "tensor_store", &counts->tensor_store);
  add_traffic(&record, "wgmma_read", &counts->wgmma_read);
  json_integer(&record, "box_sectors", (int64_t)counts->box_sectors);
  json_integer(&record, "copy_lookups", (int64_t)counts->copy_lookups);
  json_integer(&record, "mma", (int64_t)counts->mma);
  json_integer(&record, "wgmma", (int64_t)counts->wgmma);
  json_integer(&record, "shuffles", (int64_t)counts->shuffles);
  json_integer(&record, "barriers", (int64_t)counts->barriers);
  const char *text = json_end(&record), *path = getenv("LAB_COUNTS");
  Error error;
  if (text == NULL || path == NULL || !json_append_line(path, text, &error)) {
    fputs("LAB_COUNTS: must name a file that can be written\n", stderr);
    exit(EXIT_FAILURE);
  }
  json_free(&record);
}

/** The totals of a kernel have no file and no line. */
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
