/**
 * @file
 * One small kernel for each fault that the lab finds, with the whole text of the finding, and a
 * right version of the kernel, which has no finding.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

extern __shared__ __align__(16) unsigned char smem[];

/* --- Races in shared memory ----------------------------------------------------------------- */

template <bool RIGHT>
__global__ void read_neighbour(int *out) {
  __shared__ int values[64];
  values[threadIdx.x] = (int)threadIdx.x;  // WRITE
  if (RIGHT) __syncthreads();
  out[threadIdx.x] = values[(threadIdx.x + 32) % 64];
}
enum { NEIGHBOUR_WRITE = __LINE__ - 4, NEIGHBOUR_READ = __LINE__ - 2 };

TEST(read_after_write_needs_a_barrier) {
  int *out = named<int>("out", 64);
  read_neighbour<true><<<1, 64>>>(out);
  assert_finds_nothing();
  lab_start(LAB_RACES);
  read_neighbour<false><<<1, 64>>>(out);
  /* The first warp reads before the second writes, so the lab reports that write as the race. */
  char place[512];
  const char *text = findings_text();
  assert_contains(text, lab_kind_text(LAB_RACE_WRITE_READ));
  assert_contains(text, lab_kind_text(LAB_RACE_READ_WRITE));
  snprintf(place, sizeof place,
           "at %s:%d in read_neighbour<false>\n           after %s:%d\n"
           "           32 times, first: block 0 thread 32, the other thread 0, ",
           __FILE__, NEIGHBOUR_READ, __FILE__, NEIGHBOUR_WRITE);
  assert_contains(text, place);
  snprintf(place, sizeof place,
           "at %s:%d in read_neighbour<false>\n           after %s:%d\n"
           "           32 times, first: block 0 thread 32, the other thread 0, ",
           __FILE__, NEIGHBOUR_WRITE, __FILE__, NEIGHBOUR_READ);
  assert_contains(text, place);
}

template <bool RIGHT>
__global__ void overwrite_what_is_read(int *out) {
  int *values = (int *)smem;
  values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[63 - threadIdx.x];
  if (RIGHT) __syncthreads();
  if (threadIdx.x < 32) values[threadIdx.x] = 2;
}
enum { OVERWRITE_READ = __LINE__ - 4, OVERWRITE_WRITE = __LINE__ - 2 };

TEST(write_after_read_needs_a_barrier) {
  int *out = named<int>("out", 64);
  overwrite_what_is_read<true><<<1, 64, 256>>>(out);
  assert_finds_nothing();
  set_variable("SIMT_ORDER", "reverse"); /* so that all reads of the lower half come first */
  overwrite_what_is_read<false><<<1, 64, 256>>>(out);
  set_variable("SIMT_ORDER", nullptr);
  assert_finds({LAB_RACE_READ_WRITE, OVERWRITE_WRITE, OVERWRITE_READ,
                "overwrite_what_is_read<false>",
                "32 times, first: block 0 thread 0, the other thread 63, "
                "dynamic shared memory + 0"});
}

template <bool RIGHT>
__global__ void two_writers() {
  int *values = (int *)smem;
  if (threadIdx.x == 0) values[3] = 1;
  if (RIGHT) __syncthreads();
  if (threadIdx.x == 40) values[3] = 2;
}
enum { FIRST_WRITE = __LINE__ - 4, SECOND_WRITE = __LINE__ - 2 };

TEST(two_writes_need_a_barrier) {
  two_writers<true><<<1, 64, 64>>>();
  assert_finds_nothing();
  two_writers<false><<<2, 64, 64>>>();
  assert_finds({LAB_RACE_WRITE_WRITE, SECOND_WRITE, FIRST_WRITE, "two_writers<false>",
                "2 times, first: block 0 thread 40, the other thread 0, "
                "dynamic shared memory + 12"});
}

