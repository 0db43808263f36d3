#include "host/compare.h"

#include "host/report/failure.h"
#include "host/report/report.h"

static bool compare_gradients(const Comparison *c, FILE *failure, CheckResult *result,
                              Error *error) {
  const Inputs *in = c->inputs;
  const HostBackwardInputs inputs = {in->q,   in->k,   in->v,   in->o,
                                     in->d_o, in->lse, c->mask, step.rounded_p};
  GradientJudgement judgement = {.problem = &c->run->request->problem,
                                 .inputs = &inputs,
                                 .outputs = c->outputs,
                                 .plans = {c->plan, c->key_plan, c->key_plan},
                                 .tiles = &c->run->description};
  progress_start();
  bool ok = check_gradients(&judgement, progress_rows, error);
  progress_end();
  *result = judgement.result;
  if (ok && failure != NULL && !result->right) {
    ok = report_gradient_failure(&judgement, failure, error);
  }
  gradient_judgement_free(&judgement);
  return ok;
}

bool compare_outputs(const Comparison *c, FILE *failure, CheckResult *result, Error *error) {
  if (step.backward != NULL) return compare_gradients(c, failure, result, error);
  const Inputs *in = c->inputs;
  const RunRequest *request = c->run->request;
  const Problem problem = without_pages(&request->problem);
  HostInputs inputs = {in->q,         in->k,         in->v,        &request->mask,
                       in->scales[0], in->scales[1], in->scales[2]};
  if (step.rule != NULL) inputs.rule = *step.rule;
  if (in->cache.page_table != NULL) inputs.cache = &in->cache;
  Judgement judgement = {&problem, &inputs, c->outputs, c->plan, &c->run->description};
  progress_start();
  bool ok = check_outputs(&judgement, progress_rows, error);
  progress_end();
  *result = judgement.result;
  if (ok && failure != NULL && !result->right) ok = report_failure(&judgement, failure, error);
  judgement_free(&judgement);
  return ok;
}
