#define _POSIX_C_SOURCE 200809L
#include "host/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 40 };

static struct timespec started;
static bool drawn;

static double seconds_since_start(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)(now.tv_sec - started.tv_sec) + 1e-9 * (double)(now.tv_nsec - started.tv_nsec);
}

void progress_start(void) {
  clock_gettime(CLOCK_MONOTONIC, &started);
  drawn = false;
}

void progress_update(size_t done, size_t total) {
  const double elapsed = seconds_since_start();
  if (elapsed < 1 || !isatty(STDERR_FILENO)) return;
  const int filled = (int)(WIDTH * (double)done / (double)total);
  const double left = elapsed * ((double)total / (double)done - 1);
  fprintf(stderr, "\rchecking [%.*s%*s] %zu of %zu rows, %.0f s left  ", filled,
          "########################################", WIDTH - filled, "", done, total, left);
  fflush(stderr);
  drawn = true;
}

void progress_end(void) {
  if (drawn) fprintf(stderr, "\r%*s\r", WIDTH + 60, "");
}
