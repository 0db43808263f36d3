/** @file Tests of the orders in which the CPU backend runs blocks and threads. */
#include "../tests/unit/simt_testing.h"

/** Thread 0 of each block notes when it ran; atomics alone order the notes. */
__global__ void note_order(int *next, int *order) {
  const int place = atomicAdd(next, 1);
  order[place] = blockIdx.x * blockDim.x + threadIdx.x;
}

static void run_in_order(const char *name, int (&order)[320]) {
  set_variable("SIMT_THREADS", "1");
  set_variable("SIMT_ORDER", name);
  int *next = device_zeros<int>(1), *device = device_zeros<int>(320);
  note_order<<<5, 64>>>(next, device);
  fetch(order, device);
  set_variable("SIMT_ORDER", nullptr);
  set_variable("SIMT_THREADS", nullptr);
}

static void threads_and_blocks_run_in_the_order_asked_for(void **) {
  static int forward[320], reverse[320], shuffled[320], other[320];
  run_in_order("forward", forward);
  run_in_order("reverse", reverse);
  for (int i = 0; i < 320; i++) {
    assert_int_equal(forward[i], i);
    assert_int_equal(reverse[i], 319 - i);
  }
  run_in_order("random:7", shuffled);
  run_in_order("random:8", other);
  assert_memory_not_equal(shuffled, forward, sizeof forward);
  assert_memory_not_equal(shuffled, other, sizeof other);
  int seen[320] = {};
  for (int thread : shuffled) seen[thread]++;
  for (int count : seen) assert_int_equal(count, 1);
}

/** Which thread of 128 is the first behind a barrier. */
__global__ void note_first(int *first) {
  __shared__ int taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  if (taken++ == 0) *first = threadIdx.x;
}

static void random_orders_differ(void **) {
  int first[16], *device = device_zeros<int>(1), different = 0;
  set_variable("SIMT_THREADS", "1");
  for (int run = 0; run < 16; run++) {
    int out[1];
    char name[16];
    snprintf(name, sizeof name, "random:%d", run % 8);
    set_variable("SIMT_ORDER", name);
    note_first<<<1, 128>>>(device);
    fetch(out, device);
    first[run] = out[0];
    bool seen = false;
    for (int before = 0; before < run; before++) seen |= first[before] == first[run];
    different += !seen;
  }
  assert_true(different > 5);
  set_variable("SIMT_ORDER", nullptr);
  set_variable("SIMT_THREADS", nullptr);
}

#define TEST(name) cmocka_unit_test_setup(name, reset_device)

int main() {
  const CMUnitTest tests[] = {
      TEST(threads_and_blocks_run_in_the_order_asked_for),
      TEST(random_orders_differ),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
