/** @file Tests of the environment variables of the CPU backend. */
#include <sys/wait.h>

#include "../tests/unit/simt_testing.h"

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

#define TEST(name) cmocka_unit_test_setup(name, reset_device)

int main() {
  const CMUnitTest tests[] = {
      TEST(wrong_settings_are_refused_with_exit_code_2),
      TEST(right_settings_are_taken),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
