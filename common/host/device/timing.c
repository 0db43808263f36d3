#include "host/device/timing.h"

#include <stdlib.h>
#include <time.h>

#include "host/device/device.h"
#include "host/device/flush.h"

enum { WARM_UPS = 3, MOST_SAMPLES = 1000000 };

/** Events and buffers of one measurement. */
typedef struct Stopwatch {
  cudaEvent_t start, stop;
  void *flush;
  size_t flush_bytes;
} Stopwatch;

double clock_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static int compare_floats(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/** Quantile of sorted samples, interpolated linearly between two of them. */
static double quantile(const float *sorted, int count, double share) {
  const double position = share * (count - 1);
  const int below = (int)position;
  const int above = below + 1 < count ? below + 1 : below;
  return sorted[below] + (position - below) * (sorted[above] - sorted[below]);
}

static bool time_once(const Turn *turn, const Stopwatch *watch, float *milliseconds, Error *error) {
  return device_ok(flush_l2(watch->flush, watch->flush_bytes, 0), "L2 flush", error) &&
         device_ok(cudaEventRecord(watch->start, 0), "cudaEventRecord", error) &&
         device_ok(turn->enqueue(turn->context), "launch", error) &&
         device_ok(cudaEventRecord(watch->stop, 0), "cudaEventRecord", error) &&
         device_ok(cudaEventSynchronize(watch->stop), "kernel", error) &&
         device_ok(cudaEventElapsedTime(milliseconds, watch->start, watch->stop), "timing", error);
}

static Timing summary(float *samples, int count) {
  qsort(samples, (size_t)count, sizeof(float), compare_floats);
  return (Timing){count, quantile(samples, count, 0.5), quantile(samples, count, 0.1),
                  quantile(samples, count, 0.9)};
}

static bool take_samples(const Turn *turns, int turn_count, const Stopwatch *watch,
                         Sampling sampling, Timing *timings, Error *error) {
  /* Pages are taken when written. */
  float *samples = malloc((size_t)turn_count * MOST_SAMPLES * sizeof *samples);
  int count = -WARM_UPS;
  int least = sampling.least;
  double total_ms = 0;
  bool ok = samples != NULL || fail(error, EXIT_DEVICE, "out of host memory");
  while (ok && count < MOST_SAMPLES && (count < least || total_ms < 1e3 * sampling.min_time)) {
    for (int i = 0; ok && i < turn_count; i++) {
      float milliseconds = 0;
      ok = time_once(&turns[i], watch, &milliseconds, error);
      if (count == -1 && milliseconds > SLOW_PASS_MS) least = sampling.least_if_slow;
      if (ok && count >= 0) {
        samples[i * MOST_SAMPLES + count] = milliseconds;
        total_ms += milliseconds;
      }
    }
    count++;
  }
  for (int i = 0; ok && i < turn_count; i++)
    timings[i] = summary(samples + i * MOST_SAMPLES, count);
  free(samples);
  return ok;
}

bool time_turns(const Turn *turns, int count, size_t l2_bytes, Sampling sampling, Timing *timings,
                Error *error) {
  Stopwatch watch = {.flush_bytes = flush_bytes(l2_bytes)};
  const bool ok = device_ok(cudaEventCreate(&watch.start), "cudaEventCreate", error) &&
                  device_ok(cudaEventCreate(&watch.stop), "cudaEventCreate", error) &&
                  device_ok(cudaMalloc(&watch.flush, watch.flush_bytes), "L2 flush", error) &&
                  take_samples(turns, count, &watch, sampling, timings, error);
  cudaEventDestroy(watch.start);
  cudaEventDestroy(watch.stop);
  cudaFree(watch.flush);
  return ok;
}

/** The pass of the step. */
typedef struct Pass {
  const Problem *problem;
  const DeviceTensors *tensors;
} Pass;

static cudaError_t enqueue_pass(const void *context) {
  const Pass *pass = context;
  return device_launch(&step, pass->problem, pass->tensors);
}

bool time_pass(const Problem *problem, const DeviceTensors *tensors, size_t l2_bytes,
               Sampling sampling, Timing *timing, Error *error) {
  const Pass pass = {problem, tensors};
  const Turn turn = {enqueue_pass, &pass};
  return time_turns(&turn, 1, l2_bytes, sampling, timing, error);
}
