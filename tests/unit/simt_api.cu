/** @file Tests of CUDA's API as the CPU backend has it: memory, launches, events, settings. */
#include <signal.h>
#include <sys/wait.h>

#include "../tests/unit/simt_testing.h"

__global__ void do_nothing() {}

/* --- Launches ------------------------------------------------------------------------------- */

static void expect_launch_error(dim3 grid, dim3 block, size_t bytes, cudaError_t error) {
  SimtCounters before, after;
  simt_read_counters(&before);
  do_nothing<<<grid, block, bytes>>>();
  simt_read_counters(&after);
  assert_int_equal(cudaPeekAtLastError(), error);
  assert_int_equal(cudaGetLastError(), error);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_int_equal(after.launches - before.launches, error == cudaSuccess);
}

static void wrong_shapes_are_invalid_configurations(void **) {
  const cudaError_t invalid = cudaErrorInvalidConfiguration;
  expect_launch_error(dim3(1, 2, 1), dim3(1024), 0, cudaSuccess);
  expect_launch_error(1, dim3(16, 1, 64), 0, cudaSuccess);
  expect_launch_error(1, 1025, 0, invalid);
  expect_launch_error(1, dim3(32, 33), 0, invalid);
  expect_launch_error(1, dim3(65536, 65536), 0, invalid);
  expect_launch_error(1, dim3(1, 1, 65), 0, invalid);
  expect_launch_error(1, 0, 0, invalid);
  expect_launch_error(1, dim3(1, 0), 0, invalid);
  expect_launch_error(0, 1, 0, invalid);
  expect_launch_error(dim3(1, 1, 0), 1, 0, invalid);
  expect_launch_error(dim3(1, 65536), 1, 0, invalid);
  expect_launch_error(dim3(1, 1, 65536), 1, 0, invalid);
  expect_launch_error(dim3(1u << 31), 1, 0, invalid);
}

static void more_than_48_kilobytes_of_shared_memory_must_be_asked_for(void **) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  expect_launch_error(1, 1, 48 << 10, cudaSuccess);
  expect_launch_error(1, 1, (48 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, 100 << 10), cudaSuccess);
  expect_launch_error(1, 1, 100 << 10, cudaSuccess);
  expect_launch_error(1, 1, (100 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute((const void *)do_nothing, most, 227 << 10), cudaSuccess);
  expect_launch_error(1, 1, 227 << 10, cudaSuccess);
  expect_launch_error(1, 1, (227 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, (227 << 10) + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);

  cudaFuncAttributes attributes;
  assert_int_equal(cudaFuncGetAttributes(&attributes, do_nothing), cudaSuccess);
  assert_int_equal(attributes.maxDynamicSharedSizeBytes, 227 << 10);
  assert_int_equal(attributes.maxThreadsPerBlock, 1024);
}

static void a_smaller_gpu_has_less_shared_memory(void **) {
  const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaDeviceProp properties;
  int value = 0;
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, 227 << 10), cudaSuccess);
  set_variable("SIMT_SHARED", "99K");
  expect_launch_error(1, 1, 99 << 10, cudaSuccess);
  expect_launch_error(1, 1, (99 << 10) + 1, cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, (99 << 10) + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
  assert_int_equal(cudaFuncSetAttribute(do_nothing, most, 99 << 10), cudaSuccess);
  assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  assert_int_equal(properties.sharedMemPerBlockOptin, 99 << 10);
  assert_int_equal(properties.sharedMemPerMultiprocessor, 100 << 10);
  assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                   cudaSuccess);
  assert_int_equal(value, 99 << 10);
  set_variable("SIMT_SHARED", nullptr);
}

static int occupancy(int threads, size_t bytes) {
  int blocks = -1;
  assert_int_equal(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, do_nothing, threads, bytes),
      cudaSuccess);
  return blocks;
}

static void occupancy_is_that_of_compute_capability_9(void **) {
  assert_int_equal(occupancy(1, 0), 32);
  assert_int_equal(occupancy(128, 0), 16);
  assert_int_equal(occupancy(129, 0), 12);
  assert_int_equal(occupancy(1024, 0), 2);
  assert_int_equal(occupancy(1025, 0), 0);
  assert_int_equal(occupancy(128, 48 << 10), 4);
  assert_int_equal(occupancy(128, 49 << 10), 0);
}

/* --- Memory --------------------------------------------------------------------------------- */

