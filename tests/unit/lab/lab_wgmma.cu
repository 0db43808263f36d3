/** @file What the lab finds and counts of wgmma: one small kernel for each fault. */
#include "../tests/unit/lab/lab_hopper.h"

typedef enum Fault {
  NO_FAULT,
  NO_PROXY_FENCE,
  NO_PROXY_FENCE_AFTER_COPY,
  OVERWRITES,
  READS_D,
  WRITES_D,
  WRITES_A,
  NO_WGMMA_FENCE,
  NO_SECOND_WGMMA_FENCE
} Fault;

template <Fault FAULT>
__global__ void multiply(const uint4 *in, float *out) {
  constexpr bool COPIES = FAULT == NO_PROXY_FENCE_AFTER_COPY;
  uint32_t a[4] = {};
  float d[1][4];
  const int i = threadIdx.x;
  if (COPIES && i < 16) cp_async_16(smem + 16 * i, in + i, true);
  if (COPIES) cp_async_commit(), cp_async_wait<0>();
  if (!COPIES && i < 64) ((int *)smem)[i] = 0;
  if (FAULT != NO_PROXY_FENCE && !COPIES) fence_proxy_async();
  __syncthreads();
  if (FAULT != NO_WGMMA_FENCE) wgmma_fence();
  wgmma<__half, false>(d, a, small_descriptor(0), false);
  wgmma_commit();
  if (FAULT == OVERWRITES) __syncthreads(); /* all warps have issued it */
  if (FAULT == OVERWRITES && i == 50) ((int *)smem)[9] = 1;
  if (FAULT == READS_D && i == 50) out[0] = d[0][2];
  if (FAULT == WRITES_D && i == 50) d[0][2] = 0;
  if (FAULT == WRITES_A && i == 50) a[1] = 1;
  wgmma_wait<0>();
  if (i == 50) ((int *)smem)[9] = 1, a[1] = 1;
  fence_proxy_async();
  __syncthreads();
  if (FAULT != NO_SECOND_WGMMA_FENCE) wgmma_fence();
  wgmma<__half, false>(d, a, small_descriptor(0), true);
  wgmma_commit();
  wgmma_wait<0>();
  out[threadIdx.x] = d[0][0];
}
enum { SECOND = __LINE__ - 5, FIRST = __LINE__ - 17, FILL = FIRST - 4, COPY = FIRST - 6 };

template <Fault FAULT>
static void expect_multiply(LabKind kind, int line, int other_line, const char *first) {
  multiply<FAULT><<<1, 128, SHARED>>>(named_zeros<uint4>("in", 16), named<float>("out", 128));
  expect_finding(kind, line, other_line, first);
}

TEST(a_wgmma_uses_its_operands_until_its_wait) {
  multiply<NO_FAULT><<<1, 128, SHARED>>>(named_zeros<uint4>("in", 16), named<float>("out", 128));
  assert_finds_nothing();
  expect_multiply<NO_PROXY_FENCE>(LAB_NO_PROXY_FENCE, FIRST, FILL, "256 times, first: block 0 ");
  expect_multiply<NO_PROXY_FENCE_AFTER_COPY>(LAB_NO_PROXY_FENCE, FIRST, COPY,
                                             "64 times, first: block 0 ");
  expect_multiply<OVERWRITES>(LAB_ASYNC_OVER_READ, FIRST + 3, FIRST, "dynamic shared memory + 36");
  const char *third =
      "1 time, first: block 0 thread 50, the other thread 50, an accumulator, "
      "element 2 of it\n";
  expect_multiply<READS_D>(LAB_WGMMA_REGISTERS, FIRST + 4, FIRST, third);
  expect_multiply<WRITES_D>(LAB_WGMMA_REGISTERS, FIRST + 5, FIRST, third);
  expect_multiply<WRITES_A>(LAB_WGMMA_REGISTERS, FIRST + 6, FIRST, "operand A, element 1 of it\n");
  expect_multiply<NO_WGMMA_FENCE>(LAB_NO_WGMMA_FENCE, FIRST, 0, "4 times, first: block 0 thread ");
  expect_multiply<NO_SECOND_WGMMA_FENCE>(LAB_NO_WGMMA_FENCE, SECOND, 0,
                                         "1 time, first: block 0 thread 32, warp 1\n");
}

