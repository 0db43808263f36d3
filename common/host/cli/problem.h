/**
 * @file
 * From options to the problem that a step is asked to solve.
 */
#ifndef HOST_PROBLEM_H
#define HOST_PROBLEM_H

#include "attention.h"
#include "host/base/error.h"
#include "host/cli/options.h"
#include "host/masks/mask.h"

/**
 * Checks what can be checked only when all options are known, and derives the problem, with dense
 * strides in the layout asked for, and its mask. EXIT_USAGE as above. On success the mask is to be
 * freed by mask_free().
 */
bool options_problem(const Options *options, Problem *problem, Mask *mask, Error *error);

/** Sets dense strides of all four tensors in the given layout. */
void problem_set_layout(Problem *problem, Layout layout);

/**
 * Bytes of memory of this machine at the peak of a run: Q, K, V, O and LSE, once more on the CPU
 * backend as the device's, and O in the order of a file for --output. Not counted is what depends
 * on more than the shapes: masks, and a step's workspace, which adapts to what is free.
 */
double options_host_bytes(const Options *options, const Problem *problem);

#endif
