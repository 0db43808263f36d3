/**
 * @file
 * The checker raises no false alarm: 20,000 right results of random shapes, from a kernel that
 * keeps P in fp32, from one that rounds it as tensor cores do, and from one that also keeps an old
 * m as long as it can. TEST_TRIALS=N changes the number, for sanitizers and valgrind.
 */
#include <omp.h>
#include <stdio.h>

#include "simulated_kernel.h"

#include "../testing.h" /* last */

static int pick(uint64_t trial, uint32_t what, int choices) {
  return (int)(random_bits(99, what, trial) % (uint64_t)choices);
}

static Problem random_problem(uint64_t trial) {
  /* Small dimensions are more frequent: large ones take longer and find no more mistakes. */
  static const int dims[] = {32, 32, 32, 64, 64, 96, 128, 256};
  Problem p = {.batch = 1 + pick(trial, 0, 2),
               .kv_heads = 1 + pick(trial, 1, 2),
               .q_len = 1 + pick(trial, 2, 24),
               .kv_len = 1 + pick(trial, 3, 80),
               .head_dim = dims[pick(trial, 4, 8)],
               .dtype = (Dtype)pick(trial, 5, 3),
               .mask = pick(trial, 6, 2) ? MASK_CAUSAL : MASK_FULL};
  p.o_dtype = p.dtype == DTYPE_E4M3 ? (Dtype)pick(trial, 11, 2) : p.dtype;
  p.q_heads = p.kv_heads * (1 + pick(trial, 7, 2));
  p.scale = 1 / sqrtf((float)p.head_dim);
  set_strides(&p, pick(trial, 8, 2));
  return p;
}

static void check_trial(uint64_t trial) {
  const Problem p = random_problem(trial);
  const InputKind kind = (InputKind)pick(trial, 9, INPUT_KINDS);
  FREED_BY(free_trial) Trial t = new_trial(&p, kind, trial);
  const int kernel = pick(trial, 10, 3); /* P in fp32; rounded; with an old m */
  t.keeps_m = kernel == 2;
  simulate(&t, kernel > 0, &(Mistakes){0});
  const Mask mask = mask_simple(&p);
  const HostInputs inputs = trial_inputs(&t, &mask);
  const HostOutputs outputs = trial_outputs(&t);
  const Description tiles = {.block_m = 16, .block_n = BLOCK_N};
  FREED_BY(check_plan_free) CheckPlan plan;
  Error error;
  assert_true(check_plan(&p, &mask, CHECK_ALL, 0, tiles.block_m, trial, &plan, &error));
  FREED_BY(judgement_free) Judgement judgement = {&p, &inputs, &outputs, &plan, &tiles};
  assert_true(check_outputs(&judgement, NULL, &error));
  if (!judgement.result.right)
    fail_msg("false alarm in trial %d, input kind %d", (int)trial, (int)kind);
}

TEST(right_results_raise_no_alarm) {
  const char *wanted = getenv("TEST_TRIALS");
  const int trials = wanted ? atoi(wanted) : 20000;
  assert_true(trials > 0);
  for (int i = 0; i < trials; ++i) check_trial((uint64_t)i);
}

int main(void) {
  omp_set_num_threads(1); /* thousands of tiny problems: starting threads would take longer */
  return run_all_tests(NULL, NULL);
}
