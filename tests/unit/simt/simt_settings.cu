/** @file Tests of the environment variables of the CPU backend. */
#include "../tests/unit/simt/simt_testing.h"

__global__ void do_nothing() {}

static void expect_refusal(const char *variable, const char *value, const char *right) {
  char message[256];
  snprintf(message, sizeof message, "%s=%s: must be %s\n", variable, value, right);
  int status;
  const std::string text =
      stderr_of([&] { status = status_of_child([=] { set_variable(variable, value); }); });
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 2);
  assert_string_equal(text.c_str(), message);
}

/** Not valid for any variable. */
static const char *const NO_VALUES[] = {
    "",    " ",  "-1", "-2147483648", "2147483648x",          "0x10",
    "1e3", "+1", " 2", "2 ",          "99999999999999999999",
};

TEST(wrong_settings_are_refused_with_exit_code_2) {
  static const struct {
    const char *variable, *right;
    std::vector<const char *> wrong;
  } settings[] = {
      {"SIMT_THREADS",
       "a whole number from 1 to 16",
       {"0", "17", "2x", "2147483647", "2147483648", "4294967297"}},
      {"SIMT_SMS", "a whole number from 1 to 1024", {"0", "1025", "4x", "4294967300"}},
      {"SIMT_ORDER",
       "forward, reverse or random:SEED, SEED a whole number below 2^64",
       {"backward", "random", "random:", "random:x", "forward ", "random:-1", "random:7 ",
        "random:18446744073709551616"}},
      {"SIMT_MEMORY",
       "a number of bytes from 1 to 1024G, with K, M, G or no suffix",
       {"0", "0G", "1T", "K", "1.5G", "1025G", "1 G", "1KK", "1k", "1099511627777",
        "18446744073709551615", "17179869185G"}},
      {"SIMT_SHARED",
       "a number of bytes from 48K to 227K, with K or no suffix",
       {"47K", "228K", "1M", "49151", "232449", "99 K", "2147483648", "99999999999999999K"}},
      {"SIMT_WGMMA", "warpgroup or warp", {"warps", "Warp", "warp "}}};
  for (const auto &s : settings) {
    for (const char *value : NO_VALUES) expect_refusal(s.variable, value, s.right);
    for (const char *value : s.wrong) expect_refusal(s.variable, value, s.right);
  }
}

TEST(right_settings_are_taken) {
  static const struct {
    const char *text;
    size_t bytes;
  } sizes[] = {{"12345", 12345}, {"7K", 7 << 10}, {"2G", 2ull << 30}, {"1024G", 1024ull << 30}};
  for (const auto &size : sizes) {
    size_t free_bytes, total_bytes;
    set_variable("SIMT_MEMORY", size.text);
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    assert_int_equal(total_bytes, size.bytes);
  }
}

TEST(values_at_the_edge_are_taken) {
  cudaDeviceProp properties;
  for (int threads : {1, 16}) {
    set_variable("SIMT_THREADS", threads == 1 ? "1" : "0016");
    assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    assert_contains(properties.name, threads == 1 ? ", 1 thread)" : ", 16 threads)");
  }
  for (const char *sms : {"1", "132", "1024"}) {
    set_variable("SIMT_SMS", sms);
    int count;
    assert_int_equal(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0),
                     cudaSuccess);
    assert_int_equal(count, atoi(sms));
  }
  for (const char *size : {"48K", "49152", "227K", "232448"}) {
    set_variable("SIMT_SHARED", size);
    assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    const bool least = strncmp(size, "4", 1) == 0;
    assert_int_equal(properties.sharedMemPerBlockOptin, least ? 48 << 10 : 227 << 10);
  }
  set_variable("SIMT_ORDER", "random:0");
  set_variable("SIMT_ORDER", "random:18446744073709551615");
  do_nothing<<<10, 33>>>();
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

RUN_TESTS_WITH(reset_device, nullptr)
