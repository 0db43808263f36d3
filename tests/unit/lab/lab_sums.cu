/** @file What the lab says about sums of floats that several blocks add to: notes, and no findings.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

template <typename T>
__global__ void add_to_one(T *sum) {
  atomicAdd(&sum[threadIdx.x / 32], T(1));
}
enum { ADD_LINE = __LINE__ - 2 };

TEST(a_sum_of_floats_by_several_blocks_depends_on_the_order) {
  add_to_one<float><<<4, 64>>>(named_zeros<float>("sum", 2));
  const TakenResults results;
  assert_int_equal(results.finding_count, 0);
  assert_int_equal(results.note_count, 1);
  assert_finds({LAB_SUM_UNORDERED, ADD_LINE, ADD_LINE, "add_to_one<float>",
                "8 bytes, first: block 0, the other block 1, sum + 0 (8 bytes)"});
}

TEST(sums_of_doubles_depend_on_it_too) {
  add_to_one<double><<<2, 32>>>(named_zeros<double>("sum", 1));
  assert_finds({LAB_SUM_UNORDERED, ADD_LINE, ADD_LINE, "add_to_one<double>",
                "8 bytes, first: block 0, the other block 1, sum + 0 (8 bytes)"});
}

TEST(sums_of_integers_do_not) {
  add_to_one<int><<<4, 64>>>(named_zeros<int>("sum", 2));
  add_to_one<unsigned long long><<<4, 64>>>(named_zeros<unsigned long long>("sum", 2));
  assert_finds_nothing();
}

TEST(nor_do_sums_of_which_each_has_one_block) {
  add_to_one<float><<<1, 64>>>(named_zeros<float>("sum", 2));
  assert_finds_nothing();
  float *sum = named_zeros<float>("sum", 2);
  add_to_one<float><<<1, 64>>>(sum);
  add_to_one<float><<<1, 64>>>(sum); /* launches are ordered */
  assert_finds_nothing();
}

__global__ void add_at_two_lines(float *sum) {
  if (blockIdx.x == 0) {
    atomicAdd(sum, 1.0f);
  } else {
    atomicAdd(sum, 2.0f);
  }
}
enum { FIRST_LINE = __LINE__ - 5, SECOND_LINE = __LINE__ - 3 };

TEST(a_note_names_both_lines) {
  add_at_two_lines<<<2, 1>>>(named_zeros<float>("sum", 1));
  assert_finds({LAB_SUM_UNORDERED, FIRST_LINE, SECOND_LINE, "add_at_two_lines",
                "4 bytes, first: block 0, the other block 1, sum + 0 (4 bytes)"});
}

/** The blocks add one after the other, as `turns` tells them; if WRONG, none of them waits. */
template <bool WRONG>
__global__ void add_in_turns(float *sum, unsigned *turns) {
  if (threadIdx.x == 0) {
    const unsigned own = atomicAdd(&turns[0], 1u);
    while (!WRONG && load_acquire(&turns[1]) < own) continue;
  }
  __syncthreads();
  atomicAdd(&sum[threadIdx.x], 1.0f);
  __syncthreads();
  if (threadIdx.x == 0) reduce_add_release(&turns[1], 1u);
}

TEST(blocks_in_turns_add_in_one_order) {
  add_in_turns<false><<<5, 64>>>(named_zeros<float>("sum", 64), named_zeros<unsigned>("turns", 2));
  assert_finds_nothing();
  add_in_turns<true><<<5, 64>>>(named_zeros<float>("sum", 64), named_zeros<unsigned>("turns", 2));
  expect_findings({"note       ", lab_kind_text(LAB_SUM_UNORDERED), "256 bytes, first: block "},
                  {});
}

/** A plain read of a sum is a race as with any atomic. */
__global__ void add_and_read(float *sum, float *out) {
  atomicAdd(sum, 1.0f);
  if (blockIdx.x == 1) out[0] = *sum;
}
enum { READ_LINE = __LINE__ - 2 };

TEST(reads_of_a_sum_remain_findings) {
  add_and_read<<<2, 1>>>(named_zeros<float>("sum", 1), named<float>("out", 1));
  expect_findings({"finding    ", lab_kind_text(LAB_BLOCKS_WRITE_READ), "note       ",
                   lab_kind_text(LAB_SUM_UNORDERED)},
                  {READ_LINE, READ_LINE - 1});
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
