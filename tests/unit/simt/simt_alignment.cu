/**
 * @file
 * Tests that misaligned accesses, which a GPU refuses, are reported. Tests and debug builds are
 * compiled with the check; other programs report only what the processor refuses.
 */
#include <cuda_fp16.h>

#include "../tests/unit/simt/simt_testing.h"

static Capture capture;

extern __shared__ __align__(16) unsigned char smem[];

template <typename T>
__global__ void load(const char *bytes, T *out) {
  *out = *(const T *)bytes;
}
enum { LOAD_LINE = __LINE__ - 2 };

template <typename T>
__global__ void store(char *bytes, T value) {
  T *target = reinterpret_cast<T *>(bytes);
  target[threadIdx.x] = value;
}
enum { STORE_LINE = __LINE__ - 2 };

template <typename T>
__global__ void load_shared(int offset, T *out) {
  for (int i = threadIdx.x; i < 256; i += blockDim.x) smem[i] = (unsigned char)i;
  __syncthreads();
  if (threadIdx.x == 3) *out = *(const T *)(smem + offset);
}
enum { SHARED_LINE = __LINE__ - 2 };

static void expect_misaligned(const char *type, unsigned past, unsigned alignment, int line) {
  char what[128];
  end_capture(&capture);
  snprintf(what, sizeof what, "%s': %u byte%s past a multiple of %u in ", type, past,
           past == 1 ? "" : "s", alignment);
  assert_contains(capture.text, "simt: misaligned access as '");
  assert_contains(capture.text, what);
  assert_names_line(capture.text, line);
  assert_int_equal(cudaGetLastError(), cudaErrorMisalignedAddress);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
}

template <typename T>
static void check_type(const char *type) {
  const unsigned alignment = alignof(T), past = alignment / 2;
  load<T><<<1, 1>>>(device_zeros<char>(256) + alignment, device_zeros<T>(1));
  store<T><<<1, 2>>>(device_zeros<char>(256) + alignment, T());
  load_shared<T><<<1, 32, 256>>>(64 + (int)alignment, device_zeros<T>(1));
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  begin_capture(&capture);
  load<T><<<1, 1>>>(device_zeros<char>(256) + past, device_zeros<T>(1));
  expect_misaligned(type, past, alignment, LOAD_LINE);
  begin_capture(&capture);
  store<T><<<1, 2>>>(device_zeros<char>(256) + past, T());
  expect_misaligned(type, past, alignment, STORE_LINE);
  begin_capture(&capture);
  load_shared<T><<<1, 32, 256>>>(64 + (int)past, device_zeros<T>(1));
  expect_misaligned(type, past, alignment, SHARED_LINE);
}

TEST(misaligned_vectors_are_reported) {
  check_type<float2>("float2");
  check_type<int2>("int2");
  check_type<uint2>("uint2");
  check_type<float4>("float4");
  check_type<int4>("int4");
  check_type<uint4>("uint4");
  check_type<__half2>("__half2");
}

TEST(misaligned_numbers_are_reported) {
  check_type<int>("int");
  check_type<float>("float");
  check_type<__half>("__half");
  check_type<double>("double");
}

template <typename T>
__global__ void add_one(char *address) {
  atomicAdd((T *)address, (T)1);
}
enum { ADD_LINE = __LINE__ - 2 };

__global__ void swap(char *address) {
  atomicCAS((unsigned long long *)address, 0ull, 1ull);
}

static void expect_misaligned_atomic(unsigned past, unsigned size) {
  char what[128];
  end_capture(&capture);
  snprintf(what, sizeof what, "misaligned address of an atomic: %u bytes past a multiple of %u in ",
           past, size);
  assert_contains(capture.text, what);
  assert_int_equal(cudaGetLastError(), cudaErrorMisalignedAddress);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
}

TEST(misaligned_atomics_are_reported) {
  begin_capture(&capture);
  add_one<int><<<1, 1>>>(device_zeros<char>(64) + 2);
  expect_misaligned_atomic(2, 4);
  assert_names_line(capture.text, ADD_LINE);
  begin_capture(&capture);
  add_one<double><<<1, 1>>>(device_zeros<char>(64) + 4);
  expect_misaligned_atomic(4, 8);
  begin_capture(&capture);
  swap<<<1, 1>>>(device_zeros<char>(64) + 12);
  expect_misaligned_atomic(4, 8);
}

RUN_TESTS_WITH(reset_device, nullptr)
