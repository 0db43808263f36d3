/**
 * @file
 * What the lab counts for cp.async, ldmatrix and mma, in kernels whose counts can be computed by
 * hand.
 */
#include <utility>

#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

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
  lab_start(LAB_TRAFFIC | LAB_BANKS);
  copy_rows<<<1, 32, 4 * 9 * 16>>>(in, stride, valid);
  return counts_of_kernel();
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
  lab_start(LAB_TRAFFIC | LAB_BANKS);
  copy_zeros_by_turns<<<1, 32, 4 * 32 * 16>>>(named_zeros<uint4>("in", 32));
  const LabCounts counts = counts_of_kernel();
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
    lab_start(LAB_TRAFFIC | LAB_BANKS);
    kernel<<<1, 32>>>(in);
    const LabCounts counts = counts_of_kernel();
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
