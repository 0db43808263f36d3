/**
 * @file
 * The checker notices every kind of wrong output, and its text says what is wrong and where.
 */
#include <omp.h>

#include "verdict.h"

/* A right answer for two heads of 150 x 150. */
static Trial solved(Dtype dtype) {
  const Problem p = new_problem(dtype, 2, 2, 150, 150);
  Trial t = new_trial(&p, INPUT_NORMAL, 3);
  simulate(&t, true, &NO_MISTAKE);
  expect_right(&t);
  return t;
}

static void copy_row(const Trial *t, int head, int from, int to) {
  memcpy(trial_row(t, 0, head, to), trial_row(t, 0, head, from), 64 * sizeof(uint16_t));
}

TEST(one_nan) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  trial_row(&t, 0, 1, 37)[5] = 0x7fff;
  const CheckResult r = EXPECT_WRONG(&t, "1 NaN", "O[b=0, h=1, q=37, d=5] = nan, expected",
                                     "row 37 of head 1", "column 5 of D", "|N..|");
  assert_int_equal(r.values_nan, 1);
  assert_int_equal(r.rows_wrong, 1);
}

TEST(one_nan_in_a_row_that_is_not_checked) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  trial_row(&t, 0, 1, 37)[5] = 0x7fc0;
  Verdict verdict = judge_rows(&t, CHECK_ROWS, 1); /* the last row */
  assert_false(verdict.result.right);
  assert_int_equal(verdict.result.rows_wrong, 0);
  assert_non_null(strstr(verdict.text, "O[b=0, h=1, q=37, d=5]"));
  free(verdict.text);
}

TEST(one_inf) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  trial_row(&t, 0, 0, 149)[63] = 0xff80;
  const CheckResult r = EXPECT_WRONG(&t, "1 Inf", "O[b=0, h=0, q=149, d=63] = -inf, expected",
                                     "row 149 of head 0", "|..N|");
  assert_int_equal(r.values_inf, 1);
}

TEST(one_element_wrong) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  uint16_t *x = &trial_row(&t, 0, 0, 64)[17];
  *x = element_bits(DTYPE_FP16, element_value(DTYPE_FP16, *x) + 0.05);
  const CheckResult r = EXPECT_WRONG(&t, "O[b=0, h=0, q=64, d=17]", "row 64 of head 0",
                                     "in the wrong row: column 17 of D");
  assert_int_equal(r.rows_wrong, 1);
  assert_true(r.max_error > r.allowed_error);
}

TEST(one_row_shifted) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  copy_row(&t, 1, 101, 100);
  EXPECT_WRONG(&t, "1 of 300 checked rows", "row 100 of head 1",
               "the row holds the result of row q=101");
}

TEST(two_rows_swapped) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  uint16_t kept[64];
  memcpy(kept, trial_row(&t, 0, 0, 8), sizeof kept);
  copy_row(&t, 0, 11, 8);
  memcpy(trial_row(&t, 0, 0, 11), kept, sizeof kept);
  EXPECT_WRONG(&t, "rows 8, 11 of head 0", "the row holds the result of row q=");
}

TEST(half_of_every_warp_tile_wrong) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  for (int q = 0; q < 150; ++q) {
    if (q % 16 >= 8) copy_row(&t, 1, q % 16, q);
  }
  copy_row(&t, 1, 0, 8);
  for (int q = 9; q < 16; ++q) copy_row(&t, 1, q - 8, q);
  EXPECT_WRONG(&t, "rows 8..15 of every 16 of head 1", "every column of D");
}

TEST(one_warp_of_every_tile_wrong) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  for (int q = 0; q < 150; ++q) {
    if (q % 64 >= 16 && q % 64 < 24) copy_row(&t, 0, 100, q);
  }
  EXPECT_WRONG(&t, "rows 16..23 of every 64 (rows 0..7 of warp 1, if a warp has 16)");
}

TEST(some_columns_wrong) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  for (int q = 0; q < 150; ++q) memset(trial_row(&t, 0, 0, q) + 32, 0, 16 * sizeof(uint16_t));
  EXPECT_WRONG(&t, "every row of head 0", "columns 32..47 of D");
}

TEST(every_head_but_one_wrong) {
  const Problem p = new_problem(DTYPE_FP16, 6, 3, 20, 30);
  FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_NORMAL, 3);
  simulate(&t, true, &NO_MISTAKE);
  for (int h = 0; h < 6; ++h) {
    if (h != 2) copy_row(&t, h, 3, 4);
  }
  EXPECT_WRONG(&t, "row 4 of every head but 2");
}

