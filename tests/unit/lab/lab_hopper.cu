/** @file What the lab finds and counts of mbarriers, tensor copies and wgmma: one small kernel for
 * each fault, and a ring of tiles without faults. */
#include <vector>

#include "../tests/unit/lab/lab_testing.h"
#include "../tests/unit/simt/hopper_testing.h"

enum { BARRIERS = 8192, SHARED = BARRIERS + 64, BOX_BYTES = 1024 };

/** A map of 8 rows of 64 elements, which are one box. */
static CUtensorMap box_map() {
  return matrix_map(named_zeros<uint16_t>("tensor", 512), 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
}

/** Global atomics that one thread waits with for another: they do not order shared memory. */
__device__ void raise_flag(int *flag) {
  atomicExch(flag, 1);
}
__device__ void await_flag(int *flag) {
  while (atomicAdd(flag, 0) == 0) continue;
}

/* --- Tensor copies -------------------------------------------------------------------------- */

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

typedef enum Fault {
  NO_FAULT,
  NO_PROXY_FENCE,
  NO_PROXY_FENCE_AFTER_COPY,
  OVERWRITES,
  READS_D,
  WRITES_D,
  WRITES_A,
  NO_WGMMA_FENCE,
  NO_SECOND_WGMMA_FENCE
} Fault;

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

/* --- wgmma ---------------------------------------------------------------------------------- */

/** Of 8 rows or more, each of 16 elements, without swizzle. */
__device__ uint64_t small_descriptor(int start) {
  return (uint64_t)start >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

template <Fault FAULT>
__global__ void multiply(const uint4 *in, float *out) {
  constexpr bool COPIES = FAULT == NO_PROXY_FENCE_AFTER_COPY;
  uint32_t a[4] = {};
  float d[1][4];
  const int i = threadIdx.x;
  if (COPIES && i < 16) cp_async_16(smem + 16 * i, in + i, true);
  if (COPIES) cp_async_commit(), cp_async_wait<0>();
  if (!COPIES && i < 64) ((int *)smem)[i] = 0;
  if (FAULT != NO_PROXY_FENCE && !COPIES) fence_proxy_async();
  __syncthreads();
  if (FAULT != NO_WGMMA_FENCE) wgmma_fence();
  wgmma<__half, false>(d, a, small_descriptor(0), false);
  wgmma_commit();
  if (FAULT == OVERWRITES) __syncthreads(); /* all warps have issued it */
  if (FAULT == OVERWRITES && i == 50) ((int *)smem)[9] = 1;
  if (FAULT == READS_D && i == 50) out[0] = d[0][2];
  if (FAULT == WRITES_D && i == 50) d[0][2] = 0;
  if (FAULT == WRITES_A && i == 50) a[1] = 1;
  wgmma_wait<0>();
  if (i == 50) ((int *)smem)[9] = 1, a[1] = 1;
  fence_proxy_async();
  __syncthreads();
  if (FAULT != NO_SECOND_WGMMA_FENCE) wgmma_fence();
  wgmma<__half, false>(d, a, small_descriptor(0), true);
  wgmma_commit();
  wgmma_wait<0>();
  out[threadIdx.x] = d[0][0];
}
enum { SECOND = __LINE__ - 5, FIRST = __LINE__ - 17, FILL = FIRST - 4, COPY = FIRST - 6 };

template <Fault FAULT>
static void expect_multiply(LabKind kind, int line, int other_line, const char *first) {
  multiply<FAULT><<<1, 128, SHARED>>>(named_zeros<uint4>("in", 16), named<float>("out", 128));
  expect_finding(kind, line, other_line, first);
}

TEST(a_wgmma_uses_its_operands_until_its_wait) {
  multiply<NO_FAULT><<<1, 128, SHARED>>>(named_zeros<uint4>("in", 16), named<float>("out", 128));
  assert_finds_nothing();
  expect_multiply<NO_PROXY_FENCE>(LAB_NO_PROXY_FENCE, FIRST, FILL, "256 times, first: block 0 ");
  expect_multiply<NO_PROXY_FENCE_AFTER_COPY>(LAB_NO_PROXY_FENCE, FIRST, COPY,
                                             "64 times, first: block 0 ");
  expect_multiply<OVERWRITES>(LAB_ASYNC_OVER_READ, FIRST + 3, FIRST, "dynamic shared memory + 36");
  const char *third =
      "1 time, first: block 0 thread 50, the other thread 50, an accumulator, "
      "element 2 of it\n";
  expect_multiply<READS_D>(LAB_WGMMA_REGISTERS, FIRST + 4, FIRST, third);
  expect_multiply<WRITES_D>(LAB_WGMMA_REGISTERS, FIRST + 5, FIRST, third);
  expect_multiply<WRITES_A>(LAB_WGMMA_REGISTERS, FIRST + 6, FIRST, "operand A, element 1 of it\n");
  expect_multiply<NO_WGMMA_FENCE>(LAB_NO_WGMMA_FENCE, FIRST, 0, "4 times, first: block 0 thread ");
  expect_multiply<NO_SECOND_WGMMA_FENCE>(LAB_NO_WGMMA_FENCE, SECOND, 0,
                                         "1 time, first: block 0 thread 32, warp 1\n");
}

/** A long sum of many operands, and a second one that the wait does not cover. */
template <int READ>
__global__ void sum_many(float *out) {
  uint32_t a[2][12][4] = {};
  float d[2][1][4];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) ((int *)smem)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  for (int group = 0; group < 2; group++) {
    for (int i = 0; i < 12; i++) {
      wgmma<__half, false>(d[group], a[group][i], small_descriptor(0), i > 0);
    }
    wgmma_commit();
  }
  wgmma_wait<1>();
  if (threadIdx.x == 50) out[0] = d[READ][0][3];
  wgmma_wait<0>();
}
enum { SUM_READ = __LINE__ - 3, SUM_MULTIPLY = __LINE__ - 8 };

/** The wait comes before the commit, so it does not wait. */
__global__ void commit_too_late(float *out) {
  float d[1][4];
  for (int i = threadIdx.x; i < 512; i += blockDim.x) ((int *)smem)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  wgmma_fence();
  wgmma<__half, false>(d, small_descriptor(0), small_descriptor(0), false);
  wgmma_wait<0>();
  if (threadIdx.x == 50) out[0] = d[0][3];
  wgmma_commit();
  wgmma_wait<0>();
}
enum { LATE_READ = __LINE__ - 4, LATE_MULTIPLY = __LINE__ - 6 };

TEST(a_wait_covers_no_wgmma_without_a_group) {
  commit_too_late<<<1, 128, SHARED>>>(named<float>("out", 1));
  expect_finding(LAB_WGMMA_NOT_COMMITTED, LATE_READ, LATE_MULTIPLY,
                 "1 time, first: block 0 thread 50, the other thread 50, an accumulator, "
                 "element 3 of it\n");
}

TEST(a_wait_covers_older_groups_only) {
  assert_finds_nothing([=] { sum_many<0><<<1, 128, SHARED>>>(named<float>("out", 1)); });
  sum_many<1><<<1, 128, SHARED>>>(named<float>("out", 1));
  expect_finding(LAB_WGMMA_REGISTERS, SUM_READ, SUM_MULTIPLY, "an accumulator, element 3 of it\n");
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

/** A warp outside of the warpgroup writes to B after the warpgroup has waited. */
template <bool ORDERED>
__global__ void overwrite_after_wait(int *flag) {
  uint64_t *empty = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(empty, 1);
  if (threadIdx.x < 64) ((int *)smem)[threadIdx.x] = 0;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x < 128) {
    const uint32_t a[4] = {};
    float d[1][4];
    wgmma_fence();
    wgmma<__half, false>(d, a, small_descriptor(0), false);
    wgmma_commit();
    wgmma_wait<0>();
    if (threadIdx.x == 0) ORDERED ? mbarrier_arrive(empty) : raise_flag(flag);
  } else if (threadIdx.x == 150) {
    ORDERED ? mbarrier_wait(empty, 0) : await_flag(flag);
    ((int *)smem)[9] = 1;
  }
}
enum { AFTER_WAIT = __LINE__ - 3, BEFORE_WAIT = __LINE__ - 9 };

TEST(other_warps_know_of_a_wait_by_a_barrier) {
  int *flag = named_zeros<int>("flag", 1);
  assert_finds_nothing([=] { overwrite_after_wait<true><<<1, 160, SHARED>>>(flag); });
  overwrite_after_wait<false><<<1, 160, SHARED>>>(flag);
  expect_finding(LAB_ASYNC_OVER_READ, AFTER_WAIT, BEFORE_WAIT,
                 "1 time, first: block 0 thread 150, ");
}

/* --- A ring of tiles ------------------------------------------------------------------------ */

enum {
  STAGES = 2,
  TILES = 5,
  TILE = 64 * 64, /* elements */
  TILE_BYTES = 2 * TILE,
  RING_SHARED = (3 * STAGES + 2) * TILE_BYTES + 16 * STAGES,
  O_ROWS = 100 /* of 128 */
};

/** Rows of 128 bytes, swizzled. */
__device__ uint64_t tile_descriptor(const __half *start) {
  return shared_address(start) >> 4 | (uint64_t)(1024 >> 4) << 32 | UINT64_C(1) << 62;
}

/** O = sum of A_t B_t^T. Warpgroups 0 and 1 have 64 rows each, and warp 8 loads. With EARLY they
 * say that a stage is empty when its products are still in flight. */
template <bool EARLY>
__global__ void ring(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap o_map) {
  __half *a_ring = (__half *)smem, *b_ring = a_ring + 2 * STAGES * TILE;
  __half *o_tile = b_ring + (STAGES + threadIdx.x / 128) * TILE;
  uint64_t *full = (uint64_t *)(smem + (3 * STAGES + 2) * TILE_BYTES), *empty = full + STAGES;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], 2);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int group = threadIdx.x / 128, in_group = threadIdx.x % 128;
  if (group == 2) {
    for (int t = 0; t < TILES && in_group == 0; t++) {
      const int stage = t % STAGES;
      mbarrier_wait(&empty[stage], (t / STAGES & 1) ^ 1);
      mbarrier_arrive_expect(&full[stage], 3 * TILE_BYTES);
      for (int i = 0; i < 2; i++) {
        tma_load(a_ring + (2 * stage + i) * TILE, a_map, &full[stage], 0, 128 * t + 64 * i, 0, 0);
      }
      tma_load(b_ring + stage * TILE, b_map, &full[stage], 0, 64 * t, 0, 0);
    }
    return;
  }
  float d[8][4];
  for (int t = 0; t < TILES; t++) {
    const int stage = t % STAGES;
    mbarrier_wait(&full[stage], t / STAGES & 1);
    wgmma_fence();
    for (int k = 0; k < 64; k += 16) {
      wgmma<__half, false>(d, tile_descriptor(a_ring + (2 * stage + group) * TILE + k),
                           tile_descriptor(b_ring + stage * TILE + k), t + k > 0);
    }
    wgmma_commit();
    if (EARLY && in_group == 0) mbarrier_arrive(&empty[stage]);
    wgmma_wait<1>();
    if (!EARLY && t > 0 && in_group == 0) mbarrier_arrive(&empty[(t - 1) % STAGES]);
  }
  wgmma_wait<0>();
  for (int i = 0; i < 32; i++) {
    const int row = in_group / 4 / 8 * 16 + in_group / 4 % 8 + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + in_group % 4 * 2 + i % 2;
    o_tile[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8] = __float2half(d[i / 4][i % 4]);
  }
  fence_proxy_async();
  named_barrier_sync<128>(1 + group);
  if (in_group != 0) return;
  tma_store(o_map, o_tile, 0, 64 * group, 0, 0);
  tma_store_commit();
  tma_store_wait<0>();
}

