/** @file Tests of what the CPU backend says about kernels that go wrong. */
#include <climits>

#include "../tests/unit/simt/simt_testing.h"

static Capture capture;

/** After a kernel that must have failed: the error stays until the device is reset. */
static void expect_sticky(cudaError_t error) {
  int *pointer = nullptr, count = 0;
  size_t free_bytes, total_bytes;
  cudaDeviceProp properties;
  assert_int_equal(cudaPeekAtLastError(), error);
  assert_int_equal(cudaGetLastError(), error);
  assert_int_equal(cudaGetLastError(), error);
  assert_int_equal(cudaDeviceSynchronize(), error);
  assert_int_equal(cudaMalloc(&pointer, 4), error);
  assert_int_equal(cudaFree(pointer), error);
  assert_int_equal(cudaMemcpy(&count, &count, 4, cudaMemcpyHostToHost), error);
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), error);
  assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
}

/** `line` is where the kernel goes wrong, or 0. */
static void expect_report(cudaError_t error, const char *what, int line) {
  end_capture(&capture);
  assert_contains(capture.text, what);
  if (line != 0) assert_names_line(capture.text, line);
  expect_sticky(error);
}

/* --- Memory --------------------------------------------------------------------------------- */

__global__ void read_at(const float *array, long long index, float *out) {
  if (blockIdx.x == 2 && threadIdx.x == 37) *out = array[index];
}
enum { READ_LINE = __LINE__ - 2 };

__global__ void write_at(float *array, long long index) {
  if (blockIdx.x == 2 && threadIdx.x == 37) array[index] = 1;
}
enum { WRITE_LINE = __LINE__ - 2 };

static void run_read(const float *array, long long index) {
  float *out = device_zeros<float>(1);
  begin_capture(&capture);
  read_at<<<4, 64>>>(array, index, out);
}

static void run_write(float *array, long long index) {
  begin_capture(&capture);
  write_at<<<4, 64>>>(array, index);
}

TEST(a_read_past_the_end_is_reported) {
  float *array = device_zeros<float>(256);
  run_read(array, 256);
  expect_report(cudaErrorIllegalAddress,
                "out of bounds read 1 byte past allocation 1 (1024 bytes) in read_at, launch",
                READ_LINE);
  assert_contains(capture.text, "by thread (37,0,0) of block (2,0,0)\n");
}

TEST(a_write_past_the_end_is_reported_with_the_name) {
  float *array = device_zeros<float>(256);
  assert_int_equal(simt_name_allocation(array, "lengths"), cudaSuccess);
  run_write(array, 300);
  expect_report(cudaErrorIllegalAddress,
                "out of bounds write 177 bytes past allocation 1 \"lengths\" (1024 bytes)",
                WRITE_LINE);
}

TEST(a_read_before_the_begin_is_reported) {
  device_zeros<float>(10);
  float *array = device_zeros<float>(1024);
  run_read(array, -1);
  expect_report(cudaErrorIllegalAddress,
                "out of bounds read 4 bytes before allocation 2 (4096 bytes)", READ_LINE);
}

TEST(use_after_free_is_reported) {
  float *array = device_zeros<float>(1024);
  assert_int_equal(simt_name_allocation(array, "old"), cudaSuccess);
  assert_int_equal(cudaFree(array), cudaSuccess);
  device_zeros<float>(1024); /* is not put at the freed addresses */
  run_read(array, 3);
  expect_report(cudaErrorIllegalAddress,
                "out of bounds read at byte 12 of freed allocation 1 \"old\" (4096 bytes)",
                READ_LINE);
}

TEST(a_null_pointer_is_reported) {
  run_write(nullptr, 2);
  expect_report(cudaErrorIllegalAddress, "out of bounds write 8 bytes past a null pointer",
                WRITE_LINE);
}

TEST(a_wild_pointer_is_reported) {
  run_write((float *)(1ll << 45), 0);
  expect_report(cudaErrorIllegalAddress, "no address of the device", WRITE_LINE);
}

TEST(a_write_into_the_slack_is_found_after_the_launch) {
  float *array = device_zeros<float>(65);
  run_write(array, 65);
  expect_report(cudaErrorIllegalAddress,
                "out of bounds write 1 byte past allocation 1 (260 bytes) in write_at", 0);
  array = device_zeros<float>(65);
  run_write(array, -1);
  expect_report(cudaErrorIllegalAddress,
                "out of bounds write 4 bytes before allocation 1 (260 bytes) in write_at", 0);
}

