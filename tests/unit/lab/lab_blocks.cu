/** @file Races between blocks on global memory: which two accesses the lab names, at which lines,
 * and how many bytes it counts, in every order and on any number of OS threads. */
#include "../tests/unit/lab/lab_testing.h"

/** Expects the same finding in many orders. */
static void assert_always_finds(void (*launch)(), const Expected &expected,
                                const char *file = __builtin_FILE()) {
  in_many_orders([&] {
    lab_start(LAB_BLOCKS);
    launch();
    assert_finds(expected, file);
  });
}

static int *values; /* 64 of them */

static int allocate(void **state) {
  start_lab(state);
  values = named_zeros<int>("values", 64);
  return 0;
}

__global__ void write_at_two_places(int *out) {
  if (blockIdx.x < 3) return;
  if (blockIdx.x % 2 == 0) {
    out[threadIdx.x] = 1;
  } else {
    out[threadIdx.x] = 2;
  }
}
enum { EVEN_WRITES = __LINE__ - 5, ODD_WRITES = __LINE__ - 3 };

TEST(both_lines_and_blocks_are_reported) {
  assert_always_finds([] { write_at_two_places<<<40, 8>>>(values); },
                      {LAB_BLOCKS_WRITE_WRITE, ODD_WRITES, EVEN_WRITES, "write_at_two_places",
                       "32 bytes, first: block 3, the other block 4, values + 0 (256 bytes)"});
}

/** Blocks of a three-dimensional grid are numbered x first. */
__global__ void write_bytes(unsigned char *out) {
  if (blockIdx.z == 1) out[5 + threadIdx.x] = 1;
}
enum { WRITE_BYTES = __LINE__ - 2 };

TEST(racing_bytes_are_counted) {
  assert_always_finds([] { write_bytes<<<dim3(2, 1, 2), 3>>>((unsigned char *)values); },
                      {LAB_BLOCKS_WRITE_WRITE, WRITE_BYTES, WRITE_BYTES, "write_bytes",
                       "3 bytes, first: block 2, the other block 3, values + 5 (256 bytes)"});
}

/** One block writes vectors, the other writes the second half of one of them. */
__global__ void write_vectors(int *out) {
  if (blockIdx.x == 0) ((int4 *)out)[threadIdx.x] = make_int4(1, 2, 3, 4);
  if (blockIdx.x == 1 && threadIdx.x < 2) out[14 + threadIdx.x] = 5;
}
enum { WRITE_VECTOR = __LINE__ - 3, WRITE_HALF = __LINE__ - 2 };

TEST(accesses_of_different_sizes_race) {
  assert_always_finds([] { write_vectors<<<2, 8>>>(values); },
                      {LAB_BLOCKS_WRITE_WRITE, WRITE_VECTOR, WRITE_HALF, "write_vectors",
                       "8 bytes, first: block 0, the other block 1, values + 56 (256 bytes)"});
}

__global__ void write_in_blocks(int *out, unsigned step) {
  if (blockIdx.x % step == 0) *out = (int)blockIdx.x;
}
enum { WRITE_IN_BLOCKS = __LINE__ - 2 };

TEST(distant_blocks_race) {
  lab_start(LAB_BLOCKS);
  write_in_blocks<<<65536, 1>>>(values, 65535);
  assert_finds({LAB_BLOCKS_WRITE_WRITE, WRITE_IN_BLOCKS, WRITE_IN_BLOCKS, "write_in_blocks",
                "4 bytes, first: block 0, the other block 65535, values + 0 (256 bytes)"});
}

/** Every block reads; four blocks also write a word each. */
__global__ void read_and_write(int *out, int first_writer) {
  const int i = (int)blockIdx.x - first_writer;
  if (i >= 0 && i < 4) out[i] = 1;
  out[32 + blockIdx.x] = out[3];
}
enum { BLOCK_WRITES = __LINE__ - 3, BLOCK_READS = __LINE__ - 2 };

TEST(a_reader_and_a_writer_are_reported) {
  assert_always_finds([] { read_and_write<<<12, 1>>>(values, 4); },
                      {LAB_BLOCKS_WRITE_READ, BLOCK_READS, BLOCK_WRITES, "read_and_write",
                       "4 bytes, first: block 0, the other block 7, values + 12 (256 bytes)"});
  /* The lowest block is the writer itself, so the next block races with it. */
  assert_always_finds([] { read_and_write<<<12, 1>>>(values, -3); },
                      {LAB_BLOCKS_WRITE_READ, BLOCK_READS, BLOCK_WRITES, "read_and_write",
                       "4 bytes, first: block 1, the other block 0, values + 12 (256 bytes)"});
}

/** A block may read what it wrote, even if other blocks wrote there before. */
__global__ void write_and_read_back(int *out, int *sums) {
  out[0] = (int)blockIdx.x;
  sums[blockIdx.x] = out[0];
}

TEST(a_block_may_read_what_it_wrote) {
  lab_start(LAB_INIT);
  assert_finds_nothing([=] { write_and_read_back<<<16, 1>>>(named<int>("fresh", 1), values); });
}

RUN_TESTS_WITH(allocate, stop_lab)
