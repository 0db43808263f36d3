/**
 * @file
 * Global memory that one thread writes and another reads: what orders threads of one block, and
 * blocks by release and acquire. One small kernel for each fault, with the lines that the lab
 * names, and right ones without findings, in every order of blocks and threads.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"
#include "device/ptx_hopper.cuh"

enum { THREADS = 64, BLOCKS = 6 };

static int *out_global;
static unsigned *count_global;
static float *parts_global;

static int allocate(void **state) {
  start_lab(state);
  parts_global = named_zeros<float>("parts", BLOCKS * THREADS);
  out_global = named_zeros<int>("out", 1024);
  count_global = named_zeros<unsigned>("count", 4);
  return 0;
}

/** The findings name these two lines and no others. */
static void assert_race(const char *where, int line, int other_line) {
  assert_tells_only({"finding    global memory race: ", where}, line, other_line);
  cudaMemset(count_global, 0, 4 * sizeof *count_global);
}

/* --- Threads of one block --------------------------------------------------------------------- */

typedef enum Meeting { NOTHING, BLOCK, SOME_WARPS } Meeting;

/** Each thread writes T, and reads what another warp wrote. */
template <typename T, Meeting MEETING>
__global__ void exchange(T *values, T *out) {
  values[threadIdx.x] = T{};
  if (MEETING == BLOCK) __syncthreads();
  if (MEETING == SOME_WARPS && threadIdx.x < 64) named_barrier_sync<64>(1);
  out[threadIdx.x] = __ldg(&values[threadIdx.x ^ (MEETING == SOME_WARPS ? 64 : 32)]);
}
enum { EXCHANGE_READ = __LINE__ - 2, EXCHANGE_WRITE = EXCHANGE_READ - 3 };

template <typename T>
static void expect_races_of() {
  const char *where = "another thread of the block";
  T *values = named_zeros<T>("values", 128), *read = named_zeros<T>("read", 128);
  exchange<T, BLOCK><<<1, 128>>>(values, read);
  assert_finds_nothing();
  exchange<T, NOTHING><<<1, 128>>>(values, read);
  assert_race(where, EXCHANGE_READ, EXCHANGE_WRITE);
  exchange<T, SOME_WARPS><<<1, 128>>>(values, read);
  assert_race(where, EXCHANGE_READ, EXCHANGE_WRITE);
}

TEST(threads_of_a_block_race) {
  expect_races_of<unsigned char>();
  expect_races_of<short>();
  expect_races_of<float>();
  expect_races_of<uint4>();
}

/** All warps read; some meet before the first writes. */
template <int MEETING>
__global__ void write_what_all_read(int *values, int *out) {
  out[threadIdx.x] = values[5];
  if (threadIdx.x < MEETING) named_barrier_sync<MEETING>(1);
  if (threadIdx.x == 0) *(int4 *)&values[4] = make_int4(1, 2, 3, 4);
}
enum { ALL_WRITE = __LINE__ - 2, ALL_READ = ALL_WRITE - 2 };

TEST(every_reader_of_global_memory_is_kept) {
  int *values = named_zeros<int>("values", 64);
  write_what_all_read<128><<<1, 128>>>(values, out_global);
  assert_finds_nothing();
  write_what_all_read<64><<<1, 128>>>(values, out_global);
  assert_race("write", ALL_WRITE, ALL_READ);
}

/* --- The last block merges ------------------------------------------------------------------- */

typedef enum Fault {
  NO_FAULT,
  NO_BARRIER,  /**< between the stores and the release */
  NO_RELEASE,  /**< no fence of the writer */
  EARLY_FENCE, /**< before the store */
  NO_ACQUIRE,  /**< no fence of the reader */
  NOT_LAST     /**< reads whatever the counter says */
} Fault;

/** Parts of each block, summed by the last one, which sets the counter back. */
template <Fault FAULT>
__global__ void merge(float *parts, unsigned *count, int *out) {
  __shared__ unsigned number;
  if (FAULT == EARLY_FENCE) __threadfence();
  parts[blockIdx.x * THREADS + threadIdx.x] = 1;  // STORE
  if (FAULT != NO_BARRIER) __syncthreads();
  if (threadIdx.x == 0) {
    if (FAULT != NO_RELEASE && FAULT != EARLY_FENCE) __threadfence();
    number = atomicAdd(count, 1u);
    if (FAULT != NO_ACQUIRE) __threadfence();
  }
  __syncthreads();
  const bool last = number == gridDim.x - 1;
  if (!last && !(FAULT == NOT_LAST && number == 2)) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; i++) sum += parts[i * THREADS + threadIdx.x];  // READ
  if (last) out[threadIdx.x] = (int)sum;
  if (FAULT == NO_FAULT && threadIdx.x == 0) *count = 0;
}
enum { MERGE_READ = __LINE__ - 4, MERGE_STORE = MERGE_READ - 11 };

