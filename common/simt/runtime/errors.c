#include "runtime.h"

typedef struct ErrorText {
  cudaError_t error;
  const char *name, *text;
} ErrorText;

#define ENTRY(error, text) \
  { error, #error, text }

static const ErrorText TEXTS[] = {
    ENTRY(cudaSuccess, "no error"),
    ENTRY(cudaErrorInvalidValue, "invalid argument"),
    ENTRY(cudaErrorMemoryAllocation, "out of memory"),
    ENTRY(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ENTRY(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ENTRY(cudaErrorInsufficientDriver,
          "CUDA driver version is insufficient for CUDA runtime version"),
    ENTRY(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ENTRY(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ENTRY(cudaErrorInvalidDevice, "invalid device ordinal"),
    ENTRY(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ENTRY(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ENTRY(cudaErrorNotReady, "device not ready"),
    ENTRY(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ENTRY(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ENTRY(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ENTRY(cudaErrorAssert, "device-side assert triggered"),
    ENTRY(cudaErrorMisalignedAddress, "misaligned address"),
    ENTRY(cudaErrorLaunchFailure, "unspecified launch failure"),
    ENTRY(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ENTRY(cudaErrorNotSupported, "operation not supported"),
    ENTRY(cudaErrorInvalidClusterSize, "misconfigured cluster size"),
    ENTRY(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
};

static const ErrorText *find(cudaError_t error) {
  for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
    if (TEXTS[i].error == error) return &TEXTS[i];
  }
  return NULL;
}

const char *cudaGetErrorName(cudaError_t error) {
  const ErrorText *entry = find(error);
  return entry != NULL ? entry->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
  const ErrorText *entry = find(error);
  return entry != NULL ? entry->text : "unrecognized error code";
}

/* CUDA keeps the last error per host thread; the error of a failed kernel is sticky for all. */
static _Thread_local cudaError_t simt_last_error;
static _Atomic cudaError_t sticky_error;

cudaError_t simt_set_last_error(cudaError_t error) {
  if (error != cudaSuccess) simt_last_error = error;
  return error;
}

cudaError_t simt_result(cudaError_t error) {
  return sticky_error != cudaSuccess ? sticky_error : simt_set_last_error(error);
}

cudaError_t simt_sticky_error(void) {
  return sticky_error;
}

void simt_set_sticky_error(cudaError_t error) {
  sticky_error = error;
  simt_last_error = error;
}

cudaError_t cudaPeekAtLastError(void) {
  return sticky_error != cudaSuccess ? sticky_error : simt_last_error;
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = cudaPeekAtLastError();
  simt_last_error = cudaSuccess;
  return error;
}

void simt_forget_errors(void) {
  sticky_error = cudaSuccess;
  simt_last_error = cudaSuccess;
}
