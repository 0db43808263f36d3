/** @file Tests of host/device/ceiling_file.c: what is kept comes back as it was, or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/device/ceiling.h"

#include <cmocka.h>

static char directory[] = "/tmp/test_ceilings.XXXXXX";

static int open_directory(void **state) {
  (void)state;
  return mkdtemp(directory) == NULL ? -1 : setenv("HOME", directory, 1);
}

static int remove_directory(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  return system(command);
}

static void what_is_kept_comes_back_for_the_same_device(void **state) {
  (void)state;
  char path[PATH_MAX], expected[PATH_MAX];
  Ceilings read, some = {
                     .mma_tflops = 646.1 / 3,
                     .ffma_tflops = 65.2,
                     .exp_g_per_s = 4181.7,
                     .copy_gb_per_s = 4150,
                 };
  unsetenv("XDG_CACHE_HOME");
  assert_false(ceilings_read("NVIDIA H200", &read));
  assert_true(ceilings_write("NVIDIA H200", &some, path));
  snprintf(expected, sizeof expected, "%s/.cache/attention-steps/ceilings.txt", directory);
  assert_string_equal(path, expected);
  assert_true(ceilings_read("NVIDIA H200", &read));
  assert_memory_equal(&read, &some, sizeof read);
  assert_int_equal(read.date[10], 'T');
  assert_false(ceilings_read("NVIDIA H20", &read));
  assert_int_equal(truncate(path, 60), 0);
  assert_false(ceilings_read("NVIDIA H200", &read));
}

static void without_a_place_nothing_is_kept(void **state) {
  (void)state;
  char path[PATH_MAX];
  Ceilings some = {0};
  setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
  assert_false(ceilings_write("NVIDIA H200", &some, path));
  assert_false(ceilings_read("NVIDIA H200", &some));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_kept_comes_back_for_the_same_device),
      cmocka_unit_test(without_a_place_nothing_is_kept),
  };
  return cmocka_run_group_tests(tests, open_directory, remove_directory);
}
