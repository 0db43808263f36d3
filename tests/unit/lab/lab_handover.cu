/**
 * @file
 * Blocks that use atomics and fences which do not order what they write, and reads of memory that
 * another block may have written.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "../tests/unit/simt/hopper_testing.h"

extern __shared__ __align__(1024) unsigned char smem[];

static bool blocks_talk() {
  LabResults results;
  lab_take_results(&results);
  const bool talk = results.blocks_talk;
  lab_free_results(&results);
  return talk;
}

/* --- Scope ----------------------------------------------------------------------------------- */

enum { NO_FENCE, BLOCK_FENCE, DEVICE_FENCE, SYSTEM_FENCE };

/** All blocks write `out`; each counts its threads in shared memory, or all in global memory. */
template <int FENCE>
__global__ void count_and_write(int *out, int *global_count) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(global_count != nullptr ? global_count : &count, 1);
  if (FENCE == BLOCK_FENCE) __threadfence_block();
  if (FENCE == DEVICE_FENCE) __threadfence();
  if (FENCE == SYSTEM_FENCE) __threadfence_system();
  __nanosleep(1);
  if (threadIdx.x == 0) out[0] = 1;
}
enum { ALL_WRITE = __LINE__ - 2 };

static void assert_race_is_found(const char *kernel, bool talk) {
  assert_int_equal(blocks_talk(), talk);
  assert_finds({LAB_BLOCKS_WRITE_WRITE, ALL_WRITE, ALL_WRITE, kernel,
                "4 bytes, first: block 0, the other block 1, out + 0 (4 bytes)"});
}

/** What follows the last atomic of a block is not published by it. */
TEST(atomics_and_fences_anywhere_do_not_order_blocks) {
  int *out = named<int>("out", 1), *count = named_zeros<int>("count", 1);
  count_and_write<DEVICE_FENCE><<<4, 8>>>(out, nullptr);
  assert_race_is_found("count_and_write<2>", false);
  count_and_write<BLOCK_FENCE><<<4, 8>>>(out, count);
  assert_race_is_found("count_and_write<1>", false);
  count_and_write<NO_FENCE><<<4, 8>>>(out, count);
  assert_race_is_found("count_and_write<0>", false);
  count_and_write<DEVICE_FENCE><<<4, 8>>>(out, count);
  assert_race_is_found("count_and_write<2>", true);
  count_and_write<SYSTEM_FENCE><<<4, 8>>>(out, count);
  assert_race_is_found("count_and_write<3>", true);
}

/** Lane 1 reads what lane 0 has written before. If WRONG, lane 0 does not wait for that before it
 * publishes its write, behind which the last block writes again. */
template <bool WRONG>
__global__ void publish_before_others_have_read(int *data, unsigned *counts, int *out) {
  if (threadIdx.x > 1) return;
  if (threadIdx.x == 0) {
    atomicAdd(&counts[0], 1u);  // so that lane 0 is at a later time than lane 1
    data[blockIdx.x] = 1;
  }
  __syncwarp(3);
  if (threadIdx.x == 1) out[blockIdx.x] = data[blockIdx.x];
  if (!WRONG) __syncwarp(3);
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&counts[1], 1u) != 1) return;
  __threadfence();
  data[1 - blockIdx.x] = 2;
}
enum { WRITES_AGAIN = __LINE__ - 2, READS_FIRST = WRITES_AGAIN - 6 };

TEST(a_read_behind_a_published_write_is_not_published) {
  int *data = named<int>("data", 2), *out = named<int>("out", 2);
  publish_before_others_have_read<false><<<2, 32>>>(data, named_zeros<unsigned>("counts", 2), out);
  assert_finds_nothing();
  publish_before_others_have_read<true><<<2, 32>>>(data, named_zeros<unsigned>("more", 2), out);
  assert_tells_only({lab_kind_text(LAB_BLOCKS_WRITE_READ)}, READS_FIRST, WRITES_AGAIN);
}

/** The first block writes, publishes that, learns of something else, and writes the word beside it.
 * The second reads the first word. */
