/** @file What a decode pass is compared with: kernels that do nothing, or do nothing but read. */
#ifndef HOST_LIMITS_H
#define HOST_LIMITS_H

#include <cuda_runtime_api.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Enqueues an empty kernel. */
cudaError_t launch_empty(cudaStream_t stream);

/** Enqueues a kernel that reads so many bytes, rounded down to 16, from each of two tensors, which
 * are aligned to 16 bytes. */
cudaError_t launch_reads(const void *first, const void *second, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
