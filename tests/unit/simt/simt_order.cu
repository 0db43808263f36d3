/** @file Tests of the orders in which the CPU backend runs blocks and threads. */
#include <sys/wait.h>

#include "../tests/unit/simt/simt_testing.h"
#include "device/ptx.cuh"

/** Thread 0 of each block notes its number in the order of execution, with an atomic. */
__global__ void note_order(int *next, int *order) {
  const int place = atomicAdd(next, 1);
  order[place] = blockIdx.x * blockDim.x + threadIdx.x;
}

static std::array<int, 320> order_of(const char *name) {
  set_variable("SIMT_THREADS", "1");
  set_variable("SIMT_ORDER", name);
  int *next = device_zeros<int>(1), *device = device_zeros<int>(320);
  note_order<<<5, 64>>>(next, device);
  const auto order = fetch<320>(device);
  set_variable("SIMT_ORDER", nullptr);
  set_variable("SIMT_THREADS", nullptr);
  return order;
}

TEST(threads_and_blocks_run_in_the_order_asked_for) {
  const auto forward = order_of("forward"), reverse = order_of("reverse");
  for (int i = 0; i < 320; i++) {
    assert_int_equal(forward[i], i);
    assert_int_equal(reverse[i], 319 - i);
  }
  const auto shuffled = order_of("random:7");
  assert_true(shuffled != forward && shuffled != order_of("random:8"));
  int seen[320] = {};
  for (int thread : shuffled) seen[thread]++;
  for (int count : seen) assert_int_equal(count, 1);
}

/* --- The same seed, the same order ---------------------------------------------------------- */

enum { BLOCKS = 6, THREADS = 96, VISITS = 4 * THREADS };

/** Each block's threads in the order in which they passed a barrier, shuffles and an atomic. */
__global__ void trace(int *order) {
  __shared__ int next;
  int *trace_of_block = order + blockIdx.x * VISITS;
  if (threadIdx.x == 0) next = 0;
  __syncthreads();
  trace_of_block[next++] = (int)threadIdx.x;
  __shfl_xor_sync(0xffffffff, 0, 1);
  trace_of_block[next++] = (int)threadIdx.x;
  const int place = atomicAdd(&next, 1);
  trace_of_block[place] = (int)threadIdx.x;
  __syncthreads();
  trace_of_block[next++] = (int)threadIdx.x;
}

typedef std::array<int, BLOCKS * VISITS> Trace;

/** Runs in its own process, because the order also depends on the number of earlier launches. */
static void trace_in_child(const char *order, const char *threads, Trace *result) {
  int ends[2], status = 0;
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    set_variable("SIMT_ORDER", order);
    set_variable("SIMT_THREADS", threads);
    int *device = device_zeros<int>(BLOCKS * VISITS);
    trace<<<BLOCKS, THREADS>>>(device);
    *result = fetch<BLOCKS * VISITS>(device);
    const bool written = write(ends[1], result, sizeof *result) == (ssize_t)sizeof *result;
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  size_t length = 0;
  for (ssize_t got = 1; got > 0 && length < sizeof *result; length += (size_t)got) {
    got = read(ends[0], (char *)result + length, sizeof *result - length);
    if (got < 0) break;
  }
  close(ends[0]);
  waitpid(child, &status, 0);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  assert_int_equal(length, sizeof *result);
}

TEST(the_same_seed_gives_the_same_order) {
  static Trace first, again, many_threads;
  for (const char *order : {"forward", "reverse", "random:1", "random:2", "random:12345678901"}) {
    trace_in_child(order, "1", &first);
    trace_in_child(order, "1", &again);
    assert_memory_equal(&first, &again, sizeof first);
    /* Which blocks run at the same time varies; the order within a block does not. */
    trace_in_child(order, "4", &many_threads);
    assert_memory_equal(&first, &many_threads, sizeof first);
  }
}

TEST(other_seeds_give_other_orders) {
  static Trace traces[8];
  for (int seed = 0; seed < 8; seed++) {
    char order[16];
    snprintf(order, sizeof order, "random:%d", seed);
    trace_in_child(order, "1", &traces[seed]);
    for (int other = 0; other < seed; other++) {
      for (int block = 0; block < BLOCKS; block++) {
        assert_memory_not_equal(&traces[seed][block * VISITS], &traces[other][block * VISITS],
                                VISITS * sizeof(int));
      }
    }
  }
}

/* --- A right kernel does not depend on the order -------------------------------------------- */

/** Sums of inexact floats: with a tree in shared memory, with shuffles, and on the tensor cores. */
__global__ void add_up(const float *from, float *out) {
  __shared__ float partial[128];
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  partial[t] = from[i];
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) partial[t] += partial[t + half];
    __syncthreads();
  }
  float sum = from[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
  const uint32_t bits = 0x3555 | (uint32_t)t << 16; /* 1/3 as fp16, and a very small number */
  const uint32_t a[4] = {bits, bits + 1, bits + 2, bits + 3};
  float d[4] = {sum, partial[0], sum, partial[0]};
  mma_m16n8k16<__half>(d, a, bits, bits + 4);
  out[i] = d[0] + d[1] + d[2] + d[3];
}

TEST(a_right_kernel_gives_the_same_bits_in_every_order) {
  static float in[20 * 128];
  for (int i = 0; i < 20 * 128; i++) in[i] = 1.0f / (float)(i + 1);
  float *from = device_zeros<float>(20 * 128), *device = device_zeros<float>(20 * 128);
  assert_int_equal(cudaMemcpy(from, in, sizeof in, cudaMemcpyHostToDevice), cudaSuccess);
  add_up<<<20, 128>>>(from, device);
  const auto first = fetch<20 * 128>(device);
  assert_true(first[0] != first[128]);
  for (const char *order : {"forward", "reverse", "random:1", "random:2", "random:3"}) {
    for (const char *threads : {"1", "4"}) {
      set_variable("SIMT_ORDER", order);
      set_variable("SIMT_THREADS", threads);
      assert_int_equal(cudaMemset(device, 0, sizeof in), cudaSuccess);
      add_up<<<20, 128>>>(from, device);
      assert_true(fetch<20 * 128>(device) == first);
    }
  }
  set_variable("SIMT_ORDER", nullptr);
  set_variable("SIMT_THREADS", nullptr);
}

RUN_TESTS_WITH(reset_device, nullptr)
