/** @file The reference and the checker of backward steps: finite differences, right results of
 * random problems, and mistakes in each of the products, which must be found and named. */
#include <omp.h>
#include <stdio.h>

#include "host/report/failure.h"
#include "simulated_backward.h"

#include "../testing.h" /* last */

static const Mistakes NO_MISTAKE;
static Trial trial;

static Problem new_problem(Dtype dtype, int q_heads, int kv_heads, int q_len, int kv_len, int dim) {
  Problem p = {.batch = 1,
               .q_heads = q_heads,
               .kv_heads = kv_heads,
               .q_len = q_len,
               .kv_len = kv_len,
               .head_dim = dim,
               .dtype = dtype,
               .o_dtype = dtype,
               .scale = 1 / sqrtf((float)dim)};
  p.q_strides = p.o_strides = (Strides){(int64_t)q_heads * q_len * dim, (int64_t)q_len * dim, dim};
  p.k_strides = p.v_strides = /* [B, N, H, D] */
      (Strides){(int64_t)kv_heads * kv_len * dim, dim, (int64_t)kv_heads * dim};
  return p;
}

static HostBackwardInputs inputs_of(const Trial *t) {
  return (HostBackwardInputs){.q = t->q,
                              .k = t->k,
                              .v = t->v,
                              .o = t->o,
                              .d_o = t->d_o,
                              .lse = t->lse,
                              .rounded_p = t->rounded_p};
}

static CheckResult judge_trial(char **text) {
  const HostBackwardInputs inputs = inputs_of(&trial);
  const Description tiles = {.block_m = TILE, .block_n = TILE};
  const Mask mask = mask_simple(&trial.p);
  HostOutputs outputs = {.o = NULL};
  CheckPlan plans[2];
  Error error = {0};
  size_t size;
  FILE *out = open_memstream(text, &size);
  for (int g = 0; g < GRADIENTS; ++g) {
    outputs.gradients[g] = gradient_of(&trial, g);
    outputs.gradient_guards[g][0] = trial.blocks[g];
    outputs.gradient_guards[g][1] = trial.blocks[g] + GUARD_BYTES + trial.bytes[g];
  }
  assert_true(
      check_plan_gradients(&trial.p, &mask, CHECK_ALL, 0, &tiles, 1, &plans[0], &plans[1], &error));
  GradientJudgement judgement = {.problem = &trial.p,
                                 .inputs = &inputs,
                                 .outputs = &outputs,
                                 .plans = {&plans[0], &plans[1], &plans[1]},
                                 .tiles = &tiles};
  assert_true(check_gradients(&judgement, NULL, &error));
  const CheckResult result = judgement.result;
  if (!result.right) assert_true(report_gradient_failure(&judgement, out, &error));
  fclose(out);
  gradient_judgement_free(&judgement);
  check_plan_free(&plans[0]);
  check_plan_free(&plans[1]);
  return result;
}

static void expect_right(void) {
  char *text;
  const CheckResult result = judge_trial(&text);
  if (!result.right) fail_msg("false alarm:\n%s", text);
  free(text);
}

/* The kernel with these mistakes must be judged wrong, and the text must contain every phrase. */
static void expect_wrong(Mistakes mistakes, const char *const *phrases) {
  char *text;
  simulate(&trial, true, &mistakes);
  const CheckResult result = judge_trial(&text);
  if (result.right) fail_msg("not caught: %s", phrases[0]);
  for (; *phrases; ++phrases) {
    if (strstr(text, *phrases) == NULL) fail_msg("no '%s' in:\n%s", *phrases, text);
  }
  free(text);
}
#define EXPECT_WRONG(mistake, ...) \
  expect_wrong((Mistakes){mistake}, (const char *const[]){__VA_ARGS__, NULL})

static int start(void **state) {
  (void)state;
  omp_set_num_threads(1);
  return 0;
}

static int end(void **state) {
  (void)state;
  free_trial(&trial);
  return 0;
}

static void start_trial(Problem p, uint64_t seed, double outliers) {
  free_trial(&trial);
  trial = new_trial(&p, seed, outliers);
}

/* --- The reference ---------------------------------------------------------------------------- */

