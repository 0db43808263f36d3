/**
 * @file
 * From a problem to a kernel launch; readers of the kernels can skip this file. A step lists the
 * instantiations of its kernel. The functions here choose one, say why none will do, describe the
 * launch, and prepare it.
 */
#ifndef DEVICE_LAUNCH_CUH
#define DEVICE_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>

#include "block_mask.h"

/** The Dtype of an element type. */
template <typename T>
constexpr Dtype DTYPE_OF = DTYPE_FP16;
template <>
constexpr Dtype DTYPE_OF<__nv_bfloat16> = DTYPE_BF16;

/** What a kernel takes, and what it needs of a GPU, because of the instructions that it uses. */
struct Instructions {
  Ceiling ceiling;             /**< what the report compares the speed with */
  bool exact_head_dim;         /**< takes no head dimension below that of the configuration */
  bool multiplies_masked_keys; /**< by a P of 0, instead of leaving them out */
  int alignment;               /**< bytes: of the tensors and their rows; 1: that of elements */
  int capability;              /**< the least compute capability in fp16, times 10 */
  int bf16_capability;         /**< in bf16 */
  bool no_later_capability;    /**< runs on no other one */
};

/** No tensor cores. */
constexpr Instructions USES_FFMA = {CEILING_FFMA, false, false, 1, 0, 0, false};
/** mma.sync, and copies of 16 bytes. */
constexpr Instructions USES_MMA = {CEILING_MMA, true, true, 16, 75, 80, false};
/** wgmma and TMA. */
constexpr Instructions USES_WGMMA = {CEILING_WGMMA, true, true, 16, 90, 90, true};
/** wgmma and TMA, with inputs in e4m3. */
constexpr Instructions USES_WGMMA_FP8 = {CEILING_WGMMA_FP8, true, true, 16, 90, 90, true};

/**
 * One instantiation of a kernel. A thread block computes block_m rows of O of one query head.
 * `Extra` are parameters of the kernel after the problem and the tensors; most have none.
 */
template <typename... Extra>
struct KernelConfig {
  void (*kernel)(Problem, Tensors, Extra...); /**< the instantiation */
  const char *name;                           /**< "attention" for attention_kernel */
  Dtype dtype;                                /**< of its element type, which O has */
  int head_dim;                               /**< that it takes, or the greatest */
  int block_m, block_n;                       /**< rows of Q, and of K and V, per tile */
  int threads, shared_bytes; /**< of a thread block; the shared memory is dynamic */
  Instructions uses;         /**< those that decide where it runs */
  int mask_rows;             /**< divides the rows of a mask block */
};

/** The configuration of a kernel; `Tiles` tells its BLOCK_M and BLOCK_N. */
template <typename T, int HEAD_DIM, typename Tiles, typename... Extra>
constexpr KernelConfig<Extra...> make_config(void (*kernel)(Problem, Tensors, Extra...),
                                             int threads, int shared_bytes, Instructions uses,
                                             const char *name = "attention") {
  return {kernel,         name,    DTYPE_OF<T>,  HEAD_DIM, Tiles::BLOCK_M,
          Tiles::BLOCK_N, threads, shared_bytes, uses,     Tiles::BLOCK_M};
}

/** An attribute of the current device. */
static inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

/** What a configuration does not take of a problem. The most decisive is the largest. */
enum Unmet { UNMET_HEAD_DIM = 1, UNMET_BLOCKS = 2, UNMET_DTYPE = 4 };

template <typename Config>
static int unmet(const Config &c, const Problem *problem) {
  const bool takes_spans = step.block_masks != NULL && step.block_masks->takes_spans;
  const bool takes_head_dim =
      c.uses.exact_head_dim ? c.head_dim == problem->head_dim : c.head_dim >= problem->head_dim;
  const bool takes_blocks = takes_spans ? problem->q_block_size == 0
                                        : problem->q_block_size % c.mask_rows == 0 &&
                                              problem->kv_block_size % c.block_n == 0;
  return (takes_head_dim ? 0 : UNMET_HEAD_DIM) | (takes_blocks ? 0 : UNMET_BLOCKS) |
         (c.dtype == problem->o_dtype ? 0 : UNMET_DTYPE);
}

