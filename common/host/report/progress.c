#define _POSIX_C_SOURCE 200809L
#include "host/report/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* The line has to fit a terminal of 80 columns: one that wraps cannot be drawn over. */
enum { BAR_WIDTH = 24, LINE_WIDTH = 79 };

static const double FIRST_AFTER_S = 1, REDRAW_AFTER_S = 0.1;

static struct timespec started;
static double next_draw;
static bool drawn;

static double seconds_since_start(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)(now.tv_sec - started.tv_sec) + 1e-9 * (double)(now.tv_nsec - started.tv_nsec);
}

void progress_start(void) {
  clock_gettime(CLOCK_MONOTONIC, &started);
  next_draw = FIRST_AFTER_S;
  drawn = false;
}

void progress_update(size_t done, size_t total) {
  if (done == total) { /* what the check has to say about it comes next */
    progress_end();
    return;
  }
  const double elapsed = seconds_since_start();
  if (elapsed < next_draw || !isatty(STDERR_FILENO)) return;
  char line[LINE_WIDTH + 1];
  const int filled = (int)(BAR_WIDTH * (double)done / (double)total);
  const double left = elapsed * ((double)total / (double)done - 1);
  snprintf(line, sizeof line, "checking [%.*s%*s] %zu of %zu rows, %.0f s left", filled,
           "########################", BAR_WIDTH - filled, "", done, total, left);
  fprintf(stderr, "\r%-*s", LINE_WIDTH, line);
  fflush(stderr);
  next_draw = elapsed + REDRAW_AFTER_S;
  drawn = true;
}

void progress_end(void) {
  if (drawn) fprintf(stderr, "\r%*s\r", LINE_WIDTH, "");
  drawn = false;
}
