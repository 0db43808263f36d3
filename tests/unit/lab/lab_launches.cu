/** @file Launches that are refused, or end early, are findings of the lab. */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

__global__ void fill(int *out) {
  out[blockIdx.x] = 1;
}

/** Half of the warp waits for all of it in a shuffle, the other half at the barrier. */
__global__ void deadlock(int *out) {
  if (threadIdx.x < 16) {
    *out = __shfl_sync(0xffffffff, 1, 0);
  } else {
    __syncthreads();
  }
}
enum { SHUFFLE_LINE = __LINE__ - 5, BARRIER_LINE = __LINE__ - 3 };

static void assert_finds(const std::string &expected) {
  assert_string_equal(findings_text().c_str(), expected.c_str());
  lab_start(LAB_EVERYTHING);
}

/** Launches that exceed these limits, in this order. */
static void assert_finds_limits(std::initializer_list<std::string> limits) {
  std::string expected;
  for (const std::string &limit : limits) {
    expected += "finding    launch limits exceeded\n           in " + limit + "\n";
  }
  assert_finds(expected);
}

TEST(refused_launches_name_the_limit) {
  fill<<<1, dim3(64, 32)>>>(named<int>("out", 1));
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  assert_finds_limits({"fill: block of 64 x 32 x 1 threads: 2048 in all, at most 1024"});
  fill<<<dim3(1, 65536), 1>>>(named<int>("out", 1));
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
  assert_finds_limits({"fill: grid of 1 x 65536 x 1 blocks: y is 65536, at most 65535"});
}

TEST(every_refusal_of_a_kernel_is_reported) {
  int *out = named<int>("out", 1);
  fill<<<1, 2048>>>(out);
  fill<<<1, dim3(1, 1, 65)>>>(out);
  fill<<<1, 2048>>>(out);
  fill<<<0, 1>>>(out);
  assert_finds_limits({"fill: block of 1 x 1 x 65 threads: z is 65, at most 64",
                       "fill: block of 2048 x 1 x 1 threads: x is 2048, at most 1024",
                       "fill: grid of 0 x 1 x 1 blocks: x is 0, at least 1"});
}

template <int THREADS>
__global__ void __launch_bounds__(2 * THREADS, /* blocks on a multiprocessor */
                                  1) bounded(int *out) {
  out[threadIdx.x] = 1;
}

TEST(launch_bounds_of_a_kernel_are_checked) {
  int *out = named<int>("out", 128);
  bounded<32><<<1, 64>>>(out);
  bounded<64><<<1, 128>>>(out);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds("");
  bounded<32><<<1, dim3(5, 13)>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_finds_limits(
      {"bounded<32>: block of 5 x 13 x 1 threads: 65 in all, at most 64 by __launch_bounds__"});
}

/** 32 KiB of static shared memory, and the dynamic shared memory of the launch. */
__global__ void use_both(int *out) {
  __shared__ int values[8192];
  values[threadIdx.x] = 1;
  ((int *)smem)[threadIdx.x] = values[threadIdx.x];
  out[threadIdx.x] = ((int *)smem)[threadIdx.x];
}

TEST(static_and_dynamic_shared_memory_count_together) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  int *out = named<int>("out", 32);
  use_both<<<1, 32, 16 << 10>>>(out);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds("");
  use_both<<<1, 32, (16 << 10) + 1>>>(out);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_finds_limits(
      {"use_both: 16385 bytes of dynamic and 32768 of static shared memory: 49153 in all, at most "
       "49152 without cudaFuncAttributeMaxDynamicSharedMemorySize"});
  assert_int_equal(cudaFuncSetAttribute(use_both, most, (195 << 10) + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(use_both, most, 40000), cudaSuccess);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  use_both<<<1, 32, 40000>>>(out);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  use_both<<<1, 32, 40004>>>(out);
  assert_finds_limits(
      {"use_both: 40004 bytes of dynamic and 32768 of static shared memory: 72772 in all, at most "
       "72768 as the limit was set",
       "use_both: limit of 199681 bytes of dynamic beside 32768 of static shared memory: 232449 in "
       "all, at most 232448"});
}

TEST(a_right_launch_after_a_refused_one_is_counted) {
  fill<<<0, 1>>>(named<int>("out", 2));
  fill<<<2, 1>>>(named<int>("out", 2));
  const TakenResults results;
  assert_int_equal(results.kernel_count, 1);
  assert_int_equal(results.kernels[0].launches, 1);
  assert_int_equal(results.kernels[0].blocks, 2);
  assert_int_equal(results.finding_count, 1);
}

/** Expects a launch in which a block fails: the report goes to stderr, the finding to the lab. */
template <typename Function>
static void assert_fails(Function launch, int line, int other_line, const char *kernel,
                         const std::string &rest) {
  assert_contains(stderr_of(launch), "simt: ");
  const std::string margin(11, ' '), other = "see also " + place_text(__FILE__, other_line, 0);
  assert_finds("finding    the launch ended early\n" + margin + "at " +
               place_text(__FILE__, line, 0) + " in " + kernel + "\n" +
               (other_line != 0 ? margin + other + "\n" : "") + margin + rest + "\n");
}