/** The same with instructions that order memory themselves. */
template <bool RELEASES, bool ACQUIRES>
__global__ void merge_by_instructions(float *parts, unsigned *count, int *out) {
  __shared__ bool last;
  parts[blockIdx.x * THREADS + threadIdx.x] = 1;  // STORE
  __syncthreads();
  if (threadIdx.x == 0) {
    if (RELEASES && ACQUIRES) {
      last = atomic_add_acq_rel(count, 1) == gridDim.x - 1;
    } else if (RELEASES) {
      reduce_add_release(count, 1);
      last = atomicAdd(count + 1, 1u) == gridDim.x - 1 && atomicAdd(count, 0u) == gridDim.x;
    } else {
      const unsigned before = atomicAdd(count, 1u);
      last = before == gridDim.x - 1 && load_acquire(count) == gridDim.x;
    }
  }
  __syncthreads();
  if (!last) return;
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; i++) sum += parts[i * THREADS + threadIdx.x];  // READ
  out[threadIdx.x] = (int)sum;
  if (threadIdx.x == 0) atomicExch(count, 0u);
}
enum { INSTRUCTIONS_READ = __LINE__ - 4, INSTRUCTIONS_STORE = INSTRUCTIONS_READ - 16 };

static void assert_sums() {
  for (int sum : fetch<THREADS>(out_global)) assert_int_equal(sum, BLOCKS);
  assert_finds_nothing();
}

TEST(the_last_block_may_merge) {
  for (int launch = 0; launch < 3; launch++)
    merge<NO_FAULT><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_sums();
  for (int launch = 0; launch < 2; launch++) {
    merge_by_instructions<true, true><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  }
  assert_sums();
}

template <Fault FAULT>
static void expect_fault() {
  merge<FAULT><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_race("one block reads what another writes", MERGE_READ, MERGE_STORE);
}

TEST(a_merge_without_release_and_acquire_is_reported) {
  expect_fault<NO_BARRIER>();
  expect_fault<NO_RELEASE>();
  expect_fault<EARLY_FENCE>();
  expect_fault<NO_ACQUIRE>();
  expect_fault<NOT_LAST>();
  merge_by_instructions<true, false><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_race("one block reads", INSTRUCTIONS_READ, INSTRUCTIONS_STORE);
  merge_by_instructions<false, true><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_race("one block reads", INSTRUCTIONS_READ, INSTRUCTIONS_STORE);
}

/** Fences of all threads around the barriers, instead of those of thread 0. The counter is set back
 * by a plain store, which is ordered behind the atomics of all blocks. */
