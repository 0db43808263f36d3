/**
 * @file
 * For all unit tests, in C and C++: TEST(name) { ... } defines a test and adds it to those that
 * run_all_tests() runs. Includes cmocka.h, whose macro fail() replaces ours, so it comes last.
 */
#ifndef UNIT_TESTING_H
#define UNIT_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

/** Before the declaration of a variable: function(&variable) is called at the end of its scope. */
#define FREED_BY(function) __attribute__((cleanup(function)))
/** The same for a pointer to memory of malloc(). */
#define FREED FREED_BY(free_pointer)

static inline void free_pointer(void *pointer) {
  free(*(void **)pointer);
}

enum { MOST_TESTS = 100 };
static struct CMUnitTest the_tests[MOST_TESTS];
static size_t test_count;

static inline void add_test(const char *name, CMUnitTestFunction function) {
  if (test_count == MOST_TESTS) abort();
  the_tests[test_count].name = name;
  the_tests[test_count++].test_func = function;
}

#define TEST(name)                                            \
  static void name(void **);                                  \
  __attribute__((constructor)) static void add_##name(void) { \
    add_test(#name, name);                                    \
  }                                                           \
  static void name(__attribute__((unused)) void **test_state)

/** Runs the tests of a file; `begin` and `end`, or NULL, are called once. */
static inline int run_all_tests(CMFixtureFunction begin, CMFixtureFunction end) {
  return _cmocka_run_group_tests("tests", the_tests, test_count, begin, end);
}

/** The program that does this. */
#define RUN_TESTS(begin, end)         \
  int main(void) {                    \
    return run_all_tests(begin, end); \
  }

/** Has `begin` and `end` called around each test. */
static inline void use_fixtures(CMFixtureFunction begin, CMFixtureFunction end) {
  for (size_t i = 0; i < test_count; i++) {
    the_tests[i].setup_func = begin;
    the_tests[i].teardown_func = end;
  }
}

/** The program that does this and runs the tests. */
#define RUN_TESTS_WITH(begin, end)    \
  int main(void) {                    \
    use_fixtures(begin, end);         \
    return run_all_tests(NULL, NULL); \
  }

#endif
