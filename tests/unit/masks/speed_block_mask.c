/**
 * @file
 * Tests that block masks of long sequences are opened and built from intervals, in little time and
 * memory. The best of some tries counts, so that a busy machine does not fail it. Debug builds are
 * not judged, nor is anything when SIMT_SLOW is set: for valgrind and emulators.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "host/masks/block_mask.h"
#include "host/masks/mask.h"

#include <cmocka.h> /* last: its macro fail() would hide ours */

enum { BLOCK = 128, TRIES = 3 };

static double seconds_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/** The most memory that this process ever held. */
static double peak_megabytes(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)usage.ru_maxrss * 1024 / 1e6;
}

static double block_mask_megabytes(const HostBlockMask *blocks) {
  size_t bytes = 0;
  for (int i = 0; i < MASK_TENSORS; i++) bytes += blocks->bytes[i];
  return (double)bytes / 1e6;
}

static void open_square(const char *text, int length, Mask *mask) {
  Error error;
  const Problem problem = {
      .batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = length, .kv_len = length};
  assert_true(mask_open(text, &problem, BLOCK, BLOCK, 1, mask, &error));
}

/** Prints what building takes; returns the seconds of the best try. */
static double time_build(const Mask *mask, int tries) {
  double best = INFINITY, megabytes = 0;
  for (int i = 0; i < tries; i++) {
    HostBlockMask blocks;
    Error error;
    const double start = seconds_now();
    assert_true(block_mask_build(mask, BLOCK, BLOCK, 0, &blocks, &error));
    best = fmin(best, seconds_now() - start);
    megabytes = block_mask_megabytes(&blocks);
    block_mask_free(&blocks);
  }
  print_message("%-14s N=%d: %7.1f ms, %.1f MB; the process held up to %.1f MB\n", mask->text,
                mask->q_len, 1e3 * best, megabytes, peak_megabytes());
  return best;
}

static void long_masks_take_less_than_a_second_and_40_megabytes(void **state) {
  (void)state;
  static const char *const MASKS[] = {"causal", "window:4096", "document:64", "prefix:1000",
                                      "blocks:0.1"};
  for (size_t i = 0; i < sizeof MASKS / sizeof MASKS[0]; i++) {
    Mask mask;
    const double start = seconds_now();
    open_square(MASKS[i], 131072, &mask);
    const double opened = seconds_now() - start, seconds = opened + time_build(&mask, TRIES);
#ifdef __OPTIMIZE__
    if (getenv("SIMT_SLOW") == NULL) {
      assert_true(seconds < 1);
      assert_true(peak_megabytes() < 40);
    }
#else
    (void)seconds;
#endif
    mask_free(&mask);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(long_masks_take_less_than_a_second_and_40_megabytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