/* L = sum of dO o O, in fp64; `x` is added to one element of Q, K or V. */
static double loss(const Trial *t, Gradient changed, int64_t element, double x) {
  const Problem *p = &t->p;
  double sum = 0;
  for (int h = 0; h < p->q_heads; ++h) {
    const int kv = kv_head_of(p, h);
    for (int64_t q = 0; q < p->q_len; ++q) {
      double total = 0, weighted = 0;
      for (int64_t key = 0; key < p->kv_len; ++key) {
        if (!attends_key(p, q, key)) continue;
        double s = 0, value = 0;
        for (int d = 0; d < p->head_dim; ++d) {
          const int64_t at_q = row_offset(&p->q_strides, 0, h, q) + d;
          const int64_t at_k = row_offset(&p->k_strides, 0, kv, key) + d;
          const double dq = changed == GRADIENT_Q && at_q == element ? x : 0;
          const double dk = changed == GRADIENT_K && at_k == element ? x : 0;
          const double dv = changed == GRADIENT_V && at_k == element ? x : 0;
          s += (value_at(t, t->q, &p->q_strides, 0, h, q, d) + dq) *
               (value_at(t, t->k, &p->k_strides, 0, kv, key, d) + dk);
          value += value_at(t, t->d_o, &p->o_strides, 0, h, q, d) *
                   (value_at(t, t->v, &p->v_strides, 0, kv, key, d) + dv);
        }
        total += exp(p->scale * s);
        weighted += exp(p->scale * s) * value;
      }
      if (total > 0) sum += weighted / total;
    }
  }
  return sum;
}

typedef struct Stored {
  double rows[2][4096];
  int dim;
} Stored;

static void store_rows(void *context, size_t index, const GradientRow rows[2]) {
  Stored *stored = context;
  for (int g = 0; g < 2 && rows[g].value != NULL; ++g) {
    memcpy(stored->rows[g] + index * (size_t)stored->dim, rows[g].value,
           sizeof(double) * (size_t)stored->dim);
  }
}

/* The reference of one gradient, and central differences of L, must agree but for the rounding of
 * O, of which D is made. */
static void compare_with_differences(Gradient g) {
  const Problem *p = &trial.p;
  const bool keys = g != GRADIENT_Q;
  const int heads = keys ? p->kv_heads : p->q_heads, rows = keys ? p->kv_len : p->q_len;
  const HostBackwardInputs inputs = inputs_of(&trial);
  RowIndex indices[64];
  RowDots dots;
  Error error;
  Stored stored = {.dim = p->head_dim};
  for (int i = 0; i < heads * rows; ++i) indices[i] = (RowIndex){0, i / rows, i % rows};
  assert_true(row_dots(p, &inputs, &dots, &error));
  assert_true(gradient_rows(p, &inputs, &dots, keys, indices, (size_t)(heads * rows), store_rows,
                            &stored, NULL, &error));
  row_dots_free(&dots);
  double distance = 0, length = 0;
  for (int i = 0; i < heads * rows * p->head_dim; ++i) {
    const RowIndex row = indices[i / p->head_dim];
    const int64_t at =
        row_offset(keys ? &p->k_strides : &p->q_strides, 0, row.head, row.q) + i % p->head_dim;
    const double h = 1e-4;
    const double expected = (loss(&trial, g, at, h) - loss(&trial, g, at, -h)) / (2 * h);
    const double is = stored.rows[g == GRADIENT_V][i];
    distance += (is - expected) * (is - expected);
    length += expected * expected;
  }
  if (!(distance <= 1e-6 * length)) {
    fail_msg("%s: %g from the differences", gradient_name(g), sqrt(distance / length));
  }
}

TEST(the_reference_agrees_with_finite_differences) {
  for (int causal = 0; causal < 2; ++causal) {
    Problem p = new_problem(DTYPE_FP16, 4, 2, 7, 9, 5);
    if (causal) p.mask = MASK_CAUSAL;
    start_trial(p, 3, 0);
    for (int g = 0; g < GRADIENTS; ++g) compare_with_differences(g);
  }
}

TEST(the_gradients_of_empty_rows_must_be_0) {
  Problem p = new_problem(DTYPE_FP16, 2, 1, 40, 33, 16); /* seven queries attend to no key */
  p.mask = MASK_CAUSAL;
  start_trial(p, 4, 0);
  simulate(&trial, true, &NO_MISTAKE);
  expect_right();
  assert_int_equal(gradient_of(&trial, GRADIENT_Q)[0], 0);
  gradient_of(&trial, GRADIENT_Q)[3] = 1; /* the smallest subnormal number */
  char *text;
  assert_false(judge_trial(&text).right);
  free(text);
}

/* --- The checker ------------------------------------------------------------------------------ */

TEST(right_kernels_pass) {
  const char *trials = getenv("TEST_TRIALS");
  const int count = (trials != NULL ? atoi(trials) : 2000) / 10;
  for (int i = 0; i < count; ++i) {
    const uint64_t bits = random_bits(7, 0, (uint64_t)i);
    const int kv_heads = 1 + (int)(bits % 2), q_heads = kv_heads * (1 + (int)(bits >> 1 & 1));
    Problem p = new_problem(bits >> 2 & 1 ? DTYPE_BF16 : DTYPE_FP16, q_heads, kv_heads,
                            1 + (int)((bits >> 8) % 40), 1 + (int)((bits >> 16) % 40),
                            1 + (int)((bits >> 24) % 24));
    if (bits >> 3 & 1) p.mask = MASK_CAUSAL;
    if (bits >> 4 & 1) p.scale *= 4; /* peaked rows */
    start_trial(p, (uint64_t)i, bits >> 5 & 1 ? 0.02 : 0);
    trial.rounded_p = bits >> 7 & 1;
    simulate(&trial, bits >> 6 & 1, &NO_MISTAKE);
    expect_right();
  }
}

