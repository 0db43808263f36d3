/**
 * @file
 * The main program of every step.
 */
#include <stdio.h>

#include "host/cases.h"
#include "host/device.h"
#include "host/options.h"
#include "host/run.h"

static ExitCode run(int argc, char **argv, Error *error) {
  Options options = options_default();
  Device device;
  if (!options_parse(argc, argv, &options, error)) return error->code;
  if (!device_open(&device, error)) return error->code;
  if (options.cases_path != NULL) return run_cases(options.cases_path, &options, &device, error);
  return run_options(&options, &device, false, error);
}

int main(int argc, char **argv) {
  Error error = {0};
  const ExitCode code = run(argc, argv, &error);
  if (error.text[0] != '\0') fprintf(stderr, "%s: %s\n", step.name, error.text);
  if (fflush(stdout) != 0 || ferror(stdout)) {
    fprintf(stderr, "%s: cannot write to standard output\n", step.name);
    return code == EXIT_RIGHT ? EXIT_DEVICE : code;
  }
  return code;
}
