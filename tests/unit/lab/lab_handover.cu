/**
 * @file
 * When blocks may tell each other what they have written: by atomics and fences that other blocks
 * can notice, wherever in the block these stand.
 */
#include "../tests/unit/lab/lab_testing.h"

static bool blocks_were_checked() {
  LabResults results;
  lab_take_results(&results);
  const bool checked = !results.blocks_not_checked;
  lab_free_results(&results);
  return checked;
}

/* --- What blocks can notice ------------------------------------------------------------------ */

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

static void assert_race_is_found(const char *kernel) {
  assert_true(blocks_were_checked());
  assert_finds({LAB_BLOCKS_WRITE_WRITE, ALL_WRITE, ALL_WRITE, kernel,
                "4 bytes, first: block 0, the other block 1, out + 0 (4 bytes)"});
}

static void what_stays_in_the_block_tells_others_nothing(void **) {
  int *out = named<int>("out", 1), *count = named_zeros<int>("count", 1);
  count_and_write<DEVICE_FENCE><<<4, 8>>>(out, nullptr);
  assert_race_is_found("count_and_write<2>");
  lab_start(LAB_EVERYTHING);
  count_and_write<BLOCK_FENCE><<<4, 8>>>(out, count);
  assert_race_is_found("count_and_write<1>");
  lab_start(LAB_EVERYTHING);
  count_and_write<NO_FENCE><<<4, 8>>>(out, count);
  assert_race_is_found("count_and_write<0>");
}

static void fences_and_atomics_of_global_memory_tell(void **) {
  int *out = named<int>("out", 1), *count = named_zeros<int>("count", 1);
  count_and_write<DEVICE_FENCE><<<4, 8>>>(out, count);
  assert_false(blocks_were_checked());
  lab_start(LAB_EVERYTHING);
  count_and_write<SYSTEM_FENCE><<<4, 8>>>(out, count);
  assert_false(blocks_were_checked());
  assert_finds_nothing();
}

/* --- In which order -------------------------------------------------------------------------- */

/** One warp of a block talks, the other reads: before it or behind, as the order has it. */
template <bool TALKS>
__global__ void talk_and_read(int *data, int *count, int *out) {
  if (TALKS && threadIdx.x == 0) {
    __threadfence();
    atomicAdd(count, 1);
  }
  if (threadIdx.x < 32) return;
  if (blockIdx.x == 0) data[threadIdx.x - 32] = 1;
  if (blockIdx.x == 1) out[threadIdx.x - 32] = data[63 - threadIdx.x];
}
enum { READ_OTHERS = __LINE__ - 2 };

static void a_block_talks_as_a_whole(void **) {
  int *data = named<int>("data", 32), *out = named<int>("out", 32);
  talk_and_read<true><<<2, 64>>>(data, named_zeros<int>("count", 1), out);
  assert_finds_nothing();
}

static void unwritten_reads_are_told_in_no_order(void **) {
  int *data = named<int>("data", 32), *out = named<int>("out", 32);
  lab_start(LAB_INIT);
  talk_and_read<false><<<2, 64>>>(data, nullptr, out);
  assert_finds({LAB_GLOBAL_UNWRITTEN, READ_OTHERS, 0, "talk_and_read<false>",
                "32 times, first: block 1 thread 32, data + 124 (128 bytes)"});
}

/** Each thread reads all that nobody wrote, beginning elsewhere. */
__global__ void read_round(const int *data, int *out) {
  int sum = 0;
  for (unsigned i = 0; i < 8; i++) sum += data[(i + threadIdx.x) % 8];
  out[threadIdx.x] = sum;
}
enum { READ_ROUND = __LINE__ - 3 };

static void the_lowest_unwritten_place_is_told(void **) {
  read_round<<<1, 8>>>(named<int>("data", 8), named<int>("out", 8));
  assert_finds({LAB_GLOBAL_UNWRITTEN, READ_ROUND, 0, "read_round",
                "64 times, first: block 0 thread 0, data + 0 (32 bytes)"});
}

int main() {
#define LAB_TEST(test) cmocka_unit_test_setup_teardown(test, start_lab, stop_lab)
  const CMUnitTest tests[] = {
      LAB_TEST(what_stays_in_the_block_tells_others_nothing),
      LAB_TEST(fences_and_atomics_of_global_memory_tell),
      LAB_TEST(a_block_talks_as_a_whole),
      LAB_TEST(unwritten_reads_are_told_in_no_order),
      LAB_TEST(the_lowest_unwritten_place_is_told),
  };
  return run_in_all_settings("lab", tests);
}