TEST(unwritten_and_wild_values_are_found) {
  start_trial(new_problem(DTYPE_BF16, 2, 1, 70, 50, 32), 5, 0);
  simulate(&trial, true, &NO_MISTAKE);
  gradient_of(&trial, GRADIENT_K)[40] = OUTPUT_POISON;
  trial.blocks[GRADIENT_V][GUARD_BYTES - 1] = 0;
  gradient_of(&trial, GRADIENT_Q)[7] = 0x7fc0;
  char *text;
  const CheckResult result = judge_trial(&text);
  assert_false(result.right);
  assert_int_equal(result.values_unwritten, 1);
  assert_int_equal(result.values_nan, 1);
  assert_int_equal(result.guard_bytes_touched, 1);
  for (const char *const *phrase = (const char *const[]){"dK[b=0, h=0, k=1, d=8] = never written",
                                                         "guard byte before dV overwritten",
                                                         "dQ[b=0, h=0, q=0, d=7] = nan", NULL};
       *phrase != NULL; ++phrase) {
    if (strstr(text, *phrase) == NULL) fail_msg("no '%s' in:\n%s", *phrase, text);
  }
  free(text);
}

TEST(mistakes_in_the_formula_are_named) {
  for (int dtype = 0; dtype < 2; ++dtype) {
    start_trial(new_problem((Dtype)dtype, 2, 2, 70, 100, 64), 6, 0);
    EXPECT_WRONG(.no_d = true, "dQ[b=0", "dK[b=0", "D is missing");
    EXPECT_WRONG(.plus_d = true, "D is added to dP instead of subtracted");
    EXPECT_WRONG(.no_p = true, "P is missing: dS is dP - D");
    EXPECT_WRONG(.no_lse = true, "LSE is missing: P is exp(S)");
    EXPECT_WRONG(.ds_for_p = true, "dV is the product with dS instead of P");
    EXPECT_WRONG(.dq_factor = 8, "scale is missing in dQ");
    EXPECT_WRONG(.dk_factor = 8, "scale is missing in dK");
    EXPECT_WRONG(.dk_factor = 0.125, "scale is applied twice in dK");
    EXPECT_WRONG(.dv_factor = 0.5, "dV is 0.5 times what is expected");
  }
}

/* In bf16 that is 2.6 times the unit roundoff, not much more than a third rounding may add. */
TEST(a_scale_that_is_wrong_by_one_percent_is_found) {
  for (int i = 0; i < 4; ++i) {
    start_trial(new_problem(i % 2 ? DTYPE_BF16 : DTYPE_FP16, 2, 2, 100, 100, 64), 6, 0);
    trial.rounded_p = i / 2;
    EXPECT_WRONG(.dq_factor = 1.01, "dQ[b=0");
    EXPECT_WRONG(.dk_factor = 1.01, "dK[b=0");
    EXPECT_WRONG(.dv_factor = 1.01, "dV[b=0");
  }
}

TEST(mistakes_in_each_product_are_named) {
  start_trial(new_problem(DTYPE_FP16, 2, 1, 100, 100, 64), 8, 0);
  EXPECT_WRONG(.stale_k_in_s = 3, "is stale in Q K^T");
  EXPECT_WRONG(.stale_v_in_dp = 2,
               "V of key/value tile 1 is stale in dO V^T: it is that of tile 0");
  EXPECT_WRONG(.stale_k_in_dq = 3, "K of key/value tile 2 is stale in the product for dQ");
  EXPECT_WRONG(.stale_q_in_dk = 2, "Q of query tile 1 is stale in the product for dK");
  EXPECT_WRONG(.stale_do_in_dv = 3, "dO of query tile 2 is stale in the product for dV");
  EXPECT_WRONG(.lost_query_tile = 4, "query tile 3 is missing");
  EXPECT_WRONG(.last_head_alone = true,
               "dV is that of query head 1 alone: it must be the sum over the group");
  start_trial(new_problem(DTYPE_BF16, 1, 1, 50, 4 * TILE, 64), 8, 0);
  EXPECT_WRONG(.dk_away = 2 * TILE, "dK is that of the tile 64 keys away");
}

TEST(wrong_masks_are_named) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 60, 80, 32);
  p.mask = MASK_CAUSAL;
  start_trial(p, 9, 0);
  EXPECT_WRONG(.all_keys = true, "the mask is ignored");
  EXPECT_WRONG(.top_left = true, "aligned to the top left");
}

RUN_TESTS(start, end)
