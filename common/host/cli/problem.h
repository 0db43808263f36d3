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

/** What a run keeps in host memory beside the tensors themselves. */
typedef struct HostCopies {
  bool device; /**< the device's memory is this machine's: the CPU backend */
  bool files;  /**< O is put in the order of a file: --output */
} HostCopies;

/**
 * Bytes of host memory at the peak of a run: Q, K and V; O and LSE read back, with their guards;
 * and the copies. Not counted is what depends on more than the shapes: a step's workspace, which
 * makes do with what is free, and the rows that a check compares.
 */
double problem_host_bytes(const Problem *problem, HostCopies copies);

/** The same of a run as the options have it. */
double options_host_bytes(const Options *options, const Problem *problem);

/** Least device memory traffic: Q, K and V read once, O and LSE written once. */
double problem_least_bytes(const Problem *problem);

#endif
