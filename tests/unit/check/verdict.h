/** @file For the tests of the checker: its verdict on a trial, and the phrases its text must
 * contain. Includes cmocka.h. */
#ifndef VERDICT_H
#define VERDICT_H

#include <omp.h>
#include <stdio.h>

#include "host/report/failure.h"
#include "simulated_kernel.h"

#include "../testing.h" /* last */

static const Mistakes NO_MISTAKE;

typedef struct Verdict {
  CheckResult result;
  char *text;
} Verdict;

static Trial trial; /* of the test; it is freed when the next one starts */

static inline void start_trial(const Problem *p, InputKind kind, uint64_t seed) {
  free_trial(&trial);
  trial = new_trial(p, kind, seed);
}

/** A trial with the right answer. */
static inline void solve(const Problem *p, InputKind kind, uint64_t seed) {
  start_trial(p, kind, seed);
  simulate(&trial, true, &NO_MISTAKE);
}

/** Of the first batch entry. */
static inline uint16_t *o_row(int head, int q) {
  return trial_row(&trial, 0, head, q);
}

static inline float *lse_of(int head, int q) {
  return trial_lse(&trial, 0, head, q);
}

/* The problems are small: starting threads would take longer. */
static inline int use_one_thread(void **state) {
  (void)state;
  omp_set_num_threads(1);
  return 0;
}

static inline int free_last_trial(void **state) {
  (void)state;
  free_trial(&trial);
  return 0;
}

static inline Verdict judge_rows(CheckMode mode, int64_t rows) {
  const Mask mask = mask_simple(&trial.problem);
  const HostInputs inputs = trial_inputs(&trial, &mask);
  const HostOutputs outputs = trial_outputs(&trial);
  const Description tiles = {.block_m = BLOCK_M,
                             .block_n = BLOCK_N,
                             .multiplies_masked_keys = trial.multiplies_masked_keys};
  Verdict verdict;
  size_t size;
  CheckPlan plan;
  Error error;
  FILE *out = open_memstream(&verdict.text, &size);
  assert_non_null(out);
  assert_true(check_plan(&trial.problem, &mask, mode, rows, BLOCK_M, 1, &plan, &error));
  Judgement judgement = {&trial.problem, &inputs, &outputs, &plan, &tiles};
  assert_true(check_outputs(&judgement, NULL, &error));
  verdict.result = judgement.result;
  if (!verdict.result.right) assert_true(report_failure(&judgement, out, &error));
  judgement_free(&judgement);
  fclose(out);
  check_plan_free(&plan);
  return verdict;
}

/* The answer must be judged wrong and the text must contain every phrase, but none that begins with
 * '!'; NULL ends the list. */
static inline CheckResult expect_wrong(CheckMode mode, int64_t rows, const char *const *phrases) {
  Verdict verdict = judge_rows(mode, rows);
  if (verdict.result.right) fail_msg("not caught: %s", phrases[0]);
  for (; *phrases; ++phrases) {
    const bool unwanted = **phrases == '!';
    if ((strstr(verdict.text, *phrases + unwanted) != NULL) == unwanted) {
      fail_msg("no '%s' in:\n%s", *phrases, verdict.text);
    }
  }
  free(verdict.text);
  return verdict.result;
}

#define EXPECT_WRONG(...) expect_wrong(CHECK_ALL, 0, (const char *const[]){__VA_ARGS__, NULL})

static inline CheckResult expect_right(void) {
  Verdict verdict = judge_rows(CHECK_ALL, 0);
  if (!verdict.result.right) fail_msg("false alarm:\n%s", verdict.text);
  free(verdict.text);
  return verdict.result;
}

static inline Problem new_problem(Dtype dtype, int q_heads, int kv_heads, int q_len, int kv_len) {
  Problem p = {.batch = 1,
               .q_heads = q_heads,
               .kv_heads = kv_heads,
               .q_len = q_len,
               .kv_len = kv_len,
               .head_dim = 64,
               .dtype = dtype,
               .o_dtype = dtype == DTYPE_E4M3 ? DTYPE_FP16 : dtype,
               .scale = 0.125f};
  set_strides(&p, dtype == DTYPE_BF16);
  return p;
}

#endif
