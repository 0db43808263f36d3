/** @file The checker of backward steps: judges dQ, dK and dV; docs/correctness.md has the rule. */
#ifndef HOST_GRADIENT_CHECK_H
#define HOST_GRADIENT_CHECK_H

#include "host/check/check.h"
#include "host/check/gradient_reference.h"

/** One row of a plan, compared with the reference; the fields as those of RowFinding. */
typedef struct GradientFinding {
  double distance, norm, usual_error, share;
  RowLimits limits;
  double fp32; /**< as far as fp32 arithmetic may move the row */
  int unwritten, nan, inf;
  bool misplaced_number, nan_expected, not_compared, not_judged, wrong;
} GradientFinding;

/** What is to be judged, and the judgement. */
typedef struct GradientJudgement {
  const Problem *problem;
  const HostBackwardInputs *inputs;
  const HostOutputs *outputs;
  const CheckPlan *plans[GRADIENTS]; /**< those of dK and dV are the same */
  const Description *tiles;
  RowDots dots;
  GradientFinding *findings[GRADIENTS]; /**< one for each row of the plan */
  bool inputs_finite;
  CheckResult result;
} GradientJudgement;

/** Like check_outputs(): sets all but the first five fields. Freed by gradient_judgement_free(),
 * also after a failure. */
bool check_gradients(GradientJudgement *judgement, ReferenceProgress *progress, Error *error);
void gradient_judgement_free(GradientJudgement *judgement);

/** First element of a row of a gradient. */
static inline const uint16_t *gradient_row(const GradientJudgement *j, Gradient g, RowIndex row) {
  const Problem *p = j->problem;
  const Strides *strides[GRADIENTS] = {&p->q_strides, &p->k_strides, &p->v_strides};
  return j->outputs->gradients[g] + row_offset(strides[g], row.batch, row.head, row.q);
}

/**
 * Computes a row again with each common mistake of backward kernels, and writes to `text` the one
 * that explains it, which is at `*distance` from the row; empty if none does.
 */
void explain_gradient(const GradientJudgement *judgement, Gradient gradient, RowIndex row,
                      char text[160], double *distance);

#endif
