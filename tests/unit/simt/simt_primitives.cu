/** @file Tests of launches, barriers, atomics and shared memory. */
#include <pthread.h>

#include "../tests/unit/simt/simt_testing.h"

extern __shared__ __align__(16) unsigned char smem[];

/* --- Indices -------------------------------------------------------------------------------- */

__global__ void count_visits(int *visits) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  visits[block * threads + thread] += 1 + (int)blockDim.y * 10 + (int)gridDim.z * 100;
}

TEST(every_thread_of_a_3d_grid_runs_once) {
  int *device = device_zeros<int>(2 * 3 * 4 * 60);
  count_visits<<<dim3(2, 3, 4), dim3(5, 4, 3)>>>(device);
  for (int visit : fetch<2 * 3 * 4 * 60>(device)) assert_int_equal(visit, 441);
}

__global__ void mark_block(unsigned char *marks) {
  marks[blockIdx.x]++;
}

TEST(a_grid_may_have_more_than_65535_blocks) {
  unsigned char *device = device_zeros<unsigned char>(70001);
  mark_block<<<70001, 1>>>(device);
  for (unsigned char mark : fetch<70001>(device)) assert_int_equal(mark, 1);
}

/* --- Barriers ------------------------------------------------------------------------------- */

/** Each round reverses the block's numbers through shared memory. */
__global__ void reverse_rounds(int *out, int rounds) {
  __shared__ int numbers[1024];
  const int t = threadIdx.x, n = blockDim.x;
  int number = t;
  for (int round = 0; round < rounds; round++) {
    numbers[t] = number;
    __syncthreads();
    number = numbers[n - 1 - t];
    __syncthreads();
  }
  out[blockIdx.x * n + t] = number;
}

TEST(a_barrier_separates_writes_from_reads_in_1024_threads) {
  int *device = device_zeros<int>(4 * 1024);
  reverse_rounds<<<4, 1024>>>(device, 7);
  const auto out = fetch<4 * 1024>(device);
  for (int i = 0; i < 4 * 1024; i++) assert_int_equal(out[i], 1023 - i % 1024);
}

__global__ void barrier_predicates(int *out) {
  const int t = threadIdx.x;
  int right = 1;
  for (int round = 0; round < 10; round++) {
    right &= __syncthreads_count(t % 3 == 0) == 34;
    right &= __syncthreads_or(t == 7 * round) == 1;
    right &= __syncthreads_or(0) == 0;
    right &= __syncthreads_and(1) == 1;
    right &= __syncthreads_and(t != 99) == 0;
  }
  out[t] = right;
}

TEST(barriers_count_their_predicates) {
  int *device = device_zeros<int>(100);
  barrier_predicates<<<1, 100>>>(device);
  for (int right : fetch<100>(device)) assert_int_equal(right, 1);
}

__global__ void leave_before_barrier(int *out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (threadIdx.x % 3 == 1) return;
  atomicAdd(&sum, 1);
  __syncthreads();
  out[threadIdx.x] = sum;
}

TEST(a_barrier_does_not_wait_for_threads_that_have_exited) {
  int *device = device_zeros<int>(96);
  leave_before_barrier<<<1, 96>>>(device);
  const auto out = fetch<96>(device);
  for (int t = 0; t < 96; t++) assert_int_equal(out[t], t % 3 == 1 ? 0 : 64);
}

/* --- Atomics -------------------------------------------------------------------------------- */

struct Totals {
  int sum, most, least, difference;
  unsigned unsigned_sum, unsigned_most, unsigned_least, all, any, odd, counted, counted_down;
  unsigned long long long_sum, unsigned_long_most, long_all, long_any, long_odd;
  long long long_most, long_least;
  double double_sum;
  float float_sum;
  int swaps;
};

__global__ void add_all(Totals *totals) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&totals->sum, -i);
  atomicAdd(&totals->unsigned_sum, (unsigned)i);
  atomicAdd(&totals->long_sum, 1ull << 32);
  atomicAdd(&totals->float_sum, 0.5f);
  atomicAdd(&totals->double_sum, 0.25);
  atomicMax(&totals->most, i - 100);
  atomicMin(&totals->least, -i);
  atomicMax(&totals->unsigned_most, (unsigned)i | 0x80000000u);
  atomicMin(&totals->unsigned_least, (unsigned)i | 0x80000000u);
  atomicOr(&totals->any, 1u << i % 32);
  atomicAnd(&totals->all, ~(1u << i % 16));
  atomicXor(&totals->odd, (unsigned)i);
  atomicInc(&totals->counted, 6);
  atomicDec(&totals->counted_down, 6);
  atomicSub(&totals->difference, i);
  atomicMax(&totals->long_most, i * (1ll << 32));
  atomicMin(&totals->long_least, -i * (1ll << 32));
  atomicMax(&totals->unsigned_long_most, (unsigned long long)i << 51);
  atomicOr(&totals->long_any, 1ull << i % 64);
  atomicAnd(&totals->long_all, ~(1ull << i % 48));
  atomicXor(&totals->long_odd, (unsigned long long)i << 32);
  int seen = totals->swaps, expected;
  do {
    expected = seen;
    seen = atomicCAS(&totals->swaps, expected, expected + 1);
  } while (seen != expected);
}

