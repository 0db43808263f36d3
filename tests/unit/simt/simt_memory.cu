/** @file Tests of CUDA's memory functions in the CPU backend. */
#include "../tests/unit/simt/simt_testing.h"

__global__ void write_number(int *out) {
  __syncthreads();
  *out = 42;
}

TEST(allocations_are_aligned_apart_and_not_zero) {
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

TEST(what_was_not_allocated_cannot_be_freed) {
  char *pointer = device_zeros<char>(1000);
  char local;
  assert_int_equal(cudaFree(pointer + 1), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(&local), cudaErrorInvalidValue);
  assert_int_equal(cudaFree(pointer), cudaSuccess);
  assert_int_equal(cudaFree(pointer), cudaErrorInvalidValue);
  assert_int_equal(simt_name_allocation(pointer, "gone"), cudaErrorInvalidValue);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(copies_stay_within_one_allocation) {
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

TEST(null_pointers_are_refused) {
  char *device = device_zeros<char>(100), host[100];
  const cudaError_t invalid = cudaErrorInvalidValue;
  const cudaMemcpyKind up = cudaMemcpyHostToDevice, down = cudaMemcpyDeviceToHost;
  assert_int_equal(cudaMemcpy(device, nullptr, 10, up), invalid);
  assert_int_equal(cudaMemcpy(nullptr, device, 10, down), invalid);
  assert_int_equal(cudaMemcpy(nullptr, host, 10, up), invalid);
  assert_int_equal(cudaMemcpy(host, nullptr, 10, down), invalid);
  assert_int_equal(cudaMemcpy(host, nullptr, 10, cudaMemcpyHostToHost), invalid);
  assert_int_equal(cudaMemcpy(nullptr, device, 10, cudaMemcpyDefault), invalid);
  assert_int_equal(cudaMemset(nullptr, 0, 10), invalid);
  assert_int_equal(simt_name_allocation(nullptr, "nothing"), invalid);
  assert_int_equal(cudaGetLastError(), invalid);
  assert_int_equal(cudaMemcpy(nullptr, nullptr, 0, down), cudaSuccess);
}

TEST(host_copies_of_device_memory_are_refused) {
  char *device = device_zeros<char>(4096), host[16];
  const cudaMemcpyKind within = cudaMemcpyHostToHost;
  assert_int_equal(cudaMemcpy(host, device, 16, within), cudaErrorInvalidValue);
  assert_int_equal(cudaMemcpy(host, host, (size_t)0 - 8, within), cudaErrorInvalidValue);
  const size_t up_to_device = (size_t)(device - host);
  if (device > host) {
    assert_int_equal(cudaMemcpy(host, host, up_to_device + 1, within), cudaErrorInvalidValue);
  }
}

TEST(memory_is_limited) {
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

/** Each allocation takes two of the mappings that Linux allows a program; kernels need some too. */
TEST(too_many_allocations_are_out_of_memory) {
  enum { MANY = 40000 };
  static int *pointers[MANY];
  int count = 0;
  while (count < MANY && cudaMalloc(&pointers[count], 4) == cudaSuccess) count++;
  assert_int_equal(count, 15000);
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
  for (int i = count; i < MANY; i++) {
    assert_int_equal(cudaMalloc(&pointers[i], 4), cudaErrorMemoryAllocation);
  }
  assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);

  set_variable("SIMT_THREADS", "16");
  write_number<<<64, 1024>>>(pointers[count - 1]);
  assert_int_equal(fetch<1>(pointers[count - 1])[0], 42);
  set_variable("SIMT_THREADS", nullptr);

  assert_int_equal(cudaFree(pointers[0]), cudaSuccess);
  assert_int_equal(cudaMalloc(&pointers[0], 4), cudaSuccess);
  for (int i = 0; i < count; i++) assert_int_equal(cudaFree(pointers[i]), cudaSuccess);
  assert_int_equal(cudaMalloc(&pointers[0], 4), cudaSuccess);
}

/** Addresses ascend until all reserved ones have been used once. */
TEST(addresses_are_reused) {
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

RUN_TESTS_WITH(reset_device, nullptr)
