/**
 * @file
 * What the lab says about atomics, about memory that one block writes and another reads, and about
 * writes to the source of a copy in flight: faulty kernels, and right ones without findings.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

extern __shared__ __align__(16) unsigned char smem[];

/* --- Blocks that read what others wrote ------------------------------------------------------ */

/** The last block sums what all blocks have written, and one element more if WRONG. */
template <bool WRONG>
__global__ void sum_in_the_last_block(int *parts, unsigned *done, int *sum) {
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = (int)blockIdx.x;
  __threadfence();
  if (atomicAdd(done, 1u) != gridDim.x - 1) return;
  __threadfence();
  *sum = 0;
  for (unsigned i = 0; i < gridDim.x + WRONG; i++) *sum += parts[i];
}
enum { SUM_LINE = __LINE__ - 2 };

TEST(the_last_block_may_read_what_others_wrote) {
  int *parts = named<int>("parts", 9), *sum = named<int>("sum", 1);
  sum_in_the_last_block<false><<<8, 32>>>(parts, named_zeros<unsigned>("done", 1), sum);
  assert_finds_nothing();
}

TEST(a_read_of_unwritten_memory_is_reported_after_atomics) {
  int *parts = named<int>("parts", 9), *sum = named<int>("sum", 1);
  sum_in_the_last_block<true><<<8, 32>>>(parts, named_zeros<unsigned>("done", 1), sum);
  assert_tells({lab_kind_text(LAB_GLOBAL_UNWRITTEN), "1 time, first: block ",
                " thread 0, parts + 32 (36 bytes)\n"},
               {SUM_LINE});
}

/* --- Unwritten memory ------------------------------------------------------------------------ */

__global__ void set_by_an_exchange(int *flag, int *out) {
  int *flag_shared = (int *)smem;
  if (threadIdx.x == 0) {
    atomicExch(flag, 3);
    atomicExch(flag_shared, 4);
  }
  __syncthreads();
  out[threadIdx.x] = *flag + *flag_shared;
}

TEST(an_exchange_writes) {
  set_by_an_exchange<<<1, 32, 64>>>(named<int>("flag", 1), named<int>("out", 32));
  assert_finds_nothing();
}

__global__ void count_threads(unsigned *count, unsigned *out) {
  atomicAdd(count, 1u);
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = *count;
}
enum { COUNT_LINE = __LINE__ - 4 };

/** An atomic addition reads its target, so the target must have been written before. */
TEST(an_addition_to_unwritten_memory_is_reported) {
  unsigned *out = named<unsigned>("out", 64);
  count_threads<<<1, 32>>>(named_zeros<unsigned>("zero", 1), out);
  assert_finds_nothing();
  count_threads<<<1, 1>>>(named<unsigned>("count", 1), out);
  assert_finds({LAB_GLOBAL_UNWRITTEN, COUNT_LINE, 0, "count_threads",
                "1 time, first: block 0 thread 0, count + 0 (4 bytes)"});
}

__global__ void add_in_every_block(unsigned *count) {
  atomicAdd(count, 1u);
}
enum { EVERY_LINE = __LINE__ - 2 };

TEST(every_addition_to_unwritten_memory_is_reported) {
  add_in_every_block<<<8, 1>>>(named<unsigned>("count", 1));
  assert_finds({LAB_GLOBAL_UNWRITTEN, EVERY_LINE, 0, "add_in_every_block",
                "8 times, first: block 0 thread 0, count + 0 (4 bytes)"});
}

__global__ void count_in_shared(unsigned *out, bool wrong) {
  unsigned *count = (unsigned *)smem;
  if (threadIdx.x == 0 && !wrong) *count = 0;
  __syncthreads();
  atomicAdd(count, 1u);
  __syncthreads();
  out[threadIdx.x] = *count;
}
enum { SHARED_COUNT_LINE = __LINE__ - 4 };

TEST(shared_counters_start_unwritten) {
  unsigned *out = named<unsigned>("out", 64);
  count_in_shared<<<1, 64, 16>>>(out, false);
  assert_finds_nothing();
  count_in_shared<<<2, 1, 16>>>(out, true);
  assert_tells({lab_kind_text(LAB_SHARED_UNWRITTEN),
                "2 times, first: block 0 thread 0, dynamic shared memory + 0\n"},
               {SHARED_COUNT_LINE});
}

/* --- Races with plain accesses --------------------------------------------------------------- */

__global__ void reset_beside_atomics(unsigned *out, int wrong) {
  unsigned *count = (unsigned *)smem;
  if (threadIdx.x == 0) *count = 0;
  if (wrong != 1) __syncthreads();
  atomicAdd(count, 1u);
  if (wrong != 2) __syncthreads();
  if (threadIdx.x == 40) out[0] = *count;
}
enum { RESET_WRITE = __LINE__ - 6, RESET_ADD = __LINE__ - 4, RESET_READ = __LINE__ - 2 };

