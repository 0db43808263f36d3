/** @file Races in shared memory where barriers order some threads only: kernels in which one
 * reader, writer or copy of several is not ordered, and right ones. Whichever comes first, the lab
 * names both places. */
#include "../tests/unit/lab/lab_testing.h"
#include "../tests/unit/simt/hopper_testing.h"

enum { BARRIERS = 8192, SHARED = BARRIERS + 64, BOX_BYTES = 1024 };

static int *sink;

static int allocate(void **state) {
  start_lab(state);
  sink = named<int>("out", 1024);
  return 0;
}

/* --- Readers -------------------------------------------------------------------------------- */

typedef enum Access { PLAIN, MATRIX, ATOMIC, COPY } Access;

/** All warps access what thread 0 or its warp has written; some meet before it is accessed
 * again. */
template <Access ACCESS, int MEETING>
__global__ void access_after_some_have_met(const uint4 *in, int *out) {
  const int thread = threadIdx.x, lane = thread % 32;
  int *word = (int *)smem;
  uint32_t r[4];
  if (thread < 32) ((uint4 *)smem)[lane] = make_uint4(1, 2, 3, 4);
  __syncthreads();
  if (ACCESS == PLAIN || ACCESS == COPY) out[thread] = word[2];
  if (ACCESS == MATRIX) ldmatrix_x4(r, smem + 16 * lane);
  if (ACCESS == ATOMIC) atomicAdd(word, 1);
  if (thread < MEETING) named_barrier_sync<MEETING>(5);
  if (ACCESS == PLAIN && thread == 0) word[2] = 2;
  if (ACCESS == MATRIX && thread < 32) stmatrix_x4(smem + 16 * lane, r);
  if (ACCESS == ATOMIC && thread == 0) out[0] = *word;
  if (ACCESS == COPY && thread == 0) cp_async_16(smem, in, true);
  cp_async_commit();
  cp_async_wait<0>();
}
enum { AGAIN = __LINE__ - 7, BEFORE = AGAIN - 4 }; /* the lines of PLAIN; those of COPY: BEFORE */

template <Access ACCESS, int MEETING>
static void launch_meeting(int threads) {
  const uint4 *in = named_zeros<uint4>("in", 1);
  access_after_some_have_met<ACCESS, MEETING><<<1, threads, SHARED>>>(in, sink);
}

TEST(every_access_of_a_warp_is_kept) {
  launch_meeting<PLAIN, 128>(128);
  launch_meeting<PLAIN, 1024>(1024);
  launch_meeting<MATRIX, 96>(96);
  launch_meeting<ATOMIC, 96>(96);
  launch_meeting<COPY, 96>(96);
  assert_finds_nothing();
  expect_race([] { launch_meeting<PLAIN, 64>(128); }, AGAIN, BEFORE);
  expect_race([] { launch_meeting<PLAIN, 96>(128); }, AGAIN, BEFORE);
  expect_race([] { launch_meeting<PLAIN, 992>(1024); }, AGAIN, BEFORE);
  expect_race([] { launch_meeting<MATRIX, 64>(96); }, AGAIN + 1, BEFORE + 1);
  expect_race([] { launch_meeting<ATOMIC, 64>(96); }, AGAIN + 2, BEFORE + 2);
  expect_race([] { launch_meeting<COPY, 64>(96); }, AGAIN + 3, BEFORE);
}

