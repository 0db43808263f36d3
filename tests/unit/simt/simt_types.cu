/** @file Tests of the vector and 16-bit types and of the arithmetic functions. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include <type_traits>

#include <signal.h>
#include <sys/wait.h>

#include "../tests/unit/simt/simt_testing.h"

/** Types in shared memory, and in `extern` arrays of it, must need no constructor. */
static_assert(std::is_trivially_default_constructible<__half2>::value, "");
static_assert(std::is_trivially_default_constructible<__nv_bfloat162>::value, "");
static_assert(std::is_trivially_default_constructible<float4>::value, "");
static_assert(sizeof(__half) == 2 && sizeof(__half2) == 4 && alignof(__half2) == 4, "");
static_assert(sizeof(float2) == 8 && alignof(float2) == 8, "");
static_assert(sizeof(uint4) == 16 && alignof(uint4) == 16, "");
static_assert(sizeof(double2) == 16 && alignof(double2) == 16, "");
static_assert(sizeof(short4) == 8 && alignof(ushort4) == 8 && alignof(ushort2) == 4, "");
static_assert(sizeof(char4) == 4 && alignof(uchar4) == 4 && sizeof(short2) == 4, "");
static_assert(sizeof(float3) == 12 && alignof(int3) == 4, "");

TEST(halves_round_to_nearest_even) {
  assert_int_equal(__half_as_ushort(__float2half(1.0f)), 0x3c00);
  assert_int_equal(__half_as_ushort(__float2half_rn(2049.0f)), 0x6800);
  assert_int_equal(__half_as_ushort(__float2half(65520.0f)), 0x7c00);
  assert_int_equal(__half_as_ushort(__half(-0.0f)), 0x8000);
  assert_true(__half2float(__ushort_as_half(0x0001)) == 0x1p-24f);
  assert_int_equal(__half_as_ushort(__float2half(NAN)), 0x7fff);
  assert_true(__half2float(__half(7)) == 7.0f);
}

TEST(bfloat16_rounds_to_nearest_even) {
  assert_int_equal(__bfloat16_as_ushort(__float2bfloat16(1.0f)), 0x3f80);
  assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(257.0f)), 0x4380);
  assert_int_equal(__bfloat16_as_ushort(__float2bfloat16(259.0f)), 0x4382);
  assert_true(__bfloat162float(__ushort_as_bfloat16(0x4049)) == 3.140625f);
  assert_true(__bfloat162float(__nv_bfloat16(1e38f)) > 9.9e37f);
}

/** Fewer bits and arithmetic do not hide where a number comes from. */
TEST(numbers_that_were_never_set_keep_their_bits) {
  float unset;
  memset((void *)&unset, 0xff, sizeof unset);
  assert_int_equal(__half_as_ushort(__float2half(unset)), 0xffff);
  assert_int_equal(__bfloat16_as_ushort(__float2bfloat16(2.0f * unset + 1.0f)), 0xffff);
  volatile unsigned short bits = 0xffff;
  const __half half = __ushort_as_half(bits);
  const __nv_bfloat16 bf16 = __ushort_as_bfloat16(bits);
  assert_int_equal(__half_as_ushort(half + __half(1)), 0xffff);
  assert_int_equal(__half_as_ushort(__bfloat162float(bf16)), 0xffff);
  volatile float zero = 0.0f;
  assert_int_equal(__half_as_ushort(__float2half(zero / zero)), 0x7fff);
}

template <typename T>
static void check_operators() {
  const T a = T(3.0f), b = T(0.75f);
  assert_true(float(a + b) == 3.75f && float(a - b) == 2.25f);
  assert_true(float(a * b) == 2.25f && float(a / b) == 4.0f && float(-a) == -3.0f);
  assert_true(a > b && a >= b && b < a && b <= a && a != b && a == a);
  T c = a;
  c += b;
  c *= b;
  c -= b;
  c /= b;
  assert_true(float(c) == 2.75f);
  const T nan = T(NAN);
  assert_false(nan == nan || nan < a || nan > a);
}

TEST(arithmetic_of_16_bit_types_is_right) {
  check_operators<__half>();
  check_operators<__nv_bfloat16>();
  /* 2^-11 is half of the last place of 1: the tie is rounded to even, and one bit more is none */
  assert_int_equal(__half_as_ushort(__half(1.0f) + __half(0x1p-11f)), 0x3c00);
  assert_int_equal(__half_as_ushort(__half(1.0f) + __half(0x1.004p-11f)), 0x3c01);
}

