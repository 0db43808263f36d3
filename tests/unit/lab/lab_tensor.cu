/** @file What the lab finds of mbarriers and tensor copies: one small kernel for each fault. */
#include "../tests/unit/lab/lab_hopper.h"

enum { BOX_BYTES = 1024 };

/** A map of 8 rows of 64 elements, which are one box. */
static CUtensorMap box_map() {
  return matrix_map(named_zeros<uint16_t>("tensor", 512), 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
}

typedef enum Order { UNORDERED, BY_MBARRIER, BY_NAME, BY_BLOCK } Order;

/** Warp 0 loads and waits. Warp 1 waits for another load, which says nothing about the first. */
template <Order ORDER, bool WRITES>
__global__ void use_loaded(const __grid_constant__ CUtensorMap map, int *out) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS), *other = full + 1, *handed = full + 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; i++) mbarrier_init(full + i, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(full, BOX_BYTES);
    tma_load(smem, map, full, 0, 0, 0, 0);  // LOAD
    mbarrier_arrive_expect(other, BOX_BYTES);
    tma_load(smem + BOX_BYTES, map, other, 0, 0, 0, 0);
  }
  mbarrier_wait(threadIdx.x < 32 ? full : other, 0);
  if (ORDER == BY_MBARRIER && threadIdx.x == 0) mbarrier_arrive(handed);
  if (ORDER == BY_MBARRIER && threadIdx.x >= 32) mbarrier_wait(handed, 0);
  if (ORDER == BY_NAME && threadIdx.x < 32) named_barrier_arrive<64>(1);
  if (ORDER == BY_NAME && threadIdx.x >= 32) named_barrier_sync<64>(1);
  if (ORDER == BY_BLOCK) __syncthreads();
  int *place = (int *)smem + 5;
  if (!WRITES && threadIdx.x == 40) out[0] = *place;
  if (WRITES && threadIdx.x == 40) *place = 1;
}
enum { USE_READ = __LINE__ - 3, USE_WRITE = __LINE__ - 2, USE_LOAD = __LINE__ - 14 };

TEST(what_a_copy_brings_needs_a_wait) {
  const CUtensorMap map = box_map();
  int *out = named<int>("out", 1);
  use_loaded<BY_MBARRIER, false><<<1, 64, SHARED>>>(map, out);
  use_loaded<BY_NAME, false><<<1, 64, SHARED>>>(map, out);
  use_loaded<BY_BLOCK, false><<<1, 64, SHARED>>>(map, out);
  use_loaded<BY_MBARRIER, true><<<1, 64, SHARED>>>(map, out);
  assert_finds_nothing();
  const char *first =
      "1 time, first: block 0 thread 40, the other thread 0, dynamic shared "
      "memory + 20\n";
  use_loaded<UNORDERED, false><<<1, 64, SHARED>>>(map, out);
  expect_finding(LAB_TENSOR_NOT_WAITED, USE_READ, USE_LOAD, first);
  use_loaded<UNORDERED, true><<<1, 64, SHARED>>>(map, out);
  expect_finding(LAB_TENSOR_NOT_WAITED, USE_WRITE, USE_LOAD, first);
}

/** A thread reads what others have written, one of its own warp first. */
template <Order ORDER>
__global__ void exchange(int *out, int *flag) {
  uint64_t *all = (uint64_t *)(smem + BARRIERS);
  int *place = (int *)smem;
  if (threadIdx.x == 0) mbarrier_init(all, ORDER == UNORDERED ? 1 : 64);
  __syncthreads();
  place[threadIdx.x] = 1;
  if (ORDER == UNORDERED && threadIdx.x == 7) raise_flag(flag);
  if (ORDER == UNORDERED && threadIdx.x == 0) await_flag(flag);
  if (ORDER == BY_MBARRIER || (ORDER == UNORDERED && threadIdx.x == 0)) mbarrier_arrive(all);
  if (ORDER == BY_NAME) named_barrier_sync<64>(1);
  if (ORDER != BY_NAME) mbarrier_wait(all, 0);
  if (threadIdx.x == 9) out[0] = place[7];
  if (threadIdx.x == 9 && ORDER != UNORDERED) out[1] = place[47];
}
enum { EXCHANGE_READ = __LINE__ - 3, EXCHANGE_WRITE = __LINE__ - 9 };