/** Of 128 readers, the first ARRIVING arrive at an mbarrier; those that wait may write. */
template <int ARRIVING, typename T>
__global__ void write_after_an_mbarrier(int *out) {
  uint64_t *read = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(read, ARRIVING);
  if (threadIdx.x < 32) smem[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = ((const T *)smem)[3];
  if (threadIdx.x < ARRIVING) mbarrier_arrive(read);
  if (threadIdx.x == 8) {
    mbarrier_wait(read, 0);
    *(uint4 *)smem = make_uint4(1, 2, 3, 4);
  }
}
enum { PHASE_WRITE = __LINE__ - 3, PHASE_READ = PHASE_WRITE - 4 };

TEST(every_reading_lane_is_kept) {
  write_after_an_mbarrier<128, unsigned char><<<1, 128, SHARED>>>(sink);
  write_after_an_mbarrier<128, short><<<1, 128, SHARED>>>(sink);
  assert_finds_nothing();
  expect_race([=] { write_after_an_mbarrier<127, unsigned char><<<1, 128, SHARED>>>(sink); },
              PHASE_WRITE, PHASE_READ);
  expect_race([=] { write_after_an_mbarrier<96, short><<<1, 128, SHARED>>>(sink); }, PHASE_WRITE,
              PHASE_READ);
  expect_race([=] { write_after_an_mbarrier<80, int><<<1, 128, SHARED>>>(sink); }, PHASE_WRITE,
              PHASE_READ);
}

/** The reader reads in each phase; the writer waits for WAITS phases. */
template <int WAITS>
__global__ void write_after_a_reused_barrier(int *out) {
  uint64_t *read = (uint64_t *)(smem + BARRIERS), *seen = read + 1;
  if (threadIdx.x == 0) mbarrier_init(read, 1), mbarrier_init(seen, 1), *(int *)smem = 1;
  __syncthreads();
  if (threadIdx.x == 64) {
    for (int i = 0; i < 2; i++) {
      out[i] = *(int *)smem;  // READ
      mbarrier_arrive(read);
      if (i == 0) mbarrier_wait(seen, 0);
    }
  } else if (threadIdx.x == 0) {
    mbarrier_wait(read, 0);
    mbarrier_arrive(seen);
    if (WAITS == 2) mbarrier_wait(read, 1);
    *(int *)smem = 2;
  }
}
enum { REUSED_WRITE = __LINE__ - 3, REUSED_READ = REUSED_WRITE - 8 };

TEST(a_read_in_a_later_phase_is_not_ordered_by_an_earlier_one) {
  assert_finds_nothing([=] { write_after_a_reused_barrier<2><<<1, 128, SHARED>>>(sink); });
  expect_race([=] { write_after_a_reused_barrier<1><<<1, 128, SHARED>>>(sink); }, REUSED_WRITE,
              REUSED_READ);
}

/** Warp 2 reads. It meets warp 1, and warp 1 meets warp 0, which writes; or in the other order. */
template <bool RIGHT>
__global__ void write_after_a_chain(int *out) {
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) *(int *)smem = 1;
  __syncthreads();
  if (!RIGHT && warp < 2) named_barrier_sync<64>(2);
  if (warp == 2) out[threadIdx.x] = *(int *)smem;
  if (warp >= 1) named_barrier_sync<64>(1);
  if (RIGHT && warp < 2) named_barrier_sync<64>(2);
  if (threadIdx.x == 0) *(int *)smem = 2;
}
enum { CHAIN_WRITE = __LINE__ - 2, CHAIN_READ = CHAIN_WRITE - 3 };

/** Warps 0 and 1 meet, and warps 2 and 3 at the same barrier, maybe at the same time. */
template <bool RIGHT>
__global__ void meet_at_the_barrier_of_others() {
  if (threadIdx.x < 64) named_barrier_sync<64>(1);
  if (RIGHT) named_barrier_sync<128>(2);
  if (threadIdx.x >= 64) named_barrier_sync<64>(1);
}
enum { OTHERS_MEET = __LINE__ - 2, SOME_MEET = OTHERS_MEET - 2 };

TEST(barriers_order_those_that_meet_and_chains_of_them) {
  write_after_a_chain<true><<<1, 96, SHARED>>>(sink);
  meet_at_the_barrier_of_others<true><<<1, 128>>>();
  assert_finds_nothing();
  expect_race([=] { write_after_a_chain<false><<<1, 96, SHARED>>>(sink); }, CHAIN_WRITE,
              CHAIN_READ);
  expect_race([=] { meet_at_the_barrier_of_others<false><<<1, 128>>>(); }, OTHERS_MEET, SOME_MEET,
              {lab_kind_text(LAB_BARRIER_REUSED), "64 times", "barrier 1"});
}

