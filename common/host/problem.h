/**
 * @file
 * From options to the problem that a step is asked to solve.
 */
#ifndef HOST_PROBLEM_H
#define HOST_PROBLEM_H

#include "attention.h"
#include "host/error.h"
#include "host/options.h"

/**
 * Checks what can be checked only when all options are known, and derives the problem, with dense
 * strides in the layout asked for. EXIT_USAGE as above.
 */
bool options_problem(const Options *options, Problem *problem, Error *error);

/** Sets dense strides of all four tensors in the given layout. */
void problem_set_layout(Problem *problem, Layout layout);

/** Unmasked score entries of the whole problem: every batch entry, every query head. */
double problem_entries(const Problem *problem);

/** Floating-point operations of the unmasked entries: 4 * head_dim for each. */
double problem_flops(const Problem *problem);

/** Least device memory traffic: Q, K and V read once, O and LSE written once. */
double problem_least_bytes(const Problem *problem);

#endif