__global__ void merge_by_fences_of_all(float *parts, unsigned *count, int *out) {
  __shared__ bool last;
  parts[blockIdx.x * THREADS + threadIdx.x] = 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(count, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  float sum = 0;
  for (unsigned i = 0; i < gridDim.x; i++) sum += parts[i * THREADS + threadIdx.x];
  out[threadIdx.x] = (int)sum;
  if (threadIdx.x == 0) *count = 0;
}

/** Each thread publishes its own part, and the last one sums all. */
template <bool RIGHT>
__global__ void merge_by_threads(float *parts, unsigned *count, int *out) {
  parts[blockIdx.x * THREADS + threadIdx.x] = 1;  // STORE
  if (RIGHT || threadIdx.x != 7) __threadfence();
  if (atomicAdd(count, 1u) != gridDim.x * blockDim.x - 1) return;
  __threadfence();
  for (unsigned i = 0; i < gridDim.x * blockDim.x; i++) out[i % THREADS] += (int)parts[i];
}
enum { THREADS_READ = __LINE__ - 2, THREADS_STORE = THREADS_READ - 4 };

TEST(fences_and_counters_of_all_threads_order_too) {
  for (int launch = 0; launch < 2; launch++)
    merge_by_fences_of_all<<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_sums();
  cudaMemset(out_global, 0, THREADS * sizeof *out_global);
  merge_by_threads<true><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_sums();
  cudaMemset(count_global, 0, sizeof *count_global);
  merge_by_threads<false><<<BLOCKS, THREADS>>>(parts_global, count_global, out_global);
  assert_race("reads", THREADS_READ, THREADS_STORE);
}

/* --- Flags, locks and chains ------------------------------------------------------------------ */

/** The first block to draw a number produces, the second waits for its flag. */
template <bool ORDERED>
__global__ void produce_and_consume(int *data, unsigned *count, int *out) {
  __shared__ unsigned number;
  if (threadIdx.x == 0) number = atomicAdd(&count[0], 1u);
  __syncthreads();
  if (number == 0) {
    data[threadIdx.x] = 1;  // STORE
    __syncthreads();
    if (threadIdx.x == 0) ORDERED ? store_release(&count[1], 1) : (void)atomicExch(&count[1], 1u);
  } else if (number == 1) {
    if (threadIdx.x == 0) {
      while (load_acquire(&count[1]) == 0) continue;
    }
    __syncthreads();
    out[threadIdx.x] = data[threadIdx.x ^ 32];  // READ
  }
}
enum { CONSUME_READ = __LINE__ - 3, CONSUME_STORE = CONSUME_READ - 8 };

TEST(a_flag_must_be_released) {
  produce_and_consume<true><<<2, THREADS>>>((int *)parts_global, count_global, out_global);
  assert_finds_nothing();
  cudaMemset(count_global, 0, 4 * sizeof *count_global);
  produce_and_consume<false><<<2, THREADS>>>((int *)parts_global, count_global, out_global);
  assert_race("one block reads", CONSUME_READ, CONSUME_STORE);
}

/** One thread of each block adds under a lock. */
template <bool FENCED>
__global__ void add_under_a_lock(int *sum, unsigned *lock) {
  if (threadIdx.x % 32 != 0) return;
  while (atomicCAS(lock, 0u, 1u) != 0) continue;
  if (FENCED) __threadfence();
  *sum += 1;
  if (FENCED) __threadfence();
  atomicExch(lock, 0u);
}
enum { LOCKED = __LINE__ - 4 };

TEST(a_lock_needs_fences) {
  add_under_a_lock<true><<<BLOCKS, THREADS>>>(out_global, count_global);
  assert_int_equal(fetch<1>(out_global)[0], 2 * BLOCKS);
  assert_finds_nothing();
  add_under_a_lock<false><<<BLOCKS, THREADS>>>(out_global, count_global);
  assert_race("global memory race", LOCKED, LOCKED);
}

/** Blocks hand a sum on, each to the one that draws the next number, by a flag of its own. */
template <bool RIGHT>
__global__ void hand_on(int *sums, unsigned *drawn, unsigned *flags) {
  const unsigned number = atomicAdd(drawn, 1u);
  if (number > 0) {
    while (atomicAdd(&flags[number - 1], 0u) == 0) continue;
    __threadfence();
  }
  sums[number] = (int)number + (number > 0 ? sums[number - 1] : 0) + sums[0];
  if (RIGHT || number != 2) __threadfence();
  atomicExch(&flags[number], 1u);
}
enum { HANDED = __LINE__ - 4 };

TEST(knowledge_is_handed_on) {
  unsigned *flags = named_zeros<unsigned>("flags", BLOCKS);
  hand_on<true><<<BLOCKS, 1>>>((int *)parts_global, count_global, flags);
  assert_finds_nothing();
  cudaMemset(flags, 0, BLOCKS * sizeof *flags), cudaMemset(count_global, 0, sizeof *count_global);
  hand_on<false><<<BLOCKS, 1>>>((int *)parts_global, count_global, flags);
  assert_race("reads", HANDED, HANDED);
}

/** A plain access races with atomics of others, also beside fences; atomics do not race. */
template <bool PLAIN>
__global__ void watch_the_counter(unsigned *count, int *out) {
  if (threadIdx.x != 0) return;
  out[blockIdx.x] = (int)(PLAIN && blockIdx.x == 1 ? *count : atomicAdd(count, 0u));
  __threadfence();
  atomicAdd(count, 1u);
  __threadfence();
}
enum { WATCHED = __LINE__ - 5 };

TEST(a_plain_read_of_a_counter_is_reported) {
  watch_the_counter<false><<<BLOCKS, 32>>>(count_global, out_global);
  assert_finds_nothing();
  watch_the_counter<true><<<BLOCKS, 32>>>(count_global, out_global);
  assert_tells({"global memory race: one block reads what another writes"}, {WATCHED});
}

/** Waits for a thread of its own block. */
template <bool FENCED>
__global__ void wait_in_the_block(int *data, unsigned *flag, int *out) {
  if (threadIdx.x == 3) {
    *data = 1;
    if (FENCED) __threadfence();
    atomicExch(flag, 1u);
  } else if (threadIdx.x == 50) {
    while (atomicAdd(flag, 0u) == 0) continue;
    if (FENCED) __threadfence();
    *out = *data;
  }
}
enum { BLOCK_READ = __LINE__ - 3, BLOCK_WRITE = BLOCK_READ - 6 };

TEST(release_and_acquire_order_threads_of_a_block) {
  wait_in_the_block<true><<<1, THREADS>>>((int *)parts_global, count_global, out_global);
  assert_finds_nothing();
  cudaMemset(count_global, 0, sizeof *count_global);
  wait_in_the_block<false><<<1, THREADS>>>((int *)parts_global, count_global, out_global);
  assert_race("another thread of the block", BLOCK_READ, BLOCK_WRITE);
}

RUN_IN_ALL_SETTINGS("lab", allocate, stop_lab)
