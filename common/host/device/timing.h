/**
 * @file
 * How long things take: a forward pass on a GPU, anything else by the clock of the host.
 */
#ifndef HOST_TIMING_H
#define HOST_TIMING_H

#include <stddef.h>

#include "attention.h"
#include "host/base/error.h"

/** Milliseconds on a clock that only goes forward. */
double clock_ms(void);

typedef struct Timing {
  int samples; /**< 0: not timed */
  double median_ms, p10_ms, p90_ms;
} Timing;

/** What a sample needs beside the step's own memory: a buffer that pushes everything out of L2. */
size_t timing_flush_bytes(size_t l2_bytes);

/** How many samples are enough. */
typedef struct Sampling {
  int least;         /**< so many at least */
  int least_if_slow; /**< the same where a pass takes longer than SLOW_PASS_MS */
  double min_time;   /**< and so many seconds of them */
} Sampling;

#define SLOW_PASS_MS 300

/**
 * Times step.forward() with CUDA events around each pass, L2 flushed before it: 3 warm-ups, then
 * samples until there are enough of them.
 */
bool time_forward(const Problem *problem, const Tensors *tensors, size_t workspace_bytes,
                  size_t l2_bytes, Sampling sampling, Timing *timing, Error *error);

#endif
