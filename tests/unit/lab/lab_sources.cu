/**
 * @file
 * Writes to the source of a cp.async by several threads, before and after it: the lab reports the
 * races in every order of the threads.
 */
#include "../tests/unit/lab/lab_testing.h"
#include "device/ptx.cuh"

static __device__ void copy_unit(const uint4 *from) {
  cp_async_16(smem, from, true);
  cp_async_commit();
  cp_async_wait<0>();
}
enum { COPY = __LINE__ - 4 };

/** A race of a write with the copy, in either order. The offset reported is the second access's. */
static void assert_race_is_reported(const char *kernel, int line, const char *threads) {
  expect_findings(
      {std::string("finding    ") + lab_kind_text(LAB_COPY_SOURCE_WRITTEN) + "\n           " +
       race_text(kernel, line, COPY) + "1 time, first: block 0 " + threads + ", in + "},
      {});
}

/** Writes after the wait of thread 0, with a barrier in between if RIGHT. */
template <bool RIGHT>
__global__ void write_after(unsigned *in) {
  if (threadIdx.x == 0) copy_unit((uint4 *)in);
  if (RIGHT) __syncthreads();
  if (threadIdx.x == 1) in[3] = 7;
}
enum { WRITE_AFTER = __LINE__ - 2 };

TEST(a_wait_covers_its_own_thread_only) {
  unsigned *in = named_zeros<unsigned>("in", 4);
  assert_finds_nothing([=] { write_after<true><<<1, 32, 64>>>(in); });
  write_after<false><<<1, 32, 64>>>(in);
  assert_race_is_reported("write_after<false>", WRITE_AFTER, "thread 1, the other thread 0");
}

/** The write comes after a __syncwarp() that follows the wait of another lane. */
__global__ void write_after_a_warp_barrier(unsigned *in) {
  if (threadIdx.x == 0) copy_unit((uint4 *)in);
  __syncwarp();
  if (threadIdx.x == 1) in[3] = 7;
}

TEST(a_warp_barrier_orders_copies_too) {
  write_after_a_warp_barrier<<<1, 32, 64>>>(named_zeros<unsigned>("in", 4));
  assert_finds_nothing();
}

/** The last write before the copy is by the copying thread, or by another thread of its warp with a
 * __syncwarp() after it. An earlier write is by thread 1 of another warp. */
__global__ void write_twice_and_copy(unsigned *in, unsigned last_writer) {
  if (threadIdx.x == 1) in[3] = 7;
  if (threadIdx.x / 32 == 1) {
    if (threadIdx.x == last_writer) in[2] = 7;
    __syncwarp();
    if (threadIdx.x == 33) copy_unit((uint4 *)in);
  }
}
enum { EARLIER_WRITE = __LINE__ - 7 };

TEST(a_race_is_reported_despite_later_writes) {
  for (unsigned last_writer : {33, 34}) {
    write_twice_and_copy<<<1, 64, 64>>>(named_zeros<unsigned>("in", 4), last_writer);
    assert_race_is_reported("write_twice_and_copy", EARLIER_WRITE, "thread 1, the other thread 33");
    start_lab(nullptr);
  }
}

/** A thread may write what it has copied, and copy what it has written. */
__global__ void write_and_copy_alone(unsigned *in) {
  in += 4 * threadIdx.x;
  for (int i = 0; i < 3; i++) {
    in[1] = 7;
    if (threadIdx.x == 5) copy_unit((uint4 *)in);
  }
}

TEST(own_writes_need_no_barrier) {
  write_and_copy_alone<<<1, 64, 64>>>(named_zeros<unsigned>("in", 256));
  assert_finds_nothing();
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