TEST(barriers_order_the_lanes_that_arrive) {
  int *out = named<int>("out", 2), *flag = named_zeros<int>("flag", 1);
  exchange<BY_MBARRIER><<<1, 64, SHARED>>>(out, flag);
  exchange<BY_NAME><<<1, 64, SHARED>>>(out, flag);
  assert_finds_nothing();
  exchange<UNORDERED><<<1, 64, SHARED>>>(out, flag);
  expect_finding(LAB_RACE_WRITE_READ, EXCHANGE_READ, EXCHANGE_WRITE,
                 "1 time, first: block 0 thread 9, the other thread 7, dynamic shared memory + 28");
}

/** Two arrivals end a phase. Thread 0 writes in phase 1; thread 40 waits for phase PHASE. */
template <int PHASE>
__global__ void wait_for_phase(int *out, int *flag) {
  uint64_t *barrier = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(barrier, 2), fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive(barrier), mbarrier_arrive(barrier);
    *(int *)smem = 1;  // WRITE
    mbarrier_arrive(barrier);
    if (PHASE == 1) mbarrier_arrive(barrier);
    raise_flag(flag);
  } else if (threadIdx.x == 40) {
    await_flag(flag);
    mbarrier_wait(barrier, PHASE);
    out[0] = *(int *)smem;
  }
}
enum { PHASE_READ = __LINE__ - 3, PHASE_WRITE = __LINE__ - 10 };

TEST(an_arrival_counts_for_its_phase) {
  int *out = named<int>("out", 1), *flag = named_zeros<int>("flag", 2);
  assert_finds_nothing([=] { wait_for_phase<1><<<1, 64, SHARED>>>(out, flag); });
  wait_for_phase<0><<<1, 64, SHARED>>>(out, flag + 1);
  expect_finding(LAB_RACE_WRITE_READ, PHASE_READ, PHASE_WRITE,
                 "1 time, first: block 0 thread 40, the other thread 0, dynamic shared memory + 0");
}

template <bool ORDERED>
__global__ void load_over_read(const __grid_constant__ CUtensorMap map, int *out, int *flag) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS), *empty = full + 1;
  if (threadIdx.x == 0) mbarrier_init(full, 1), mbarrier_init(empty, 1), fence_mbarrier_init();
  ((int *)smem)[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 40) {
    out[0] = ((int *)smem)[5];  // READ
    ORDERED ? mbarrier_arrive(empty) : raise_flag(flag);
  }
  if (threadIdx.x == 0) {
    ORDERED ? mbarrier_wait(empty, 0) : await_flag(flag);
    mbarrier_arrive_expect(full, BOX_BYTES);
    tma_load(smem, map, full, 0, 0, 0, 0);
  }
  mbarrier_wait(full, 0);
}
enum { OVER_LOAD = __LINE__ - 4, OVER_READ = __LINE__ - 10 };

TEST(a_load_over_what_is_read_needs_an_order) {
  const CUtensorMap map = box_map();
  int *out = named<int>("out", 1), *flag = named_zeros<int>("flag", 1);
  assert_finds_nothing([=] { load_over_read<true><<<1, 64, SHARED>>>(map, out, flag); });
  load_over_read<false><<<1, 64, SHARED>>>(map, out, flag);
  expect_finding(
      LAB_TENSOR_OVER_READ, OVER_LOAD, OVER_READ,
      "1 time, first: block 0 thread 0, the other thread 40, dynamic shared memory + 16");
}

