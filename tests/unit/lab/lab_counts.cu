/** @file What the lab counts, in kernels whose counts can be computed by hand. */
#include <cuda_fp16.h>

#include <utility>

#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

/* --- Global memory -------------------------------------------------------------------------- */

template <typename T>
__global__ void copy_strided(T *out, const T *in, int stride) {
  out[threadIdx.x] = in[threadIdx.x * stride];
}

TEST(sectors_are_those_of_a_warp) {
  const float *in = named_zeros<float>("in", 1024);
  float *out = named_zeros<float>("out", 64);
  assert_sectors(counts_of([=] { copy_strided<float><<<1, 64>>>(out, in, 1); }).global_load, 2, 8,
                 256, 256, 4);
  assert_sectors(counts_of([=] { copy_strided<float><<<1, 64>>>(out, in, 2); }).global_load, 2, 16,
                 256, 256, 8);
  assert_sectors(counts_of([=] { copy_strided<float><<<1, 32>>>(out, in, 16); }).global_load, 1, 32,
                 128, 128, 32);
  assert_sectors(counts_of([=] { copy_strided<float><<<1, 32>>>(out, in, 0); }).global_load, 1, 1,
                 128, 4, 1); /* one word for all */
}

TEST(a_shifted_request_touches_one_sector_more) {
  float *out = named_zeros<float>("out", 64);
  assert_sectors(counts_of([=] {
                   copy_strided<float><<<1, 32>>>(out, named_zeros<float>("in", 64) + 1, 1);
                 }).global_load,
                 1, 5, 128, 128, 5);
}

TEST(vectors_are_one_request) {
  const LabCounts counts = counts_of([=] {
    copy_strided<float4><<<1, 32>>>(named<float4>("out", 32), named_zeros<float4>("in", 32), 1);
  });
  assert_sectors(counts.global_load, 1, 16, 512, 512, 16);
  assert_sectors(counts.global_store, 1, 16, 512, 512, 16);
}

__global__ void send_and_wait(float4 *messages, uint32_t *flag) {
  store_relaxed(&messages[threadIdx.x], make_float4(1, 1, 1, 1));
  while (load_relaxed(&messages[31 - threadIdx.x]).w == 0) continue;
  if (threadIdx.x == 0) store_release(flag, 1);
}

/** Of atomic stores, as of others; but a number of loads that wait would say nothing. */
TEST(messages_are_counted_and_waits_are_not) {
  const LabCounts counts = counts_of([=] {
    send_and_wait<<<1, 32>>>(named_zeros<float4>("messages", 32), named<uint32_t>("flag", 1));
  });
  assert_sectors(counts.global_store, 2, 17, 516, 516, 16);
  assert_int_equal(counts.global_load.requests + counts.atomics, 0);
}

TEST(halves_share_sectors) {
  assert_sectors(counts_of([=] {
                   copy_strided<__half>
                       <<<1, 32>>>(named<__half>("out", 32), named_zeros<__half>("in", 64), 1);
                 }).global_load,
                 1, 2, 64, 64, 2);
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
  return counts_of(
             [=] { load_shared_vectors<<<1, 32, 32 * sizeof(uint4)>>>(out, share, distinct); })
      .shared_load;
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
  const LabCounts counts =
      counts_of([=] { load_one_word<<<1, 64, 64>>>(named<float>("out", 64)); });
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
  const LabCounts counts = counts_of([=] { branch_apart<<<1, 32>>>(named_zeros<int>("out", 64)); });
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
  assert_sectors(
      counts_of([=] { long_loop<<<1, 32>>>(named<int>("out", COUNT * 32), COUNT); }).global_store,
      COUNT, COUNT * 4, COUNT * 128, COUNT * 128, 4);
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
  const LabCounts counts =
      counts_of([=] { loop_behind_a_branch<<<1, 32>>>(in, named_zeros<int>("out", 32), COUNT); });
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
  const LabCounts counts = counts_of([=] {
    loops_apart<<<1, 32>>>(named_zeros<int>("in", COUNT * 32), named_zeros<int>("out", 32), COUNT);
  });
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
  const LabCounts counts = counts_of([=] {
    spin_on_a_long_loop<<<1, 32>>>(named_zeros<int>("flag", 1), in, named<int>("out", 2));
  });
  assert_int_equal(counts.global_load.requests, 300);
  assert_int_equal(counts.global_load.sectors, 300);
  assert_int_equal(counts.global_store.requests, 2);
}

__global__ void lines_of_this_file(int *out) {
  out[threadIdx.x] = 1;
}
enum { LINE_OF_STORE = __LINE__ - 2 };

TEST(counts_are_reported_by_line) {
  lines_of_this_file<<<4, 32>>>(named<int>("out", 32));
  const TakenResults results;
  assert_int_equal(results.line_count, 1);
  assert_string_equal(results.lines[0].kernel, "lines_of_this_file");
  assert_string_equal(results.lines[0].file, __FILE__);
  assert_int_equal(results.lines[0].line, LINE_OF_STORE);
  assert_int_equal(results.lines[0].counts.global_store.requests, 4);
  assert_int_equal(results.kernels[0].blocks, 4);
}

/* --- cp.async, ldmatrix and mma ------------------------------------------------------------ */