TEST(pairs_have_a_low_and_a_high_half) {
  const __half2 h = __floats2half2_rn(1.0f, 2.0f);
  assert_true(__low2float(h) == 1.0f && __high2float(h) == 2.0f);
  assert_true(__half22float2(h).x == 1.0f && __half22float2(h).y == 2.0f);
  assert_true(__high2float(__halves2half2(__high2half(h), __low2half(h))) == 1.0f);
  assert_true(__low2float(h * h + h - h / h) == 1.0f);
  assert_true(__high2float(__float2half2_rn(4.0f)) == 4.0f);
  uint32_t bits;
  memcpy(&bits, &h, sizeof bits);
  assert_int_equal(bits, 0x40003c00);

  const __nv_bfloat162 b = __floats2bfloat162_rn(1.0f, 2.0f);
  assert_true(__low2float(b) == 1.0f && __high2float(b) == 2.0f);
  assert_true(__bfloat1622float2(b).x == 1.0f && __bfloat1622float2(b).y == 2.0f);
  assert_true(__high2float(__halves2bfloat162(__high2bfloat16(b), __low2bfloat16(b))) == 1.0f);
  memcpy(&bits, &b, sizeof bits);
  assert_int_equal(bits, 0x40003f80);
}

__global__ void shuffle_pairs(__half2 *out) {
  __shared__ __half2 pairs[32];
  const int lane = threadIdx.x;
  pairs[lane] = __floats2half2_rn(lane, -lane);
  out[lane] = __shfl_xor_sync(0xffffffff, pairs[lane], 5);
}

TEST(pairs_are_shuffled_as_bits) {
  __half2 *device = device_zeros<__half2>(32);
  shuffle_pairs<<<1, 32>>>(device);
  const auto out = fetch<32>(device);
  for (int lane = 0; lane < 32; lane++) {
    assert_true(__low2float(out[lane]) == (lane ^ 5));
    assert_true(__high2float(out[lane]) == -(lane ^ 5));
  }
}

TEST(vectors_are_made_and_copied) {
  float4 f = make_float4(1, 2, 3, 4);
  float4 g;
  g = f;
  f.w = 0;
  assert_true(g.x == 1 && g.y == 2 && g.z == 3 && g.w == 4);
  const uint4 u = *(const uint4 *)&g;
  assert_int_equal(u.x, 0x3f800000);
  const uint4 zero = {};
  assert_int_equal(zero.x | zero.y | zero.z | zero.w, 0);
  assert_int_equal(make_int2(3, -4).y, -4);
  assert_int_equal(make_uint2(3, 4).x, 3);
  assert_int_equal(make_int4(1, 2, 3, 4).z, 3);
  assert_true(make_float2(0.5f, 1).x == 0.5f);
  const dim3 d(7);
  assert_true(d.x == 7 && d.y == 1 && d.z == 1);
}

__global__ void calculate(float *f, int *i) {
  f[0] = __expf(1.0f);
  f[1] = exp2f(3.0f);
  f[2] = __logf(1.0f);
  f[3] = __log2f(8.0f);
  f[4] = __fdividef(1.0f, 4.0f);
  f[5] = rsqrtf(16.0f);
  f[6] = __frcp_rn(8.0f);
  f[7] = __fmaf_rn(2.0f, 3.0f, 4.0f);
  f[8] = __fadd_rn(1.0f, 2.0f) * __fmul_rn(2.0f, 4.0f);
  f[9] = fmaxf(-CUDART_INF_F, fminf(1.0f, 2.0f));
  f[10] = __uint_as_float(__float_as_uint(-1.5f));
  f[11] = __int_as_float(__float_as_int(2.5f));
  i[0] = __popc(0xf0f0u);
  i[1] = __ffs(8);
  i[2] = __ffs(0);
  i[3] = __clz(1);
  i[4] = __clz(0);
  i[5] = min(3, -4);
  i[6] = max(3, -4);
  i[7] = (int)min(3u, 4u);
  i[8] = (int)max((int64_t)1 << 40, (int64_t)5) + (int)(max((int64_t)1 << 40, (int64_t)5) >> 40);
  i[9] = __ldg(i + 8) + warpSize;
  __threadfence();
}