TEST(a_plain_write_before_atomics_needs_a_barrier) {
  unsigned *out = named<unsigned>("out", 1);
  reset_beside_atomics<<<1, 64, 16>>>(out, 0);
  assert_finds_nothing();
  set_variable("SIMT_ORDER", "forward");
  reset_beside_atomics<<<1, 64, 16>>>(out, 1);
  set_variable("SIMT_ORDER", nullptr);
  assert_finds(
      {LAB_RACE_WRITE_WRITE, RESET_ADD, RESET_WRITE, "reset_beside_atomics",
       "63 times, first: block 0 thread 1, the other thread 0, dynamic shared memory + 0"});
}

TEST(a_plain_read_after_atomics_needs_a_barrier) {
  unsigned *out = named<unsigned>("out", 1);
  char place[256];
  reset_beside_atomics<<<1, 64, 16>>>(out, 2);
  const char *text = findings_text();
  assert_contains(text, "shared memory race: ");
  snprintf(place, sizeof place, "%s:%d in reset_beside_atomics\n           after %s:%d\n", __FILE__,
           RESET_READ, __FILE__, RESET_ADD);
  assert_contains(text, place);
}

/** Block 0 uses atomics, the other blocks plain accesses. */
__global__ void add_beside(int *value, int *out, bool write) {
  if (blockIdx.x == 0) {
    atomicAdd(value, 1);
  } else if (write) {
    *value = 3;
  } else {
    out[blockIdx.x] = *value;
  }
}
enum { BESIDE_ADD = __LINE__ - 7, BESIDE_WRITE = __LINE__ - 5, BESIDE_READ = __LINE__ - 3 };

TEST(atomics_of_a_block_race_with_plain_accesses_of_others) {
  int *value = named_zeros<int>("value", 1), *out = named<int>("out", 3);
  add_beside<<<1, 32>>>(value, out, true);
  assert_finds_nothing();
  add_beside<<<3, 1>>>(value, out, false);
  assert_finds({LAB_BLOCKS_WRITE_READ, BESIDE_READ, BESIDE_ADD, "add_beside",
                "4 bytes, first: block 1, the other block 0, value + 0 (4 bytes)"});
  add_beside<<<2, 1>>>(value, out, true);
  assert_finds({LAB_BLOCKS_WRITE_WRITE, BESIDE_WRITE, BESIDE_ADD, "add_beside",
                "4 bytes, first: block 1, the other block 0, value + 0 (4 bytes)"});
}

/* --- The source of a copy -------------------------------------------------------------------- */

__global__ void write_the_source(uint4 *in, unsigned *out, int at, bool wrong) {
  uint4 *tile = (uint4 *)smem;
  const int thread = (int)threadIdx.x;
  cp_async_16(&tile[thread], &in[thread], true);
  cp_async_commit();
  if (!wrong) cp_async_wait<0>();
  if (!wrong) __syncthreads();
  if (thread == 0) in[at].y = 7;
  cp_async_wait<0>();
  __syncthreads();
  out[thread] = tile[thread].x;
}
enum { SOURCE_COPY = __LINE__ - 9, SOURCE_WRITE = __LINE__ - 5 };

TEST(a_source_must_not_change_before_the_wait) {
  uint4 *in = named_zeros<uint4>("in", 65);
  unsigned *out = named<unsigned>("out", 64);
  char place[256];
  write_the_source<<<1, 64, 1024>>>(in, out, 40, false);
  write_the_source<<<1, 64, 1024>>>(in, out, 64, true);
  assert_finds_nothing();
  /* Thread 40 may start its copy before or after the write. */
  write_the_source<<<1, 64, 1024>>>(in, out, 40, true);
  const char *text = findings_text();
  snprintf(place, sizeof place,
           "finding    %s\n           at %s:%d in write_the_source\n           after %s:%d\n"
           "           1 time, first: block 0 thread 0, the other thread 40, in + 64",
           lab_kind_text(LAB_COPY_SOURCE_WRITTEN), __FILE__, SOURCE_WRITE, __FILE__, SOURCE_COPY);
  assert_contains(text, place);
}

/** A thread may copy what it has written, or what another lane wrote before a __syncwarp(). */
template <bool RIGHT>
__global__ void write_and_copy(uint4 *in, unsigned *out) {
  uint4 *tile = (uint4 *)smem;
  const int lane = (int)threadIdx.x;
  in[lane] = make_uint4(1, 2, 3, 4);
  if (RIGHT) __syncwarp();
  cp_async_16(&tile[lane], &in[31 - lane], true);
  cp_async_commit();
  cp_async_wait<0>();
  out[lane] = tile[lane].x;
}
enum { OWN_WRITE = __LINE__ - 7, OTHERS_COPY = __LINE__ - 5 };

TEST(a_source_written_by_another_lane_needs_a_warp_barrier) {
  uint4 *in = named_zeros<uint4>("in", 32);
  unsigned *out = named<unsigned>("out", 32);
  write_and_copy<true><<<1, 32, 512>>>(in, out);
  assert_finds_nothing();
  write_and_copy<false><<<1, 32, 512>>>(in, out);
  assert_tells({lab_kind_text(LAB_COPY_SOURCE_WRITTEN)}, {OWN_WRITE, OTHERS_COPY});
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
