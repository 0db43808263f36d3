/** @file Tests that misaligned accesses, which a GPU refuses, are reported. Tests and debug builds
 * are compiled with the check; other programs report only what the processor refuses. */
#include <cuda_fp16.h>

#include "../tests/unit/simt/simt_testing.h"

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

/** Expects the report of a misaligned access or atomic. */
template <typename Launch>
static std::string expect_misaligned(Launch launch, const std::string &access, unsigned past,
                                     unsigned alignment, int line) {
  char where[128];
  snprintf(where, sizeof where, ": %u byte%s past a multiple of %u in ", past, past == 1 ? "" : "s",
           alignment);
  return expect_report(launch, access + where, line, cudaErrorMisalignedAddress);
}

template <typename T>
static void check_type(const std::string &type) {
  const unsigned alignment = alignof(T), past = alignment / 2;
  load<T><<<1, 1>>>(device_zeros<char>(256) + alignment, device_zeros<T>(1));
  store<T><<<1, 2>>>(device_zeros<char>(256) + alignment, T());
  load_shared<T><<<1, 32, 256>>>(64 + (int)alignment, device_zeros<T>(1));
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  const auto expect = [&](auto launch, int line) {
    assert_contains(expect_misaligned(launch, type + "'", past, alignment, line),
                    "simt: misaligned access as '");
  };
  expect([=] { load<T><<<1, 1>>>(device_zeros<char>(256) + past, device_zeros<T>(1)); }, LOAD_LINE);
  expect([=] { store<T><<<1, 2>>>(device_zeros<char>(256) + past, T()); }, STORE_LINE);
  expect([=] { load_shared<T><<<1, 32, 256>>>(64 + (int)past, device_zeros<T>(1)); }, SHARED_LINE);
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
enum { SWAP_LINE = __LINE__ - 2 };

TEST(misaligned_atomics_are_reported) {
  const char *atomic = "simt: misaligned address of an atomic";
  expect_misaligned([] { add_one<int><<<1, 1>>>(device_zeros<char>(64) + 2); }, atomic, 2, 4,
                    ADD_LINE);
  expect_misaligned([] { add_one<double><<<1, 1>>>(device_zeros<char>(64) + 4); }, atomic, 4, 8,
                    ADD_LINE);
  expect_misaligned([] { swap<<<1, 1>>>(device_zeros<char>(64) + 12); }, atomic, 4, 8, SWAP_LINE);
}

RUN_TESTS_WITH(reset_device, nullptr)
