/*
 * Linked by `simtcc --lab`: watches all launches of a program and prints the results when it ends.
 * A program that would end with 0 ends with 1 if there are findings.
 */
#include <stdlib.h>
#include <unistd.h>

#include "simt/lab/lab.h"

static void print_results(int code, void *unused) {
  (void)unused;
  LabResults results;
  lab_take_results(&results);
  fflush(stdout);
  for (size_t i = 0; i < results.kernel_count; i++) lab_print_kernel(&results.kernels[i], stderr);
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
