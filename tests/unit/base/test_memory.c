/** @file Tests of host/base/memory.c. */
#include "host/base/memory.h"

#include <string.h>
#include <unistd.h>

#include "../testing.h" /* last */

TEST(available_memory_is_some_of_the_machine) {
  const double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  assert_true(memory_available_bytes() > 0 && memory_available_bytes() <= all);
}

TEST(too_much_is_refused_by_name_and_size) {
  Error error;
  memory_start();
  assert_true(memory_take("little", 0, &error));
  assert_false(memory_take("mask.npy", 4e18, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_memory_equal(error.text, "mask.npy: needs 4e+09 GB of memory, but only ", 45);
}

/** The bytes allocated add up until the next run begins. */
TEST(a_run_counts_what_it_takes) {
  Error error;
  memory_start();
  const double share = 0.6 * memory_left_bytes();
  assert_true(memory_take("first", share, &error));
  assert_false(memory_take("second", share, &error));
  memory_start();
  assert_true(memory_take("first", share, &error));
}

RUN_TESTS(NULL, NULL)
