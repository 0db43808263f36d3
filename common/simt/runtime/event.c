/*
 * Events. Work is done when the call that starts it returns, so an event only stores the time at
 * which it was recorded.
 */
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

struct CUevent_st {
  bool recorded;
  double ms;
};

double simt_clock_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = calloc(1, sizeof **event);
  return simt_result(*event != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return simt_result(event != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)stream;
  if (event == NULL) return simt_result(cudaErrorInvalidResourceHandle);
  event->recorded = true;
  event->ms = simt_clock_ms();
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
  if (start == NULL || stop == NULL || !start->recorded || !stop->recorded)
    return simt_result(cudaErrorInvalidResourceHandle);
  *milliseconds = (float)(stop->ms - start->ms);
  return simt_result(cudaSuccess);
}
