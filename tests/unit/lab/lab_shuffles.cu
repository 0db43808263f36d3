/** @file What the lab finds of shuffles from lanes that take no part, and of masks that differ. */
#include <string>

#include "../tests/unit/lab/lab_testing.h"

/* --- Lanes that take no part ------------------------------------------------------------------ */

typedef enum Variant {
  XOR,
  INDEX,
  DOWN,
  UP,
  NARROW,
  WIDE_VALUE,
  INTEGER,
  EXITED,
  PAST_THE_END,
  ACTIVE,
  ACTIVE_VALUE
} Variant;

template <Variant VARIANT>
__global__ void read_missing(float *out) {
  const int lane = threadIdx.x % 32;
  const float x = (float)lane;
  float y = 0;
  if (VARIANT == XOR && lane < 16) y = __shfl_xor_sync(0x0000ffff, x, 16);
  if (VARIANT == INDEX && lane >= 8) y = __shfl_sync(0xffffff00, x, lane - 8);
  if (VARIANT == DOWN && lane < 8) y = __shfl_down_sync(0xff, x, 4);
  if (VARIANT == UP && lane >= 16) y = __shfl_up_sync(0xffff0000, x, 1);
  if (VARIANT == NARROW && lane % 8 < 4) y = __shfl_down_sync(0x0f0f0f0f, x, 3, 8);
  if (VARIANT == WIDE_VALUE && lane < 31) y = (float)__shfl_xor_sync(0x7fffffff, (double)x, 1);
  if (VARIANT == INTEGER && lane > 0) y = (float)__shfl_sync(0xfffffffe, lane, 0);
  if (VARIANT == EXITED && lane >= 20) return;
  if (VARIANT == EXITED) y = __shfl_xor_sync(0xffffffff, x, 16);
  if (VARIANT == PAST_THE_END) y = __shfl_down_sync(0xffffffff, x, 16);
  if (VARIANT == ACTIVE && lane < 16) y = __shfl_xor_sync(__activemask(), x, 1);
  if (VARIANT == ACTIVE_VALUE) y = __shfl_sync(__activemask(), x, 0);
  out[threadIdx.x] = y;
}
enum { FIRST_LINE = __LINE__ - 14 };

template <Variant VARIANT>
static void expect_missing(int line, const char *first, int threads = 32) {
  read_missing<VARIANT><<<1, threads>>>(named<float>("out", 64));
  expect_finding(LAB_NO_SOURCE, FIRST_LINE + line, 0,
                 "first: block 0 thread " + std::string(first) + "\n");
}

TEST(a_shuffle_from_a_lane_that_takes_no_part_is_found) {
  expect_missing<XOR>(0, "0, lane 0 reads lane 16, which is not in the mask 0x0000ffff");
  expect_missing<INDEX>(1, "8, lane 8 reads lane 0, which is not in the mask 0xffffff00");
  expect_missing<DOWN>(2, "4, lane 4 reads lane 8, which is not in the mask 0x000000ff");
  expect_missing<UP>(3, "16, lane 16 reads lane 15, which is not in the mask 0xffff0000");
  expect_missing<NARROW>(4, "1, lane 1 reads lane 4, which is not in the mask 0x0f0f0f0f");
  expect_missing<WIDE_VALUE>(5, "30, lane 30 reads lane 31, which is not in the mask 0x7fffffff");
  expect_missing<INTEGER>(6, "1, lane 1 reads lane 0, which is not in the mask 0xfffffffe");
  expect_missing<EXITED>(8, "4, lane 4 reads lane 20, which has exited");
  expect_missing<PAST_THE_END>(9, "32, lane 0 reads lane 16, which is past the end of the block",
                               48);
  const char *active = ", that of __activemask()";
  expect_missing<ACTIVE>(
      10, ("0, lane 0 reads lane 1, which is not in the mask 0x00000001" + std::string(active))
              .c_str());
  expect_missing<ACTIVE_VALUE>(
      11, ("1, lane 1 reads lane 0, which is not in the mask 0x00000002" + std::string(active))
              .c_str());
}

/* --- Masks that differ ------------------------------------------------------------------------ */

typedef enum Instruction { SHUFFLE, BALLOT, ANY, ALL, MATCH, REDUCE, WARP_BARRIER } Instruction;