/* --- Lanes of one warp ------------------------------------------------------------------------ */

typedef enum Meeting { ALL_LANES, SOME_LANES, VOTE, SHUFFLE, REDUCTION } Meeting;

template <Meeting MEETING>
__device__ void meet() {
  if (MEETING == ALL_LANES) __syncwarp();
  if (MEETING == SOME_LANES && threadIdx.x % 32 < 16) __syncwarp(0xffff);
  if (MEETING == VOTE) __any_sync(~0u, threadIdx.x == 3), __ballot_sync(~0u, 1);
  if (MEETING == SHUFFLE) __shfl_xor_sync(~0u, 1, 1);
  if (MEETING == REDUCTION) __reduce_add_sync(~0u, 1);
}

/** Lane 20 reads, lane 4 writes. */
template <Meeting MEETING>
__global__ void write_in_the_warp(int *out) {
  if (threadIdx.x == 0) *(int *)smem = 1;
  __syncthreads();
  if (threadIdx.x == 20) out[0] = *(int *)smem;
  meet<MEETING>();
  if (threadIdx.x == 4) *(int *)smem = 2;
}
enum { LANE_WRITE = __LINE__ - 2, LANE_READ = LANE_WRITE - 2 };

/** All lanes read, one arrives for all; another warp waits and writes. */
template <Meeting MEETING>
__global__ void arrive_for_the_warp(int *out) {
  uint64_t *read = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(read, 1), *(int *)smem = 1;
  __syncthreads();
  if (threadIdx.x < 32) {
    out[threadIdx.x] = *(int *)smem;
    meet<MEETING>();
    if (threadIdx.x == 5) mbarrier_arrive(read);
  } else if (threadIdx.x == 40) {
    mbarrier_wait(read, 0);
    *(int *)smem = 2;
  }
}
enum { ARRIVAL_WRITE = __LINE__ - 3, ARRIVAL_READ = ARRIVAL_WRITE - 5 };

template <Meeting MEETING>
static void expect_race_of_lanes() {
  expect_race([=] { write_in_the_warp<MEETING><<<1, 32, SHARED>>>(sink); }, LANE_WRITE, LANE_READ);
  expect_race([=] { arrive_for_the_warp<MEETING><<<1, 64, SHARED>>>(sink); }, ARRIVAL_WRITE,
              ARRIVAL_READ);
}

TEST(only_barriers_of_the_warp_order_its_lanes) {
  write_in_the_warp<ALL_LANES><<<1, 32, SHARED>>>(sink);
  arrive_for_the_warp<ALL_LANES><<<1, 64, SHARED>>>(sink);
  assert_finds_nothing();
  expect_race_of_lanes<SOME_LANES>();
  expect_race_of_lanes<VOTE>();
  expect_race_of_lanes<SHUFFLE>();
  expect_race_of_lanes<REDUCTION>();
}

/** Lanes 0 to 15 hand a value from one to the next, without the others. */
__global__ void hand_on(int *out) {
  int *values = (int *)smem;
  if (threadIdx.x < 16) {
    values[threadIdx.x] = 1;
    for (int i = 1; i < 16; i++) {
      __syncwarp(0xffff);
      if ((int)threadIdx.x == i) values[i] += values[i - 1];
    }
    __syncwarp(0xffff);
    out[threadIdx.x] = values[15];
  }
}

TEST(a_barrier_of_some_lanes_orders_these) {
  assert_finds_nothing([=] { hand_on<<<1, 32, SHARED>>>(sink); });
}

/* --- Writers and atomics ---------------------------------------------------------------------- */

