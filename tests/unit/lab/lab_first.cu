/** @file Which access of an instruction the lab keeps for a drawing, and what it keeps of it. */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

static const unsigned CHECKS = LAB_TRAFFIC | LAB_BANKS | LAB_ACCESSES;

/** The only access of this kind since lab_start(). */
static LabAccess only_access(LabAccessKind kind) {
  LabAccess found = {};
  int count = 0;
  const TakenResults results;
  for (size_t i = 0; i < results.access_count; i++) {
    if (results.accesses[i].kind != kind) continue;
    found = results.accesses[i];
    count++;
  }
  assert_int_equal(count, 1);
  return found;
}

__global__ void store_from(int *out, int first_block) {
  if ((int)blockIdx.x < first_block || threadIdx.x < 40) return;
  out[blockIdx.x * 64 + threadIdx.x] = 1;
}

TEST(the_kept_access_is_of_the_first_block_and_warp) {
  int *out = named<int>("out", 8 * 64);
  in_many_orders([=] {
    lab_start(CHECKS);
    store_from<<<8, 64>>>(out, 3);
    store_from<<<8, 64>>>(out, 1); /* a later launch is not kept */
    const LabAccess access = only_access(LAB_GLOBAL_STORE);
    assert_int_equal(access.block, 3);
    assert_int_equal(access.warp, 1);
    assert_int_equal(access.lanes, 0xffffff00);
    assert_int_equal(access.size, 4);
    assert_string_equal(access.memory[8], "out");
    assert_int_equal(access.offsets[8], 4 * (3 * 64 + 40));
    assert_int_equal(access.offsets[31], 4 * (3 * 64 + 63));
    assert_int_equal(access.traffic.requests, 1);
    assert_int_equal(access.traffic.sectors, 3);
  });
}

__global__ void every_second_word(float *out) {
  float *values = (float *)smem;
  values[2 * threadIdx.x] = 1.0f;
  __syncwarp();
  out[threadIdx.x] = values[2 * threadIdx.x];
}

TEST(banks_and_conflicts_of_shared_memory_are_kept) {
  lab_start(CHECKS);
  every_second_word<<<1, 32, 256>>>(named<float>("out", 32));
  const LabAccess access = only_access(LAB_SHARED_LOAD);
  assert_string_equal(access.memory[17], "dynamic shared memory");
  assert_int_equal(access.offsets[17], 8 * 17);
  assert_int_equal(access.banks[17], 2);
  assert_int_equal(access.traffic.wavefronts, 2);
  assert_int_equal(access.traffic.ideal_wavefronts, 1);
  assert_int_equal(access.traffic.most_ways, 2);
}

/** A column of an array whose rows are one word longer than the number of banks. */
__global__ void static_column(float *out) {
  __shared__ float values[32][33];
  values[threadIdx.x][5] = 1.0f;
  out[threadIdx.x] = values[threadIdx.x][5];
}

TEST(offsets_in_static_shared_memory_start_at_the_lowest_lane) {
  lab_start(CHECKS);
  static_column<<<1, 32>>>(named<float>("out", 32));
  const LabAccess access = only_access(LAB_SHARED_LOAD);
  assert_string_equal(access.memory[0], "static shared memory");
  for (int lane = 0; lane < 32; lane++) {
    assert_int_equal(access.offsets[lane], 132 * lane);
    assert_int_equal(access.banks[lane], lane);
  }
}

__global__ void load_matrices(unsigned *out) {
  const unsigned lane = threadIdx.x;
  uint32_t fragment[4];
  for (int i = 0; i < 8; i++) ((unsigned *)smem)[8 * lane + i] = lane;
  __syncwarp();
  ldmatrix_x4(fragment, smem + 32 * lane);
  out[lane] = fragment[0];
}

TEST(addresses_of_ldmatrix_are_kept) {
  lab_start(CHECKS);
  load_matrices<<<1, 32, 1024>>>(named<unsigned>("out", 32));
  const LabAccess access = only_access(LAB_LDMATRIX);
  assert_int_equal(access.lanes, 0xffffffff);
  assert_int_equal(access.size, 16);
  assert_int_equal(access.offsets[9], 32 * 9);
  assert_int_equal(access.banks[9], 8);
  assert_int_equal(access.traffic.wavefronts, 8);
  assert_int_equal(access.traffic.ideal_wavefronts, 4);
}

TEST(nothing_is_kept_unless_asked_for) {
  every_second_word<<<1, 32, 256>>>(named<float>("out", 32));
  assert_int_equal(TakenResults().access_count, 0);
}

RUN_TESTS_WITH(start_lab, stop_lab)
