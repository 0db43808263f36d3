/**
 * @file
 * The main program of every step.
 */
#include <signal.h>
#include <stdio.h>

#include "host/base/version.h"
#include "host/cli/cases.h"
#include "host/cli/ceiling_command.h"
#include "host/cli/options.h"
#include "host/device/device.h"
#include "host/run.h"

static ExitCode run(int argc, char **argv, Error *error) {
  Options options = options_default();
  Device device;
  if (!options_parse(argc, argv, &options, error)) return error->code;
  if (options.help) {
    options_help(stdout);
    return EXIT_RIGHT;
  }
  if (options.version) {
    printf("%s %s\n", step.name, version_commit());
    return EXIT_RIGHT;
  }
  if (!device_open(&device, error)) return error->code;
  if (options.ceilings) return run_ceilings(&options, &device, error);
  if (options.cases_path != NULL) return run_cases(options.cases_path, &options, &device, error);
  if (argc == 1 && step.block_masks != NULL) return run_tour(&options, &device, error);
  return run_options(&options, &device, false, error);
}

int main(int argc, char **argv) {
  Error error = {0};
  signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is a write that fails, and is told as one */
  const ExitCode code = run(argc, argv, &error);
  const bool written = fflush(stdout) == 0 && !ferror(stdout);
  if (error.text[0] != '\0') {
    fprintf(stderr, "%s: %s\n", step.name, error.text);
  } else if (!written) {
    fprintf(stderr, "%s: cannot write to standard output\n", step.name);
  }
  return code == EXIT_RIGHT && !written ? EXIT_DEVICE : code;
}