typedef enum Fault { NO_FAULT, NO_PROXY_FENCE, OVERWRITES } Fault;

template <Fault FAULT>
__global__ void store_box(const __grid_constant__ CUtensorMap map) {
  for (int i = threadIdx.x; i < 256; i += 64) ((int *)smem)[i] = i;  // FILL
  if (FAULT != NO_PROXY_FENCE) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  tma_store(map, smem, 0, 0, 0, 0);
  tma_store_commit();
  if (FAULT == OVERWRITES) ((int *)smem)[5] = 1;
  tma_store_wait<0>();
  ((int *)smem)[5] = 2;
}
enum { STORE = __LINE__ - 6, STORE_FILL = STORE - 4, STORE_OVERWRITES = STORE + 2 };

TEST(a_store_reads_until_its_wait) {
  const CUtensorMap map = box_map();
  assert_finds_nothing([=] { store_box<NO_FAULT><<<1, 64, SHARED>>>(map); });
  store_box<NO_PROXY_FENCE><<<1, 64, SHARED>>>(map);
  expect_finding(LAB_NO_PROXY_FENCE, STORE, STORE_FILL,
                 "256 times, first: block 0 thread 0, the other thread 0, dynamic shared memory");
  store_box<OVERWRITES><<<1, 64, SHARED>>>(map);
  expect_finding(LAB_ASYNC_OVER_READ, STORE_OVERWRITES, STORE,
                 "1 time, first: block 0 thread 0, the other thread 0, dynamic shared memory + 20");
}

/** Adds 64 floats of shared memory to those in global memory. */
template <Fault FAULT>
__global__ void add_floats(float *sums) {
  ((float *)smem)[threadIdx.x] = 1;  // FILL
  if (FAULT != NO_PROXY_FENCE) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  bulk_reduce_add(sums, (float *)smem, 256);
  tma_store_commit();
  if (FAULT == OVERWRITES) ((int *)smem)[5] = 1;
  tma_store_wait<0>();
}
enum { ADD = __LINE__ - 5, ADD_FILL = ADD - 4, ADD_OVERWRITES = ADD + 2 };

TEST(a_bulk_reduction_is_a_store_that_adds) {
  float *sums = named_zeros<float>("sums", 64);
  add_floats<NO_FAULT><<<1, 64, SHARED>>>(sums);
  assert_finds_nothing();
  add_floats<NO_PROXY_FENCE><<<1, 64, SHARED>>>(sums);
  expect_finding(LAB_NO_PROXY_FENCE, ADD, ADD_FILL,
                 "64 times, first: block 0 thread 0, the other thread 0, dynamic shared memory");
  add_floats<OVERWRITES><<<1, 64, SHARED>>>(sums);
  expect_finding(LAB_ASYNC_OVER_READ, ADD_OVERWRITES, ADD,
                 "1 time, first: block 0 thread 0, the other thread 0, dynamic shared memory + 20");
  add_floats<NO_FAULT><<<2, 64, SHARED>>>(sums);
  const TakenResults results;
  assert_int_equal(results.kernels[0].counts.atomics, 128);
  assert_finds({LAB_SUM_UNORDERED, ADD, ADD, "add_floats<",
                "256 bytes, first: block 0, the other block 1, sums + 0 (256 bytes)"});
}

/** Without a barrier after the initialisation, which the other warp may overtake. */
__global__ void use_before_it_is_visible(int *flag) {
  uint64_t *barrier = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    raise_flag(flag);
  } else if (threadIdx.x == 32) {
    await_flag(flag);
    mbarrier_arrive(barrier);
  }
}
enum { EARLY_USE = __LINE__ - 3, INITIALISED = EARLY_USE - 4 };

TEST(initialisation_must_be_visible) {
  use_before_it_is_visible<<<1, 64, SHARED>>>(named_zeros<int>("flag", 1));
  expect_finding(LAB_RACE_WRITE_READ, EARLY_USE, INITIALISED, "thread 32");
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
