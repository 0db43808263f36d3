/** @file One small kernel for each fault that the lab finds, with the whole text of the finding,
 * and a right version of the kernel, which has no finding. */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

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
  assert_finds_nothing([=] { read_neighbour<true><<<1, 64>>>(named<int>("out", 64)); });
  lab_start(LAB_RACES);
  read_neighbour<false><<<1, 64>>>(named<int>("out", 64));
  /* The first warp reads before the second writes, so the lab reports that write as the race. */
  const std::string kernel = "read_neighbour<false>",
                    first = "32 times, first: block 0 thread 32, the other thread 0, ";
  expect_findings({lab_kind_text(LAB_RACE_WRITE_READ), lab_kind_text(LAB_RACE_READ_WRITE),
                   race_text(kernel, NEIGHBOUR_READ, NEIGHBOUR_WRITE) + first,
                   race_text(kernel, NEIGHBOUR_WRITE, NEIGHBOUR_READ) + first},
                  {});
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
  assert_finds_nothing([=] { overwrite_what_is_read<true><<<1, 64, 256>>>(out); });
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
  assert_finds_nothing([=] { two_writers<true><<<1, 64, 64>>>(); });
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
  assert_finds_nothing([=] { exchange_in_warp<true><<<1, 32, 128>>>(named<int>("out", 1)); });
  exchange_in_warp<false><<<1, 32, 128>>>(named<int>("out", 1));
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
  assert_finds_nothing([=] { copy_and_read<NOTHING><<<1, 64, 1024>>>(in, out); });
  copy_and_read<WAIT><<<1, 64, 1024>>>(in, out);
  assert_finds({LAB_COPY_NOT_WAITED, COPY_READ, COPY_LINE, "copy_and_read<1>",
                "64 times, first: block 0 thread 0, the other thread 63, "
                "dynamic shared memory + 1008"});
}

TEST(a_wait_is_no_barrier) {
  copy_and_read<BARRIER><<<1, 64, 1024>>>(named_zeros<uint4>("in", 64), named<unsigned>("out", 64));
  expect_findings({lab_kind_text(LAB_COPY_NO_BARRIER)}, {COPY_READ, COPY_LINE});
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
  read_early<unsigned><<<1, 64, 1024>>>(in, named<unsigned>("out", 65));
  assert_finds({LAB_COPY_NOT_WAITED, EARLY_READ, EARLY_COPY, "read_early<unsigned int>",
                "1 time, first: block 0 thread 40, the other thread 45, dynamic shared memory + "
                "724"});
  read_early<unsigned char><<<1, 64, 1024>>>(in, named<unsigned>("out", 65));
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
  assert_finds_nothing([=] { refill<true><<<1, 32, 512>>>(in, named<unsigned>("out", 64)); });
  refill<false><<<1, 32, 512>>>(in, named<unsigned>("out", 64));
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
  read_unwritten_shared<<<3, 32, 128>>>(named<int>("out", 32));
  /* All blocks write the same `out` as well. */
  expect_findings({lab_kind_text(LAB_BLOCKS_WRITE_WRITE),
                   "3 times, first: block 0 thread 31, dynamic shared memory + 124\n"},
                  {UNWRITTEN_SHARED});
}

__global__ void past_dynamic_shared(int at) {
  smem[at + threadIdx.x] = 1;
}
enum { PAST_SHARED = __LINE__ - 2 };

TEST(shared_memory_ends_where_requested) {
  assert_finds_nothing([=] { past_dynamic_shared<<<1, 32, 100>>>(68); });
  past_dynamic_shared<<<1, 32, 100>>>(70);
  assert_finds_outside(LAB_SHARED_OUTSIDE, PAST_SHARED, "past_dynamic_shared", 2, 30,
                       "1 byte past dynamic shared memory (100 bytes)");
}

__global__ void copy_floats(float *out, const float *in, int shift) {
  out[threadIdx.x] = in[(int)threadIdx.x + shift];
}
enum { COPY_FLOATS = __LINE__ - 2 };

