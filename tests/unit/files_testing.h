/**
 * @file
 * For the tests that write files: a directory for them, and a disk that is full. Includes cmocka.h.
 */
#ifndef FILES_TESTING_H
#define FILES_TESTING_H

#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "testing.h" /* last */

static char test_directory[] = "/tmp/unit_test.XXXXXX";
static char test_file[64]; /**< a.npy in it */

static inline int create_test_directory(void **state) {
  (void)state;
  if (mkdtemp(test_directory) == NULL) return -1;
  snprintf(test_file, sizeof test_file, "%s/a.npy", test_directory);
  return 0;
}

/** Removing fails, and so do the tests, if a test left a file behind. */
static inline int remove_test_directory(void **state) {
  (void)state;
  return rmdir(test_directory);
}

/** Limits the size of files, which stands in for a full disk; returns the limit before. */
static inline rlim_t limit_files(rlim_t bytes) {
  struct rlimit limit;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = bytes;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  return before;
}

#endif