template <bool RIGHT>
__global__ void exchange_in_warp(int *out) {
  int *values = (int *)smem;
  values[threadIdx.x] = 1;
  if (RIGHT) __syncwarp();
  if (threadIdx.x == 31) out[0] = values[0];
}
enum { WARP_WRITE = __LINE__ - 4, WARP_READ = __LINE__ - 2 };

TEST(lanes_need_a_warp_barrier) {
  int *out = named<int>("out", 1);
  exchange_in_warp<true><<<1, 32, 128>>>(out);
  assert_finds_nothing();
  exchange_in_warp<false><<<1, 32, 128>>>(out);
  assert_finds({LAB_RACE_WRITE_READ, WARP_READ, WARP_WRITE, "exchange_in_warp<false>",
                "1 time, first: block 0 thread 31, the other thread 0, dynamic shared memory + 0"});
}

/** Threads that write neighbouring bytes do not race, nor do readers of one word. */
__global__ void bytes_of_one_word(unsigned *out) {
  smem[threadIdx.x] = (unsigned char)threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = *(unsigned *)smem;
}

/* --- cp.async ------------------------------------------------------------------------------- */

enum { NOTHING, WAIT, BARRIER };

template <int OMITTED>
__global__ void copy_and_read(const uint4 *in, unsigned *out) {
  uint4 *tile = (uint4 *)smem;
  cp_async_16(&tile[threadIdx.x], &in[threadIdx.x], true);
  cp_async_commit();
  if (OMITTED != WAIT) cp_async_wait<0>();
  if (OMITTED != BARRIER) __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x].x;
  __syncthreads();
  cp_async_wait<0>();
}
enum { COPY_LINE = __LINE__ - 8, COPY_READ = __LINE__ - 4 };

TEST(copies_need_wait_and_barrier) {
  const uint4 *in = named_zeros<uint4>("in", 64);
  unsigned *out = named<unsigned>("out", 64);
  copy_and_read<NOTHING><<<1, 64, 1024>>>(in, out);
  assert_finds_nothing();
  copy_and_read<WAIT><<<1, 64, 1024>>>(in, out);
  assert_finds({LAB_COPY_NOT_WAITED, COPY_READ, COPY_LINE, "copy_and_read<1>",
                "64 times, first: block 0 thread 0, the other thread 63, "
                "dynamic shared memory + 1008"});
}

TEST(a_wait_is_no_barrier) {
  const uint4 *in = named_zeros<uint4>("in", 64);
  unsigned *out = named<unsigned>("out", 64);
  copy_and_read<BARRIER><<<1, 64, 1024>>>(in, out);
  assert_tells({lab_kind_text(LAB_COPY_NO_BARRIER)}, {COPY_READ, COPY_LINE});
}

/** One thread reads part of another thread's copy too early; later all read it after the wait. */
template <typename T>
__global__ void read_early(const uint4 *in, unsigned *out) {
  uint4 *tile = (uint4 *)smem;
  cp_async_16(&tile[threadIdx.x], &in[threadIdx.x], true);
  cp_async_commit();
  __syncthreads();
  if (threadIdx.x == 40) out[64] = *(const T *)&tile[45].y;
  cp_async_wait<0>();
  __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x].y;
}
enum { EARLY_COPY = __LINE__ - 8, EARLY_READ = __LINE__ - 5 };

TEST(an_early_read_alone_is_reported) {
  const uint4 *in = named_zeros<uint4>("in", 64);
  unsigned *out = named<unsigned>("out", 65);
  read_early<unsigned><<<1, 64, 1024>>>(in, out);
  assert_finds({LAB_COPY_NOT_WAITED, EARLY_READ, EARLY_COPY, "read_early<unsigned int>",
                "1 time, first: block 0 thread 40, the other thread 45, dynamic shared memory + "
                "724"});
  read_early<unsigned char><<<1, 64, 1024>>>(in, out);
  assert_finds({LAB_COPY_NOT_WAITED, EARLY_READ, EARLY_COPY, "read_early<unsigned char>",
                "1 time, first: block 0 thread 40, the other thread 45, dynamic shared memory + "
                "724"});
}