TEST(atomics_lose_nothing_between_blocks) {
  Totals start = {}, *device = device_zeros<Totals>(1);
  start.unsigned_least = start.all = 0xffffffff;
  start.long_all = ~0ull;
  assert_int_equal(cudaMemcpy(device, &start, sizeof start, cudaMemcpyHostToDevice), cudaSuccess);
  add_all<<<50, 100>>>(device);
  const Totals totals = fetch<1>(device)[0];
  assert_int_equal(totals.sum, -12497500);
  assert_int_equal(totals.unsigned_sum, 12497500);
  assert_true(totals.long_sum == 5000ull << 32);
  assert_true(totals.float_sum == 2500.0f);
  assert_true(totals.double_sum == 1250.0);
  assert_int_equal(totals.most, 4899);
  assert_int_equal(totals.least, -4999);
  assert_int_equal(totals.unsigned_most, 0x80001387u);
  assert_int_equal(totals.unsigned_least, 0x80000000u);
  assert_int_equal(totals.any, 0xffffffffu);
  assert_int_equal(totals.all, 0xffff0000u);
  unsigned odd = 0;
  for (unsigned i = 0; i < 5000; i++) odd ^= i;
  assert_int_equal(totals.odd, odd);
  assert_int_equal(totals.counted, 5000 % 7);
  assert_int_equal(totals.counted_down, 7 - 5000 % 7);
  assert_int_equal(totals.difference, -12497500);
  assert_true(totals.long_most == 4999ll << 32);
  assert_true(totals.long_least == -4999 * (1ll << 32));
  assert_true(totals.unsigned_long_most == 4999ull << 51);
  assert_true(totals.long_any == ~0ull);
  assert_true(totals.long_all == 0xffffull << 48);
  assert_true(totals.long_odd == (unsigned long long)odd << 32);
  assert_int_equal(totals.swaps, 5000);
}

/**
 * A lock that threads of one block spin on, across warps and within them. Thread 0 has it from the
 * start, and keeps it until the last thread has tried to take it and failed.
 */
__global__ void lock_and_add(int *out) {
  __shared__ int lock, sum, refused;
  if (threadIdx.x == 0) {
    sum = refused = 0;
    lock = 1;
  }
  __syncthreads();
  bool has_lock = threadIdx.x == 0;
  while (has_lock && atomicAdd(&refused, 0) == 0) {
  }
  for (bool done = false; !done;) {
    if (!has_lock && atomicCAS(&lock, 0, 1) != 0) {
      if (threadIdx.x == blockDim.x - 1) atomicExch(&refused, 1);
      continue;
    }
    const int before = sum;
    atomicAdd(out + 1, 1); /* a point at which other threads can run while the lock is held */
    sum = before + 1;
    atomicExch(&lock, 0);
    done = true;
  }
  __syncthreads();
  out[0] = sum;
}

TEST(threads_of_a_block_may_spin_on_a_lock) {
  int *device = device_zeros<int>(2);
  lock_and_add<<<1, 80>>>(device);
  for (int count : fetch<2>(device)) assert_int_equal(count, 80);
}

/** Threads 0 and 79 alternate in counting up a variable that only fences order. */
__global__ void spin_on_flag(int *out, int rounds) {
  __shared__ volatile int turn;
  if (threadIdx.x == 0) turn = 0;
  __syncthreads();
  const int parity = threadIdx.x == 0 ? 0 : 1;
  if (threadIdx.x != 0 && threadIdx.x != 79) return;
  for (int i = 0; i < rounds; i++) {
    while (turn % 2 != parity) {
      if (i % 3 == 0) __threadfence();
      if (i % 3 == 1) __threadfence_block();
      if (i % 3 == 2) __nanosleep(100);
    }
    turn = turn + 1;
  }
  out[parity] = turn;
}

TEST(threads_of_a_block_may_spin_on_a_flag_with_a_fence) {
  int *device = device_zeros<int>(2);
  spin_on_flag<<<1, 80>>>(device, 50);
  assert_int_equal(fetch<2>(device)[1], 100);
}

/* --- Shared memory -------------------------------------------------------------------------- */

template <int SIZE>
__global__ void static_shared(int *out) {
  __shared__ int mine[SIZE];
  for (int i = threadIdx.x; i < SIZE; i += blockDim.x) mine[i] = (int)blockIdx.x;
  __syncthreads();
  int wrong = 0;
  for (int i = 0; i < SIZE; i++) wrong += mine[i] != (int)blockIdx.x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = wrong;
}

TEST(blocks_do_not_share_shared_memory) {
  int *device = device_zeros<int>(40 * 33);
  cudaMemset(device, 0xff, 40 * 33 * sizeof *device);
  static_shared<100><<<40, 33>>>(device);
  for (int wrong : fetch<40 * 33>(device)) assert_int_equal(wrong, 0);
}

