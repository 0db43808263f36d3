/**
 * @file
 * The option --ceilings.
 */
#ifndef HOST_CEILING_COMMAND_H
#define HOST_CEILING_COMMAND_H

#include "host/cli/options.h"
#include "host/device/device.h"

/** Measures the ceilings, prints them, keeps them, and appends a JSON record if --json asks for
 * one.
 */
ExitCode run_ceilings(const Options *options, const Device *device, Error *error);

#endif
