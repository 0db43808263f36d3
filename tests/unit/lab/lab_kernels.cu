/**
 * @file
 * Kernels and static shared arrays of every kind that a source may declare: the lab knows the
 * kernel of each array. Copies by functions of the C library.
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../tests/unit/lab/lab_testing.h"

/* --- Types ---------------------------------------------------------------------------------- */

static __shared__ __half2 half_pairs[32];

/** For such arrays compilers keep a flag that says whether they have been initialised. */
__global__ void arrays_of_classes(float *out) {
  __shared__ __half halves[32];
  __shared__ __nv_bfloat16 bfloats[32];
  __shared__ float4 vectors[32];
  const int i = (int)threadIdx.x, other = 31 - i;
  halves[i] = __float2half(1);
  half_pairs[i] = __floats2half2_rn(2, 3);
  bfloats[i] = __float2bfloat16(4);
  vectors[i] = make_float4(5, 6, 7, 8);
  __syncthreads();
  out[i] = __half2float(halves[other]) + __half2float(half_pairs[other].y) +
           __bfloat162float(bfloats[other]) + vectors[other].w;
}

static unsigned long long shared_requests() {
  LabResults results;
  lab_take_results(&results);
  unsigned long long requests = 0;
  for (size_t i = 0; i < results.kernel_count; i++) {
    const LabCounts *counts = &results.kernels[i].counts;
    requests += counts->shared_load.requests + counts->shared_store.requests;
  }
  lab_free_results(&results);
  return requests;
}

TEST(arrays_may_be_of_classes) {
  float *out = named<float>("out", 32);
  arrays_of_classes<<<1, 32>>>(out);
  for (float sum : fetch<32>(out)) assert_true(sum == 16);
  assert_finds_nothing();
  assert_int_equal(shared_requests(), 8); /* those of the source, without what the compiler added */
}

/* --- Functions of the C library --------------------------------------------------------------- */

typedef enum Function { MEMSET, MEMCPY, MEMMOVE } Function;

/** Each thread fills its row, and reads the row of another one. */
template <Function FUNCTION, bool RIGHT>
__global__ void rows_by_functions(const int *in, int *out, int bytes) {
  __shared__ int rows[32][16];
  const int i = (int)threadIdx.x;
  if (FUNCTION == MEMSET) memset(rows[i], 0, sizeof rows[i]);
  if (FUNCTION == MEMCPY) memcpy(rows[i], in, bytes);
  if (FUNCTION == MEMMOVE) memmove(rows[i], in, bytes);
  if (RIGHT) __syncwarp();
  out[i] = rows[31 - i][15];
}
enum { ROW_READ = __LINE__ - 2, ROW_WRITE = ROW_READ - 4 };

template <Function FUNCTION>
static void expect_accesses(int write_line) {
  int *in = named_zeros<int>("in", 16), *out = named<int>("out", 32);
  rows_by_functions<FUNCTION, true><<<1, 32>>>(in, out, 64);
  assert_finds_nothing();
  rows_by_functions<FUNCTION, false><<<1, 32>>>(in, out, 64);
  assert_tells({lab_kind_text(LAB_RACE_WRITE_READ), lab_kind_text(LAB_RACE_READ_WRITE)},
               {ROW_READ, write_line});
}

TEST(functions_of_the_library_access_memory) {
  expect_accesses<MEMSET>(ROW_WRITE);
  expect_accesses<MEMCPY>(ROW_WRITE + 1);
  expect_accesses<MEMMOVE>(ROW_WRITE + 2);
}

/* --- Names ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(32) kernel_with_a_plain_name(int *out, int shift) {
  __shared__ int tile[32];
  int *pointer = tile;
  pointer[(int)threadIdx.x + shift] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}
enum { PLAIN_STORE = __LINE__ - 4 };

TEST(kernel_names_may_be_plain) {
  int *out = named<int>("out", 64);
  kernel_with_a_plain_name<<<1, 32>>>(out, 0);
  assert_finds_nothing();
  lab_start(LAB_BOUNDS);
  kernel_with_a_plain_name<<<1, 32>>>(out, 2);
  assert_finds({LAB_SHARED_OUTSIDE, PLAIN_STORE, 0, "kernel_with_a_plain_name",
                "2 times, first: block 0 thread 30, 1 byte past static shared memory tile (128 "
                "bytes)"});
  lab_start(0);
  kernel_with_a_plain_name<<<1, 64>>>(out, 0);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

/** Names with the same prefixes as the backend's own variables. */
__shared__ int lab_values[32], simt_values[32];

__global__ void arrays_with_prefixes(int *out) {
  lab_values[threadIdx.x] = simt_values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = lab_values[31 - threadIdx.x] + simt_values[31 - threadIdx.x];
}

TEST(array_names_may_have_the_backends_prefixes) {
  arrays_with_prefixes<<<1, 32>>>(named<int>("out", 32));
  assert_finds_nothing();
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
