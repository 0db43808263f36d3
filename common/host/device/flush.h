/** @file The flush of L2 before a timed pass. */
#ifndef HOST_FLUSH_H
#define HOST_FLUSH_H

#include <cuda_runtime_api.h>

#include <stddef.h>

/** Bytes of the buffer for flush_l2(). */
static inline size_t flush_bytes(size_t l2_bytes) {
  return 4 * l2_bytes;
}

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Enqueues a flush of L2 on `stream`: overwrites the first half of the buffer's `bytes`, a multiple
 * of 8192, and reads the other half. If a half is larger than L2, L2 then holds nothing that was
 * there before, and nothing that must be written back when the timed kernel replaces it.
 */
cudaError_t flush_l2(void *buffer, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
