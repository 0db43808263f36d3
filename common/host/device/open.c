#include "host/device/device.h"

#include <errno.h> /* program_invocation_short_name */
#include <stdio.h>

#ifdef SIMT_BACKEND
#include <simt.h>
#endif

bool device_ok(cudaError_t status, const char *what, Error *error) {
  if (status == cudaSuccess) return true;
  return fail(error, EXIT_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(status),
              cudaGetErrorName(status));
}

bool device_open(Device *device, Error *error) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    return fail(error, EXIT_NO_GPU,
                "no GPU: %s; make %s BACKEND=cpu runs the same kernels without one",
                status != cudaSuccess ? cudaGetErrorString(status) : "no CUDA device found",
                program_invocation_short_name);
  }
  int index = 0;
  struct cudaDeviceProp properties;
  if (!device_ok(cudaGetDevice(&index), "cudaGetDevice", error)) return false;
  if (!device_ok(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties", error)) {
    return false;
  }
  *device = (Device){
#ifdef SIMT_BACKEND
      .simulated = true,
#endif
      .multiprocessors = properties.multiProcessorCount,
      .major = properties.major,
      .minor = properties.minor,
      .memory_bytes = properties.totalGlobalMem,
      .l2_bytes = (size_t)properties.l2CacheSize,
  };
  snprintf(device->name, sizeof device->name, "%s", properties.name);
  return device_ok(cudaRuntimeGetVersion(&device->runtime), "cudaRuntimeGetVersion", error);
}

bool device_allocate(void **pointer, size_t bytes, const char *what, Error *error) {
  const cudaError_t status = cudaMalloc(pointer, bytes);
  if (status == cudaSuccess) {
#ifdef SIMT_BACKEND
    simt_name_allocation(*pointer, what);
#endif
    return true;
  }
  *pointer = NULL;
  cudaGetLastError(); /* reported here; a later launch must not see it */
  return fail(error, EXIT_DEVICE, "%s: cannot allocate %zu bytes on the device: %s", what, bytes,
              cudaGetErrorString(status));
}

bool device_upload(const void **pointer, const void *source, size_t bytes, const char *what,
                   Error *error) {
  void *target;
  if (!device_allocate(&target, bytes, what, error)) return false;
  *pointer = target;
  return device_ok(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), what, error);
}
