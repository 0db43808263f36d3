/** @file Time of a pass on a GPU, and the host clock. */
#ifndef HOST_TIMING_H
#define HOST_TIMING_H

#include <stddef.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/device/device.h"

/** Milliseconds on a clock that only goes forward. */
double clock_ms(void);

typedef struct Timing {
  int samples; /**< 0: not timed */
  double median_ms, p10_ms, p90_ms;
} Timing;

/** How many samples to take; all limits apply. */
typedef struct Sampling {
  int least;         /**< minimum number of samples */
  int least_if_slow; /**< the same if a pass takes longer than SLOW_PASS_MS */
  double min_time;   /**< minimum time of all samples together, in seconds */
} Sampling;

#define SLOW_PASS_MS 300

/**
 * Times the pass of the step with CUDA events around each pass, after flush_l2(); 3 passes warm up
 * before the samples. EXIT_DEVICE if a launch or an allocation fails.
 */
bool time_pass(const Problem *problem, const DeviceTensors *tensors, size_t l2_bytes,
               Sampling sampling, Timing *timing, Error *error);

#endif
