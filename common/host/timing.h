/**
 * @file
 * How long a forward pass takes on a GPU.
 */
#ifndef HOST_TIMING_H
#define HOST_TIMING_H

#include <stddef.h>

#include "attention.h"
#include "host/error.h"

typedef struct Timing {
  int samples; /**< 0: not timed */
  double median_ms, p10_ms, p90_ms;
} Timing;

/** What a sample needs beside the step's own memory: a buffer that pushes everything out of L2. */
size_t timing_flush_bytes(size_t l2_bytes);

/**
 * Times step.forward() with CUDA events around each pass, L2 flushed before it: 3 warm-ups, then
 * samples until there are `repeat` of them and they add up to `min_time` seconds.
 */
bool time_forward(const Problem *problem, const Tensors *tensors, size_t workspace_bytes,
                  size_t l2_bytes, int repeat, double min_time, Timing *timing, Error *error);

#endif
