/**
 * @file
 * Which memory a kernel may use: what the lab says about accesses outside shared memory and to
 * memory of the host, and that such accesses do no damage.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

extern __shared__ __align__(16) unsigned char smem[];

/* --- Dynamic shared memory ------------------------------------------------------------------- */

template <typename T>
__global__ void store_shared(int shift, int *out) {
  ((T *)smem)[(int)threadIdx.x + shift] = T();
  if (threadIdx.x == 0) *out = 1;
}
enum { STORE_SHARED = __LINE__ - 3 };

TEST(stores_before_shared_memory_are_reported) {
  int *out = named<int>("out", 1);
  store_shared<int><<<1, 32, 128>>>(0, out);
  assert_finds_nothing();
  store_shared<int><<<1, 32, 128>>>(-3, out);
  assert_finds({LAB_SHARED_OUTSIDE, STORE_SHARED, 0, "store_shared<int>",
                "3 times, first: block 0 thread 0, 12 bytes before dynamic shared memory (128 "
                "bytes)"});
  store_shared<int><<<1, 32, 128>>>(-(60 << 8), out);
  assert_finds({LAB_SHARED_OUTSIDE, STORE_SHARED, 0, "store_shared<int>",
                "32 times, first: block 0 thread 0, 61440 bytes before dynamic shared memory (128 "
                "bytes)"});
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(a_vector_half_outside_is_reported) {
  int *out = named<int>("out", 1);
  store_shared<uint4><<<1, 32, 504>>>(0, out);
  assert_finds({LAB_SHARED_OUTSIDE, STORE_SHARED, 0, "store_shared<uint4>",
                "1 time, first: block 0 thread 31, 1 byte past dynamic shared memory (504 "
                "bytes)"});
  store_shared<uint4><<<1, 1, 512>>>(-1, out);
  assert_finds({LAB_SHARED_OUTSIDE, STORE_SHARED, 0, "store_shared<uint4>",
                "1 time, first: block 0 thread 0, 16 bytes before dynamic shared memory (512 "
                "bytes)"});
}

/** Each block writes outside its shared memory, and reads what other blocks wrote there. */
__global__ void write_and_read_outside(int *out) {
  int *values = (int *)smem;
  out[blockIdx.x] = values[-1] + values[8];
  values[-1] = values[8] = 77;
}

/** The same in a static array: at [at % 4], inside, and at [at], which may be outside. */
__global__ void write_and_read_in_array(int *out, int at) {
  __shared__ int values[4];
  out[blockIdx.x] = values[at % 4] + values[at];
  __syncthreads();
  values[at % 4] = values[at] = 77;
}

/** Runs with all checks, and without the check of bounds. */
static void assert_nothing_is_visible(void (*launch)(int *)) {
  int *out = named<int>("out", 64);
  for (const char *threads : {"1", "2"}) {
    for (unsigned checks : {LAB_EVERYTHING, LAB_RACES}) {
      set_variable("SIMT_THREADS", threads);
      lab_start(checks);
      launch(out);
      launch(out);
      for (int value : fetch<64>(out)) assert_int_equal(value, -2);
    }
  }
  set_variable("SIMT_THREADS", nullptr);
}

TEST(writes_outside_shared_memory_reach_no_other_block) {
  assert_nothing_is_visible([](int *out) { write_and_read_outside<<<64, 1, 32>>>(out); });
}

TEST(static_arrays_keep_nothing_from_other_blocks) {
  assert_nothing_is_visible([](int *out) { write_and_read_in_array<<<64, 1>>>(out, 2); });
}

TEST(writes_past_static_arrays_reach_no_other_block) {
  assert_nothing_is_visible([](int *out) { write_and_read_in_array<<<64, 1>>>(out, 7); });
}

__global__ void copy_before(const uint4 *in) {
  cp_async_16((uint4 *)smem - 1, in, true);
  cp_async_commit();
  cp_async_wait<0>();
}
enum { COPY_BEFORE = __LINE__ - 4 };

__global__ void load_before(unsigned *out) {
  unsigned registers[4];
  ldmatrix_x4(registers, smem + 16 * threadIdx.x - 32);
  out[threadIdx.x] = registers[0];
}
enum { LOAD_BEFORE = __LINE__ - 3 };

TEST(copies_and_ldmatrix_before_shared_memory_are_reported) {
  const uint4 *in = named_zeros<uint4>("in", 1);
  unsigned *out = named<unsigned>("out", 32);
  copy_before<<<1, 1, 512>>>(in);
  assert_finds({LAB_SHARED_OUTSIDE, COPY_BEFORE, 0, "copy_before",
                "1 time, first: block 0 thread 0, 16 bytes before dynamic shared memory (512 "
                "bytes)"});
  lab_start(LAB_BOUNDS);
  load_before<<<1, 32, 480>>>(out);
  assert_finds({LAB_SHARED_OUTSIDE, LOAD_BEFORE, 0, "load_before",
                "2 times, first: block 0 thread 0, 32 bytes before dynamic shared memory (480 "
                "bytes)"});
}

/** To an address in global memory instead of shared memory. */
__global__ void copy_to_global(uint4 *target, const uint4 *in) {
  cp_async_16(target, in, true);
}
enum { COPY_TO_GLOBAL = __LINE__ - 2 };

TEST(a_copy_to_global_memory_is_reported) {
  static Capture capture;
  uint4 *memory = named_zeros<uint4>("memory", 2);
  begin_capture(&capture);
  copy_to_global<<<1, 1, 512>>>(memory + 1, memory);
  end_capture(&capture);
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  assert_tells({lab_kind_text(LAB_SHARED_OUTSIDE),
                "1 time, first: block 0 thread 0, memory + 16 (32 bytes)\n"},
               {COPY_TO_GLOBAL});
}

/* --- Static shared arrays -------------------------------------------------------------------- */

/** An array of a device function is treated as the kernel's own. */
static __device__ int *scratch() {
  __shared__ int values[32];
  return values;
}

__global__ void use_scratch(int *out) {
  scratch()[threadIdx.x] = 1;
  out[threadIdx.x] = scratch()[threadIdx.x];
}

__global__ void leave_array(int shift, int *out) {
  __shared__ int tile_2x1[64];
  int *pointer = tile_2x1;
  pointer[(int)threadIdx.x + shift] = 1;
  if (threadIdx.x == 0) *out = 1;
}
enum { LEAVE_ARRAY = __LINE__ - 3 };

TEST(stores_outside_static_arrays_are_reported) {
  int *out = named<int>("out", 64);
  leave_array<<<1, 64>>>(0, out);
  assert_finds_nothing();
  lab_start(LAB_BOUNDS);
  leave_array<<<1, 64>>>(1, out);
  assert_finds({LAB_SHARED_OUTSIDE, LEAVE_ARRAY, 0, "leave_array",
                "1 time, first: block 0 thread 63, 1 byte past static shared memory tile_2x1 (256 "
                "bytes)"});
  leave_array<<<1, 64>>>(-2, out);
  assert_finds(
      {LAB_SHARED_OUTSIDE, LEAVE_ARRAY, 0, "leave_array",
       "2 times, first: block 0 thread 0, 8 bytes before static shared memory tile_2x1 (256 "
       "bytes)"});
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/** Either array may come first in memory; one of the pointers then points towards the other. */
__global__ void leave_either(int shift, int *out) {
  __shared__ int one[32], other[32];
  int *pointer = one, *second = other;
  pointer[(int)threadIdx.x + shift] = 1;
  second[(int)threadIdx.x + shift] = 1;
  *out = 1;
}
enum { LEAVE_ONE = __LINE__ - 4 };

TEST(stores_between_static_arrays_are_reported) {
  int *out = named<int>("out", 1);
  char wanted[128];
  for (int shift : {32, 1024, 4096, -32, -1024, -4096}) {
    lab_start(LAB_BOUNDS);
    leave_either<<<1, 32>>>(shift, out);
    const char *text = findings_text();
    const int away = shift < 0 ? -4 * shift : 4 * (shift - 32) + 1;
    for (const char *array : {"one", "other"}) {
      snprintf(wanted, sizeof wanted,
               "32 times, first: block 0 thread 0, %d byte%s %s static shared memory %s (128 "
               "bytes)",
               away, away == 1 ? "" : "s", shift < 0 ? "before" : "past", array);
      assert_contains(text, wanted);
    }
    assert_names_line(text, LEAVE_ONE);
    assert_names_line(text, LEAVE_ONE + 1);
  }
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

template <int COUNT>
__global__ void read_unwritten(float *out) {
  __shared__ float first[COUNT], second[COUNT];
  first[threadIdx.x] = 1;
  if (threadIdx.x < COUNT - 1) second[threadIdx.x] = 1;
  out[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}
enum { READ_UNWRITTEN = __LINE__ - 2 };

TEST(findings_name_static_arrays) {
  float *out = named<float>("out", 32);
  read_unwritten<32><<<1, 32>>>(out);
  assert_finds({LAB_SHARED_UNWRITTEN, READ_UNWRITTEN, 0, "read_unwritten<32>",
                "1 time, first: block 0 thread 31, static shared memory second + 124 (128 "
                "bytes)"});
}

TEST(device_functions_may_have_arrays) {
  use_scratch<<<1, 32>>>(named<int>("out", 32));
  assert_finds_nothing();
}

/* --- Memory of the host ---------------------------------------------------------------------- */

namespace {
int host_values[4] = {1, 2, 3, 4};
}
static __constant__ int constant_values[4] = {5, 6, 7, 8};
static const int const_values[4] = {9, 10, 11, 12};

struct Numbers {
  int values[4];
};

/** Indexed parameters are read through their own address. */
__global__ void read_constants(Numbers numbers, int *out) {
  const int i = (int)threadIdx.x;
  out[i] = numbers.values[i] + constant_values[i] + const_values[i] + (int)blockDim.x;
}

TEST(kernels_read_constants_and_parameters) {
  int *out = named<int>("out", 4);
  read_constants<<<1, 4>>>(Numbers{{1, 2, 3, 4}}, out);
  const auto seen = fetch<4>(out);
  for (int i = 0; i < 4; i++) assert_int_equal(seen[i], 19 + 3 * i);
  assert_finds_nothing();
}

__global__ void read(const int *values, int *out) {
  out[threadIdx.x] = values[threadIdx.x];
}
enum { READ = __LINE__ - 2 };

TEST(kernels_do_not_read_variables_of_the_host) {
  int *out = named<int>("out", 4), local[4] = {1, 2, 3, 4};
  read<<<1, 3>>>(host_values + 1, out);
  assert_finds({LAB_GLOBAL_OUTSIDE, READ, 0, "read",
                "3 times, first: block 0 thread 0, at byte 4 of host variable \"host_values\" (16 "
                "bytes)"});
  read<<<1, 4>>>(local, out);
  assert_finds({LAB_GLOBAL_OUTSIDE, READ, 0, "read",
                "4 times, first: block 0 thread 0, at no address of the device"});
}

__global__ void add_one(int *values) {
  values[threadIdx.x] = 1;
}
enum { ADD_ONE = __LINE__ - 2 };

__global__ void count_up(int *values) {
  atomicAdd(values, 1);
}

/** Expects the finding of a launch that a store has ended. */
static void assert_store_ends(void (*kernel)(int *), int *values, const char *where) {
  static Capture capture;
  char wanted[256];
  lab_start(LAB_EVERYTHING);
  begin_capture(&capture);
  kernel<<<1, 2>>>(values);
  end_capture(&capture);
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  const char *text = findings_text();
  snprintf(wanted, sizeof wanted, "1 time, first: block 0 thread 0, %s\n", where);
  assert_contains(text, wanted);
  snprintf(wanted, sizeof wanted, "out of bounds write %s", where);
  assert_contains(text, wanted);
  assert_contains(capture.text, wanted);
  cudaDeviceReset();
}

TEST(kernels_do_not_write_memory_of_the_host) {
  int local[2] = {1, 2};
  assert_store_ends(add_one, host_values + 2,
                    "at byte 8 of host variable \"host_values\" (16 bytes)");
  assert_store_ends(count_up, host_values + 3,
                    "at byte 12 of host variable \"host_values\" (16 bytes)");
  assert_store_ends(add_one, constant_values,
                    "at byte 0 of constant \"constant_values\" (16 bytes)");
  assert_store_ends(add_one, local, "at no address of the device");
  assert_store_ends(add_one, nullptr, "at a null pointer");
  assert_store_ends(add_one, (int *)4096, "4096 bytes past a null pointer");
  assert_int_equal(host_values[2], 3);
  assert_int_equal(host_values[3], 4);
  assert_int_equal(constant_values[0], 5);
  assert_int_equal(local[0], 1);
}

/* --- Variables of the device ------------------------------------------------------------------ */

__device__ int table[64];
static __device__ unsigned arrived = 7;

__global__ void use_variables(int *out) {
  out[threadIdx.x] = table[threadIdx.x] + table[threadIdx.x + 32];
  if (threadIdx.x == 0) atomicAdd(&arrived, 1u);
  table[threadIdx.x] = 1;
}

TEST(variables_of_the_device_are_global_memory) {
  use_variables<<<1, 32>>>(named<int>("out", 32));
  assert_finds_nothing();
  const LabCounts counts = counts_of_kernel();
  assert_int_equal(counts.global_load.requests, 2);
  assert_int_equal(counts.global_load.bytes, 2 * 128);
  assert_int_equal(counts.global_store.requests, 2);
  assert_int_equal(counts.atomics, 1);
}

__global__ void write_table(int last) {
  if ((int)threadIdx.x <= last) table[threadIdx.x] = (int)blockIdx.x;
}
enum { WRITE_TABLE = __LINE__ - 2 };

TEST(races_on_variables_of_the_device_are_found) {
  write_table<<<2, 64>>>(3);
  assert_finds({LAB_BLOCKS_WRITE_WRITE, WRITE_TABLE, WRITE_TABLE, "write_table",
                "16 bytes, first: block 0, the other block 1, table + 0 (256 bytes)"});
}

/** Addresses differ from run to run, so findings must not contain them. */
TEST(findings_hold_no_addresses) {
  int *out = named<int>("out", 32);
  int *values = named<int>("values", 32);
  const int *far = values + (4 << 20);
  cudaDeviceReset();
  lab_start(LAB_BOUNDS);
  read<<<1, 4>>>(far, (int *)far);
  (void)out;
  assert_finds({LAB_GLOBAL_OUTSIDE, READ, 0, "read",
                "8 times, first: block 0 thread 0, in device memory, of which nothing is "
                "allocated"});
}

RUN_TESTS_WITH(start_lab, stop_lab)