TEST(one_tile_unwritten) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  for (int q = 64; q < 128; ++q) poison(trial_row(&t, 0, 1, q), 128);
  const CheckResult r = EXPECT_WRONG(
      &t, "4096 values never written", "O[b=0, h=1, q=64, d=0] = never written, expected",
      "unwritten O in 64 rows: query tile 1 (rows 64..127) wholly of head 1", "|.U.|");
  assert_int_equal(r.values_unwritten, 4096);
  assert_int_equal(r.values_nan, 0);
  /* The same when none of its rows is in the sample. */
  expect_wrong(&t, CHECK_ROWS, 1,
               (const char *const[]){"4096 values never written", "| U.|", NULL});
}

TEST(the_last_rows_unwritten) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  for (int h = 0; h < 2; ++h) {
    for (int q = 133; q < 150; ++q) poison(trial_row(&t, 0, h, q), 128);
  }
  EXPECT_WRONG(&t, "all rows from 133 on (the last 17 rows) of every head");
}

TEST(guards_overwritten) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_FP16);
  const size_t o_bytes = 2 * 150 * 64 * 2, lse_bytes = 2 * 150 * 4;
  t.o_block[GUARD_BYTES - 4] = 1;
  assert_int_equal(EXPECT_WRONG(&t, "1 guard byte before O").guard_bytes_touched, 1);
  poison(t.o_block + GUARD_BYTES - 4, 2);
  memset(t.o_block + GUARD_BYTES + o_bytes, 0, 128);
  EXPECT_WRONG(&t, "128 guard bytes after O overwritten, the nearest 0 bytes away");
  poison(t.o_block + GUARD_BYTES + o_bytes, 128);
  t.lse_block[0] = 0;
  EXPECT_WRONG(&t, "1 guard byte before LSE overwritten, the nearest 4095 bytes away");
  poison(t.lse_block, 2);
  t.lse_block[2 * GUARD_BYTES + lse_bytes - 1] = 0;
  EXPECT_WRONG(&t, "1 guard byte after LSE overwritten, the nearest 4095 bytes away");
}

/* What memory of the CPU backend holds before it is set: of O and LSE, computed from it or not. */
TEST(values_that_were_never_set) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  memset(trial_row(&t, 0, 1, 70), 0xff, 128);
  memset(trial_lse(&t, 0, 1, 70), 0xff, 4);
  const CheckResult r = EXPECT_WRONG(
      &t, "65 NaN where a number belongs", "65 of them from values that were never set",
      "O[b=0, h=1, q=70, d=0] = nan, written, from a value that was never set, expected",
      "LSE[b=0, h=1, q=70] = nan, written, from a value that was never set, expected",
      "!never written");
  assert_int_equal(r.values_unset, 65);
  assert_int_equal(r.values_unwritten, 0);
  /* With NaN in an input, which may have any bits: */
  t.q[row_offset(&t.problem.q_strides, 0, 1, 149)] = 0xffff;
  EXPECT_WRONG(&t, "O[b=0, h=1, q=70, d=0] = nan, expected", "!never set");
}

TEST(lse_wrong) {
  FREED_BY(free_trial) Trial t = solved(DTYPE_BF16);
  *trial_lse(&t, 0, 1, 70) += 0.001f;
  CheckResult r =
      EXPECT_WRONG(&t, "first: LSE[b=0, h=1, q=70] =", "wrong LSE in 1 row: row 70", "|.L.|");
  assert_int_equal(r.lse_wrong, 1);
  assert_int_equal(r.rows_wrong, 0);
  assert_true(r.max_lse_error > 1);
  *trial_lse(&t, 0, 1, 70) = NAN;
  r = EXPECT_WRONG(&t, "LSE[b=0, h=1, q=70] = nan, expected", "1 NaN");
  assert_int_equal(r.values_nan, 1);
  poison(trial_lse(&t, 0, 1, 70), 4);
  r = EXPECT_WRONG(&t, "LSE[b=0, h=1, q=70] = never written, expected", "1 values never written");
  assert_int_equal(r.values_unwritten, 1);
  assert_int_equal(r.values_nan, 0);
}

TEST(a_row_with_nothing_to_attend_must_be_zero) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 90, 40);
  p.mask = MASK_CAUSAL;
  FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_NORMAL, 4);
  simulate(&t, true, &NO_MISTAKE);
  expect_right(&t);
  trial_row(&t, 0, 0, 7)[3] = 1; /* the smallest number there is */
  EXPECT_WRONG(&t, "O[b=0, h=0, q=7, d=3] = 5.9604645e-08, expected 0", "row 7");
  trial_row(&t, 0, 0, 7)[3] = 0;
  *trial_lse(&t, 0, 0, 7) = -1e30f;
  EXPECT_WRONG(&t, "LSE[b=0, h=0, q=7] = -1e+30, expected -inf");
}

