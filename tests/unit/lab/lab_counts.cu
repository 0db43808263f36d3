/** @file What the lab counts, in kernels whose counts can be computed by hand. */
#include <cuda_fp16.h>

#include "../tests/unit/lab/lab_testing.h"

extern __shared__ __align__(16) unsigned char smem[];

/* --- Global memory -------------------------------------------------------------------------- */

template <typename T>
__global__ void copy_strided(T *out, const T *in, int stride) {
  out[threadIdx.x] = in[threadIdx.x * stride];
}

TEST(sectors_are_those_of_a_warp) {
  const float *in = named_zeros<float>("in", 1024);
  float *out = named_zeros<float>("out", 64);
  copy_strided<float><<<1, 64>>>(out, in, 1);
  assert_sectors(counts_of_kernel().global_load, 2, 8, 256, 256, 4);
  copy_strided<float><<<1, 64>>>(out, in, 2);
  assert_sectors(counts_of_kernel().global_load, 2, 16, 256, 256, 8);
  copy_strided<float><<<1, 32>>>(out, in, 16);
  assert_sectors(counts_of_kernel().global_load, 1, 32, 128, 128, 32);
  copy_strided<float><<<1, 32>>>(out, in, 0); /* one word for all */
  assert_sectors(counts_of_kernel().global_load, 1, 1, 128, 4, 1);
}

TEST(a_shifted_request_touches_one_sector_more) {
  const float *in = named_zeros<float>("in", 64);
  float *out = named_zeros<float>("out", 64);
  copy_strided<float><<<1, 32>>>(out, in + 1, 1);
  assert_sectors(counts_of_kernel().global_load, 1, 5, 128, 128, 5);
}

TEST(vectors_are_one_request) {
  const float4 *in = named_zeros<float4>("in", 32);
  float4 *out = named<float4>("out", 32);
  copy_strided<float4><<<1, 32>>>(out, in, 1);
  const LabCounts counts = counts_of_kernel();
  assert_sectors(counts.global_load, 1, 16, 512, 512, 16);
  assert_sectors(counts.global_store, 1, 16, 512, 512, 16);
}

TEST(halves_share_sectors) {
  const __half *in = named_zeros<__half>("in", 64);
  __half *out = named<__half>("out", 32);
  copy_strided<__half><<<1, 32>>>(out, in, 1);
  assert_sectors(counts_of_kernel().global_load, 1, 2, 64, 64, 2);
}

/* --- Shared memory -------------------------------------------------------------------------- */

/** Lane i stores to, and loads from, element i * stride. */
template <typename T>
__global__ void store_and_load(T *out, int stride) {
  T *values = (T *)smem;
  values[threadIdx.x * stride] = T();
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x * stride];
}

template <typename T>
static LabTraffic loads_with_stride(int stride) {
  T *out = named<T>("out", 32);
  lab_start(LAB_BANKS);
  store_and_load<T><<<1, 32, 32 * 33 * sizeof(T)>>>(out, stride);
  cudaFree(out);
  const LabCounts counts = counts_of_kernel();
  assert_int_equal(counts.shared_store.wavefronts, counts.shared_load.wavefronts);
  return counts.shared_load;
}

TEST(words_of_one_bank_conflict) {
  assert_waves(loads_with_stride<float>(1), 1, 1, 1, 1);
  assert_waves(loads_with_stride<float>(2), 1, 2, 1, 2);
  assert_waves(loads_with_stride<float>(32), 1, 32, 1, 32);
  assert_waves(loads_with_stride<float>(33), 1, 1, 1, 1);
  assert_waves(loads_with_stride<__half>(1), 1, 1, 1, 1);
  assert_waves(loads_with_stride<__half>(2), 1, 1, 1, 1);
}

TEST(wide_accesses_take_several_wavefronts) {
  assert_waves(loads_with_stride<uint2>(1), 1, 2, 2, 1);
  assert_waves(loads_with_stride<uint2>(2), 1, 4, 2, 2);
  assert_waves(loads_with_stride<uint4>(1), 1, 4, 4, 1);
  assert_waves(loads_with_stride<uint4>(8), 1, 32, 4, 8);
  assert_waves(loads_with_stride<uint4>(9), 1, 4, 4, 1);
}

/** Lane i loads vector i / share % distinct, of 16 bytes. */
__global__ void load_shared_vectors(uint4 *out, int share, int distinct) {
  uint4 *values = (uint4 *)smem;
  values[threadIdx.x] = uint4();
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x / share % distinct];
}

static LabTraffic loads_of_vectors(int share, int distinct) {
  uint4 *out = named<uint4>("out", 32);
  lab_start(LAB_BANKS);
  load_shared_vectors<<<1, 32, 32 * sizeof(uint4)>>>(out, share, distinct);
  return counts_of_kernel().shared_load;
}

TEST(lanes_that_share_vectors_halve_the_wavefronts) {
  assert_waves(loads_of_vectors(1, 1), 1, 2, 2, 1);  /* all the same */
  assert_waves(loads_of_vectors(8, 4), 1, 2, 2, 1);  /* eight lanes the same */
  assert_waves(loads_of_vectors(2, 16), 1, 2, 2, 1); /* pairs of neighbours */
  assert_waves(loads_of_vectors(1, 2), 1, 2, 2, 1);  /* every second lane the same */
  assert_waves(loads_of_vectors(1, 8), 1, 4, 4, 1);  /* only across wavefronts */
}

