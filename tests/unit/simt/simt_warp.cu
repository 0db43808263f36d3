/** @file Tests of warp instructions: shuffles, votes, __syncwarp, in whole and diverged warps. */
#include "../tests/unit/simt/simt_testing.h"

/* --- Shuffles and votes --------------------------------------------------------------------- */

template <typename T>
__global__ void shuffle_all(T *out) {
  const int lane = threadIdx.x % 32;
  const T value = T(lane) * T(3);
  T *row = out + threadIdx.x * 6;
  row[0] = __shfl_sync(0xffffffff, value, lane + 5);
  row[1] = __shfl_sync(0xffffffff, value, 9, 8);
  row[2] = __shfl_up_sync(0xffffffff, value, 3);
  row[3] = __shfl_down_sync(0xffffffff, value, 2, 16);
  row[4] = __shfl_xor_sync(0xffffffff, value, 17);
  row[5] = __shfl_xor_sync(0xffffffff, value, 4, 4);
}

template <typename T>
static void check_shuffles() {
  T *device = device_zeros<T>(64 * 6);
  shuffle_all<T><<<1, 64>>>(device);
  const auto out = fetch<64 * 6>(device);
  for (int t = 0; t < 64; t++) {
    const int lane = t % 32;
    /* width 4, lane mask 4: a lane of an earlier group can be read; else the own value results */
    const int expected[] = {(lane + 5) % 32,
                            lane / 8 * 8 + 1,
                            lane >= 3 ? lane - 3 : lane,
                            lane % 16 < 14 ? lane + 2 : lane,
                            lane ^ 17,
                            lane & 4 ? lane - 4 : lane};
    for (int i = 0; i < 6; i++) assert_true(out[t * 6 + i] == T(expected[i]) * T(3));
  }
}

TEST(shuffles_exchange_values_of_4_and_8_bytes) {
  check_shuffles<int>();
  check_shuffles<unsigned>();
  check_shuffles<float>();
  check_shuffles<double>();
  check_shuffles<long long>();
}

__global__ void vote_all(unsigned *out) {
  const unsigned lane = threadIdx.x % 32;
  unsigned *row = out + threadIdx.x * 5;
  row[0] = __ballot_sync(0xffffffff, lane % 3 == 0);
  row[1] = (unsigned)__any_sync(0xffffffff, lane == 31);
  row[2] = (unsigned)__any_sync(0xffffffff, 0);
  row[3] = (unsigned)__all_sync(0xffffffff, 1);
  row[4] = (unsigned)__all_sync(0xffffffff, lane != 0);
}

TEST(votes_see_all_lanes) {
  unsigned *device = device_zeros<unsigned>(64 * 5);
  vote_all<<<1, 64>>>(device);
  const auto out = fetch<64 * 5>(device);
  for (int t = 0; t < 64; t++) {
    const unsigned expected[] = {0x49249249, 1, 0, 1, 0};
    assert_memory_equal(&out[5 * t], expected, sizeof expected);
  }
}

__global__ void reduce_all(int *out) {
  const int lane = threadIdx.x % 32;
  const unsigned unsigned_lane = (unsigned)lane;
  int *row = out + threadIdx.x * 10;
  row[0] = __reduce_add_sync(0xffffffff, lane - 3);
  row[1] = (int)__reduce_add_sync(0xffffffff, 0x80000000u + unsigned_lane);
  row[2] = __reduce_min_sync(0xffffffff, 5 - lane);
  row[3] = (int)__reduce_min_sync(0xffffffff, 5u - unsigned_lane);
  row[4] = __reduce_max_sync(0xffffffff, lane - 40);
  row[5] = (int)__reduce_max_sync(0xffffffff, unsigned_lane - 5u);
  row[6] = (int)__reduce_and_sync(0xffffffff, unsigned_lane | 0xf0);
  row[7] = (int)__reduce_or_sync(0xffffffff, unsigned_lane << 8);
  row[8] = (int)__reduce_xor_sync(0xffffffff, unsigned_lane / 31);
  row[9] = lane < 8 ? __reduce_add_sync(0x000000ff, lane) : __reduce_add_sync(0xffffff00, lane);
}