TEST(nan_inputs_give_nan_outputs) {
  const Problem p = new_problem(DTYPE_BF16, 2, 2, 50, 60);
  FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_NORMAL, 4);
  t.q[row_offset(&p.q_strides, 0, 1, 20)] = 0x7fc0;
  simulate(&t, true, &NO_MISTAKE);
  const CheckResult r = expect_right(&t);
  assert_int_equal(r.rows_nan_expected, 1);
  trial_row(&t, 0, 1, 20)[7] = 0;
  EXPECT_WRONG(&t, "O[b=0, h=1, q=20, d=7] = 0, expected nan", "row 20 of head 1");
  poison(trial_row(&t, 0, 1, 20), 128);
  assert_int_equal(EXPECT_WRONG(&t, "never written").values_unwritten, 64);
  simulate_row(&t, 0, 1, 20, true, &NO_MISTAKE);
  trial_row(&t, 0, 0, 20)[7] = 0x7fff;
  assert_int_equal(EXPECT_WRONG(&t, "1 NaN", "row 20 of head 0").values_nan, 1);
}

/* Two values of V that nearly cancel make the relative error of one row very large; the other rows
   are wrong too and must still be reported. */
TEST(cancellation_in_one_row_excuses_no_other_row) {
  const Problem p = new_problem(DTYPE_FP16, 1, 1, 64, 64);
  FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_NORMAL, 7);
  memset(t.k, 0, 2 * (size_t)elements(1, 1, 64, 64)); /* all scores are equal */
  for (int key = 0; key < 64; ++key) {
    for (int d = 0; d < 64; ++d) {
      const double value = (key % 2 == 0 ? 1 : -1) * (1 + 0x1p-10 * (key / 2 == d % 32));
      t.v[key * p.v_strides.row + d] = element_bits(p.dtype, value);
    }
  }
  simulate(&t, true, &NO_MISTAKE);
  assert_true(expect_right(&t).max_share <= 1);
  for (int q = 0; q < 64; ++q) {
    for (int d = 0; d < 64; ++d) trial_row(&t, 0, 0, q)[d] = element_bits(p.dtype, 0.125);
  }
  Verdict verdict = judge_rows(&t, CHECK_ALL, 0);
  assert_false(verdict.result.right);
  free(verdict.text);
}

TEST(heads_with_infinite_v_are_counted_not_compared) {
  Problem p = new_problem(DTYPE_FP16, 2, 2, 50, 60);
  p.mask = MASK_CAUSAL;
  FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_NORMAL, 4);
  t.v[row_offset(&p.v_strides, 0, 1, 59)] = 0x7c00;
  simulate(&t, true, &NO_MISTAKE);
  for (int q = 32; q < 50; ++q) trial_row(&t, 0, 1, q)[0] = 0x7fff; /* 0 * Inf */
  EXPECT_WRONG(&t, "head 1", "NaN");
  t.multiplies_masked_keys = true;
  assert_int_equal(expect_right(&t).rows_not_compared, 50);
  trial_row(&t, 0, 0, 3)[0] = 0x7fff;
  EXPECT_WRONG(&t, "row 3 of head 0", "|-|");
  simulate(&t, true, &NO_MISTAKE);
  poison(trial_row(&t, 0, 1, 40), 128);
  EXPECT_WRONG(&t, "64 values never written", "row 40 of head 1");
}

TEST(a_large_output_fits_the_map) {
  Problem p = new_problem(DTYPE_FP16, 50, 50, 100 * BLOCK_M, 1);
  p.batch = 2;
  p.head_dim = 32;
  set_strides(&p, false);
  FREED_BY(free_trial) Trial t = new_trial(&p, INPUT_NORMAL, 4);
  simulate(&t, true, &NO_MISTAKE);
  poison(trial_row(&t, 1, 49, p.q_len - 1), 64);
  expect_wrong(&t, CHECK_ROWS, 500,
               (const char *const[]){"a line is 3 heads (b, h), a column 128 query rows",
                                     "first: O[b=1, h=49, q=6399, d=0]", NULL});
}

int main(void) {
  omp_set_num_threads(1); /* small problems: starting threads would take longer */
  return run_all_tests(NULL, NULL);
}