__global__ void load_one_word(float *out) {
  float *values = (float *)smem;
  if (threadIdx.x == 0) values[5] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = values[5];
}

TEST(one_word_for_all_is_no_conflict) {
  load_one_word<<<1, 64, 64>>>(named<float>("out", 64));
  const LabCounts counts = counts_of_kernel();
  assert_waves(counts.shared_load, 2, 2, 2, 1);
  assert_waves(counts.shared_store, 1, 1, 1, 1);
  assert_int_equal(counts.partial, 1);
}

/* --- Diverged lanes ------------------------------------------------------------------------- */

__global__ void branch_apart(int *out) {
  int sum = 0;
  for (int i = 0; i < 3; i++) {
    if ((threadIdx.x + i) % 2 == 0) sum += out[threadIdx.x];  // half of the lanes
    sum += out[32 + threadIdx.x];                             // all lanes
  }
  out[threadIdx.x] = sum;
}

TEST(lanes_reconverge_after_a_branch) {
  branch_apart<<<1, 32>>>(named_zeros<int>("out", 64));
  const LabCounts counts = counts_of_kernel();
  /* In the second iteration, one half makes its second visit of the branch and the other its first.
     Visits are grouped by number, so there are two whole requests and not three halves. */
  assert_int_equal(counts.global_load.requests, 3 + 2);
  assert_int_equal(counts.global_store.requests, 1);
}

__global__ void long_loop(int *out, int count) {
  for (int i = 0; i < count; i++) out[i * 32 + threadIdx.x] = 1;
}

TEST(long_loops_are_counted_in_full) {
  enum { COUNT = 1000 };
  long_loop<<<1, 32>>>(named<int>("out", COUNT * 32), COUNT);
  assert_sectors(counts_of_kernel().global_store, COUNT, COUNT * 4, COUNT * 128, COUNT * 128, 4);
}

/** Lane 0 stays one access ahead of the other lanes. */
__global__ void loop_behind_a_branch(const int *in, int *out, int count) {
  int sum = threadIdx.x == 0 ? out[0] : 0;
  for (int i = 0; i < count; i++) sum += in[i * 32 + threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = sum;
}

TEST(full_logs_do_not_split_requests) {
  enum { COUNT = 1000 };
  const int *in = named_zeros<int>("in", COUNT * 32);
  loop_behind_a_branch<<<1, 32>>>(in, named_zeros<int>("out", 32), COUNT);
  const LabCounts counts = counts_of_kernel();
  assert_sectors(counts.global_load, COUNT + 1, COUNT * 4 + 1, COUNT * 128 + 4, COUNT * 128 + 4, 4);
  assert_int_equal(counts.partial, 1);
}

/** Half of the lanes make `count` accesses, the others a third of that; then all make `count`. */
__global__ void loops_apart(const int *in, int *out, int count) {
  int sum = 0;
  if (threadIdx.x % 2 == 0) {
    for (int i = 0; i < count / 3; i++) sum += in[threadIdx.x];
  } else {
    for (int i = 0; i < count; i++) sum -= in[threadIdx.x];
  }
  for (int i = 0; i < count; i++) sum += in[i * 32 + threadIdx.x];
  out[threadIdx.x] = sum;
}

TEST(lanes_reconverge_after_full_logs) {
  enum { COUNT = 450, APART = COUNT / 3 + COUNT };
  const int *in = named_zeros<int>("in", COUNT * 32);
  loops_apart<<<1, 32>>>(in, named_zeros<int>("out", 32), COUNT);
  const LabCounts counts = counts_of_kernel();
  assert_int_equal(counts.global_load.requests, APART + COUNT);
  assert_int_equal(counts.global_load.sectors, (APART + COUNT) * 4);
  assert_int_equal(counts.partial, APART);
}

/** One lane makes more accesses than a log holds, and another lane waits until it has finished. */
__global__ void spin_on_a_long_loop(int *flag, const int *in, int *out) {
  if (threadIdx.x == 1) {
    while (atomicAdd(flag, 0) == 0) {
    }
    out[1] = 1;
  } else if (threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < 300; i++) sum += in[i];
    out[0] = sum;
    atomicExch(flag, 1);
  }
}

TEST(a_lane_continues_when_its_log_is_full) {
  const int *in = named_zeros<int>("in", 300);
  spin_on_a_long_loop<<<1, 32>>>(named_zeros<int>("flag", 1), in, named<int>("out", 2));
  const LabCounts counts = counts_of_kernel();
  assert_int_equal(counts.global_load.requests, 300);
  assert_int_equal(counts.global_load.sectors, 300);
  assert_int_equal(counts.global_store.requests, 2);
}

__global__ void lines_of_this_file(int *out) {
  out[threadIdx.x] = 1;
}
enum { LINE_OF_STORE = __LINE__ - 2 };

TEST(counts_are_reported_by_line) {
  LabResults results;
  lines_of_this_file<<<4, 32>>>(named<int>("out", 32));
  lab_take_results(&results);
  assert_int_equal(results.line_count, 1);
  assert_string_equal(results.lines[0].kernel, "lines_of_this_file");
  assert_string_equal(results.lines[0].file, __FILE__);
  assert_int_equal(results.lines[0].line, LINE_OF_STORE);
  assert_int_equal(results.lines[0].counts.global_store.requests, 4);
  assert_int_equal(results.kernels[0].blocks, 4);
  lab_free_results(&results);
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