TEST(reductions_are_of_all_lanes_in_the_mask) {
  int *device = device_zeros<int>(64 * 10);
  SimtCounters counters;
  reduce_all<<<1, 64>>>(device);
  const auto out = fetch<64 * 10>(device);
  for (int t = 0; t < 64; t++) {
    const int expected[] = {400, 496, -26, 0, -9, -1, 0xf0, 0x1f00, 1, t % 32 < 8 ? 28 : 468};
    assert_memory_equal(&out[10 * t], expected, sizeof expected);
  }
  simt_read_counters(&counters);
  assert_int_equal(counters.warp_instructions[SIMT_REDUCTION], 2 * 11);
}

__global__ void match_all(unsigned *out, unsigned long long high) {
  const int lane = threadIdx.x % 32;
  unsigned *row = out + threadIdx.x * 7;
  int same;
  row[0] = __match_any_sync(0xffffffff, lane / 8);
  row[1] = __match_any_sync(0xffffffff, high * (unsigned)(lane % 2) + 5);
  row[2] = __match_any_sync(0xffffffff, lane < 3 ? 0.5f : (float)lane);
  row[3] = __match_all_sync(0xffffffff, 7, &same) + (unsigned)same;
  row[4] = __match_all_sync(0xffffffff, lane == 31, &same) + (unsigned)same;
  if (lane < 20) {
    row[5] = __match_any_sync(0x000fffff, lane % 10);
    row[6] = __match_all_sync(0x000fffff, 3.0, &same);
  }
}

TEST(matches_compare_bits_within_the_mask) {
  unsigned *device = device_zeros<unsigned>(64 * 7);
  match_all<<<1, 64>>>(device, 1ull << 40);
  const auto out = fetch<64 * 7>(device);
  for (int t = 0; t < 64; t++) {
    const int lane = t % 32;
    const unsigned expected[] = {0xffu << lane / 8 * 8,
                                 lane % 2 ? 0xaaaaaaaa : 0x55555555,
                                 lane < 3 ? 7u : 1u << lane,
                                 0, /* 0xffffffff + 1 */
                                 0,
                                 lane < 20 ? 0x401u << lane % 10 : 0,
                                 lane < 20 ? 0xfffffu : 0};
    assert_memory_equal(&out[7 * t], expected, sizeof expected);
  }
}

__global__ void ask_who_is_active(unsigned *out) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  out[thread] = __activemask();
  out[80 + thread] = __shfl_sync(__activemask(), threadIdx.y, thread % 32);
}

TEST(an_active_mask_has_the_own_lane_and_serves_as_a_mask) {
  unsigned *device = device_zeros<unsigned>(160);
  ask_who_is_active<<<1, dim3(40, 2)>>>(device);
  const auto out = fetch<160>(device);
  for (int t = 0; t < 80; t++) {
    assert_int_equal(out[t], 1u << t % 32);
    assert_int_equal(out[80 + t], t / 40);
  }
}

/* --- Divergence ----------------------------------------------------------------------------- */

__global__ void halves_apart(int *out) {
  const int lane = threadIdx.x % 32;
  int sum = lane;
  if (lane < 16) {
    for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(0x0000ffff, sum, offset);
  } else {
    const unsigned ballot = __ballot_sync(0xffff0000, lane % 2);
    for (int offset = 8; offset > 0; offset /= 2) sum -= __shfl_xor_sync(0xffff0000, sum, offset);
    sum += (int)(ballot >> 16);
  }
  out[threadIdx.x] = sum;
}

TEST(half_warps_shuffle_separately) {
  int *device = device_zeros<int>(64);
  halves_apart<<<1, 64>>>(device);
  const auto out = fetch<64>(device);
  for (int t = 0; t < 64; t++) {
    if (t % 32 < 16) assert_int_equal(out[t], 120);
    /* +8 or -8 after the first step, and the same in both lanes of every later pair */
    if (t % 32 >= 16) assert_int_equal(out[t], 0xaaaa);
  }
}