/** Warp 2 writes, warp 1 or warp 0 waits for it; thread 0 writes too. */
template <int WAITING>
__global__ void two_writers(int *out) {
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 70) *(int *)smem = 1;
  if (warp == 2 || warp == WAITING) named_barrier_sync<64>(3);
  if (warp == 1 && WAITING == 1) out[threadIdx.x] = *(int *)smem;
  if (threadIdx.x == 0) *(int *)smem = 2;
}
enum { LATER_WRITE = __LINE__ - 2 };

TEST(writers_need_an_order_of_their_own) {
  assert_finds_nothing([=] { two_writers<0><<<1, 96, SHARED>>>(sink); });
  two_writers<1><<<1, 96, SHARED>>>(sink);
  expect_findings({"shared memory race: "}, {LATER_WRITE});
}

/* --- Copies ----------------------------------------------------------------------------------- */

/** Thread 0 of each of four warps stores the box; MEETING threads meet after their wait. */
template <int MEETING, bool BY_TENSOR_LOAD>
__global__ void write_the_source(const __grid_constant__ CUtensorMap map,
                                 const __grid_constant__ CUtensorMap from) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  for (int i = threadIdx.x; i < 256; i += 128) ((int *)smem)[i] = i;
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    tma_store(map, smem, 0, 0, threadIdx.x / 32, 0);
    tma_store_commit();
    tma_store_wait<0>();
  }
  __syncwarp();
  if (threadIdx.x < MEETING) named_barrier_sync<MEETING>(1);
  if (threadIdx.x == 0 && !BY_TENSOR_LOAD) ((int *)smem)[5] = 1;
  if (threadIdx.x == 0 && BY_TENSOR_LOAD) {
    mbarrier_arrive_expect(full, BOX_BYTES);
    tma_load(smem, from, full, 0, 0, 0, 0);
  }
  mbarrier_wait(full, BY_TENSOR_LOAD ? 0 : 1);
}
enum { SOURCE_LOAD = __LINE__ - 4, SOURCE_WRITE = SOURCE_LOAD - 3, SOURCE = SOURCE_WRITE - 6 };

TEST(a_source_is_read_by_every_tensor_store) {
  uint16_t *tensor = named_zeros<uint16_t>("tensor", 4 * 512);
  const CUtensorMap map = make_map({tensor, 4, {64, 8, 4, 1}, {128, 1024, 4096}, {64, 8, 1, 1}});
  const CUtensorMap from =
      matrix_map(named_zeros<uint16_t>("from", 512), 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
  write_the_source<128, false><<<1, 128, SHARED>>>(map, from);
  write_the_source<128, true><<<1, 128, SHARED>>>(map, from);
  assert_finds_nothing();
  expect_race([=] { write_the_source<64, false><<<1, 128, SHARED>>>(map, from); }, SOURCE_WRITE,
              SOURCE);
  expect_race([=] { write_the_source<96, true><<<1, 128, SHARED>>>(map, from); }, SOURCE_LOAD,
              SOURCE);
}

/** A barrier does not wait for a load. */
template <bool WAITS>
__global__ void write_what_is_loaded(const __grid_constant__ CUtensorMap map, int *tensor) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(full, BOX_BYTES);
    tma_load(smem, map, full, 0, 0, 0, 0);
  }
  __syncthreads();
  if (WAITS) mbarrier_wait(full, 0);
  if (threadIdx.x == 40) tensor[7] = 3;
  if (!WAITS) mbarrier_wait(full, 0);
}
enum { LOADED_WRITE = __LINE__ - 3, LOADED = LOADED_WRITE - 4 };

TEST(the_source_of_a_load_must_not_change_before_its_wait) {
  uint16_t *tensor = named_zeros<uint16_t>("tensor", 512);
  const CUtensorMap map = matrix_map(tensor, 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
  assert_finds_nothing([=] { write_what_is_loaded<true><<<1, 64, SHARED>>>(map, (int *)tensor); });
  expect_race([=] { write_what_is_loaded<false><<<1, 64, SHARED>>>(map, (int *)tensor); },
              LOADED_WRITE, LOADED);
}

RUN_IN_ALL_SETTINGS("lab", allocate, stop_lab)
