/** @file Tests of host/base/memory.c. */
#include "host/base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void available_memory_is_some_of_the_machine(void **state) {
  (void)state;
  const double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  assert_true(memory_available_bytes() > 0 && memory_available_bytes() <= all);
}

static void too_much_is_refused_by_name_and_size(void **state) {
  (void)state;
  Error error;
  memory_start();
  assert_true(memory_take("little", 0, &error));
  assert_false(memory_take("mask.npy", 4e18, &error));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_memory_equal(error.text, "mask.npy: needs 4e+09 GB of memory, but only ", 45);
}

/** The bytes allocated add up until the next run begins. */
static void a_run_counts_what_it_takes(void **state) {
  (void)state;
  Error error;
  memory_start();
  const double share = 0.6 * memory_left_bytes();
  assert_true(memory_take("first", share, &error));
  assert_false(memory_take("second", share, &error));
  memory_start();
  assert_true(memory_take("first", share, &error));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(available_memory_is_some_of_the_machine),
      cmocka_unit_test(too_much_is_refused_by_name_and_size),
      cmocka_unit_test(a_run_counts_what_it_takes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
