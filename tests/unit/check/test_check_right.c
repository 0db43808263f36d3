/** @file The checker raises no false alarm: 20,000 right results of random shapes, from a kernel
 * that keeps P in fp32, from one that rounds it as tensor cores do, and from one that also keeps
 * an old m as long as it can. TEST_TRIALS=N changes the number, for sanitizers and valgrind. */
#include "verdict.h"

static int pick(uint64_t number, uint32_t what, int choices) {
  return (int)(random_bits(99, what, number) % (uint64_t)choices);
}

static Problem random_problem(uint64_t number) {
  /* Small dimensions are more frequent: large ones take longer and find no more mistakes. */
  static const int dims[] = {32, 32, 32, 64, 64, 96, 128, 256};
  Problem p = {.batch = 1 + pick(number, 0, 2),
               .kv_heads = 1 + pick(number, 1, 2),
               .q_len = 1 + pick(number, 2, 24),
               .kv_len = 1 + pick(number, 3, 80),
               .head_dim = dims[pick(number, 4, 8)],
               .dtype = (Dtype)pick(number, 5, 3),
               .mask = pick(number, 6, 2) ? MASK_CAUSAL : MASK_FULL};
  p.o_dtype = p.dtype == DTYPE_E4M3 ? (Dtype)pick(number, 11, 2) : p.dtype;
  p.q_heads = p.kv_heads * (1 + pick(number, 7, 2));
  p.scale = 1 / sqrtf((float)p.head_dim);
  set_strides(&p, pick(number, 8, 2));
  return p;
}

static void check_trial(uint64_t number) {
  const Problem p = random_problem(number);
  const InputKind kind = (InputKind)pick(number, 9, INPUT_KINDS);
  const int kernel = pick(number, 10, 3); /* P in fp32; rounded; with an old m */
  start_trial(&p, kind, number);
  trial.keeps_m = kernel == 2;
  simulate(&trial, kernel > 0, &NO_MISTAKE);
  const Verdict verdict = judge_rows(CHECK_ALL, 0);
  if (!verdict.result.right) {
    fail_msg("trial %d, input kind %d:\n%s", (int)number, (int)kind, verdict.text);
  }
  free(verdict.text);
}

TEST(right_results_raise_no_alarm) {
  const char *wanted = getenv("TEST_TRIALS");
  const int trials = wanted ? atoi(wanted) : 20000;
  assert_true(trials > 0);
  for (int i = 0; i < trials; ++i) check_trial((uint64_t)i);
}

RUN_TESTS(use_one_thread, free_last_trial)
