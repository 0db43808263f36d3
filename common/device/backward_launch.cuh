/**
 * @file
 * From a problem to the launches of a backward pass on tensor cores; readers of the kernels can
 * skip this file.
 */
#ifndef DEVICE_BACKWARD_LAUNCH_CUH
#define DEVICE_BACKWARD_LAUNCH_CUH

#include <stdio.h>

#include "device/backward_rows.cuh"
#include "device/launch.cuh"

/** A kernel of a pass. */
using BackwardKernel = void (*)(Problem problem, BackwardTensors t, PassHeads heads);

struct BackwardMaps;  // backward_maps.cuh
struct MaskedMaps;    // of a step with block masks

/** The same with tensor maps. */
using TmaKernel = void (*)(Problem problem, BackwardTensors t, PassHeads heads, BackwardMaps maps);

/** The same with those of a step with block masks. */
using MaskedKernel = void (*)(Problem problem, BackwardTensors t, PassHeads heads, MaskedMaps maps);

/** What the thread blocks of a kernel divide among them. */
enum GridShare { SHARE_ROWS, SHARE_QUERIES, SHARE_KEYS, SHARE_KEY_PAIRS, SHARE_SUMS };

/** A kernel of a configuration. */
struct BackwardPart {
  const char *name;          /**< "keys" for keys_kernel */
  BackwardKernel kernel;     /**< the instantiation */
  GridShare share;           /**< what its grid counts */
  int tile;                  /**< queries or keys of a thread block */
  int threads, shared_bytes; /**< of a thread block */
  TmaKernel tma_kernel;      /**< in place of `kernel`: it uses TMA and wgmma; or NULL */
  MaskedKernel masked;       /**< likewise */
};

/** Does a kernel use TMA and wgmma? */
static inline bool uses_wgmma(const BackwardPart &part) {
  return part.tma_kernel != NULL || part.masked != NULL;
}

/** Does a kernel of the configuration use TMA and wgmma? */
template <typename Config>
static bool uses_wgmma(const Config *c) {
  for (const BackwardPart &part : c->parts) {
    if (uses_wgmma(part)) return true;
  }
  return false;
}

/** The kernels for one type and head dimension. */
struct BackwardConfig {
  Dtype dtype;           /**< of the tensors */
  int head_dim;          /**< the only one that it takes */
  int block_m, block_n;  /**< queries and keys per tile */
  BackwardPart parts[3]; /**< the kernels in their order */
};

/** The configuration for a problem, or NULL. */
template <const auto &CONFIGS>
static const BackwardConfig *find_backward(const Problem *problem) {
  for (const BackwardConfig &c : CONFIGS) {
    if (c.dtype == problem->dtype && c.head_dim == problem->head_dim) return &c;
  }
  return NULL;
}

/** The grid of a kernel for `heads` query heads. */
static dim3 backward_grid(const BackwardPart &part, const Problem *problem, int heads) {
  const auto blocks = [](int64_t all, int each) { return (unsigned)((all + each - 1) / each); };
  switch (part.share) {
    case SHARE_ROWS:
      return dim3(blocks((int64_t)padded_rows(*problem) * problem->head_dim / 8, part.threads),
                  heads);
    case SHARE_QUERIES:
      return dim3(blocks(problem->q_len, part.tile) * heads);
    case SHARE_KEYS:
      return dim3(blocks(problem->kv_len, part.tile) * (heads / group_size(problem)));
    case SHARE_KEY_PAIRS:  // clusters of two blocks
      return dim3(2 * blocks(problem->kv_len, 2 * part.tile) * (heads / group_size(problem)));
    case SHARE_SUMS:
      break;
  }
  return dim3(blocks(dq_floats(*problem) / 4, part.threads), heads);
}

/** Step::describe of a step with these configurations. */
template <const auto &CONFIGS>
static void describe_backward(const Problem *problem, int heads, Description *description) {
  const BackwardConfig *c = find_backward<CONFIGS>(problem);
  *description = {};
  description->block_m = c->block_m;
  description->block_n = c->block_n;
  description->ceiling = uses_wgmma(c) ? CEILING_WGMMA : CEILING_MMA;
  description->compute_capability = uses_wgmma(c) ? 90 : 80;
  description->multiplies_masked_keys = true;
  for (const BackwardPart &part : c->parts) {
    const void *const kernel = part.masked       ? (const void *)part.masked
                               : part.tma_kernel ? (const void *)part.tma_kernel
                                                 : (const void *)part.kernel;
    description->launches[description->launch_count++] = {
        part.name, kernel, backward_grid(part, problem, heads), dim3(part.threads),
        (size_t)part.shared_bytes};
  }
}