TEST(arithmetic_functions_are_right) {
  static const float expected[] = {expf(1.0f), 8,  0,  3, 0.25f, 0.25f,
                                   0.125f,     10, 24, 1, -1.5f, 2.5f};
  static const int expected_ints[] = {8, 4, 0, 31, 32, -4, 3, 3, 1, 33};
  float *device_f = device_zeros<float>(12);
  int *device_i = device_zeros<int>(10);
  calculate<<<1, 1>>>(device_f, device_i);
  const auto f = fetch<12>(device_f);
  const auto i = fetch<10>(device_i);
  for (int n = 0; n < 12; n++) assert_true(f[n] == expected[n]);
  for (int n = 0; n < 10; n++) assert_int_equal(i[n], expected_ints[n]);
}

__global__ void reverse_and_count(unsigned long long *out, long long *waited) {
  out[0] = __brev(0x00000001u);
  out[1] = __brev(0x12345678u);
  out[2] = __brevll(0x0123456789abcdefull);
  out[3] = (unsigned long long)__popcll(0xf00000000000000full);
  out[4] = (unsigned long long)__ffsll(1ll << 40);
  out[5] = (unsigned long long)__ffsll(0);
  out[6] = (unsigned long long)__clzll(1ll << 40);
  out[7] = (unsigned long long)__clzll(0);
  const long long begin = clock64();
  long long end = begin;
  while (end < begin + 1000) end = clock64(); /* ends, because the clock advances */
  *waited = end - begin;
}

TEST(bits_are_reversed_and_counted_and_the_clock_goes_on) {
  static const unsigned long long expected[] = {
      0x80000000, 0x1e6a2c48, 0xf7b3d591e6a2c480, 8, 41, 0, 23, 64};
  unsigned long long *device = device_zeros<unsigned long long>(8);
  long long *device_waited = device_zeros<long long>(1);
  reverse_and_count<<<1, 1>>>(device, device_waited);
  const auto out = fetch<8>(device);
  for (int i = 0; i < 8; i++) assert_true(out[i] == expected[i]);
  assert_true(fetch<1>(device_waited)[0] >= 1000);
}

__global__ void compare_mixed(float *f, double *d, unsigned long long *u) {
  const float nan = CUDART_NAN_F;
  f[0] = min(nan, 1.0f);
  f[1] = max(2.0f, nan);
  d[0] = max(0.5f, 0.25);
  u[0] = max(-1, 5u);
  u[1] = min((size_t)7, (size_t)9);
  u[2] = min(-1ll, 5ull);
}

TEST(minimum_and_maximum_are_those_of_cuda) {
  float *device_f = device_zeros<float>(2);
  double *device_d = device_zeros<double>(1);
  unsigned long long *device_u = device_zeros<unsigned long long>(3);
  compare_mixed<<<1, 1>>>(device_f, device_d, device_u);
  const auto f = fetch<2>(device_f);
  const auto u = fetch<3>(device_u);
  assert_true(f[0] == 1.0f && f[1] == 2.0f && fetch<1>(device_d)[0] == 0.5);
  assert_true(u[0] == 0xffffffff && u[1] == 7 && u[2] == 5);
}

static Capture capture;

#include <assert.h> /* included again: kernels must keep their assert() */

static void expect_abort(void (*function)(), const char *message) {
  int status = 0;
  begin_capture(&capture);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    function();
    _exit(0); /* not reached */
  }
  waitpid(child, &status, 0);
  end_capture(&capture);
  assert_contains(capture.text, message);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(assertions_and_traps_of_the_host_end_the_program) {
  expect_abort([] { assert(warpSize == 31); }, "Assertion `warpSize == 31' failed.\n");
  expect_abort([] { __trap(); }, "__trap() outside a kernel\n");
}

__global__ void assert_small() {
  assert(threadIdx.x < 7);
}

TEST(a_failed_assertion_ends_the_launch) {
  begin_capture(&capture);
  assert_small<<<1, 8>>>();
  end_capture(&capture);
  assert_contains(capture.text, "failed assertion in assert_small, launch 5\n");
  assert_contains(capture.text, "by thread (7,0,0) of block (0,0,0)\n");
  assert_contains(capture.text, "simt_types.cu:");
  assert_contains(capture.text, ": threadIdx.x < 7\n");
  assert_int_equal(cudaDeviceSynchronize(), cudaErrorAssert);
}

RUN_TESTS(nullptr, nullptr)
