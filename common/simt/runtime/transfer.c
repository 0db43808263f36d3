/* Copies to, from and in device memory, at once. */
#include <string.h>

#include "program.h"

/** May a copy use this non-empty range as device memory, or otherwise as host memory? */
static bool range_ok(const void *pointer, size_t count, bool on_device) {
  if (on_device) return simt_memory_contains(pointer, count);
  const uintptr_t begin = (uintptr_t)pointer, last = begin + (count - 1);
  return pointer != NULL && last >= begin && !simt_memory_is_global(pointer) &&
         !simt_memory_is_global((const void *)last);
}

cudaError_t simt_copy_now(void *target, const void *source, size_t count, cudaMemcpyKind kind) {
  if (simt_sticky_error() != cudaSuccess) return simt_result(cudaSuccess);
  if ((unsigned)kind > cudaMemcpyDefault) return simt_result(cudaErrorInvalidMemcpyDirection);
  if (count == 0) return cudaSuccess;
  const bool any = kind == cudaMemcpyDefault;
  const bool to_device = any ? simt_memory_is_global(target) : (kind & cudaMemcpyHostToDevice) != 0;
  const bool from_device =
      any ? simt_memory_is_global(source) : (kind & cudaMemcpyDeviceToHost) != 0;
  if (!range_ok(target, count, to_device) || !range_ok(source, count, from_device)) {
    return simt_result(cudaErrorInvalidValue);
  }
  memmove(target, source, count);
  if (to_device && simt_observer != NULL) {
    simt_observer->memory_written((uintptr_t)target, count);
  }
  return cudaSuccess;
}

cudaError_t simt_set_now(void *pointer, int value, size_t count) {
  if (simt_sticky_error() != cudaSuccess || count == 0) return simt_result(cudaSuccess);
  if (!simt_memory_contains(pointer, count)) return simt_result(cudaErrorInvalidValue);
  memset(pointer, value, count);
  if (simt_observer != NULL) simt_observer->memory_written((uintptr_t)pointer, count);
  return cudaSuccess;
}
