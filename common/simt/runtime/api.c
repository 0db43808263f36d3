/* The CUDA runtime API, except launches and error texts. */
#include <stdlib.h>
#include <string.h>

#include "program.h"

/* Few multiprocessors, so that small problems let the blocks of persistent kernels go on to a
 * second tile; not the number of OS threads, so that counts do not depend on it. */
enum { COMPUTE_MAJOR = 9, COMPUTE_MINOR = 0 };

/** After a kernel has failed, calls do nothing, and simt_result() returns the kernel's error. */
static bool failed_before(void) {
  return simt_sticky_error() != cudaSuccess;
}

/** Stores the result of a query. */
static cudaError_t answer(int *target, int value) {
  *target = value;
  return cudaSuccess;
}

/* --- The device ----------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
  return answer(count, 1);
}

cudaError_t cudaGetDevice(int *device) {
  return answer(device, 0);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  if (device != 0) return simt_result(cudaErrorInvalidDevice);
  const Settings *settings = simt_settings();
  *properties = (cudaDeviceProp){
      .totalGlobalMem = settings->memory_bytes,
      .sharedMemPerBlock = DEFAULT_SHARED_BYTES,
      .maxThreadsPerBlock = MAX_THREADS,
      .major = COMPUTE_MAJOR,
      .minor = COMPUTE_MINOR,
      .multiProcessorCount = settings->multiprocessors,
      .maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR,
      .sharedMemPerMultiprocessor = settings->shared_bytes + RESERVED_SHARED_BYTES,
      .sharedMemPerBlockOptin = settings->shared_bytes,
      .maxBlocksPerMultiProcessor = BLOCKS_PER_MULTIPROCESSOR,
      .reservedSharedMemPerBlock = RESERVED_SHARED_BYTES,
  };
#if defined(__x86_64__)
  const char *machine = "x86-64";
#else
  const char *machine = "aarch64";
#endif
  snprintf(properties->name, sizeof properties->name, "CPU backend (%s, %d thread%s)", machine,
           settings->workers, settings->workers == 1 ? "" : "s");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error != cudaSuccess) return error;
  const struct {
    cudaDeviceAttr attribute;
    size_t value;
  } known[] = {
      {cudaDevAttrMaxThreadsPerBlock, (size_t)p.maxThreadsPerBlock},
      {cudaDevAttrMaxSharedMemoryPerBlock, p.sharedMemPerBlock},
      {cudaDevAttrMultiProcessorCount, (size_t)p.multiProcessorCount},
      {cudaDevAttrL2CacheSize, 0},
      {cudaDevAttrMaxThreadsPerMultiProcessor, (size_t)p.maxThreadsPerMultiProcessor},
      {cudaDevAttrComputeCapabilityMajor, (size_t)p.major},
      {cudaDevAttrComputeCapabilityMinor, (size_t)p.minor},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, p.sharedMemPerMultiprocessor},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, p.sharedMemPerBlockOptin},
      {cudaDevAttrMaxBlocksPerMultiprocessor, (size_t)p.maxBlocksPerMultiProcessor},
      {cudaDevAttrReservedSharedMemoryPerBlock, p.reservedSharedMemPerBlock},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (known[i].attribute == attribute) return answer(value, (int)known[i].value);
  }
  return simt_result(cudaErrorInvalidValue);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  return answer(version, CUDART_VERSION);
}

cudaError_t cudaDeviceSynchronize(void) {
  simt_finish_streams(true);
  return simt_result(cudaSuccess);
}

cudaError_t cudaDeviceReset(void) {
  simt_finish_streams(true);
  simt_memory_reset();
  simt_forget_kernel_attributes();
  simt_forget_errors();
  return cudaSuccess;
}

/* --- Memory --------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **pointer, size_t size) {
  if (failed_before()) return simt_result(cudaSuccess);
  return simt_result(simt_memory_allocate(pointer, size));
}

cudaError_t cudaFree(void *pointer) {
  simt_finish_streams(true);
  if (failed_before()) return simt_result(cudaSuccess);
  return simt_result(simt_memory_free(pointer));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  if (failed_before()) return simt_result(cudaSuccess);
  const size_t used = simt_memory_used();
  *total_bytes = simt_settings()->memory_bytes;
  *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t count, cudaMemcpyKind kind) {
  simt_finish_streams(false);
  return simt_copy_now(target, source, count, kind);
}

cudaError_t cudaMemset(void *pointer, int value, size_t count) {
  simt_finish_streams(false);
  return simt_set_now(pointer, value, count);
}
