#define _POSIX_C_SOURCE 200809L
#include "host/report/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "host/device/timing.h"

static double start_ms;
static int shown_seconds; /* 0: there is no line */

static void show(const char *doing, uint64_t done, uint64_t total, const char *what) {
  const int seconds = (int)(1e-3 * (clock_ms() - start_ms));
  if (seconds == shown_seconds || !isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r%s: %llu of %llu %s, %d s\033[K", doing, (unsigned long long)done,
          (unsigned long long)total, what, seconds);
  shown_seconds = seconds;
}

void progress_start(void) {
  start_ms = clock_ms();
  shown_seconds = 0;
}

void progress_blocks(uint64_t done, uint64_t total) {
  show("running", done, total, "blocks");
}

void progress_rows(size_t done, size_t total) {
  if (done < total) {
    show("checking", done, total, "rows");
  } else {
    progress_end(); /* before the text of a failure */
  }
}

void progress_end(void) {
  if (shown_seconds > 0) fprintf(stderr, "\r\033[K");
  shown_seconds = 0;
}