/**
 * The configuration for a problem, or NULL if none takes it. CONFIGS has ascending head dimensions,
 * and larger tiles first: chosen is the first sufficient head_dim, and of its configurations the
 * first whose shared memory the device has, or else the last.
 */
template <const auto &CONFIGS>
static auto find_config(const Problem *problem) {
  const size_t shared_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  decltype(&CONFIGS[0]) chosen = NULL;
  for (const auto &c : CONFIGS) {
    if (unmet(c, problem) != 0) continue;
    if (chosen != NULL && c.head_dim != chosen->head_dim) break;
    chosen = &c;
    if ((size_t)c.shared_bytes <= shared_limit) break;
  }
  return chosen;
}

/** Tiles of queries of a launch: numbers that take_next() gives to blocks that find no more of them
 * must be ints, too. */
constexpr int64_t MOST_TILES = INT32_MAX - 0xffff;

/** Thread blocks of a launch: one per tile of block_m queries of each head. */
template <typename Config>
static int64_t grid_size(const Config *config, const Problem *problem) {
  const int64_t q_tiles = (problem->q_len + config->block_m - 1) / config->block_m;
  return q_tiles * problem->batch * problem->q_heads;
}

/** Writes the head dimensions of the configurations that take all else: "D = 32, 64 or 128". */
template <const auto &CONFIGS>
static void list_head_dims(const Problem *problem, char *text, size_t size) {
  bool takes[MAX_HEAD_DIM + 1] = {};
  int left = 0, most = 0, length = 2;
  bool exact = true;
  for (const auto &c : CONFIGS) {
    if (unmet(c, problem) != UNMET_HEAD_DIM) continue;
    left += !takes[c.head_dim];
    takes[c.head_dim] = true;
    if (c.head_dim > most) most = c.head_dim;
    exact = c.uses.exact_head_dim;
  }
  snprintf(text, size, exact ? "D " : "D up to %d", most);
  for (int d = 1; exact && d <= most; d++) {
    if (!takes[d]) continue;
    const char *before = length == 2 ? "=" : left > 1 ? "," : " or";
    length += snprintf(text + length, size - length, "%s %d", before, d);
    left--;
  }
}

/** Says what no configuration takes: of the one that comes closest, the most decisive option. */
template <const auto &CONFIGS>
static void refuse(const Problem *problem, char *why, size_t why_size) {
  const auto *closest = &CONFIGS[0];
  bool other_dtype = false;  // would do
  for (const auto &c : CONFIGS) {
    if (unmet(c, problem) < unmet(*closest, problem)) closest = &c;
    other_dtype |= unmet(c, problem) == UNMET_DTYPE;
  }
  const int fault = unmet(*closest, problem);
  const char *dtypes[] = {"fp16", "bf16"}, *dtype = dtypes[problem->o_dtype];
  char dims[256];
  if (fault & UNMET_DTYPE) {
    snprintf(why, why_size, "%s %s: %s takes %s", step.fp8 ? "--out-dtype" : "--dtype", dtype,
             step.name, dtypes[closest->dtype]);
  } else if (fault & UNMET_BLOCKS && step.block_masks->takes_spans) {
    snprintf(why, why_size,
             "--mask: %s takes at most one span of keys for each query, and no mask in blocks",
             step.name);
  } else if (fault & UNMET_BLOCKS) {
    snprintf(why, why_size, "mask blocks of %dx%d: %s takes multiples of %dx%d",
             problem->q_block_size, problem->kv_block_size, step.name, closest->mask_rows,
             closest->block_n);
  } else {
    list_head_dims<CONFIGS>(problem, dims, sizeof dims);
    snprintf(why, why_size, "--head-dim %d: %s takes %s%s%s", problem->head_dim, step.name, dims,
             other_dtype ? " in " : "", other_dtype ? dtype : "");
  }
}