__global__ void copy_and_multiply(const uint4 *in, float *out, int stride) {
  uint4 *rows = (uint4 *)smem;
  cp_async_16(&rows[threadIdx.x * stride], &in[threadIdx.x], threadIdx.x < 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();
  uint32_t a[4];
  ldmatrix_x4(a, &rows[threadIdx.x * stride]);
  float d[4] = {};
  mma_m16n8k16<__half>(d, a, a[0], a[1]);
  out[threadIdx.x] = __shfl_xor_sync(~0u, d[0], 1);
  __syncthreads();
}

static LabCounts copy_with_stride(int stride) {
  const uint4 *in = named_zeros<uint4>("in", 32);
  float *out = named<float>("out", 32);
  lab_start(LAB_EVERYTHING & ~LAB_INIT);
  copy_and_multiply<<<1, 32, 32 * 9 * 16>>>(in, out, stride);
  return counts_of_kernel();
}

TEST(instructions_are_counted_by_warps) {
  const LabCounts counts = copy_with_stride(1);
  assert_sectors(counts.copy_global, 1, 8, 256, 256, 8); /* zero fills read nothing */
  assert_waves(counts.copy_shared, 1, 2, 2, 1);          /* zeros of 8 lanes, and of 8 more */
  assert_waves(counts.ldmatrix, 1, 4, 4, 1);
  assert_int_equal(counts.mma, 1);
  assert_int_equal(counts.mma_under_copy, 0);
  assert_int_equal(counts.shuffles, 1);
  assert_int_equal(counts.barriers, 1);
  assert_int_equal(counts.warp_barriers, 1);
}

/** Rows of 128 bytes, as in a tile of 64 columns; `stride` is in shared memory, in units of 16
 * bytes. */
__global__ void copy_rows(const uint4 *in, int stride, int valid) {
  uint4 *rows = (uint4 *)smem;
  const int lane = threadIdx.x;
  cp_async_16(&rows[lane / 8 * stride + lane % 8], &in[lane], lane < valid);
  cp_async_commit();
  cp_async_wait<0>();
}

static LabCounts copied_rows(int stride, int valid) {
  const uint4 *in = named_zeros<uint4>("in", 32);
  return counts_of([=] { copy_rows<<<1, 32, 4 * 9 * 16>>>(in, stride, valid); });
}

TEST(unaligned_targets_split_the_sectors_of_copies) {
  LabCounts counts = copied_rows(8, 32);
  assert_sectors(counts.copy_global, 1, 16, 512, 512, 16);
  assert_int_equal(counts.copy_lookups, 16);
  assert_waves(counts.copy_shared, 1, 0, 0, 0); /* data that arrives is no wavefront */

  counts = copied_rows(9, 32); /* every second row begins in the middle of 32 bytes */
  assert_sectors(counts.copy_global, 1, 4 + 8 + 4 + 8, 512, 512, 24);
  assert_int_equal(counts.copy_lookups, 4 + 5 + 4 + 5);

  counts = copied_rows(9, 0);
  assert_sectors(counts.copy_global, 0, 0, 0, 0, 0);
  assert_waves(counts.copy_shared, 1, 4, 4, 1);
}

/** The lanes that copy zeros are different in each copy, and no copy is waited for in between. */
__global__ void copy_zeros_by_turns(const uint4 *in) {
  uint4 *rows = (uint4 *)smem;
  const int lane = threadIdx.x;
  for (int i = 0; i < 4; i++) {
    cp_async_16(&rows[32 * i + lane], &in[lane], lane / 8 != i);
  }
  cp_async_commit();
  cp_async_wait<0>();
}

TEST(zero_fills_belong_to_the_request_of_their_warp) {
  const LabCounts counts =
      counts_of([=] { copy_zeros_by_turns<<<1, 32, 4 * 32 * 16>>>(named_zeros<uint4>("in", 32)); });
  assert_sectors(counts.copy_global, 4, 4 * 12, 4 * 24 * 16, 4 * 24 * 16, 12);
  assert_waves(counts.copy_shared, 4, 4, 4, 1);
  assert_int_equal(counts.partial, 0); /* all lanes take part */
}

template <int>
__global__ void copy_to_own_array(const uint4 *in) {
  __shared__ uint4 own[32];
  cp_async_16(&own[threadIdx.x], &in[threadIdx.x], true);
  cp_async_commit();
  cp_async_wait<0>();
}

template <int... NUMBERS>
static void copy_to_many_arrays(std::integer_sequence<int, NUMBERS...>) {
  const uint4 *in = named_zeros<uint4>("in", 32);
  for (const auto kernel : {copy_to_own_array<NUMBERS>...}) {
    const LabCounts counts = counts_of([=] { kernel<<<1, 32>>>(in); });
    assert_sectors(counts.copy_global, 1, 16, 512, 512, 16);
    assert_int_equal(counts.copy_lookups, 16);
  }
}

/** The arrays lie far from each other, and far from dynamic shared memory. */
TEST(copies_to_static_arrays_have_as_many_sectors) {
  copy_to_many_arrays(std::make_integer_sequence<int, 24>());
}

TEST(unpadded_rows_of_ldmatrix_conflict) {
  const LabCounts counts = copy_with_stride(8);
  assert_waves(counts.ldmatrix, 1, 32, 4, 8);
  assert_waves(copy_with_stride(9).ldmatrix, 1, 4, 4, 1);
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