/** Whether all tensors start at multiples of 16 bytes. */
static inline bool start_at_chunks(const BackwardTensors *t) {
  const uintptr_t tensors = (uintptr_t)t->q | (uintptr_t)t->k | (uintptr_t)t->v | (uintptr_t)t->o |
                            (uintptr_t)t->d_o | (uintptr_t)t->d_q | (uintptr_t)t->d_k |
                            (uintptr_t)t->d_v;
  return tensors % 16 == 0;
}

/** Sets what the kernels of a pass add to to 0. */
using ClearSums = cudaError_t (*)(const Problem &problem, void *workspace, int heads,
                                  cudaStream_t stream);

/** Step::backward of a step with these configurations: passes of `heads` query heads, the last of
 * which may have fewer. `launch` starts one kernel. Returns cudaErrorMisalignedAddress unless Q, K,
 * V, O, dO and the gradients start at multiples of 16 bytes. */
template <const auto &CONFIGS, typename Launch>
static cudaError_t backward_in_passes(const Problem *problem, const BackwardTensors *t, int heads,
                                      cudaStream_t stream, Launch launch, ClearSums clear = NULL) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const int all = problem->batch * problem->q_heads;
  for (int first = 0; first < all; first += heads) {
    const PassHeads pass = {first, heads < all - first ? heads : all - first};
    if (clear != NULL) {
      const cudaError_t error = clear(*problem, t->workspace, pass.count, stream);
      if (error != cudaSuccess) return error;
    }
    Description d;
    describe_backward<CONFIGS>(problem, pass.count, &d);
    for (int i = 0; i < d.launch_count; i++) {
      const KernelLaunch &l = d.launches[i];
      // More than 48 KiB of shared memory need permission.
      const cudaError_t error = cudaFuncSetAttribute(
          l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l.dynamic_shared_bytes);
      if (error != cudaSuccess) return error;
      launch(l, pass);
    }
  }
  return cudaGetLastError();
}

/** Step::supports of a step with these configurations. */
template <const auto &CONFIGS>
static bool supports_backward(const Problem *problem, char *why, size_t why_size) {
  const auto odd = [](const Strides &s) { return (s.batch % 8 | s.head % 8 | s.row % 8) != 0; };
  const char *unaligned = odd(problem->q_strides)   ? "Q"
                          : odd(problem->k_strides) ? "K"
                          : odd(problem->v_strides) ? "V"
                          : odd(problem->o_strides) ? "O"
                                                    : NULL;
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  const int minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  const int shared_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const BackwardConfig *c = find_backward<CONFIGS>(problem);
  int shared_bytes = 0;
  if (c != NULL) {
    for (const BackwardPart &part : c->parts) {
      if (part.shared_bytes > shared_bytes) shared_bytes = part.shared_bytes;
    }
  }
  if (problem->q_block_size > 0) {
    snprintf(why, why_size,
             "--mask: %s takes at most one span of keys for each query, and no mask in blocks",
             step.name);
  } else if (c == NULL) {
    snprintf(why, why_size, "--head-dim %d: %s takes %s", problem->head_dim, step.name,
             step.head_dims);
  } else if (uses_wgmma(c) ? major != 9 || minor != 0 : major < 8) {
    snprintf(why, why_size, "this GPU has compute capability %d.%d: %s needs %s", major, minor,
             step.name, uses_wgmma(c) ? "9.0 (Hopper)" : "8.0");
  } else if (shared_bytes > shared_limit) {
    snprintf(why, why_size, "--head-dim %d: %s needs %d bytes of shared memory, this GPU has %d",
             problem->head_dim, step.name, shared_bytes, shared_limit);
  } else if (unaligned != NULL) {
    snprintf(why, why_size, "the strides of %s must be multiples of 8 elements in %s", unaligned,
             step.name);
  } else {
    return true;
  }
  return false;
}

#endif
