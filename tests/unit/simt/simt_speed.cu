/**
 * @file
 * Tests that the CPU backend is quick enough to work with. The best of many tries counts, so that
 * a busy machine does not fail them. Debug builds are not judged, nor is anything when SIMT_SLOW is
 * set: for valgrind and emulators.
 */
#include <time.h>

#include "../tests/unit/simt/simt_testing.h"

enum { ROUNDS = 1000, TRIES = 50 };

__global__ void do_nothing() {}

__global__ void pass_barriers() {
  for (int i = 0; i < ROUNDS; i++) __syncthreads();
}

__global__ void shuffle(int *out) {
  int value = threadIdx.x;
  for (int i = 0; i < ROUNDS; i++) value += __shfl_xor_sync(0xffffffff, value, 1);
  *out = value;
}

static double seconds_now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

template <typename Function>
static double best_microseconds(Function function) {
  double best = 1e9;
  for (int i = 0; i < TRIES; i++) {
    const double start = seconds_now();
    function();
    best = fmin(best, 1e6 * (seconds_now() - start));
  }
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  return best;
}

static void judge(const char *what, double microseconds, double allowed) {
  print_message("%s: %.3f us (allowed: %.1f)\n", what, microseconds, allowed);
#ifdef __OPTIMIZE__
  if (getenv("SIMT_SLOW") == nullptr) assert_true(microseconds < allowed);
#endif
}

static void a_barrier_of_128_threads_takes_under_5_us(void **) {
  for (const char *order : {"forward", "reverse", "random:1"}) {
    set_variable("SIMT_ORDER", order);
    const double time = best_microseconds([] { pass_barriers<<<1, 128>>>(); });
    print_message("%s: ", order);
    judge("barrier", time / ROUNDS, 5.0);
  }
  set_variable("SIMT_ORDER", nullptr);
}

static void an_empty_launch_takes_under_20_us(void **) {
  judge("launch", best_microseconds([] { do_nothing<<<1, 128>>>(); }), 20.0);
}

static void a_shuffle_takes_under_2_us(void **) {
  int *out = device_zeros<int>(1);
  const double time = best_microseconds([=] { shuffle<<<1, 32>>>(out); });
  judge("shuffle", time / ROUNDS, 2.0);
}

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_barrier_of_128_threads_takes_under_5_us),
      cmocka_unit_test(an_empty_launch_takes_under_20_us),
      cmocka_unit_test(a_shuffle_takes_under_2_us),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
