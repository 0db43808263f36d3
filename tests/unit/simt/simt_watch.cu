/** @file Tests of the time limit of kernels, and of the progress display. */
#include <atomic>
#include <chrono>

#include "../tests/unit/simt/simt_testing.h"

/** Only the last block does not end; it spins without any call, or waits for ever. */
__global__ void never_end(volatile int *flag, bool in_barriers) {
  if (blockIdx.x + 1 < gridDim.x) return;
  while (*flag == 0) {
    if (in_barriers) __syncthreads();
  }
}

__global__ void spin_for_a_while() {
  const long long start = clock64();
  while (clock64() - start < 400000000) __syncthreads();
}

TEST(a_kernel_that_never_ends_is_stopped_at_the_time_limit) {
  for (const bool in_barriers : {false, true}) {
    int *flag = device_zeros<int>(1);
    set_variable("SIMT_THREADS", "2");
    simt_set_time_limit(0.25);
    const std::string text = stderr_of([&] { never_end<<<7, 64>>>(flag, in_barriers); });
    simt_set_time_limit(0);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchTimeout);
    assert_contains(
        text, {"simt: time limit of 0.25 s reached with 6 of 7 blocks done in never_end, launch ",
               " of block (6,0,0)\n  at tests/unit/simt/simt_watch.cu:"});
    assert_int_equal(cudaDeviceReset(), cudaSuccess);
  }
}

/** The limit applies to all launches together, until it is removed. */
TEST(the_limit_is_a_point_in_time) {
  simt_set_time_limit(1000);
  spin_for_a_while<<<1, 32>>>();
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  simt_set_time_limit(0.1);
  usleep(150000);
  int *flag = device_zeros<int>(1);
  stderr_of([&] { never_end<<<1, 32>>>(flag, true); });
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchTimeout);
  simt_set_time_limit(0);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
  spin_for_a_while<<<1, 32>>>();
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

static std::atomic<uint64_t> times_shown, done_shown, blocks_shown;

TEST(progress_is_shown_while_a_kernel_runs) {
  set_variable("SIMT_THREADS", "1");
  simt_set_progress([](uint64_t blocks_done, uint64_t blocks) {
    times_shown++;
    done_shown = blocks_done;
    blocks_shown = blocks;
  });
  const auto start = std::chrono::steady_clock::now();
  spin_for_a_while<<<2, 32>>>();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  simt_set_progress(nullptr);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_in_range(times_shown, 2, (uint64_t)(10 * elapsed.count()));
  assert_int_equal(done_shown, 1);
  assert_int_equal(blocks_shown, 2);
}

RUN_TESTS_WITH(reset_device, nullptr)