TEST(accesses_outside_allocations_are_reported_and_do_not_end_the_launch) {
  float *in = named_zeros<float>("in", 32), *out = named<float>("out", 32);
  copy_floats<<<1, 32>>>(out, in, 2);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds_outside(LAB_GLOBAL_OUTSIDE, COPY_FLOATS, "copy_floats", 2, 30,
                       "1 byte past allocation 1 \"in\" (128 bytes)");
  copy_floats<<<1, 32>>>(out, in, 32 + 5000);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds_outside(LAB_GLOBAL_OUTSIDE, COPY_FLOATS, "copy_floats", 32, 0,
                       "20001 bytes past allocation 1 \"in\" (128 bytes)");
  cudaFree(in);
  copy_floats<<<1, 32>>>(out, in, 0);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_finds_outside(LAB_GLOBAL_OUTSIDE, COPY_FLOATS, "copy_floats", 32, 0,
                       "at byte 0 of freed allocation 1 \"in\" (128 bytes)");
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
  assert_finds_nothing([=] { read_vector<<<1, 1>>>(named<float2>("out", 1), in + 4); });
  lab_start(LAB_ALIGNMENT);
  read_vector<<<1, 1>>>(named<float2>("out", 1), in + 1);
  assert_finds({LAB_MISALIGNED, READ_VECTOR, 0, "read_vector",
                "1 time, first: block 0 thread 0, in + 4 (32 bytes)"});
}

__global__ void sum_of_registers(int *out, int count) {
  int values[4] = {1, 2, 3, 4};
  int sum = 0;
  for (int i = 0; i < count; i++) sum += values[i];
  out[threadIdx.x] = sum;
}
enum { SUM_INDEX = __LINE__ - 3 };

TEST(arrays_in_registers_have_bounds) {
  assert_finds_nothing([=] { sum_of_registers<<<1, 2>>>(named<int>("out", 2), 4); });
  sum_of_registers<<<1, 2>>>(named<int>("out", 2), 5);
  assert_finds_outside(LAB_INDEX_OUTSIDE, SUM_INDEX, "sum_of_registers", 2, 0,
                       "index 4 of 'int [4]'");
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
  assert_finds_nothing([=] { write_same<<<8, 1>>>(values, 1); });
  write_same<<<8, 1>>>(values, 0);
  assert_finds({LAB_BLOCKS_WRITE_WRITE, WRITE_SAME, WRITE_SAME, "write_same",
                "4 bytes, first: block 0, the other block 1, values + 0 (256 bytes)"});
  lab_start(LAB_BLOCKS);
  read_what_another_writes<<<2, 1>>>(values);
  assert_finds({LAB_BLOCKS_WRITE_READ, OTHERS_READ, OTHERS_WRITE, "read_what_another_writes",
                "4 bytes, first: block 0, the other block 1, values + 36 (256 bytes)"});
}

TEST(bytes_of_one_word_do_not_race) {
  assert_finds_nothing([=] { bytes_of_one_word<<<1, 4, 16>>>(named<unsigned>("out", 4)); });
}

/* --- Unset floats, guard bands, and calls --------------------------------------------------------
 */

enum Use { SHUFFLE, CONVERSION, PRODUCT };

/** An array that no compiler keeps in registers; only its first `set` rows are set. */
template <int USE>
__global__ void use_row(__half *out, int set, int row) {
  float values[8][4];
  for (int i = 0; i < 4 * set; i++) values[i / 4][i % 4] = 1.0f;
  float(&used)[4] = values[row];
  const uint32_t a[4] = {};
  if (USE == SHUFFLE) used[0] = __shfl_xor_sync(~0u, used[0], 1);
  if (USE == PRODUCT) mma_m16n8k16<__half>(used, a, 0, 0);
  if (USE == CONVERSION) out[threadIdx.x + 32 * blockIdx.x] = used[0];
  if (used[0] == 5.0f) *out = 1;
}
enum { SHUFFLED = __LINE__ - 5, MULTIPLIED = __LINE__ - 4, CONVERTED = __LINE__ - 3 };

