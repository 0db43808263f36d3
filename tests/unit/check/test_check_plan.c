/** @file Which rows the checker chooses. */
#include <string.h>

#include "host/check/check.h"

#include "../testing.h" /* last */

static Problem new_problem(int batch, int heads, int q_len, int kv_len) {
  return (Problem){.batch = batch,
                   .q_heads = heads,
                   .kv_heads = heads,
                   .q_len = q_len,
                   .kv_len = kv_len,
                   .head_dim = 128};
}

static CheckPlan new_plan(const Problem *p, CheckMode mode, int64_t wanted, int block_m,
                          uint64_t seed) {
  CheckPlan plan;
  Error error;
  const Mask mask = mask_simple(p);
  assert_true(check_plan(p, &mask, mode, wanted, block_m, seed, &plan, &error));
  return plan;
}

static int64_t number(const Problem *p, RowIndex row) {
  assert_in_range(row.batch, 0, p->batch - 1);
  assert_in_range(row.head, 0, p->q_heads - 1);
  assert_in_range(row.q, 0, p->q_len - 1);
  return ((int64_t)row.batch * p->q_heads + row.head) * p->q_len + row.q;
}

/* In ascending order, so no row is there twice. */
static void assert_ascending(const Problem *p, const CheckPlan *plan) {
  for (size_t i = 1; i < plan->count; ++i) {
    assert_true(number(p, plan->rows[i - 1]) < number(p, plan->rows[i]));
  }
}

static bool has_query_row(const CheckPlan *plan, int q) {
  for (size_t i = 0; i < plan->count; ++i) {
    if (plan->rows[i].q == q) return true;
  }
  return false;
}

static void assert_all_edges(const Problem *p, const CheckPlan *plan, int block_m) {
  for (int64_t first = 0; first < p->q_len; first += block_m) {
    const int64_t end = first + block_m < p->q_len ? first + block_m : p->q_len;
    assert_true(has_query_row(plan, (int)first));
    assert_true(has_query_row(plan, (int)end - 1));
  }
}

static void assert_ends_with_the_last_row(const Problem *p, const CheckPlan *plan) {
  const int64_t rows = (int64_t)p->batch * p->q_heads * p->q_len;
  assert_true(number(p, plan->rows[plan->count - 1]) == rows - 1);
}

TEST(a_small_problem_is_checked_whole) {
  const Problem p = new_problem(2, 3, 70, 50);
  FREED_BY(check_plan_free) CheckPlan plan = new_plan(&p, CHECK_DEFAULT, 0, 64, 1);
  assert_true(plan.all);
  assert_int_equal(plan.count, 2 * 3 * 70);
  for (size_t i = 0; i < plan.count; ++i) assert_int_equal(number(&p, plan.rows[i]), i);
}

TEST(check_all_chooses_all_rows) {
  const Problem p = new_problem(1, 2, 5000, 1 << 20);
  FREED_BY(check_plan_free) CheckPlan plan = new_plan(&p, CHECK_ALL, 3, 64, 1);
  assert_true(plan.all);
  for (size_t i = 0; i < plan.count; ++i) assert_int_equal(number(&p, plan.rows[i]), i);
  assert_int_equal(plan.count, 10000);
}

TEST(check_none_chooses_no_rows) {
  const Problem p = new_problem(1, 2, 50, 50);
  FREED_BY(check_plan_free) CheckPlan plan = new_plan(&p, CHECK_NONE, 3, 64, 1);
  assert_int_equal(plan.count, 0);
  assert_false(plan.all);
}

TEST(a_sample_holds_every_tile_edge) {
  static const int tiles[] = {1, 2, 16, 64, 100, 128, 100000};
  for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; ++i) {
    for (int length = 1000; length <= 1003; ++length) {
      const Problem p = new_problem(2, 5, length, length);
      FREED_BY(check_plan_free) CheckPlan plan = new_plan(&p, CHECK_ROWS, 2010, tiles[i], 1);
      assert_int_equal(plan.count, 2010);
      assert_ascending(&p, &plan);
      assert_all_edges(&p, &plan, tiles[i]);
      assert_ends_with_the_last_row(&p, &plan);
    }
  }
}