__global__ void write_beside(int *data, unsigned *counts, int *out) {
  if (atomicAdd(&counts[0], 1u) == 0) {
    data[0] = 1;
    store_release(&counts[1], 1);
    store_release(&counts[2], 1);
    load_acquire(&counts[2]);
    data[1] = 2;
  } else {
    while (load_acquire(&counts[1]) == 0) continue;
    *out = data[0];
  }
}

TEST(a_write_beside_does_not_count_as_the_write_before) {
  int *data = named<int>("data", 2), *out = named<int>("out", 1);
  write_beside<<<2, 1>>>(data, named_zeros<unsigned>("counts", 3), out);
  assert_finds_nothing();
}

/** The first block writes `data`. In the third, lane 1 has acquired from the second only, and reads
 * before lane 0, which has acquired from both, writes. Lane 1 is at a later time than lane 0, as
 * the barrier is not of all three lanes. */
template <bool WRONG>
__global__ void read_before_a_write(int *data, unsigned *counts, int *out) {
  __shared__ unsigned number;
  if (threadIdx.x == 0) number = atomicAdd(&counts[0], 1u);
  __syncthreads();
  if (number < 2) {
    if (threadIdx.x == 0 && number == 0) *data = 1;
    if (threadIdx.x == 0) store_release(&counts[1 + number], 1);
    return;
  }
  if (threadIdx.x == 2) return;
  if (threadIdx.x == 1) {
    for (int i = 0; i < 9; i++) atomicAdd(&counts[3], 1u);
    while (load_acquire(&counts[2]) == 0) continue;
    if (WRONG) *out = *data;
  }
  __syncwarp(3);
  if (threadIdx.x == 0) {
    while (load_acquire(&counts[1]) == 0) continue;
    *data = 2;
  }
}
enum { WRITES_LAST = __LINE__ - 3, READS_OTHERS = WRITES_LAST - 5, FIRST = READS_OTHERS - 8 };

TEST(a_write_does_not_hide_an_earlier_read) {
  int *data = named<int>("data", 1), *out = named<int>("out", 1);
  read_before_a_write<false><<<3, 3>>>(data, named_zeros<unsigned>("counts", 4), out);
  assert_finds_nothing();
  read_before_a_write<true><<<3, 3>>>(data, named_zeros<unsigned>("more", 4), out);
  assert_tells_only({lab_kind_text(LAB_BLOCKS_WRITE_READ)}, READS_OTHERS, FIRST);
}

/** The second block sets the flag that the first one has set, or reads it as well. */
template <bool READS_FLAG>
__global__ void set_the_flag_too(int *data, unsigned *counts, int *out) {
  if (atomicAdd(&counts[0], 1u) == 0) {
    *data = 1;
    store_release(&counts[1], 1);
  } else {
    while (READS_FLAG && load_acquire(&counts[1]) == 0) continue;
    store_release(&counts[1], 1);
    __threadfence();
    *out = *data;
  }
}
enum { READS_TOO = __LINE__ - 3, WRITES_FIRST = READS_TOO - 6 };

TEST(a_store_does_not_acquire) {
  int *data = named<int>("data", 1), *out = named<int>("out", 1);
  set_the_flag_too<true><<<2, 1>>>(data, named_zeros<unsigned>("counts", 2), out);
  assert_finds_nothing();
  set_the_flag_too<false><<<2, 1>>>(data, named_zeros<unsigned>("more", 2), out);
  assert_tells_only({lab_kind_text(LAB_BLOCKS_WRITE_READ)}, READS_TOO, WRITES_FIRST);
}

/* --- Copies that are still reading ------------------------------------------------------------ */

enum { FULL = 1024, COPY_SHARED_BYTES = FULL + 8 };