/** Uses a row that the kernel sets in the first launch, but not in the second. */
template <int USE>
static void check_use(int line, const char *kernel) {
  __half *out = named<__half>("out", 64);
  assert_finds_nothing([=] { use_row<USE><<<2, 32>>>(out, 8, 7); });
  use_row<USE><<<2, 32>>>(out, 7, 7);
  assert_finds(
      {LAB_FLOAT_UNSET, line, 0, kernel, "64 times, first: block 0 thread 0, 0xffffffff, a NaN"});
}

TEST(uses_of_unset_floats_are_reported) {
  set_variable("SIMT_THREADS", "1");
  check_use<SHUFFLE>(SHUFFLED, "use_row<0>");
  check_use<CONVERSION>(CONVERTED, "use_row<1>");
  check_use<PRODUCT>(MULTIPLIED, "use_row<2>");
}

__global__ void add_one_at(int *values, int at) {
  values[at]++;
}
enum { ADD_AT = __LINE__ - 2 };

TEST(guard_bands_are_out_of_bounds) {
  int *block = named<int>("O", 192), *values = block + 64;
  assert_int_equal(simt_guard_allocation(block, 256), cudaSuccess);
  assert_int_equal(simt_guard_allocation(block, 200), cudaErrorInvalidValue);
  assert_int_equal(simt_guard_allocation(values, 256), cudaErrorInvalidValue);
  cudaMemset(values + 1, 0, 63 * sizeof *values);
  add_one_at<<<1, 1>>>(values, 1);
  add_one_at<<<1, 1>>>(values, 63);
  assert_finds_nothing();
  add_one_at<<<1, 1>>>(values, 0);
  assert_finds({LAB_GLOBAL_UNWRITTEN, ADD_AT, 0, "add_one_at",
                "1 time, first: block 0 thread 0, O + 0 (256 bytes)"});
  lab_start(LAB_BOUNDS);
  add_one_at<<<1, 1>>>(values, -2);
  assert_finds_outside(LAB_GLOBAL_OUTSIDE, ADD_AT, "add_one_at", 2, 0,
                       "8 bytes before allocation 1 \"O\" (256 bytes)");
  lab_start(LAB_BOUNDS);
  add_one_at<<<1, 1>>>(values, 64);
  assert_finds_outside(LAB_GLOBAL_OUTSIDE, ADD_AT, "add_one_at", 2, 0,
                       "1 byte past allocation 1 \"O\" (256 bytes)");
}

__device__ __forceinline__ void store(int *values) {
  values[threadIdx.x / 2] = 1;
}

__device__ __forceinline__ void store_twice(int *values) {
  store(values);
  store(values + 64);
}
enum { STORE = __LINE__ - 7, CALLS = __LINE__ - 3 };

__global__ void store_through_calls() {
  __shared__ int values[128];
  store_twice(values);
}
enum { OUTER_CALL = __LINE__ - 2 };

TEST(findings_name_the_calls_that_led_to_them) {
  store_through_calls<<<1, 64>>>();
  const std::string text = findings_text();
  for (int call = CALLS; call < CALLS + 2; call++) {
    const std::string chain =
        place_text(__FILE__, STORE, call) + ", called at " + place_text(__FILE__, OUTER_CALL, 0);
    assert_contains(text,
                    "at " + chain + " in store_through_calls\n           after " + chain + "\n");
  }
}

TEST(a_source_that_was_edited_is_newer) {
  char path[] = "/tmp/lab_findings_XXXXXX";
  const int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  assert_true(simt_source_is_newer(path));
  assert_false(simt_source_is_newer("/bin/sh"));
  unlink(path);
  assert_false(simt_source_is_newer(path));
}

RUN_TESTS_WITH(start_lab, stop_lab)
