/** @file One run of a step, from options to verdict. */
#ifndef HOST_RUN_H
#define HOST_RUN_H

#include "host/base/error.h"
#include "host/cli/options.h"
#include "host/device/device.h"

/**
 * Runs the step as the options say, prints the report unless `quiet`, and writes the files of
 * --output, --save-mask and --json. For EXIT_WRONG the report shows what is wrong; every other
 * failure is described in `error`.
 */
ExitCode run_options(const Options *options, const Device *device, bool quiet, Error *error);

#endif