static void allocations_are_aligned_apart_and_not_zero(void **) {
  for (size_t size : {(size_t)1, (size_t)255, (size_t)256, (size_t)4097, (size_t)65 << 20}) {
    unsigned char *pointer;
    unsigned char ends[2];
    assert_int_equal(cudaMalloc(&pointer, size), cudaSuccess);
    assert_int_equal((uintptr_t)pointer % 256, 0);
    assert_int_equal(cudaMemcpy(ends, pointer, 1, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaMemcpy(ends + 1, pointer + size - 1, 1, cudaMemcpyDeviceToHost),
                     cudaSuccess);
    assert_int_equal(ends[0], 0xff);
    assert_int_equal(ends[1], 0xff);
    assert_int_equal(cudaFree(pointer), cudaSuccess);
  }
  void *nothing = &nothing;
  assert_int_equal(cudaMalloc(&nothing, 0), cudaSuccess);
  assert_null(nothing);
  assert_int_equal(cudaFree(nullptr), cudaSuccess);
}

static void what_was_not_allocated_cannot_be_freed(void **) {
  char *pointer = device_zeros<char>(1000);
  char local;
  assert_int_equal(cudaFree(pointer + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(&local), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(pointer), cudaSuccess);
  assert_int_equal(cudaFree(pointer), cudaErrorInvalidValue);
  assert_int_equal(simt_name_allocation(pointer, "gone"), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

static void copies_stay_within_one_allocation(void **) {
  char *a = device_zeros<char>(1000);
  char *b = device_zeros<char>(1000);
  char host[2000] = {1, 2, 3};
  const cudaMemcpyKind up = cudaMemcpyHostToDevice, down = cudaMemcpyDeviceToHost;
  assert_int_equal(cudaMemcpy(a, host, 1000, up), cudaSuccess);
  assert_int_equal(cudaMemcpyAsync(b, a, 1000, cudaMemcpyDeviceToDevice), cudaSuccess);
  assert_int_equal(cudaMemcpy(host + 1000, b, 1000, cudaMemcpyDefault), cudaSuccess);
  assert_memory_equal(host, host + 1000, 1000);
  assert_int_equal(cudaMemcpy(a, host, 1001, up), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(a + 1, host, 1000, up), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(a - 1, host, 10, up), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(host, a, (size_t)-1, down), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(host, a, 10, up), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(a, b, 10, up), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(a, host, 10, (cudaMemcpyKind)7), cudaErrorInvalidMemcpyDirection);
  assert_int_equal(cudaMemset(a, 1, 1001), cudaErrorInvalidValue);
  assert_int_equal(cudaMemset(host, 1, 10), cudaErrorInvalidValue);
  assert_int_equal(cudaMemset(nullptr, 1, 0), cudaSuccess);
  assert_int_equal(cudaFree(a), cudaSuccess);
  assert_int_equal(cudaMemcpy(host, a, 10, down), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

static void memory_is_limited(void **) {
  size_t free_bytes, total_bytes;
  char *a, *b;
  set_variable("SIMT_MEMORY", "3M");
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  assert_int_equal(free_bytes, 3 << 20);
  assert_int_equal(total_bytes, 3 << 20);
  assert_int_equal(cudaMalloc(&a, (3 << 20) + 1), cudaErrorMemoryAllocation);
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  assert_int_equal(cudaGetLastError(), cudaSuccess);
  assert_int_equal(cudaMalloc(&a, 2 << 20), cudaSuccess);
  assert_int_equal(cudaMalloc(&b, (1 << 20) + 1), cudaErrorMemoryAllocation);
  assert_int_equal(cudaMalloc(&b, 1 << 20), cudaSuccess);
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  assert_int_equal(free_bytes, 0);
  assert_int_equal(cudaFree(a), cudaSuccess);
  assert_int_equal(cudaMalloc(&a, 2 << 20), cudaSuccess);
  assert_int_equal(cudaMalloc(&b, (size_t)-1), cudaErrorMemoryAllocation);
  set_variable("SIMT_MEMORY", nullptr);
}

/** Addresses ascend, until all that were set aside have been used once. */
static void addresses_are_used_again_in_the_end(void **) {
  char *kept = device_zeros<char>(1 << 20);
  char *pointer, *before = nullptr;
  for (int round = 0; round < 2; round++) {
    while (cudaMalloc(&pointer, 1) == cudaSuccess && pointer > before) {
      assert_true(pointer < kept || pointer >= kept + (1 << 20));
      assert_int_equal(cudaFree(pointer), cudaSuccess);
      before = pointer;
    }
    assert_true(before > kept);
    before = pointer;
    assert_int_equal(cudaFree(pointer), cudaSuccess);
  }
}

/* --- The device, events --------------------------------------------------------------------- */

static void the_device_says_what_it_is(void **) {
  cudaDeviceProp properties;
  int value = 0, count = 0;
  set_variable("SIMT_THREADS", "3");
  assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
  assert_int_equal(count, 1);
  assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  assert_contains(properties.name, "CPU backend (");
  assert_contains(properties.name, ", 3 threads)");
  assert_int_equal(properties.sharedMemPerBlockOptin, 227 << 10);
  assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  assert_int_equal(value, 3);
  assert_int_equal(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0), cudaErrorInvalidValue);
  assert_int_equal(cudaSetDevice(0), cudaSuccess);
  assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
  assert_int_equal(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
  set_variable("SIMT_THREADS", nullptr);
}

static void events_measure_time_on_this_machine(void **) {
  cudaEvent_t start, stop;
  cudaStream_t stream;
  float milliseconds = -1;
  assert_int_equal(cudaEventCreate(&start), cudaSuccess);
  assert_int_equal(cudaEventCreate(&stop), cudaSuccess);
  assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
  assert_int_equal(cudaEventRecord(start), cudaSuccess);
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, stop),
                   cudaErrorInvalidResourceHandle);
  usleep(2000);
  do_nothing<<<1, 1, 0, stream>>>();
  assert_int_equal(cudaEventRecord(stop, stream), cudaSuccess);
  assert_int_equal(cudaEventSynchronize(stop), cudaSuccess);
  assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
  assert_int_equal(cudaEventElapsedTime(&milliseconds, start, stop), cudaSuccess);
  assert_true(milliseconds >= 2.0f && milliseconds < 10000.0f);
  assert_int_equal(cudaEventDestroy(start), cudaSuccess);
  assert_int_equal(cudaEventDestroy(stop), cudaSuccess);
  assert_int_equal(cudaEventDestroy(nullptr), cudaErrorInvalidResourceHandle);
  assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void errors_have_names_and_texts(void **) {
  assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}

/* --- Settings ------------------------------------------------------------------------------- */

static Capture capture;

static void expect_refusal(const char *variable, const char *value, const char *right) {
  char message[256];
  snprintf(message, sizeof message, "%s=%s: must be %s\n", variable, value, right);
  begin_capture(&capture);
  const pid_t child = fork();
  if (child == 0) {
    set_variable(variable, value);
    _exit(0); /* not reached */
  }
  int status = 0;
  waitpid(child, &status, 0);
  end_capture(&capture);
  assert_string_equal(capture.text, message);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 2);
}

static void wrong_settings_are_refused_with_exit_code_2(void **) {
  for (const char *value : {"", "0", "17", "-1", "2x", " 2", "99999999999999999999"}) {
    expect_refusal("SIMT_THREADS", value, "a whole number from 1 to 16");
  }
  for (const char *value : {"", "backward", "random", "random:", "random:x", "forward "}) {
    expect_refusal("SIMT_ORDER", value, "forward, reverse or random:SEED, SEED a whole number");
  }
  for (const char *value : {"", "0", "1T", "-5", "K", "1.5G", "1025G", "1 G"}) {
    expect_refusal("SIMT_MEMORY", value,
                   "a number of bytes from 1 to 1024G, with K, M, G or no suffix");
  }
  for (const char *value : {"", "47K", "228K", "1M", "49151", "99 K", "99999999999999999K"}) {
    expect_refusal("SIMT_SHARED", value, "a number of bytes from 48K to 227K, with K or no suffix");
  }
}

static void right_settings_are_taken(void **) {
  size_t free_bytes, total_bytes;
  set_variable("SIMT_MEMORY", "12345");
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  assert_int_equal(total_bytes, 12345);
  set_variable("SIMT_MEMORY", "7K");
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  assert_int_equal(total_bytes, 7 << 10);
  set_variable("SIMT_MEMORY", "2G");
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  assert_int_equal(total_bytes, 2ll << 30);
  set_variable("SIMT_MEMORY", nullptr);
}

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

/* --- Faults of the host --------------------------------------------------------------------- */

static void a_fault_of_the_host_ends_the_program_as_ever(void **) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* cmocka has its own */
    do_nothing<<<1, 1>>>();
    volatile int *volatile nowhere = nullptr;
    *nowhere = 1;
    _exit(0); /* not reached */
  }
  int status = 0;
  waitpid(child, &status, 0);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void a_fork_may_launch(void **) {
  do_nothing<<<100, 1>>>();
  const pid_t child = fork();
  if (child == 0) {
    do_nothing<<<100, 1>>>();
    exit(cudaDeviceSynchronize() == cudaSuccess ? 5 : 6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 5);
}

#define TEST(name) cmocka_unit_test_setup(name, reset_device)

int main() {
  const CMUnitTest tests[] = {
      TEST(wrong_shapes_are_invalid_configurations),
      TEST(more_than_48_kilobytes_of_shared_memory_must_be_asked_for),
      TEST(a_smaller_gpu_has_less_shared_memory),
      TEST(occupancy_is_that_of_compute_capability_9),
      TEST(allocations_are_aligned_apart_and_not_zero),
      TEST(what_was_not_allocated_cannot_be_freed),
      TEST(copies_stay_within_one_allocation),
      TEST(memory_is_limited),
      TEST(addresses_are_used_again_in_the_end),
      TEST(the_device_says_what_it_is),
      TEST(events_measure_time_on_this_machine),
      TEST(errors_have_names_and_texts),
      TEST(wrong_settings_are_refused_with_exit_code_2),
      TEST(right_settings_are_taken),
      TEST(threads_and_blocks_run_in_the_order_asked_for),
      TEST(random_orders_differ),
      TEST(a_fault_of_the_host_ends_the_program_as_ever),
      TEST(a_fork_may_launch),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