static int ring_value(int i) {
  return (i * 5 + i / 64 * 3) % 5 - 2;
}

template <bool EARLY>
static void run_ring() {
  std::vector<__half> a(TILES * 2 * TILE), b(TILES * TILE), o(128 * 64);
  for (int i = 0; i < TILES * 2 * TILE; i++) a[i] = __float2half((float)ring_value(i));
  for (int i = 0; i < TILES * TILE; i++) b[i] = __float2half((float)ring_value(i + 1));
  __half *device_a = named<__half>("a", TILES * 2 * TILE),
         *device_b = named<__half>("b", TILES * TILE);
  __half *device_o = named_zeros<__half>("o", 128 * 64);
  cudaMemcpy(device_a, a.data(), 2 * a.size(), cudaMemcpyHostToDevice);
  cudaMemcpy(device_b, b.data(), 2 * b.size(), cudaMemcpyHostToDevice);
  const CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  cudaFuncSetAttribute(ring<EARLY>, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_SHARED);
  ring<EARLY><<<1, 288, RING_SHARED>>>(matrix_map(device_a, TILES * 128, 64, swizzle),
                                       matrix_map(device_b, TILES * 64, 64, swizzle),
                                       matrix_map(device_o, O_ROWS, 64, swizzle));
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  cudaMemcpy(o.data(), device_o, 2 * o.size(), cudaMemcpyDeviceToHost);
  for (int i = 0; i < 128 * 64 && !EARLY; i++) {
    float sum = 0;
    for (int k = 0; k < TILES * 64 && i / 64 < O_ROWS; k++) {
      const int t = k / 64;
      sum += __half2float(a[(t * 128 + i / 64) * 64 + k % 64]) *
             __half2float(b[(t * 64 + i % 64) * 64 + k % 64]);
    }
    assert_float_equal(__half2float(o[i]), sum, 0);
  }
}