TEST(the_first_and_last_byte_may_be_used) {
  float *array = device_zeros<float>(65);
  write_at<<<4, 64>>>(array, 0);
  write_at<<<4, 64>>>(array, 64);
  read_at<<<4, 64>>>(array, 64, array);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/** As in a program that is compiled without the check of simt_alignment.cu. */
__attribute__((no_sanitize("alignment"))) __global__ void read_misaligned(const char *bytes,
                                                                          simt::Word16 *out) {
  *out = *(const simt::Word16 *)(bytes + 4);
}
enum { MISALIGNED_LINE = __LINE__ - 2 };

TEST(what_the_processor_finds_misaligned_is_reported) {
#if defined(__x86_64__)
  float *array = device_zeros<float>(64);
  begin_capture(&capture);
  read_misaligned<<<1, 1>>>((const char *)array, (simt::Word16 *)array);
  expect_report(cudaErrorMisalignedAddress, "misaligned access, or an address far out of any range",
                MISALIGNED_LINE);
#else
  skip(); /* the processor allows it */
#endif
}

TEST(no_kernel_is_launched_after_a_failed_one) {
  SimtCounters counters;
  float *array = device_zeros<float>(1);
  run_write(nullptr, 2);
  write_at<<<4, 64>>>(array, 0);
  simt_read_counters(&counters);
  assert_int_equal(counters.launches, 1);
  expect_report(cudaErrorIllegalAddress, "a null pointer", WRITE_LINE);
}

/* --- The stack, traps ----------------------------------------------------------------------- */

__attribute__((noinline)) static int recurse(int depth) {
  volatile int frame[64];
  frame[depth % 64] = depth;
  return depth == 0 ? 0 : recurse(depth - 1) + frame[depth % 64];
}

__global__ void recurse_deeply(int *out) {
  *out = recurse(INT_MAX);
}

TEST(a_stack_overflow_is_reported) {
  int *out = device_zeros<int>(1);
  begin_capture(&capture);
  recurse_deeply<<<2, 64>>>(out);
  expect_report(cudaErrorLaunchFailure, "stack overflow", 0);
}

__global__ void trap(int thread) {
  if ((int)threadIdx.x == thread) __trap();
}
enum { TRAP_LINE = __LINE__ - 2 };

TEST(a_trap_is_reported) {
  begin_capture(&capture);
  trap<<<1, 64>>>(63);
  expect_report(cudaErrorLaunchFailure, "__trap() in trap", TRAP_LINE);
  assert_contains(capture.text, "by thread (63,0,0) of block (0,0,0)");
}

__global__ void divide(int *out, int by) {
  *out = 7 / by;
}
enum { DIVISION_LINE = __LINE__ - 2 };

TEST(a_division_by_zero_is_reported) {
#if defined(__x86_64__)
  int *out = device_zeros<int>(1);
  begin_capture(&capture);
  divide<<<1, 1>>>(out, 0);
  expect_report(cudaErrorLaunchFailure, "integer division by zero", DIVISION_LINE);
#else
  skip(); /* gives 0 and no signal */
#endif
}

/* --- Deadlocks ------------------------------------------------------------------------------ */

/** Lanes shuffle, wait at a barrier or vote; lanes above `last` do nothing. */
__global__ void diverge(int first_barrier, int first_vote, int last, unsigned mask) {
  const int t = threadIdx.x;
  if (t < first_barrier) {
    __shfl_xor_sync(mask, t, 1);
  } else if (t < first_vote) {
    __syncthreads();
  } else if (t <= last) {
    __ballot_sync(mask, 1);
  }
}
enum { SHUFFLE_LINE = __LINE__ - 7, VOTE_LINE = __LINE__ - 3 };

TEST(a_barrier_within_a_warp_that_shuffles_is_a_deadlock) {
  begin_capture(&capture);
  diverge<<<3, 64>>>(16, 64, 64, 0xffffffff);
  expect_report(cudaErrorLaunchFailure, "DEADLOCK in diverge", SHUFFLE_LINE);
  assert_contains(capture.text, "threads 0-15 wait in __shfl_xor_sync, mask 0xffffffff\n");
  assert_contains(capture.text, "threads 16-63 wait in __syncthreads()\n");
  assert_contains(capture.text, "64 of 64 threads wait");
}

__global__ void wait_for_missing_lane(int *out) {
  const int t = threadIdx.x;
  if (t % 32 == 9) {
    __syncthreads();
  } else {
    out[t] = __shfl_sync(0x3ff, t, 0);
  }
}

TEST(a_missing_lane_is_a_deadlock) {
  begin_capture(&capture);
  wait_for_missing_lane<<<1, 10>>>(device_zeros<int>(10));
  expect_report(cudaErrorLaunchFailure, "DEADLOCK in wait_for_missing_lane", 0);
  assert_contains(capture.text, "threads 0-8 wait in __shfl_sync, mask 0x000003ff\n");
  assert_contains(capture.text, "threads 9 wait in __syncthreads()\n");
}

TEST(different_instructions_of_lanes_that_name_each_other_are_reported) {
  begin_capture(&capture);
  diverge<<<1, 48>>>(20, 20, 29, 0x3fffffff);
  expect_report(cudaErrorLaunchFailure, "lanes name each other in different warp instructions",
                VOTE_LINE);
  assert_contains(capture.text, "wait in __shfl_xor_sync, mask 0x3fffffff\n");
  assert_contains(capture.text, "wait in __ballot_sync, mask 0x3fffffff\n");
}

__global__ void different_masks() {
  if (threadIdx.x < 16) {
    __syncwarp(0x0001ffff);
  } else {
    __syncwarp(0xffffffff);
  }
}

/** Lanes 16 to 31 name lanes 0 to 15, which have been there with their own mask. */
__global__ void meet_with_another_mask() {
  __ballot_sync(threadIdx.x < 16 ? 0x0000ffff : 0xffffffff, 1);
  __syncthreads();
}
enum { MEET_LINE = __LINE__ - 3 };

TEST(a_lane_that_had_another_mask_is_named_in_a_deadlock) {
  begin_capture(&capture);
  meet_with_another_mask<<<1, 32>>>();
  expect_report(cudaErrorLaunchFailure, "DEADLOCK in meet_with_another_mask", MEET_LINE);
  assert_contains(capture.text, "threads 16-31 wait in __ballot_sync, mask 0xffffffff\n");
  assert_contains(capture.text, "    thread 0 has executed it with the mask 0x0000ffff\n");
}

TEST(different_masks_of_lanes_that_name_each_other_are_reported) {
  begin_capture(&capture);
  different_masks<<<1, 32>>>();
  expect_report(cudaErrorLaunchFailure,
                "lanes name each other in different warp instructions or masks", 0);
  assert_contains(capture.text, "__syncwarp, mask 0x0001ffff\n");
  assert_contains(capture.text, "__syncwarp, mask 0xffffffff\n");
}

__global__ void call_without_being_named() {
  if (threadIdx.x == 5) __syncwarp(0x1);
}

TEST(a_lane_that_its_mask_omits_is_reported) {
  begin_capture(&capture);
  call_without_being_named<<<1, 32>>>();
  expect_report(cudaErrorLaunchFailure, "a warp instruction that its mask omits", 0);
  assert_contains(capture.text, "__syncwarp, mask 0x00000001, lane 5");
}

__global__ void shuffle_in_width(int width) {
  __shfl_sync(0xffffffff, 1, 0, width);
}
enum { WIDTH_LINE = __LINE__ - 2 };

TEST(a_width_that_is_no_power_of_two_is_reported) {
  char text[64];
  for (int width : {64, 33, 0, -8, 24}) {
    begin_capture(&capture);
    shuffle_in_width<<<1, 32>>>(width);
    snprintf(text, sizeof text, "__shfl_sync, mask 0xffffffff, width %d\n", width);
    expect_report(cudaErrorLaunchFailure, "a shuffle whose width is not", WIDTH_LINE);
    assert_contains(capture.text, text);
  }
}

__global__ void launch_another() {
  if (threadIdx.x == 3) trap<<<1, 1>>>(0);
}
enum { NESTED_LINE = __LINE__ - 2 };

TEST(a_launch_from_a_kernel_is_reported) {
  begin_capture(&capture);
  launch_another<<<2, 32>>>();
  expect_report(cudaErrorLaunchFailure, "a launch from a kernel, which this backend", NESTED_LINE);
  assert_contains(capture.text, "by thread (3,0,0)");
}

__global__ void add_at(int *address) {
  atomicAdd(address, 1);
}
enum { ADD_LINE = __LINE__ - 2 };

__global__ void swap_at(unsigned long long *address) {
  atomicCAS(address, 0ull, 1ull);
}
enum { SWAP_LINE = __LINE__ - 2 };

TEST(a_bad_address_of_an_atomic_is_a_write_of_the_kernel) {
  begin_capture(&capture);
  add_at<<<1, 1>>>(nullptr);
  expect_report(cudaErrorIllegalAddress, "out of bounds write at a null pointer", ADD_LINE);
  begin_capture(&capture);
  swap_at<<<1, 1>>>(nullptr);
  expect_report(cudaErrorIllegalAddress, "out of bounds write at a null pointer", SWAP_LINE);
}

RUN_IN_ALL_SETTINGS("faults", reset_device, nullptr)
