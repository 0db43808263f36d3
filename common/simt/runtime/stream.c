/*
 * Streams and events. Work is done when the call that starts it returns, so an event only stores
 * the time at which it was recorded.
 */
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

struct CUstream_st {
  char unused;
};

struct CUevent_st {
  bool recorded;
  struct timespec time;
};

/** `handle` is the result of calloc(). */
static cudaError_t give(void *handle, void **target) {
  if (target == NULL) return simt_result(cudaErrorInvalidValue);
  *target = handle;
  return simt_result(handle != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

static cudaError_t take(void *handle) {
  free(handle);
  return simt_result(handle != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* --- Streams -------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return give(stream != NULL ? calloc(1, sizeof **stream) : NULL, (void **)stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return take(stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  (void)stream;
  return simt_result(cudaSuccess);
}

/* --- Events --------------------------------------------------------------------------------- */

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return give(event != NULL ? calloc(1, sizeof **event) : NULL, (void **)event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return take(event);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)stream;
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  event->recorded = true;
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  return simt_result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  (void)event;
  return simt_result(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return simt_result(event != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  if (milliseconds == NULL) return simt_result(cudaErrorInvalidValue);
  if (start == NULL || stop == NULL || !start->recorded || !stop->recorded)
    return simt_result(cudaErrorInvalidResourceHandle);
  const double seconds = (double)(stop->time.tv_sec - start->time.tv_sec);
  *milliseconds = (float)(1e3 * seconds + 1e-6 * (stop->time.tv_nsec - start->time.tv_nsec));
  return simt_result(cudaSuccess);
}