__global__ void nested_groups(int *out) {
  const int lane = threadIdx.x % 32;
  int value = -1;
  if (lane % 2 == 0) {
    if (lane % 4 == 0) {
      value = __shfl_sync(0x11111111, lane, 28);
    } else {
      value = __shfl_sync(0x44444444, lane, 2);
    }
    value += 100 * __popc(__ballot_sync(0x55555555, lane < 8));
  }
  __syncwarp();
  value += 1000 * __shfl_sync(0xffffffff, lane, 31 - lane);
  out[threadIdx.x] = value;
}

TEST(nested_branches_reconverge) {
  int *device = device_zeros<int>(64);
  nested_groups<<<1, 64>>>(device);
  const auto out = fetch<64>(device);
  for (int t = 0; t < 64; t++) {
    const int lane = t % 32;
    const int inner = lane % 2 == 1 ? -1 : 400 + (lane % 4 == 0 ? 28 : 2);
    assert_int_equal(out[t], inner + 1000 * (31 - lane));
  }
}

/** Lane 0 waits for lane 1, which first exchanges values with lane 2. */
__global__ void chain_of_pairs(int *out) {
  const int lane = threadIdx.x;
  int value = lane;
  if (lane == 1 || lane == 2) value += __shfl_xor_sync(0x6, lane, 3);
  if (lane == 0 || lane == 1) value += 10 * __shfl_xor_sync(0x3, lane, 1);
  out[lane] = value;
}

TEST(a_lane_may_exchange_with_others_in_sequence) {
  int *device = device_zeros<int>(32);
  chain_of_pairs<<<1, 32>>>(device);
  const auto out = fetch<32>(device);
  assert_int_equal(out[0], 10);
  assert_int_equal(out[1], 3);
  assert_int_equal(out[2], 3);
}

__global__ void some_lanes_leave(int *out) {
  const int lane = threadIdx.x % 32;
  if (lane >= 20) return;
  int sum = 0;
  for (int i = 0; i < 20; i++) sum += __shfl_sync(0xffffffff, lane, i);
  if (lane >= 10) return;
  out[threadIdx.x] = sum + (int)__ballot_sync(0xffffffff, 1);
}

TEST(warp_instructions_do_not_wait_for_lanes_that_have_exited) {
  int *device = device_zeros<int>(64);
  some_lanes_leave<<<1, 64>>>(device);
  const auto out = fetch<64>(device);
  for (int t = 0; t < 64; t++) assert_int_equal(out[t], t % 32 < 10 ? 190 + 0x3ff : 0);
}

__global__ void read_missing_lane(float *out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_down_sync(0xffff, 1.0f, 8);
}

TEST(a_lane_that_takes_no_part_gives_nan) {
  float *device = device_zeros<float>(16);
  read_missing_lane<<<1, 32>>>(device);
  const auto out = fetch<16>(device);
  for (int lane = 0; lane < 8; lane++) assert_true(out[lane] == 1.0f);
  for (int lane = 8; lane < 16; lane++) assert_true(std::isnan(out[lane]));
}

__global__ void exchange_in_warp(int *out) {
  __shared__ int numbers[64];
  const int t = threadIdx.x;
  for (int round = 0; round < 5; round++) {
    numbers[t] = t + round;
    __syncwarp();
    out[t] = numbers[t ^ 31];
    __syncwarp();
  }
}

TEST(syncwarp_separates_writes_from_reads) {
  int *device = device_zeros<int>(64);
  exchange_in_warp<<<1, 64>>>(device);
  const auto out = fetch<64>(device);
  for (int t = 0; t < 64; t++) assert_int_equal(out[t], (t ^ 31) + 4);
}

RUN_IN_ALL_SETTINGS("warp instructions", reset_device, nullptr)
