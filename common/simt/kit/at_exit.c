/*
 * Linked by `simtcc --lab`: watches all launches of a program and prints the results when it ends.
 * A program that would end with 0 ends with 1 if there are findings.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "simt/lab/lab.h"

static void print_traffic(const LabCounts *counts) {
  for (int kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    const LabTraffic *t = lab_traffic(counts, (LabAccessKind)kind);
    if (t->requests == 0) continue;
    fprintf(stderr, "           %-13s %10" PRIu64 " requests", lab_access_text((LabAccessKind)kind),
            t->requests);
    if (lab_access_is_shared((LabAccessKind)kind)) {
      fprintf(stderr, " %10" PRIu64 " wavefronts, %" PRIu64 " of them bank conflicts\n",
              t->wavefronts, t->wavefronts - t->ideal_wavefronts);
    } else {
      fprintf(stderr, " %10" PRIu64 " sectors, %.0f %% of their bytes used\n", t->sectors,
              100.0 * (double)t->used_bytes / (32.0 * (double)t->sectors));
    }
  }
}

static void print_results(int code, void *unused) {
  (void)unused;
  LabResults results;
  lab_take_results(&results);
  fflush(stdout);
  for (size_t i = 0; i < results.kernel_count; i++) {
    const LabKernel *kernel = &results.kernels[i];
    fprintf(stderr, "lab        %s: %" PRIu64 " launches, %" PRIu64 " blocks\n", kernel->name,
            kernel->launches, kernel->blocks);
    print_traffic(&kernel->counts);
  }
  lab_print_findings(&results, stderr);
  fprintf(stderr, "findings   %zu\n", results.finding_count);
  const bool found = results.finding_count > 0;
  lab_free_results(&results);
  if (found && code == EXIT_SUCCESS) _exit(EXIT_FAILURE);
}

__attribute__((constructor)) static void begin(void) {
  lab_start(LAB_EVERYTHING);
  on_exit(print_results, NULL);
}