/** Lanes 0 to 15 know nothing of the others, which name them. */
template <Instruction INSTRUCTION>
__global__ void use_two_masks(unsigned *out) {
  const unsigned lane = threadIdx.x % 32, mask = lane < 16 ? 0x0000ffff : 0xffffffff;
  unsigned y = 0;
  if (INSTRUCTION == SHUFFLE) y = __shfl_xor_sync(mask, lane, 1);
  if (INSTRUCTION == BALLOT) y = __ballot_sync(mask, lane % 3 == 0);
  if (INSTRUCTION == ANY) y = (unsigned)__any_sync(mask, lane == 3);
  if (INSTRUCTION == ALL) y = (unsigned)__all_sync(mask, lane > 3);
  if (INSTRUCTION == MATCH) y = __match_any_sync(mask, lane % 4);
  if (INSTRUCTION == REDUCE) y = __reduce_add_sync(mask, lane);
  if (INSTRUCTION == WARP_BARRIER) __syncwarp(mask);
  out[threadIdx.x] = y;
}
enum { MASKS_LINE = __LINE__ - 9 };

template <Instruction INSTRUCTION>
static void expect_masks() {
  use_two_masks<INSTRUCTION><<<1, 32>>>(named<unsigned>("out", 32));
  expect_finding(LAB_WARP_MASKS, MASKS_LINE + INSTRUCTION, 0,
                 "first: block 0 thread 16, threads 16-31 with the mask 0xffffffff, "
                 "threads 0-15 with 0x0000ffff\n");
}

TEST(lanes_that_come_with_another_mask_are_found) {
  expect_masks<SHUFFLE>();
  expect_masks<BALLOT>();
  expect_masks<ANY>();
  expect_masks<ALL>();
  expect_masks<MATCH>();
  expect_masks<REDUCE>();
  expect_masks<WARP_BARRIER>();
}

__global__ void read_across_masks(float *out) {
  const unsigned lane = threadIdx.x;
  out[lane] = __shfl_xor_sync(lane < 16 ? 0x0000ffff : 0xffffffff, (float)lane, 8 + lane / 16 * 8);
}
enum { ACROSS_LINE = __LINE__ - 2 };

TEST(a_shuffle_says_that_its_source_had_another_mask) {
  read_across_masks<<<1, 32>>>(named<float>("out", 32));
  assert_tells({lab_kind_text(LAB_WARP_MASKS), lab_kind_text(LAB_NO_SOURCE),
                "lane 16 reads lane 0, which called it with another mask, 0x0000ffff\n"},
               {ACROSS_LINE});
}

/* --- Right uses ------------------------------------------------------------------------------- */

__global__ void use_masks_rightly(unsigned *out, unsigned *counter) {
  const unsigned lane = threadIdx.x % 32;
  unsigned sum = lane;
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  const unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000;
  for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(half, sum, offset);
  const unsigned eight = 0xffu << lane / 8 * 8;
  sum += __shfl_down_sync(eight, sum, 4, 8) + __reduce_add_sync(eight, sum);
  for (unsigned i = 0; i <= lane / 16; i++) { /* lanes 0 to 15 leave earlier */
    sum += __ballot_sync(i == 0 ? 0xffffffff : 0xffff0000, sum % 2);
  }
  if (lane % 3 == 0) { /* lanes that happen to be together add once */
    const unsigned mask = __activemask(), leader = (unsigned)__ffs((int)mask) - 1;
    unsigned old = 0;
    if (lane == leader) old = atomicAdd(counter, (unsigned)__popc(mask));
    sum += __shfl_sync(mask, old, (int)leader);
  }
  if (lane >= 24) return;
  sum += __shfl_sync(0xffffffff, sum, (int)lane % 24) + __ballot_sync(0xffffffff, sum % 2);
  out[threadIdx.x] = sum;
}

TEST(right_uses_of_masks_have_no_findings) {
  use_masks_rightly<<<2, 64>>>(named<unsigned>("out", 64), named_zeros<unsigned>("counter", 1));
  const char *text = findings_text();
  assert_null(strstr(text, lab_kind_text(LAB_NO_SOURCE)));
  assert_null(strstr(text, lab_kind_text(LAB_WARP_MASKS)));
}

RUN_IN_ALL_SETTINGS("shuffles", start_lab, stop_lab)
