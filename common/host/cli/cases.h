/**
 * @file
 * Many problems in one process.
 */
#ifndef HOST_CASES_H
#define HOST_CASES_H

#include "host/base/error.h"
#include "host/cli/options.h"
#include "host/device/device.h"

/**
 * Runs the step once for each line of the file, in order. A line holds options, separated by
 * blanks; a value with blanks stands in double quotes; what follows a # is a comment. They apply on
 * top of `base`. Each case prints one line. A malformed line is refused before anything runs.
 * Returns the largest exit code of all cases.
 */
ExitCode run_cases(const char *path, const Options *base, const Device *device, Error *error);

/**
 * Runs a step that takes block masks with five masks, one after the other: first the mask as a
 * picture, then the report. Stops at the first run that is not right.
 */
ExitCode run_tour(const Options *base, const Device *device, Error *error);

#endif
