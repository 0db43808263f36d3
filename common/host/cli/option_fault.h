/** @file Says what is wrong with an option that argp refuses. */
#ifndef HOST_OPTION_FAULT_H
#define HOST_OPTION_FAULT_H

#include <argp.h>

#include "host/base/error.h"

/**
 * EXIT_USAGE with the option at which argp_parse() stopped, in state->argv, and its fault: it does
 * not exist, it is short for several options, it needs a value or takes none.
 */
void option_fault(const struct argp_option *options, const struct argp_state *state, Error *error);

#endif
