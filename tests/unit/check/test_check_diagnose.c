/** @file Kernels with common mistakes: the checker notices them and names the mistake. */
#include "verdict.h"

/* A kernel with a mistake must be noticed in both types, and the mistake must be named. LSE has the
 * same mistake. */
static void expect_diagnosis(Problem p, const Mistakes *mistakes, const char *phrase) {
  for (int dtype = DTYPE_FP16; dtype <= DTYPE_BF16; ++dtype) {
    p.dtype = p.o_dtype = (Dtype)dtype;
    start_trial(&p, INPUT_NORMAL, 4);
    simulate(&trial, true, mistakes);
    EXPECT_WRONG(phrase, "!LSE does not agree");
  }
}

TEST(wrong_causal_alignment) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 40, 90);
  p.mask = MASK_CAUSAL;
  expect_diagnosis(p, &(Mistakes){.top_left = true}, "the causal mask is aligned to the top left");
  p = new_problem(DTYPE_FP16, 1, 1, 90, 40); /* the first rows should attend nothing */
  p.mask = MASK_CAUSAL;
  expect_diagnosis(p, &(Mistakes){.top_left = true}, "the top left");
}

TEST(missing_division) {
  expect_diagnosis(new_problem(DTYPE_FP16, 1, 1, 40, 90), &(Mistakes){.no_division = true},
                   "the final division by the softmax denominator is missing");
}

TEST(wrong_kv_head) {
  expect_diagnosis(new_problem(DTYPE_FP16, 4, 2, 10, 90), &(Mistakes){.wrong_kv_head = true},
                   "K and V are those of key/value head");
}

TEST(mask_ignored) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 60, 60);
  solve(&p, INPUT_NORMAL, 4);
  trial.problem.mask = MASK_CAUSAL;
  EXPECT_WRONG("the mask is ignored", "the first 59 rows of every head");
}

/* The last 64 of 16384 rows, with a full or a causal mask. */
static void expect_diagnosis_of_long_rows(const Mistakes *mistakes, const char *phrase) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 64, 16384);
  p.mask = MASK_CAUSAL;
  for (int dtype = DTYPE_FP16; dtype <= DTYPE_BF16; ++dtype) {
    p.dtype = p.o_dtype = (Dtype)dtype;
    solve(&p, INPUT_NORMAL, 5);
    expect_right();
    simulate(&trial, true, mistakes);
    expect_wrong(CHECK_ROWS, 48, (const char *const[]){phrase, NULL});
  }
}

TEST(a_stale_tile_among_512) {
  expect_diagnosis_of_long_rows(&(Mistakes){.stale_v_tile = 300},
                                "V of key/value tile 300 is stale: it is that of tile 299");
}

TEST(one_lost_key_among_16384) {
  expect_diagnosis_of_long_rows(&(Mistakes){.lost_key_plus_1 = 12346}, "key 12345 is missing");
}

TEST(no_rescale) {
  const Problem p = new_problem(DTYPE_FP16, 1, 1, 40, 90);
  expect_diagnosis(p, &(Mistakes){.keeps_o = true}, "O is not rescaled when a later tile");
  expect_diagnosis(p, &(Mistakes){.keeps_o = true}, "LSE is right");
  expect_diagnosis(p, &(Mistakes){.keeps_l = true}, "the sum l is not rescaled when a later tile");
  expect_diagnosis(p, &(Mistakes){.keeps_o = true, .keeps_l = true}, "neither O nor l is");
}

TEST(rows_of_zeros) {
  expect_diagnosis(new_problem(DTYPE_FP16, 1, 1, 40, 90), &(Mistakes){.zero_tail = true},
                   "the 6 rows of zeros past the last key take part");
  expect_diagnosis(new_problem(DTYPE_FP16, 1, 1, 40, 95), &(Mistakes){.zero_tail = true},
                   "one more key takes part, of score 0");
}

TEST(a_diagonal_without_mask) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 90, 90);
  p.mask = MASK_CAUSAL;
  expect_diagnosis(p, &(Mistakes){.whole_tile = true}, "the tile of keys on the diagonal");
}

TEST(wrong_columns) {
  const struct {
    int columns;
    bool of_k;
    const char *phrase;
  } cases[] = {
      {1, false, "columns 8..15 of every 16 are missing in Q K^T"},
      {2, false, "columns 3..3 of every 4 are missing in Q K^T"},
      {3, false, "the halves of every 16 columns are exchanged in Q or in K"},
      {4, false, "all columns of K are multiplied by columns 0..15 of Q"},
      {4, true, "all columns of Q are multiplied by columns 0..15 of K"},
      {5, false, "columns 8..15 of every 16 of K are multiplied by columns 2..9 of Q"},
      {5, true, "columns 8..15 of every 16 of Q are multiplied by columns 2..9 of K"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const Mistakes mistakes = {.columns = cases[i].columns, .columns_of_k = cases[i].of_k};
    expect_diagnosis(new_problem(DTYPE_FP16, 1, 1, 40, 90), &mistakes, cases[i].phrase);
  }
}

/* Equal inputs: with 32 keys the sum l is 32, so O alone does not tell what is wrong. */
TEST(lse_decides) {
  const Problem p = new_problem(DTYPE_FP16, 1, 1, 40, 32);
  start_trial(&p, INPUT_CONSTANT, 4);
  simulate(&trial, true, &(Mistakes){.no_division = true});
  EXPECT_WRONG("the final division", "!LSE does not agree");
  for (int q = 0; q < p.q_len; ++q) *lse_of(0, q) -= logf(32);
  EXPECT_WRONG("O is 32 times what is expected: so is l", "!LSE does not agree");
  for (int q = 0; q < p.q_len; ++q) *lse_of(0, q) += 1;
  EXPECT_WRONG("(LSE does not agree)");
  simulate(&trial, true, &NO_MISTAKE);
  for (int q = 0; q < p.q_len; ++q) memset(o_row(0, q), 0, (size_t)p.head_dim * 2);
  EXPECT_WRONG("V of key/value tile 0 is missing", "!LSE does not agree");
}

TEST(lse_of_another_base) {
  const Problem p = new_problem(DTYPE_FP16, 1, 1, 40, 90);
  expect_diagnosis(p, &(Mistakes){.log2_lse = true}, "it is a log2, not a natural logarithm");
  expect_diagnosis(p, &(Mistakes){.log2_lse = true}, "O is right");
}

TEST(rows_without_a_key) {
  Problem p = new_problem(DTYPE_FP16, 1, 1, 90, 40);
  p.mask = MASK_CAUSAL; /* the first 50 rows attend nothing */
  solve(&p, INPUT_NORMAL, 4);
  memset(o_row(0, 7), 0x7e, (size_t)p.head_dim * 2); /* NaN */
  EXPECT_WRONG("all wrong rows attend to no key");
}

RUN_TESTS(use_one_thread, free_last_trial)