template <bool RIGHT>
__global__ void refill(const uint4 *in, unsigned *out) {
  uint4 *tile = (uint4 *)smem;
  tile[threadIdx.x] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  out[threadIdx.x] = tile[(threadIdx.x + 1) % 32].x;
  if (RIGHT) __syncthreads();
  if (threadIdx.x == 5) cp_async_16(&tile[4], &in[0], true);
  cp_async_commit();
  cp_async_wait<0>();
}
enum { REFILL_READ = __LINE__ - 6, REFILL_COPY = __LINE__ - 4 };

TEST(a_refill_before_readers_finish_is_reported) {
  const uint4 *in = named_zeros<uint4>("in", 64);
  unsigned *out = named<unsigned>("out", 64);
  refill<true><<<1, 32, 512>>>(in, out);
  assert_finds_nothing();
  refill<false><<<1, 32, 512>>>(in, out);
  assert_finds({LAB_COPY_OVER_READ, REFILL_COPY, REFILL_READ, "refill<false>",
                "1 time, first: block 0 thread 5, the other thread 3, dynamic shared memory + 64"});
}

/* --- Unwritten memory, and accesses out of bounds -------------------------------------------- */

__global__ void read_unwritten_shared(int *out) {
  int *values = (int *)smem;
  if (threadIdx.x < 31) values[threadIdx.x] = 0;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}
enum { UNWRITTEN_SHARED = __LINE__ - 2 };

TEST(shared_memory_starts_unwritten) {
  int *out = named<int>("out", 32);
  read_unwritten_shared<<<3, 32, 128>>>(out);
  /* All blocks write the same `out` as well. */
  assert_tells({lab_kind_text(LAB_BLOCKS_WRITE_WRITE),
                "3 times, first: block 0 thread 31, dynamic shared memory + 124\n"},
               {UNWRITTEN_SHARED});
}

__global__ void past_dynamic_shared(int at) {
  smem[at + threadIdx.x] = 1;
}
enum { PAST_SHARED = __LINE__ - 2 };

TEST(shared_memory_ends_where_requested) {
  past_dynamic_shared<<<1, 32, 100>>>(68);
  assert_finds_nothing();
  past_dynamic_shared<<<1, 32, 100>>>(70);
  assert_finds({LAB_SHARED_OUTSIDE, PAST_SHARED, 0, "past_dynamic_shared",
                "2 times, first: block 0 thread 30, 1 byte past dynamic shared memory (100 "
                "bytes)"});
}

__global__ void copy_floats(float *out, const float *in, int shift) {
  out[threadIdx.x] = in[(int)threadIdx.x + shift];
}
enum { COPY_FLOATS = __LINE__ - 2 };

TEST(global_memory_ends_where_allocated) {
  const float *in = named_zeros<float>("in", 32);
  float *out = named<float>("out", 32);
  copy_floats<<<1, 32>>>(out, in, 2);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds({LAB_GLOBAL_OUTSIDE, COPY_FLOATS, 0, "copy_floats",
                "2 times, first: block 0 thread 30, 1 byte past allocation 1 \"in\" (128 bytes)"});
}

TEST(far_out_of_bounds_does_not_end_the_launch) {
  const float *in = named_zeros<float>("in", 32);
  float *out = named<float>("out", 32);
  copy_floats<<<1, 32>>>(out, in, 32 + 5000);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds({LAB_GLOBAL_OUTSIDE, COPY_FLOATS, 0, "copy_floats",
                "32 times, first: block 0 thread 0, 20001 bytes past allocation 1 \"in\" (128 "
                "bytes)"});
}

TEST(reads_of_freed_memory_are_reported) {
  float *in = named_zeros<float>("in", 32);
  float *out = named<float>("out", 32);
  cudaFree(in);
  copy_floats<<<1, 32>>>(out, in, 0);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds({LAB_GLOBAL_OUTSIDE, COPY_FLOATS, 0, "copy_floats",
                "32 times, first: block 0 thread 0, at byte 0 of freed allocation 1 \"in\" (128 "
                "bytes)"});
}

