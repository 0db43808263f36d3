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

/** What is timed: enqueues it. */
typedef struct Turn {
  cudaError_t (*enqueue)(const void *context);
  const void *context;
} Turn;

/** No more take turns. */
enum { MOST_TURNS = 5 };

/**
 * Times several things in turns, with CUDA events around each, after flush_l2(); 3 rounds warm up
 * before the samples. The sampling counts rounds; a round is as long as all its turns. EXIT_DEVICE
 * if a launch or an allocation fails.
 */
bool time_turns(const Turn *turns, int count, size_t l2_bytes, Sampling sampling, Timing *timings,
                Error *error);

/** The same for the pass of the step alone. */
bool time_pass(const Problem *problem, const DeviceTensors *tensors, size_t l2_bytes,
               Sampling sampling, Timing *timing, Error *error);

#endif
