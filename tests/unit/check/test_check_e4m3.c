/**
 * @file
 * The rule for e4m3: its roundings are large, and faults that are smaller than them in each row are
 * found all the same.
 */
#include <omp.h>

#include "verdict.h"

static Trial trial_of(InputKind kind, MaskKind mask, int kv_len) {
  Problem p = new_problem(DTYPE_E4M3, 4, 2, 150, kv_len);
  p.mask = mask;
  return new_trial(&p, kind, 3);
}

TEST(the_rounded_kernel_is_right) {
  for (int kind = 0; kind < INPUT_KINDS; ++kind) {
    for (int mask = MASK_FULL; mask <= MASK_CAUSAL; ++mask) {
      FREED_BY(free_trial) Trial t = trial_of((InputKind)kind, (MaskKind)mask, 500);
      simulate(&t, true, &NO_MISTAKE);
      const CheckResult r = expect_right(&t);
      /* O differs from the exact answer, but hardly more than base does. */
      if (kind == INPUT_NORMAL) assert_true(r.mean_error > 0.015 && r.mean_error_share < 0.8);
      assert_true(r.mean_gain_share < 0.5);
    }
  }
}

static void expect_found(const Mistakes *mistakes, int kv_len, const char *phrase) {
  FREED_BY(free_trial) Trial t = trial_of(INPUT_NORMAL, MASK_FULL, kv_len);
  simulate(&t, true, mistakes);
  EXPECT_WRONG(&t, phrase);
}

TEST(p_with_two_bits) {
  expect_found(&(Mistakes){.short_p = true}, 500, "mean error of a head or of all rows");
}

TEST(scales_wrong_by_two_percent) {
  for (int sign = -1; sign <= 1; sign += 2) {
    const float error = 0.02f * (float)sign;
    expect_found(&(Mistakes){.scales = {error}}, 500, "600 of LSE");
    expect_found(&(Mistakes){.scales = {0, error}}, 500, "600 of LSE");
    expect_found(&(Mistakes){.scales = {0, 0, error}}, 500, "look at the scales");
  }
}

/* V is 1.2 % too long, and base has hardly any error. */
TEST(averages_of_few_rows_are_not_judged) {
  for (int rows = 3; rows <= 30; rows += 27) {
    const Problem p = new_problem(DTYPE_E4M3, 4, 2, rows, 64);
    FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_CONSTANT, 3);
    t.scales[2][0] *= 1.012f;
    simulate(&t, true, &NO_MISTAKE);
    t.scales[2][0] /= 1.012f;
    if (rows == 3)
      expect_right(&t);
    else
      EXPECT_WRONG(&t, "mean error of a head or of all rows");
  }
}

TEST(a_key_is_missing) {
  expect_found(&(Mistakes){.lost_key_plus_1 = 100}, 500, "of LSE");
}

/* LSE is right: P V leaves the key out. */
TEST(a_key_is_missing_in_o_alone) {
  const size_t bytes = sizeof(float) * 4 * 150;
  FREED_BY(free_trial) Trial t = trial_of(INPUT_NORMAL, MASK_FULL, 200);
  simulate(&t, true, &NO_MISTAKE);
  FREED float *lse = memcpy(malloc(bytes), t.lse, bytes);
  simulate(&t, true, &(Mistakes){.lost_key_plus_1 = 100});
  memcpy(t.lse, lse, bytes);
  EXPECT_WRONG(&t, " checked rows of O, 0 of LSE", "LSE is right");
}

/* One of the two key/value heads has a wrong scale. */
TEST(one_scale_is_wrong) {
  FREED_BY(free_trial) Trial t = trial_of(INPUT_NORMAL, MASK_FULL, 500);
  t.scales[2][0] *= 1.03f;
  simulate(&t, true, &NO_MISTAKE);
  t.scales[2][0] /= 1.03f;
  EXPECT_WRONG(&t, "look at the scales");
}

/* In rows where the score of the sink is larger by more than 13, hardly anything of the other P is
 * left in e4m3. Row 9 is none of them. */
TEST(lost_rows_excuse_no_other_row) {
  FREED_BY(free_trial) Trial t = trial_of(INPUT_SINK, MASK_FULL, 500);
  Problem *p = &t.problem;
  p->scale *= 2;
  t.q[row_offset(&p->q_strides, 0, 2, 9)] = 0;
  simulate(&t, true, &NO_MISTAKE);
  assert_in_range(expect_right(&t).rows_not_judged, 100, 300);
  for (int d = 0; d < p->head_dim; ++d) {
    uint16_t *o = &trial_row(&t, 0, 2, 9)[d];
    *o = element_bits(p->o_dtype, 1.3 * element_value(p->o_dtype, *o));
  }
  EXPECT_WRONG(&t, "wrong O in 1 row: row 9 of head 2");
}

int main(void) {
  omp_set_num_threads(1);
  return run_all_tests(NULL, NULL);
}