TEST(a_sample_has_the_size_wanted) {
  const Problem p = new_problem(2, 5, 100, 100);
  for (int wanted = 1; wanted <= 1010; ++wanted) {
    FREED_BY(check_plan_free)
    CheckPlan plan = new_plan(&p, CHECK_ROWS, wanted, 16, (uint64_t)wanted);
    assert_int_equal(plan.count, wanted < 1000 ? wanted : 1000);
    assert_int_equal(plan.all, wanted >= 1000);
    assert_ascending(&p, &plan);
    assert_ends_with_the_last_row(&p, &plan);
  }
}

TEST(the_sample_depends_on_the_seed_alone) {
  const Problem p = new_problem(4, 16, 4096, 4096);
  FREED_BY(check_plan_free) CheckPlan one = new_plan(&p, CHECK_DEFAULT, 0, 64, 7);
  FREED_BY(check_plan_free) CheckPlan same = new_plan(&p, CHECK_DEFAULT, 0, 64, 7);
  FREED_BY(check_plan_free) CheckPlan other = new_plan(&p, CHECK_DEFAULT, 0, 64, 8);
  assert_int_equal(one.count, same.count);
  assert_int_equal(one.count, other.count);
  assert_memory_equal(one.rows, same.rows, one.count * sizeof one.rows[0]);
  assert_memory_not_equal(one.rows, other.rows, one.count * sizeof one.rows[0]);
}

TEST(a_default_sample_is_affordable_and_reaches_every_head) {
  const Problem p = new_problem(4, 16, 4096, 4096);
  FREED_BY(check_plan_free) CheckPlan plan = new_plan(&p, CHECK_DEFAULT, 0, 64, 7);
  assert_false(plan.all);
  assert_ascending(&p, &plan);
  assert_all_edges(&p, &plan, 64);
  assert_ends_with_the_last_row(&p, &plan);
  const double seconds = 4.0 * 128 * 4096 * (double)plan.count / REFERENCE_SPEED;
  assert_true(seconds > 1.4 && seconds < 1.6);
  int rows[4][16] = {{0}};
  for (size_t i = 0; i < plan.count; ++i) ++rows[plan.rows[i].batch][plan.rows[i].head];
  for (int head = 0; head < 64; ++head) assert_true(rows[head / 16][head % 16] > 20);
}

TEST(edges_are_thinned_out_only_where_they_take_too_long) {
  const Problem p = new_problem(1, 1, 16384, 16384);
  CheckPlan plan = new_plan(&p, CHECK_DEFAULT, 0, 16, 7); /* 2048 edges, 1.5 s are 894 rows */
  assert_int_equal(plan.count, 2048);
  assert_all_edges(&p, &plan, 16);
  check_plan_free(&plan);

  const Problem huge = new_problem(1, 1, 1 << 20, 1 << 20);
  plan = new_plan(&huge, CHECK_DEFAULT, 0, 64, 7);
  assert_true(plan.count < 100);
  assert_ascending(&huge, &plan);
  assert_ends_with_the_last_row(&huge, &plan);
  check_plan_free(&plan);
}

TEST(more_than_2_to_the_31_rows_can_be_sampled) {
  const Problem p = new_problem(1 << 12, 1 << 10, 1 << 12, 16);
  FREED_BY(check_plan_free) CheckPlan plan = new_plan(&p, CHECK_DEFAULT, 0, 64, 7);
  assert_ascending(&p, &plan);
  assert_all_edges(&p, &plan, 64);
  assert_ends_with_the_last_row(&p, &plan);
}

RUN_TESTS(NULL, NULL)
