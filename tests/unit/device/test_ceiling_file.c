/** @file Tests of host/device/ceiling_file.c: ceilings are read back unchanged, or not at all. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/device/ceiling.h"

#include "../testing.h" /* last */

static char directory[] = "/tmp/test_ceilings.XXXXXX";

static int create_directory(void **state) {
  (void)state;
  return mkdtemp(directory) == NULL ? -1 : setenv("HOME", directory, 1);
}

static int remove_directory(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  return system(command);
}

TEST(saved_ceilings_are_read_for_the_same_device) {
  char path[PATH_MAX], expected[PATH_MAX];
  Ceilings read, some = {
                     .mma_tflops = 646.1 / 3,
                     .wgmma_tflops = 989.4 / 7,
                     .wgmma_e4m3_tflops = 1978.9 / 11,
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

TEST(nothing_is_saved_without_a_directory) {
  char path[PATH_MAX];
  Ceilings some = {0};
  setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
  assert_false(ceilings_write("NVIDIA H200", &some, path));
  assert_false(ceilings_read("NVIDIA H200", &some));
}

RUN_TESTS(create_directory, remove_directory)
