/**
 * @file
 * From a problem to the launches of a backward pass on tensor cores; readers of the kernels can skip
 * this file.
 */
#ifndef DEVICE_BACKWARD_LAUNCH_CUH
#define DEVICE_BACKWARD_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>

#include "backward.h"
#include "device/backward_rows.cuh"
#include "device/launch.cuh"

/** An element type and a head dimension. */
template <typename Element, int D>
struct Instance {
  using T = Element;
  static constexpr int HEAD_DIM = D;
};

/** Calls `f` with the Instance for a problem. */
template <typename F>
static cudaError_t with_instance(const Problem *problem, F f) {
  const auto with_head_dim = [&](auto element) {
    using T = decltype(element);
    if (problem->head_dim == 64) return f(Instance<T, 64>());
    return problem->head_dim == 128 ? f(Instance<T, 128>()) : f(Instance<T, 256>());
  };
  return problem->dtype == DTYPE_BF16 ? with_head_dim(__nv_bfloat16()) : with_head_dim(__half());
}

/** Tiles of `size` rows for all of `rows`. */
static int tiles_of(int rows, int size) {
  return (rows + size - 1) / size;
}

/** The grid of row_numbers_kernel for `heads` heads. */
static dim3 row_numbers_grid(const Problem *problem, int heads) {
  return dim3(padded_rows(*problem) * (problem->head_dim / 8) / ROWS_THREADS, heads);
}

/** Lets a kernel use more than 48 KiB of shared memory. */
template <typename Kernel>
static cudaError_t allow_shared(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/** Step::supports of steps with mma.sync that take D = 64, 128 and 256. */
static bool supports_backward_mma(const Problem *problem, char *why, size_t why_size) {
  const auto odd = [](const Strides &s) { return (s.batch % 8 | s.head % 8 | s.row % 8) != 0; };
  const char *unaligned = odd(problem->q_strides)   ? "Q"
                          : odd(problem->k_strides) ? "K"
                          : odd(problem->v_strides) ? "V"
                          : odd(problem->o_strides) ? "O"
                                                    : NULL;
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  const int minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  if (problem->head_dim != 64 && problem->head_dim != 128 && problem->head_dim != 256) {
    snprintf(why, why_size, "--head-dim %d: %s takes D = 64, 128 or 256", problem->head_dim,
             step.name);
  } else if (major < 8) {
    snprintf(why, why_size, "this GPU has compute capability %d.%d: %s needs 8.0", major, minor,
             step.name);
  } else if (unaligned != NULL) {
    snprintf(why, why_size, "the strides of %s must be multiples of 8 elements in %s", unaligned,
             step.name);
  } else {
    return true;
  }
  return false;
}

/** Starts the description of a pass on tensor cores. */
static void describe_backward_mma(Description *description, int block_m, int block_n) {
  *description = {};
  description->block_m = block_m;
  description->block_n = block_n;
  description->ceiling = CEILING_MMA;
  description->compute_capability = 80;
  description->multiplies_masked_keys = true;
}

/** Adds a launch to a description. */
template <typename Kernel>
static void add_launch(Description *description, const char *name, Kernel kernel, dim3 grid,
                       int threads, int shared_bytes) {
  description->launches[description->launch_count++] = {name, (const void *)kernel, grid,
                                                        dim3(threads), (size_t)shared_bytes};
}

#endif
