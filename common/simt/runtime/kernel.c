/*
 * What a program may ask and set about a kernel. Kernels are known by their addresses.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "runtime.h"

typedef struct Limit {
  const void *kernel;
  size_t dynamic_shared_bytes;
} Limit;

/** Kernels whose limit was raised. */
static struct {
  pthread_mutex_t lock;
  Limit *list;
  size_t count;
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Limit *find(const void *kernel) {
  for (size_t i = 0; i < limits.count; i++) {
    if (limits.list[i].kernel == kernel) return &limits.list[i];
  }
  return NULL;
}

static bool set_limit(const void *kernel, size_t bytes) {
  Limit *limit = find(kernel);
  if (limit == NULL) {
    Limit *larger = realloc(limits.list, (limits.count + 1) * sizeof *larger);
    if (larger == NULL) return false;
    limits.list = larger;
    limit = &limits.list[limits.count++];
    limit->kernel = kernel;
  }
  limit->dynamic_shared_bytes = bytes;
  return true;
}

size_t simt_dynamic_shared_limit(const void *kernel) {
  const size_t most =
      simt_settings()->shared_bytes; /* may have shrunk since; may end the program */
  pthread_mutex_lock(&limits.lock);
  const Limit *limit = find(kernel);
  const size_t bytes = limit != NULL ? limit->dynamic_shared_bytes : DEFAULT_SHARED_BYTES;
  pthread_mutex_unlock(&limits.lock);
  return bytes < most ? bytes : most;
}

void simt_forget_kernel_attributes(void) {
  pthread_mutex_lock(&limits.lock);
  free(limits.list);
  limits.list = NULL;
  limits.count = 0;
  pthread_mutex_unlock(&limits.lock);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == NULL) return simt_result(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    const bool percentage_or_default = value >= -1 && value <= 100;
    return simt_result(percentage_or_default ? cudaSuccess : cudaErrorInvalidValue);
  }
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0) {
    return simt_result(cudaErrorInvalidValue);
  }
  if ((size_t)value > simt_settings()->shared_bytes) {
    char why[128];
    snprintf(why, sizeof why, "%d bytes of dynamic shared memory; at most %zu", value,
             simt_settings()->shared_bytes);
    if (simt_observer != NULL) simt_observer->launch_failed(kernel, true, why);
    return simt_result(cudaErrorInvalidValue);
  }
  /* Also a smaller value than the default is what launches are held to from now on. */
  pthread_mutex_lock(&limits.lock);
  const bool ok = set_limit(kernel, (size_t)value);
  pthread_mutex_unlock(&limits.lock);
  return simt_result(ok ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel) {
  if (attributes == NULL) return simt_result(cudaErrorInvalidValue);
  if (kernel == NULL) return simt_result(cudaErrorInvalidDeviceFunction);
  *attributes = (cudaFuncAttributes){
      .maxThreadsPerBlock = MAX_THREADS,
      .ptxVersion = 90,
      .binaryVersion = 90,
      .maxDynamicSharedSizeBytes = (int)simt_dynamic_shared_limit(kernel),
  };
  return simt_result(cudaSuccess);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                          int block_threads,
                                                          size_t dynamic_shared_bytes) {
  if (kernel == NULL) return simt_result(cudaErrorInvalidDeviceFunction);
  if (blocks == NULL || block_threads < 1) return simt_result(cudaErrorInvalidValue);
  *blocks = 0;
  if (block_threads > MAX_THREADS || dynamic_shared_bytes > simt_dynamic_shared_limit(kernel)) {
    return simt_result(cudaSuccess);
  }
  const int warps = (block_threads + WARP_SIZE - 1) / WARP_SIZE;
  const int by_threads = THREADS_PER_MULTIPROCESSOR / (warps * WARP_SIZE);
  const size_t shared = simt_settings()->shared_bytes + RESERVED_SHARED_BYTES;
  const int by_shared = (int)(shared / (dynamic_shared_bytes + RESERVED_SHARED_BYTES));
  *blocks = BLOCKS_PER_MULTIPROCESSOR;
  if (*blocks > by_threads) *blocks = by_threads;
  if (*blocks > by_shared) *blocks = by_shared;
  return simt_result(cudaSuccess);
}