/** The first block copies `data` and lets the second overwrite it; if WRONG, before its wait. */
template <bool BY_TENSOR_LOAD, bool WRONG>
__global__ void copy_and_free(const __grid_constant__ CUtensorMap map, int4 *data,
                              unsigned *counts) {
  __shared__ unsigned number;
  uint64_t *full = (uint64_t *)(smem + FULL);
  if (threadIdx.x == 0) {
    number = atomicAdd(&counts[0], 1u);
    mbarrier_init(full, 1), fence_mbarrier_init();
  }
  __syncthreads();
  if (number == 0) {
    if (threadIdx.x == 0 && BY_TENSOR_LOAD) {
      mbarrier_arrive_expect(full, FULL);
      tma_load(smem, map, full, 0, 0, 0, 0);  // LOAD
    } else if (!BY_TENSOR_LOAD) {
      cp_async_16(smem + 16 * threadIdx.x, &data[threadIdx.x], true);  // COPY
    }
    cp_async_commit();
    if (!WRONG) BY_TENSOR_LOAD ? mbarrier_wait(full, 0) : cp_async_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0) reduce_add_release(&counts[1], 1);
    if (WRONG) BY_TENSOR_LOAD ? mbarrier_wait(full, 0) : cp_async_wait<0>();
  } else {
    while (load_acquire(&counts[1]) == 0) continue;
    data[threadIdx.x] = make_int4(1, 2, 3, 4);
  }
}
enum { OVERWRITE = __LINE__ - 3, COPY = OVERWRITE - 9, LOAD = COPY - 2 };

template <bool BY_TENSOR_LOAD>
static void expect_race_with_copies(int line) {
  int4 *data = named_zeros<int4>("data", 64);
  const CUtensorMap map = matrix_map((uint16_t *)data, 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
  copy_and_free<BY_TENSOR_LOAD, false>
      <<<2, 64, COPY_SHARED_BYTES>>>(map, data, named_zeros<unsigned>("counts", 2));
  assert_finds_nothing();
  copy_and_free<BY_TENSOR_LOAD, true>
      <<<2, 64, COPY_SHARED_BYTES>>>(map, data, named_zeros<unsigned>("more", 2));
  assert_tells_only({lab_kind_text(LAB_BLOCKS_WRITE_READ)}, line, OVERWRITE);
}

TEST(a_source_is_not_free_before_the_wait) {
  expect_race_with_copies<false>(COPY);
  expect_race_with_copies<true>(LOAD);
}

/* --- Order ----------------------------------------------------------------------------------- */

/** One warp of a block publishes, the other reads, in the order that the test sets. */
template <bool PUBLISHES>
__global__ void publish_and_read(int *data, int *count, int *out) {
  if (PUBLISHES && threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1);
  }
  if (threadIdx.x < 32) return;
  if (blockIdx.x == 0) data[threadIdx.x - 32] = 1;
  if (blockIdx.x == 1) out[threadIdx.x - 32] = data[63 - threadIdx.x];
}
enum { READ_OTHERS = __LINE__ - 2 };

/** A value that another block wrote is not unwritten, but the read may come before it. */
TEST(a_fence_of_one_warp_does_not_cover_its_block) {
  int *data = named<int>("data", 32), *out = named<int>("out", 32);
  publish_and_read<true><<<2, 64>>>(data, named_zeros<int>("count", 1), out);
  assert_finds({LAB_BLOCKS_WRITE_READ, READ_OTHERS, READ_OTHERS - 1, "publish_and_read<true>",
                "128 bytes, first: block 1, the other block 0, data + 0 (128 bytes)"});
}

TEST(reads_of_unwritten_memory_are_reported_in_any_order) {
  int *data = named<int>("data", 32), *out = named<int>("out", 32);
  lab_start(LAB_INIT);
  publish_and_read<false><<<2, 64>>>(data, nullptr, out);
  assert_finds({LAB_GLOBAL_UNWRITTEN, READ_OTHERS, 0, "publish_and_read<false>",
                "32 times, first: block 1 thread 32, data + 124 (128 bytes)"});
}

/** Each thread reads all elements, unwritten as they are, beginning at its own. */
__global__ void read_all_elements(const int *data, int *out) {
  int sum = 0;
  for (unsigned i = 0; i < 8; i++) sum += data[(i + threadIdx.x) % 8];
  out[threadIdx.x] = sum;
}
enum { READ_ALL = __LINE__ - 3 };

TEST(the_lowest_unwritten_address_is_reported) {
  read_all_elements<<<1, 8>>>(named<int>("data", 8), named<int>("out", 8));
  assert_finds({LAB_GLOBAL_UNWRITTEN, READ_ALL, 0, "read_all_elements",
                "64 times, first: block 0 thread 0, data + 0 (32 bytes)"});
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