/** Step::supports of a step whose kernel has these configurations. */
template <const auto &CONFIGS>
static bool supports_config(const Problem *problem, char *why, size_t why_size) {
  const auto *config = find_config<CONFIGS>(problem);
  if (config == NULL) {
    refuse<CONFIGS>(problem, why, why_size);
    return false;
  }
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  const int capability = 10 * major + device_attribute(cudaDevAttrComputeCapabilityMinor);
  const Instructions &uses = config->uses;
  const bool bf16 = problem->dtype == DTYPE_BF16;
  const int least = bf16 ? uses.bf16_capability : uses.capability;
  const int shared_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const auto odd = [](const Strides &s, int unit) {
    return (s.batch % unit | s.head % unit | s.row % unit) != 0;
  };
  const int o_unit = uses.alignment > 1 ? uses.alignment / 2 : 1;  // elements of 16 bits
  const int unit = problem->dtype == DTYPE_E4M3 ? uses.alignment : o_unit;
  const char *unaligned = odd(problem->q_strides, unit)     ? "Q"
                          : odd(problem->k_strides, unit)   ? "K"
                          : odd(problem->v_strides, unit)   ? "V"
                          : odd(problem->o_strides, o_unit) ? "O"
                                                            : NULL;
  if (capability < least || (uses.no_later_capability && capability != least)) {
    snprintf(why, why_size, "this GPU has compute capability %d.%d: %s needs %d.%d%s", major,
             capability % 10, step.name, least / 10, least % 10,
             uses.no_later_capability ? " (Hopper)"
             : bf16                   ? " for bf16"
                                      : "");
  } else if (config->shared_bytes > shared_limit) {
    snprintf(why, why_size, "--head-dim %d: %s needs %d bytes of shared memory, this GPU has %d",
             problem->head_dim, step.name, config->shared_bytes, shared_limit);
  } else if (unaligned != NULL) {
    snprintf(why, why_size, "the strides of %s must be multiples of %d elements in %s", unaligned,
             unaligned[0] == 'O' ? o_unit : unit, step.name);
  } else if (grid_size(config, problem) > MOST_TILES) {
    snprintf(why, why_size,
             "--batch %d x --heads %d x --seqlen %d: at most 2^31 - 2^16 tiles of queries",
             problem->batch, problem->q_heads, problem->q_len);
  } else {
    return true;
  }
  return false;
}

/** Step::supports of a step with block masks: both sides of a block are multiples of 64. */
template <const auto &CONFIGS>
static bool supports_block_masks(const Problem *problem, char *why, size_t why_size) {
  if (problem->q_block_size % 64 == 0 && problem->kv_block_size % 64 == 0) {
    return supports_config<CONFIGS>(problem, why, why_size);
  }
  snprintf(why, why_size,
           "mask blocks of %dx%d (--mask-block or the tiles): must be multiples of 64",
           problem->q_block_size, problem->kv_block_size);
  return false;
}

/** Step::describe of a step with one launch. */
template <const auto &CONFIGS>
static void describe_config(const Problem *problem, int, Description *description) {
  const auto *c = find_config<CONFIGS>(problem);
  *description = {};
  description->block_m = c->block_m;
  description->block_n = c->block_n;
  description->ceiling = c->uses.ceiling;
  description->compute_capability = c->uses.capability;
  description->multiplies_masked_keys = c->uses.multiplies_masked_keys;
  description->launch_count = 1;
  description->launches[0] = {c->name, (const void *)c->kernel,
                              dim3((unsigned)grid_size(c, problem)), dim3(c->threads),
                              (size_t)c->shared_bytes};
}

/** Thread blocks: one for each SM, or for each tile if there are fewer tiles. */
template <typename Config>
static int block_count(const Config *config, const Problem *problem) {
  const int64_t tiles = grid_size(config, problem);
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount);
  return tiles < sms ? (int)tiles : sms;
}

/** Step::describe of a step with persistent blocks. */
template <const auto &CONFIGS>
static void describe_persistent(const Problem *problem, int heads, Description *description) {
  describe_config<CONFIGS>(problem, heads, description);
  description->launches[0].grid = dim3(block_count(find_config<CONFIGS>(problem), problem));
}

/**
 * Lets the kernel use its shared memory: more than 48 KiB per thread block need permission. Returns
 * cudaErrorMisalignedAddress unless all four tensors start at multiples of the alignment that the
 * kernel's instructions need.
 */
template <typename Config>
static cudaError_t prepare_launch(const Config *config, const Tensors *t) {
  const uintptr_t all = (uintptr_t)t->q | (uintptr_t)t->k | (uintptr_t)t->v | (uintptr_t)t->o;
  if (all % config->uses.alignment != 0) return cudaErrorMisalignedAddress;
  return cudaFuncSetAttribute(config->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              config->shared_bytes);
}

#endif
