/** @file Compares the outputs of a run, forward or backward, with the reference. */
#ifndef HOST_COMPARE_H
#define HOST_COMPARE_H

#include <stdio.h>

#include "host/io/inputs.h"
#include "host/report/record.h"

/** What is compared. */
typedef struct Comparison {
  const RunRecord *run;
  const Inputs *inputs;
  const HostOutputs *outputs;
  const CheckPlan *plan;     /**< rows of O, or of dQ */
  const CheckPlan *key_plan; /**< rows of dK and dV */
  const BlockMask *mask;     /**< HostBackwardInputs::mask */
} Comparison;

/** Sets `result`; prints what is wrong to `failure`, which may be NULL. EXIT_DEVICE if memory runs
 * out. */
bool compare_outputs(const Comparison *comparison, FILE *failure, CheckResult *result,
                     Error *error);

#endif
