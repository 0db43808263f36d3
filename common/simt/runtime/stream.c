/*
 * Streams and events. Work is done when the call that starts it returns, so an event only has to
 * remember when it was recorded.
 */
#define _GNU_SOURCE
#include <time.h>

#include "runtime.h"

struct CUstream_st {
  char unused;
};

struct CUevent_st {
  bool recorded;
  struct timespec time;
};

static cudaError_t give(void *handle, void **target) {
  *target = handle;
  return handle != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t valid_if(bool live) {
  return simt_result(live ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

/* --- Streams -------------------------------------------------------------------------------- */

bool simt_stream_is_live(cudaStream_t stream) {
  return stream == NULL || simt_handle_is_live(STREAM, stream);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  if (stream == NULL) return simt_result(cudaErrorInvalidValue);
  return simt_result(give(simt_handle_create(STREAM, sizeof **stream), (void **)stream));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return valid_if(simt_handle_destroy(STREAM, stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return valid_if(simt_stream_is_live(stream));
}

/* --- Events --------------------------------------------------------------------------------- */

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  if (event == NULL) return simt_result(cudaErrorInvalidValue);
  return simt_result(give(simt_handle_create(EVENT, sizeof **event), (void **)event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return valid_if(simt_handle_destroy(EVENT, event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!simt_handle_is_live(EVENT, event) || !simt_stream_is_live(stream)) return valid_if(false);
  event->recorded = true;
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  return simt_result(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return valid_if(simt_handle_is_live(EVENT, event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return valid_if(simt_handle_is_live(EVENT, event));
}

static bool is_recorded(cudaEvent_t event) {
  return simt_handle_is_live(EVENT, event) && event->recorded;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
  if (milliseconds == NULL) return simt_result(cudaErrorInvalidValue);
  if (!is_recorded(start) || !is_recorded(stop)) return valid_if(false);
  const double seconds = (double)(stop->time.tv_sec - start->time.tv_sec);
  *milliseconds = (float)(1e3 * seconds + 1e-6 * (stop->time.tv_nsec - start->time.tv_nsec));
  return simt_result(cudaSuccess);
}