TEST(a_deadlock_is_a_finding) {
  int *out = named<int>("out", 1);
  assert_fails([=] { deadlock<<<4, 32>>>(out); }, SHUFFLE_LINE, BARRIER_LINE, "deadlock",
               "1 time, first: block 0 thread 0, the other thread 16, "
               "DEADLOCK: threads 0-15 in __shfl_sync, threads 16-31 in __syncthreads()");
}

__global__ void wait_for_one_that_exits(int *out) {
  if (threadIdx.x == 3) return;
  if (threadIdx.x < 3) __syncthreads();
  if (threadIdx.x > 3) *out = __shfl_sync(0xffffffff, 1, 0);
}
enum { FEW_BARRIER = __LINE__ - 3, REST_SHUFFLE = __LINE__ - 2 };

TEST(a_deadlock_names_those_that_exited) {
  assert_fails([=] { wait_for_one_that_exits<<<1, 8>>>(named<int>("out", 1)); }, FEW_BARRIER,
               REST_SHUFFLE, "wait_for_one_that_exits",
               "1 time, first: block 0 thread 0, the other thread 4, DEADLOCK: threads 0-2 in "
               "__syncthreads(), threads 4-7 in __shfl_sync, threads 3 have exited");
}

__global__ void copy_shifted(const char *in, int shift) {
  cp_async_16(smem + 16 * threadIdx.x, in + 16 * threadIdx.x + shift, true);
  cp_async_commit();
  cp_async_wait<0>();
}
enum { SHIFTED_COPY = __LINE__ - 4 };

TEST(a_misaligned_copy_has_a_line) {
  const char *in = named_zeros<char>("in", 1024);
  assert_fails([=] { copy_shifted<<<1, 32, 512>>>(in, 8); }, SHIFTED_COPY, 0, "copy_shifted",
               "1 time, first: block 0 thread 0, "
               "misaligned source of cp.async: 8 bytes past a multiple of 16");
}

__global__ void copy_twice(const uint4 *in) {
  cp_async_16(smem, in, true);
  cp_async_16(smem, in + 1, true);
}
enum { FIRST_COPY = __LINE__ - 3, SECOND_COPY = __LINE__ - 2 };

TEST(two_copies_to_one_place_have_lines) {
  const uint4 *in = named_zeros<uint4>("in", 2);
  lab_start(LAB_BOUNDS); /* LAB_RACES has another finding for this */
  assert_fails([=] { copy_twice<<<1, 1, 16>>>(in); }, SECOND_COPY, FIRST_COPY, "copy_twice",
               "1 time, first: block 0 thread 0, the other thread 0, "
               "two copies to the same shared memory, in no order");
}

__global__ void matrix_of_some_lanes(unsigned *out) {
  unsigned registers[4];
  ldmatrix_x4(registers, smem + 16 * threadIdx.x);
  out[threadIdx.x] = registers[0];
}
enum { MATRIX_LINE = __LINE__ - 3 };

TEST(matrices_take_a_whole_warp) {
  assert_fails([=] { matrix_of_some_lanes<<<1, 16, 512>>>(named<unsigned>("out", 32)); },
               MATRIX_LINE, 0, "matrix_of_some_lanes",
               "1 time, first: block 0 thread 0, ldmatrix without all lanes of its warp: "
               "threads 0-15 in ldmatrix");
}

/** Most blocks fail; the first of them fails late. Each reads unwritten memory before. */
__global__ void fail_in_most_blocks(int *out) {
  int *values = (int *)smem;
  out[blockIdx.x] = values[blockIdx.x];
  const int rounds = 1 + 2000 / (1 + blockIdx.x);
  for (int i = 0; i < rounds; i++) __syncwarp();
  if (blockIdx.x >= 3 && threadIdx.x == 0) __syncthreads();
  if (blockIdx.x >= 3) __syncwarp();
}

TEST(a_report_of_a_failure_does_not_depend_on_os_threads) {
  std::string texts[2];
  for (int try_ = 0; try_ < 20; try_++) {
    int *out = named<int>("out", 64);
    set_variable("SIMT_THREADS", try_ == 0 ? "1" : try_ % 2 ? "4" : "16");
    lab_start(LAB_EVERYTHING);
    assert_contains(stderr_of([&] { fail_in_most_blocks<<<64, 32, 256>>>(out); }),
                    "in block (3,0,0)");
    assert_int_equal(TakenResults().line_count, 0);
    texts[try_ != 0] = findings_text();
    if (try_ != 0) assert_string_equal(texts[1].c_str(), texts[0].c_str());
    assert_int_equal(cudaDeviceReset(), cudaSuccess);
  }
  assert_contains(texts[0], {lab_kind_text(LAB_SHARED_UNWRITTEN),
                             "32 times, first: block 3 thread 0, dynamic shared memory + 12\n",
                             "block 3 thread 0, the other thread 1, DEADLOCK"});
}

RUN_TESTS_WITH(start_lab, stop_lab)