TEST(a_ring_of_tiles_has_no_findings) {
  const std::string order = getenv("SIMT_ORDER");
  for (const char *other : {order.c_str(), "random:3", "random:4", "random:5"}) {
    set_variable("SIMT_ORDER", other);
    run_ring<false>();
  }
  set_variable("SIMT_ORDER", order.c_str());
  assert_finds_nothing();
}

TEST(a_stage_that_is_released_too_early_is_found) {
  run_ring<true>();
  assert_contains(findings_text(), lab_kind_text(LAB_ASYNC_OVER_READ));
}

TEST(instructions_and_boxes_are_counted) {
  run_ring<false>();
  const LabCounts counts = counts_of_kernel();
  const uint64_t loads = 3 * TILES;
  assert_int_equal(counts.wgmma, 2 * TILES * 4);
  assert_int_equal(counts.wgmma_flop, 2ull * TILES * 4 * 2 * 64 * 64 * 16);
  const uint64_t read = counts.wgmma * (64 + 64) * 16 * 2; /* A and B, both from shared memory */
  assert_int_equal(counts.wgmma_read.requests, counts.wgmma);
  assert_int_equal(counts.wgmma_read.bytes, read);
  assert_int_equal(counts.wgmma_read.wavefronts, read / 128); /* swizzled: no conflicts */
  assert_int_equal(counts.wgmma_read.ideal_wavefronts, read / 128);
  assert_sectors(counts.tensor_load, loads, loads * 256, loads * 8192, loads * 8192, 256);
  assert_sectors(counts.tensor_store, 2, O_ROWS * 4, O_ROWS * 128, O_ROWS * 128, 256);
  assert_sectors(counts.global_load, 0, 0, 0, 0, 0);
  assert_sectors(counts.global_store, 0, 0, 0, 0, 0);
}

/** Shuffles before the product, beside it, and after its wait. */
__global__ void shuffle_around() {
  const uint32_t a[4] = {};
  float d[1][4];
  for (int i = threadIdx.x; i < 64; i += blockDim.x) ((int *)smem)[i] = 0;
  fence_proxy_async();
  __syncthreads();
  __shfl_sync(0xffffffff, 0, 0);
  wgmma_fence();
  wgmma<__half, false>(d, a, small_descriptor(0), false);
  wgmma_commit();
  __shfl_sync(0xffffffff, 0, 0);
  wgmma_wait<1>();
  __shfl_sync(0xffffffff, 0, 0);
  wgmma_wait<0>();
  __shfl_sync(0xffffffff, 0, 0);
}

TEST(shuffles_beside_a_wgmma_are_counted) {
  shuffle_around<<<1, 128, SHARED>>>();
  const LabCounts counts = counts_of_kernel();
  assert_int_equal(counts.shuffles, 4 * 4);
  assert_int_equal(counts.shuffles_under_wgmma, 2 * 4);
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