__global__ void dynamic_shared(int *out, int words) {
  int *numbers = (int *)smem;
  int stale = 0;
  for (int i = threadIdx.x; i < words; i += blockDim.x) stale += numbers[i] != -1;
  for (int i = threadIdx.x; i < words; i += blockDim.x) numbers[i] = i;
  __syncthreads();
  int wrong = stale;
  for (int i = threadIdx.x; i < words; i += blockDim.x)
    wrong += numbers[words - 1 - i] != words - 1 - i;
  out[blockIdx.x * blockDim.x + threadIdx.x] = wrong + ((uintptr_t)smem % 128 != 0);
}

TEST(all_227_kilobytes_of_dynamic_shared_memory_are_there) {
  int *device = device_zeros<int>(5 * 64);
  cudaMemset(device, 0xff, 5 * 64 * sizeof *device);
  const int bytes = 227 * 1024;
  assert_int_equal(
      cudaFuncSetAttribute(dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
      cudaSuccess);
  dynamic_shared<<<5, 64, bytes>>>(device, bytes / 4);
  for (int wrong : fetch<5 * 64>(device)) assert_int_equal(wrong, 0);
}

/* --- Launches ------------------------------------------------------------------------------- */

__global__ void note_indices(uint3 *out) {
  const int i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[i] = threadIdx;
}

TEST(threads_are_numbered_anew_when_only_y_and_z_change) {
  uint3 *device = device_zeros<uint3>(64);
  for (dim3 block : {dim3(4, 16, 1), dim3(4, 2, 8), dim3(4, 8, 2)}) {
    note_indices<<<1, block>>>(device);
    const auto out = fetch<64>(device);
    for (unsigned i = 0; i < 64; i++) {
      assert_int_equal(out[i].x, i % 4);
      assert_int_equal(out[i].y, i / 4 % block.y);
      assert_int_equal(out[i].z, i / 4 / block.y);
    }
  }
}

__global__ void count_up(int *counter) {
  __syncthreads();
  atomicAdd(counter, 1);
}

static void *launch_many(void *counter) {
  for (int i = 0; i < 100; i++) count_up<<<3, 40>>>((int *)counter);
  return nullptr;
}

TEST(two_host_threads_may_launch) {
  int *device = device_zeros<int>(1);
  pthread_t other;
  assert_int_equal(pthread_create(&other, nullptr, launch_many, device), 0);
  launch_many(device);
  pthread_join(other, nullptr);
  assert_int_equal(fetch<1>(device)[0], 2 * 100 * 3 * 40);
}

struct Parameters {
  int a, b[10];
  const float *nothing;
};

__global__ void take_parameters(Parameters p, double d, short s, int *out) {
  p.a += (int)d + s; /* each thread has its own copy */
  out[threadIdx.x] = p.a + p.b[9] + (p.nothing == nullptr);
}

TEST(arguments_are_converted_and_copied_for_each_thread) {
  int *device = device_zeros<int>(32);
  Parameters p = {1, {0, 0, 0, 0, 0, 0, 0, 0, 0, 20}, nullptr};
  take_parameters<<<2, 32, 0, cudaStream_t{}>>>(p, 300, (short)4000, device);
  for (int x : fetch<32>(device)) assert_int_equal(x, 4322);
}

__global__ void greet() {
  if (threadIdx.x == 0) printf("a kernel prints %d and %.2f\n", 42, 1.5);
}

TEST(kernels_may_print) {
  greet<<<1, 32>>>();
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

__global__ void do_one_of_each(int *out) {
  for (int i = 0; i < 3; i++) __syncthreads();
  const int value = __shfl_sync(0xffffffff, 1, 0) + __any_sync(0xffffffff, 1);
  __syncwarp();
  atomicAdd(out, value);
}

TEST(counters_count) {
  SimtCounters counters;
  int *device = device_zeros<int>(1);
  do_one_of_each<<<5, 64>>>(device);
  do_one_of_each<<<dim3(1, 2), dim3(8, 4)>>>(device);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  simt_read_counters(&counters);
  assert_int_equal(counters.launches, 2);
  assert_int_equal(counters.blocks, 7);
  assert_int_equal(counters.threads, 5 * 64 + 2 * 32);
  assert_int_equal(counters.barriers, 7 * 3);
  assert_int_equal(counters.warp_instructions[SIMT_SHUFFLE], 5 * 2 + 2);
  assert_int_equal(counters.warp_instructions[SIMT_VOTE], 5 * 2 + 2);
  assert_int_equal(counters.warp_instructions[SIMT_SYNCWARP], 5 * 2 + 2);
  assert_int_equal(counters.atomics, 5 * 64 + 2 * 32);
  simt_reset_counters();
  simt_read_counters(&counters);
  assert_int_equal(counters.launches, 0);
}

RUN_IN_ALL_SETTINGS("primitives", reset_device, nullptr)