TEST(global_memory_starts_unwritten) {
  float *in = named<float>("in", 40);
  float *out = named<float>("out", 32);
  assert_int_equal(cudaMemset(in, 0, 39 * sizeof(float) - 1), cudaSuccess);
  copy_floats<<<1, 32>>>(out, in, 0);
  copy_floats<<<1, 32>>>(in, out, 0); /* the kernel above has written it */
  assert_finds_nothing();
  copy_floats<<<1, 32>>>(out, in, 8);
  assert_finds({LAB_GLOBAL_UNWRITTEN, COPY_FLOATS, 0, "copy_floats",
                "2 times, first: block 0 thread 30, in + 152 (160 bytes)"});
}

__global__ void read_vector(float2 *out, const float *in) {
  *out = *(const float2 *)in;
}
enum { READ_VECTOR = __LINE__ - 2 };

TEST(vectors_are_aligned) {
  const float *in = named_zeros<float>("in", 8);
  float2 *out = named<float2>("out", 1);
  read_vector<<<1, 1>>>(out, in + 4);
  assert_finds_nothing();
  lab_start(LAB_ALIGNMENT);
  read_vector<<<1, 1>>>(out, in + 1);
  assert_finds({LAB_MISALIGNED, READ_VECTOR, 0, "read_vector",
                "1 time, first: block 0 thread 0, in + 4 (32 bytes)"});
}

/* --- Indices -------------------------------------------------------------------------------- */

__global__ void sum_of_registers(int *out, int count) {
  int values[4] = {1, 2, 3, 4};
  int sum = 0;
  for (int i = 0; i < count; i++) sum += values[i];
  out[threadIdx.x] = sum;
}
enum { SUM_INDEX = __LINE__ - 3 };

TEST(arrays_in_registers_have_bounds) {
  int *out = named<int>("out", 2);
  sum_of_registers<<<1, 2>>>(out, 4);
  assert_finds_nothing();
  sum_of_registers<<<1, 2>>>(out, 5);
  assert_finds({LAB_INDEX_OUTSIDE, SUM_INDEX, 0, "sum_of_registers",
                "2 times, first: block 0 thread 0, index 4 of 'int [4]'"});
}

/* --- Blocks ---------------------------------------------------------------------------------- */

__global__ void write_same(int *out, int shift) {
  out[blockIdx.x * shift] = 1;
}
enum { WRITE_SAME = __LINE__ - 2 };

__global__ void read_what_another_writes(int *values) {
  if (blockIdx.x == 1) values[9] = 1;
  if (blockIdx.x == 0) values[0] = values[9];
}
enum { OTHERS_WRITE = __LINE__ - 3, OTHERS_READ = __LINE__ - 2 };

TEST(blocks_that_access_the_same_memory_race) {
  int *values = named_zeros<int>("values", 64);
  write_same<<<8, 1>>>(values, 1);
  assert_finds_nothing();
  write_same<<<8, 1>>>(values, 0);
  assert_finds({LAB_BLOCKS_WRITE_WRITE, WRITE_SAME, WRITE_SAME, "write_same",
                "4 bytes, first: block 0, the other block 1, values + 0 (256 bytes)"});
  read_what_another_writes<<<2, 1>>>(values);
  assert_finds({LAB_BLOCKS_WRITE_READ, OTHERS_READ, OTHERS_WRITE, "read_what_another_writes",
                "4 bytes, first: block 0, the other block 1, values + 36 (256 bytes)"});
}

TEST(bytes_of_one_word_do_not_race) {
  unsigned *out = named<unsigned>("out", 4);
  bytes_of_one_word<<<1, 4, 16>>>(out);
  assert_finds_nothing();
}

RUN_TESTS_WITH(start_lab, stop_lab)
