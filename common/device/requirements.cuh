/**
 * @file
 * What every tensor-core step needs of the device and the tensors.
 */
#ifndef DEVICE_REQUIREMENTS_CUH
#define DEVICE_REQUIREMENTS_CUH

#include <cuda_runtime.h>
#include <stdio.h>

#include "attention.h"

/** The first of Q, K, V and O with rows that 16-byte loads do not reach, in words; or NULL. */
static inline const char *tensor_with_odd_strides(const Problem *p) {
  const auto odd = [](const Strides &s) { return (s.batch % 8 | s.head % 8 | s.row % 8) != 0; };
  if (odd(p->q_strides)) return "Q";
  if (odd(p->k_strides)) return "K";
  if (odd(p->v_strides)) return "V";
  return odd(p->o_strides) ? "O" : NULL;
}

/**
 * True if the current device and the problem's layout will do for a kernel of `blocks` thread
 * blocks with `shared_bytes` of dynamic shared memory. Otherwise writes to `why` one sentence, as
 * Step::supports asks.
 */
static inline bool tensor_core_supports(const Problem *p, int shared_bytes, int64_t blocks,
                                        char *why, size_t why_size) {
  int device = 0, major = 0, shared_limit = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (major < 8) {
    snprintf(why, why_size, "this GPU has compute capability %d.x: this step needs 8.0 or more",
             major);
  } else if (shared_bytes > shared_limit) {
    snprintf(why, why_size,
             "--head-dim %d: takes %d bytes of shared memory, but this device has %d", p->head_dim,
             shared_bytes, shared_limit);
  } else if (tensor_with_odd_strides(p) != NULL) {
    snprintf(why, why_size, "the strides of %s must be multiples of 8 elements in this step",
             tensor_with_odd_strides(p));
  } else if (blocks > INT32_MAX) {
    snprintf(why, why_size, "--batch %d x --heads %d x --seqlen %d: at most 2^31 - 1 thread blocks",
             p->batch, p->q_heads, p->q_len);
  } else {
    return true;
  }
  return false;
}

/** cudaErrorMisalignedAddress unless all four tensors begin where a 16-byte copy may. */
static inline cudaError_t check_alignment(const Tensors *t) {
  const uintptr_t all = (uintptr_t)t->q | (uintptr_t)t->k | (uintptr_t)t->v | (uintptr_t)t->o;
  return all % 16 == 0 ? cudaSuccess : cudaErrorMisalignedAddress;
}

#endif
