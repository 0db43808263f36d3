/** @file Tests of cp.async on the CPU backend: when data arrives, which mistakes are reported. */
#include "../tests/unit/simt/simt_testing.h"
#include "device/ptx.cuh"

static Capture capture;

extern __shared__ __align__(16) unsigned char smem[];

/** A copy into the thread's own 16 bytes; the kernel of each test uses it differently. */
__device__ void start_copy(const uint4 *from, bool valid = true) {
  cp_async_16(smem + 16 * threadIdx.x, from + threadIdx.x, valid);
}
enum { COPY_LINE = __LINE__ - 2, SHARED = 16 * 64 };

static uint4 *device_numbers() {
  unsigned host[4 * 64];
  for (unsigned i = 0; i < 4 * 64; i++) host[i] = i + 1;
  uint4 *device = device_zeros<uint4>(64);
  assert_int_equal(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
  return device;
}

/* --- Right kernels -------------------------------------------------------------------------- */

/** Reads the target after each of: two copies, a wait that leaves one in flight, a wait for all. */
__global__ void copy_two(const uint4 *from, unsigned *out) {
  unsigned *first = (unsigned *)(smem + 32 * threadIdx.x), *second = first + 4;
  cp_async_16(first, from, true);
  cp_async_commit();
  cp_async_16(second, from + 1, true);
  cp_async_wait<0>(); /* legal, and does not cover the second */
  out[0] = first[0], out[1] = second[0];
  cp_async_commit();
  cp_async_wait<1>();
  out[2] = first[0], out[3] = second[0];
  cp_async_wait<0>();
  out[4] = first[0], out[5] = second[0];
  cp_async_16(first, nullptr, false);
  cp_async_commit();
  cp_async_wait<0>();
  out[6] = first[3], out[7] = second[3];
}

TEST(a_wait_covers_the_groups_committed_before_it) {
  unsigned *device = device_zeros<unsigned>(8);
  copy_two<<<1, 1, SHARED>>>(device_numbers(), device);
  const std::array<unsigned, 8> expected = {1, ~0u, 1, ~0u, 1, 5, 0, 8};
  assert_true(fetch<8>(device) == expected);
}

__global__ void copy_twice_in_order(const uint4 *from, unsigned *out) {
  cp_async_16(smem, from, true);
  cp_async_commit();
  cp_async_wait<0>();
  cp_async_16(smem, from + 1, true);
  cp_async_commit();
  cp_async_wait<0>();
  out[0] = ((unsigned *)smem)[0];
}

TEST(a_second_copy_to_one_place_may_follow_a_wait) {
  unsigned *device = device_zeros<unsigned>(1);
  copy_twice_in_order<<<1, 1, SHARED>>>(device_numbers(), device);
  assert_int_equal(fetch<1>(device)[0], 5);
}

/* --- Copies that are not waited for --------------------------------------------------------- */

/** `mistaken` threads omit the commit or the wait. */
__global__ void forget(const uint4 *from, int mistaken, bool commit, bool wait) {
  const bool right = (int)threadIdx.x != mistaken;
  start_copy(from, threadIdx.x % 2 == 0);
  if (right || commit) cp_async_commit();
  if (right || wait) cp_async_wait<0>();
}
enum { START_LINE = __LINE__ - 4, WAIT_LINE = __LINE__ - 2 };

/** Returns the report. */
static const char *expect_failure(cudaError_t error, const char *what) {
  end_capture(&capture);
  assert_int_equal(cudaGetLastError(), error);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
  assert_contains(capture.text, what);
  return capture.text;
}

static const char *expect_abandoned(int mistaken, bool commit, bool wait) {
  const uint4 *numbers = device_numbers();
  begin_capture(&capture);
  forget<<<1, 64, SHARED>>>(numbers, mistaken, commit, wait);
  const char *report =
      expect_failure(cudaErrorLaunchFailure,
                     "simt: a thread ends while a copy of its own is in flight in forget, launch ");
  assert_names_line(report, COPY_LINE);
  assert_names_line(report, START_LINE);
  return report;
}

TEST(a_copy_that_is_not_waited_for_is_reported) {
  /* The waits of these threads do not cover the copies of the threads in the next launch. */
  forget<<<64, 64, SHARED>>>(device_numbers(), -1, true, true);
  const char *report = expect_abandoned(37, true, false);
  assert_contains(report, "\n  thread (37,0,0) of block (0,0,0)\n");
  assert_contains(report, "a copy of thread (37,0,0), committed but not waited for, started\n");
  assert_contains(report, "\n  it never waited for copies\n");
}

TEST(a_copy_that_is_not_committed_is_reported_with_the_wait_that_missed_it) {
  const char *report = expect_abandoned(0, false, true);
  assert_contains(report, "\n  thread (0,0,0) of block (0,0,0)\n");
  assert_contains(report, "a copy of thread (0,0,0), not committed to any group, started\n");
  assert_contains(report, "\n  its last wait did not cover it\n");
  assert_names_line(report, WAIT_LINE);
}

TEST(a_copy_of_zeros_is_reported_too) {
  expect_abandoned(3, false, false);
}

/* --- Targets that are read too early -------------------------------------------------------- */

/** Each lane copies a row and reads it with ldmatrix; lane `late` waits only after that. */
__global__ void read_rows(const uint4 *from, unsigned *out, int late) {
  start_copy(from);
  cp_async_commit();
  if ((int)threadIdx.x != late) cp_async_wait<0>();
  __syncthreads();
  uint32_t rows[4];
  ldmatrix_x4(rows, smem + 16 * threadIdx.x);
  cp_async_wait<0>();
  out[threadIdx.x] = rows[3];
}
enum { READ_LINE = __LINE__ - 4 };

TEST(ldmatrix_before_the_wait_is_reported) {
  const uint4 *numbers = device_numbers();
  unsigned *device = device_zeros<unsigned>(32);
  read_rows<<<1, 32, SHARED>>>(numbers, device, -1);
  const auto out = fetch<32>(device);
  for (unsigned lane = 0; lane < 32; lane++) assert_int_equal(out[lane], 97 + lane);

  begin_capture(&capture);
  read_rows<<<1, 32, SHARED>>>(numbers, device, 17);
  const char *report =
      expect_failure(cudaErrorLaunchFailure,
                     "ldmatrix reads shared memory that a copy is on its way to in read_rows");
  assert_contains(report, "by thread (17,0,0) of block (0,0,0)");
  assert_contains(report, "a copy of thread (17,0,0), committed but not waited for, started\n");
  assert_names_line(report, READ_LINE);
  assert_names_line(report, COPY_LINE);
}

/** Thread `second` copies to the same place as thread 0. */
__global__ void copy_to_one_place(const uint4 *from, int second, bool commit) {
  if (threadIdx.x == 0) start_copy(from);
  if (commit) cp_async_commit();
  __syncthreads();
  if ((int)threadIdx.x == second) cp_async_16(smem, from, true);
  cp_async_commit();
  __syncthreads();
  cp_async_wait<0>();
}
enum { SECOND_LINE = __LINE__ - 5 };

static const char *expect_copied_twice(int second, bool commit) {
  const uint4 *numbers = device_numbers();
  begin_capture(&capture);
  copy_to_one_place<<<1, 64, SHARED>>>(numbers, second, commit);
  return expect_failure(cudaErrorLaunchFailure,
                        "two copies to the same shared memory, in no order, in copy_to_one_place");
}

TEST(two_copies_to_one_place_are_reported) {
  const char *report = expect_copied_twice(0, false);
  assert_contains(report, "by thread (0,0,0) of block (0,0,0)");
  assert_contains(report, "a copy of thread (0,0,0), not committed to any group, started\n");
  report = expect_copied_twice(0, true);
  assert_contains(report, "a copy of thread (0,0,0), committed but not waited for, started\n");
  report = expect_copied_twice(40, true);
  assert_contains(report, "by thread (40,0,0) of block (0,0,0)");
  assert_contains(report, "a copy of thread (0,0,0), committed but not waited for, started\n");
  assert_names_line(report, SECOND_LINE);
  assert_names_line(report, COPY_LINE);
}

/* --- Bad addresses -------------------------------------------------------------------------- */

__global__ void copy_from(const char *from, int shared_offset) {
  cp_async_16(smem + shared_offset, from, true);
  cp_async_commit();
  cp_async_wait<0>();
}
enum { FROM_LINE = __LINE__ - 4 };

static void expect_bad_address(const char *from, int shared_offset, cudaError_t error,
                               const char *what) {
  begin_capture(&capture);
  copy_from<<<1, 1, SHARED>>>(from, shared_offset);
  assert_names_line(expect_failure(error, what), FROM_LINE);
}

TEST(bad_addresses_are_reported_where_they_were_given) {
  const cudaError_t misaligned = cudaErrorMisalignedAddress;
  expect_bad_address((char *)device_numbers() + 8, 0, misaligned,
                     "misaligned source of cp.async: 8 bytes past a multiple of 16 in copy_from");
  expect_bad_address((char *)device_numbers(), 20, misaligned,
                     "misaligned target of cp.async: 4 bytes past a multiple of 16 in copy_from");
  expect_bad_address((char *)(device_numbers() + 64), 0, cudaErrorIllegalAddress,
                     "out of bounds read 1 byte past allocation 1 (1024 bytes) in copy_from");
}

__global__ void copy_part(const char *from) {
  simt_copy_async_16(smem, from, 8);
  simt_commit_group();
  simt_wait_group(0);
}

TEST(a_copy_of_part_of_16_bytes_is_refused) {
  begin_capture(&capture);
  copy_part<<<1, 1, SHARED>>>((char *)device_numbers());
  const char *report = expect_failure(cudaErrorAssert, "failed assertion in copy_part");
  assert_contains(report, "source_bytes == 0 || source_bytes == 16");
}

__global__ void read_misaligned_row(int lane, unsigned *out) {
  const int extra = (int)threadIdx.x == lane ? 2 : 0;
  uint32_t rows[2];
  ldmatrix_x2(rows, smem + threadIdx.x % 16 * 16 + extra);
  out[threadIdx.x] = rows[0];
}
enum { ROW_LINE = __LINE__ - 3 };

TEST(a_misaligned_row_of_ldmatrix_is_reported) {
  unsigned *device = device_zeros<unsigned>(32);
  read_misaligned_row<<<1, 32, SHARED>>>(16, device); /* the address of this lane is not used */
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  begin_capture(&capture);
  read_misaligned_row<<<1, 32, SHARED>>>(15, device);
  const char *report = expect_failure(cudaErrorMisalignedAddress,
                                      "misaligned row of ldmatrix: 2 bytes past a multiple of 16");
  assert_contains(report, "by thread (15,0,0)");
  assert_names_line(report, ROW_LINE);
}

/* --- Counters ------------------------------------------------------------------------------- */

/** Per warp, `under` mma while a copy is in flight and `clear` mma after it has been waited for. */
__global__ void multiply(const uint4 *from, int under, int clear, float *out) {
  const uint32_t a[4] = {};
  float d[4] = {};
  /* One lane's copy is enough: it counts as in flight for the whole warp. */
  if (threadIdx.x % 32 == 9) start_copy(from);
  cp_async_commit();
  for (int i = 0; i < under; i++) mma_m16n8k16<__half>(d, a, 0, 0);
  cp_async_wait<0>();
  for (int i = 0; i < clear; i++) mma_m16n8k16<__half>(d, a, 0, 0);
  out[threadIdx.x] = d[0];
}

static void expect_counts(int under, int clear) {
  const uint4 *numbers = device_numbers();
  float *device = device_zeros<float>(64);
  SimtCounters counters;
  simt_reset_counters();
  multiply<<<3, 64, SHARED>>>(numbers, under, clear, device);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  simt_read_counters(&counters);
  assert_int_equal(counters.async_copies, 3 * 2);
  assert_int_equal(counters.warp_instructions[SIMT_MMA], 3 * 2 * (under + clear));
  assert_int_equal(counters.mma_under_copy, 3 * 2 * under);
}

TEST(mma_under_a_copy_are_counted) {
  expect_counts(0, 6);
  expect_counts(6, 0);
  expect_counts(3, 3);
}

/** Warp 0 has copies in flight while warp 1 executes mma. */
__global__ void multiply_in_the_other_warp(const uint4 *from, float *out) {
  const uint32_t a[4] = {};
  float d[4] = {};
  if (threadIdx.x < 32) start_copy(from);
  __syncthreads();
  if (threadIdx.x >= 32) mma_m16n8k16<__half>(d, a, 0, 0);
  __syncthreads();
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = d[0];
}

TEST(copies_of_other_warps_do_not_count) {
  SimtCounters counters;
  multiply_in_the_other_warp<<<1, 64, SHARED>>>(device_numbers(), device_zeros<float>(64));
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  simt_read_counters(&counters);
  assert_int_equal(counters.async_copies, 32);
  assert_int_equal(counters.warp_instructions[SIMT_MMA], 1);
  assert_int_equal(counters.mma_under_copy, 0);
}

RUN_IN_ALL_SETTINGS("asynchronous copies", reset_device, nullptr)
