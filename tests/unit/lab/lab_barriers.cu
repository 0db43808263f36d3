/** @file Barriers and warp instructions that not all threads reach, in launches that complete: the
 * lab says which threads wait where. */
#include "../tests/unit/lab/lab_testing.h"

__global__ void barrier_in_each_branch(int *out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = 1;
    __syncthreads();
  } else {
    __syncthreads();
    out[threadIdx.x] = 2;
  }
}
enum { THEN_BARRIER = __LINE__ - 6, ELSE_BARRIER = __LINE__ - 4 };

TEST(threads_at_different_barriers_are_reported) {
  barrier_in_each_branch<<<2, 16>>>(named<int>("out", 64));
  lab_start(LAB_RACES);
  barrier_in_each_branch<<<2, 64>>>(named<int>("out", 64));
  assert_finds({LAB_BARRIER_APART, THEN_BARRIER, ELSE_BARRIER, "barrier_in_each_branch",
                "2 times, first: block 0 thread 0, the other thread 16, "
                "threads 0-15 here, threads 16-63 there"});
}

/** The condition is the same for all threads of a block. */
__global__ void barrier_in_a_uniform_branch(int *out) {
  if (blockIdx.x == 0) {
    out[threadIdx.x] = 1;
    __syncthreads();
  } else {
    __syncthreads();
    out[32 + threadIdx.x] = 2;
  }
}

TEST(blocks_may_take_different_barriers) {
  assert_finds_nothing([=] { barrier_in_a_uniform_branch<<<2, 32>>>(named<int>("out", 64)); });
}

__global__ void barriers_by_warp(int *out) {
  for (unsigned i = 0; i < threadIdx.x / 32; i++) __syncthreads();
  out[threadIdx.x] = 1;
}
enum { BARRIER_BY_WARP = __LINE__ - 3 };

TEST(exits_before_a_barrier_are_reported) {
  assert_finds_nothing([=] { barriers_by_warp<<<1, 32>>>(named<int>("out", 96)); });
  barriers_by_warp<<<1, 96>>>(named<int>("out", 96));
  assert_finds({LAB_BARRIER_EXITED, BARRIER_BY_WARP, 0, "barriers_by_warp",
                "2 times, first: block 0 thread 32, threads 32-95 here, without threads 0-31"});
}

/** One barrier in the source, reached through two calls. */
static __device__ __forceinline__ void store_and_wait(int *out, int value) {
  out[threadIdx.x] = value;
  __syncthreads();
}
enum { WAIT_OF_BOTH = __LINE__ - 2 };

__global__ void barrier_in_a_function(int *out) {
  if (threadIdx.x % 2 == 0) {
    store_and_wait(out, 1);
  } else {
    store_and_wait(out + 2, 2);
  }
}

enum { FIRST_CALL = __LINE__ - 6 };

TEST(two_calls_of_one_function_are_two_barriers) {
  barrier_in_a_function<<<1, 64>>>(named<int>("out", 66));
  assert_finds({LAB_BARRIER_APART, WAIT_OF_BOTH, WAIT_OF_BOTH, "barrier_in_a_function",
                "1 time, first: block 0 thread 0, the other thread 1, threads "
                "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,... here, threads "
                "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,... there",
                FIRST_CALL, FIRST_CALL + 2});
}

/** A compiler that unrolls the loop makes several calls of the one in the source. */
__global__ void unrolled_barriers(int *out) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    out[threadIdx.x] = i;
    __syncthreads();
  }
}

TEST(an_unrolled_barrier_is_one_barrier) {
  assert_finds_nothing([=] { unrolled_barriers<<<1, 64>>>(named<int>("out", 64)); });
}

__global__ void shuffle_in_each_branch(int *out) {
  int value = (int)threadIdx.x;
  if (threadIdx.x < 8) {
    value = __shfl_xor_sync(0xffffffff, value, 1);
  } else {
    value = 1 + __shfl_xor_sync(0xffffffff, value, 1);
  }
  out[threadIdx.x] = value;
}
enum { THEN_SHUFFLE = __LINE__ - 6, ELSE_SHUFFLE = __LINE__ - 4 };

TEST(lanes_at_different_shuffles_are_reported) {
  assert_finds_nothing([=] { shuffle_in_each_branch<<<1, 8>>>(named<int>("out", 64)); });
  shuffle_in_each_branch<<<1, 64>>>(named<int>("out", 64));
  assert_finds({LAB_WARP_APART, THEN_SHUFFLE, ELSE_SHUFFLE, "shuffle_in_each_branch",
                "1 time, first: block 0 thread 0, the other thread 8, "
                "threads 0-7 here, threads 8-31 there"});
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