/** A long sum of many operands, and a second one that the wait does not cover. */
template <int READ>
__global__ void sum_many(float *out) {
  uint32_t a[2][12][4] = {};
  float d[2][1][4];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) ((int *)smem)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  for (int group = 0; group < 2; group++) {
    for (int i = 0; i < 12; i++) {
      wgmma<__half, false>(d[group], a[group][i], small_descriptor(0), i > 0);
    }
    wgmma_commit();
  }
  wgmma_wait<1>();
  if (threadIdx.x == 50) out[0] = d[READ][0][3];
  wgmma_wait<0>();
}
enum { SUM_READ = __LINE__ - 3, SUM_MULTIPLY = __LINE__ - 8 };

/** The wait comes before the commit, so it does not wait. */
__global__ void commit_too_late(float *out) {
  float d[1][4];
  for (int i = threadIdx.x; i < 512; i += blockDim.x) ((int *)smem)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  wgmma<__half, false>(d, small_descriptor(0), small_descriptor(0), false);
  wgmma_wait<0>();
  if (threadIdx.x == 50) out[0] = d[0][3];
  wgmma_commit();
  wgmma_wait<0>();
}
enum { LATE_READ = __LINE__ - 4, LATE_MULTIPLY = __LINE__ - 6 };

TEST(a_wait_covers_no_wgmma_without_a_group) {
  commit_too_late<<<1, 128, SHARED>>>(named<float>("out", 1));
  expect_finding(LAB_WGMMA_NOT_COMMITTED, LATE_READ, LATE_MULTIPLY,
                 "1 time, first: block 0 thread 50, the other thread 50, an accumulator, "
                 "element 3 of it\n");
}

TEST(a_wait_covers_older_groups_only) {
  assert_finds_nothing([=] { sum_many<0><<<1, 128, SHARED>>>(named<float>("out", 1)); });
  sum_many<1><<<1, 128, SHARED>>>(named<float>("out", 1));
  expect_finding(LAB_WGMMA_REGISTERS, SUM_READ, SUM_MULTIPLY, "an accumulator, element 3 of it\n");
}

/** A warp outside of the warpgroup writes to B after the warpgroup has waited. */
template <bool ORDERED>
__global__ void overwrite_after_wait(int *flag) {
  uint64_t *empty = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(empty, 1);
  if (threadIdx.x < 64) ((int *)smem)[threadIdx.x] = 0;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < 128) {
    const uint32_t a[4] = {};
    float d[1][4];
    wgmma_fence();
    wgmma<__half, false>(d, a, small_descriptor(0), false);
    wgmma_commit();
    wgmma_wait<0>();
    if (threadIdx.x == 0) ORDERED ? mbarrier_arrive(empty) : raise_flag(flag);
  } else if (threadIdx.x == 150) {
    ORDERED ? mbarrier_wait(empty, 0) : await_flag(flag);
    ((int *)smem)[9] = 1;
  }
}
enum { AFTER_WAIT = __LINE__ - 3, BEFORE_WAIT = __LINE__ - 9 };

TEST(other_warps_know_of_a_wait_by_a_barrier) {
  int *flag = named_zeros<int>("flag", 1);
  assert_finds_nothing([=] { overwrite_after_wait<true><<<1, 160, SHARED>>>(flag); });
  overwrite_after_wait<false><<<1, 160, SHARED>>>(flag);
  expect_finding(LAB_ASYNC_OVER_READ, AFTER_WAIT, BEFORE_WAIT,
                 "1 time, first: block 0 thread 150, ");
}

/** Shuffles before the product, beside it, and after its wait. */
__global__ void shuffle_around() {
  const uint32_t a[4] = {};
  float d[1][4];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) ((int *)smem)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  __shfl_sync(0xffffffff, 0, 0);
  wgmma_fence();
  wgmma<__half, false>(d, a, small_descriptor(0), false);
  wgmma_commit();
  __shfl_sync(0xffffffff, 0, 0);
  wgmma_wait<1>();
  __shfl_sync(0xffffffff, 0, 0);
  wgmma_wait<0>();
  __shfl_sync(0xffffffff, 0, 0);
}

TEST(shuffles_beside_a_wgmma_are_counted) {
  shuffle_around<<<1, 128, SHARED>>>();
  const LabCounts counts = counts_of_kernel();
  assert_int_equal(counts.shuffles, 4 * 4);
  assert_int_equal(counts.shuffles_under_wgmma, 2 * 4);
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
