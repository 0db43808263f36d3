/**
 * @file
 * The problem every step solves, and the contract between a step and the program around it.
 *
 * A step includes this header and what it needs from device/; it never includes host/. The host
 * knows a step only by the descriptor `step` declared at the end of this file.
 *
 * All tensors are row-major with the head dimension contiguous. Strides and sizes are counted in
 * elements unless a name contains `bytes`.
 */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Element type of a tensor. Scores, softmax statistics and accumulators are always fp32. */
typedef enum Dtype {
  DTYPE_FP16,
  DTYPE_BF16,
  DTYPE_E4M3 /**< one byte: 4 bits of exponent, 3 of mantissa; only Q, K and V, with scales */
} Dtype;

/**
 * Which keys a query may attend to. Causal is aligned to the bottom right: query q attends to key k
 * iff k <= q + (kv_len - q_len), as in FlashAttention since 2.1.
 */
typedef enum MaskKind {
  MASK_FULL,
  MASK_CAUSAL,
  MASK_BLOCKS /**< as Tensors::block_mask says; for steps that take block masks: block_mask.h */
} MaskKind;

struct BackwardTensors;
struct BlockMask;
struct BlockMaskSupport;
struct DecodeTensors;
struct ReferenceRule;

/** No step takes a larger head dimension. */
enum { MAX_HEAD_DIM = 256 };

/** Distance from one batch entry, head or row to the next. */
typedef struct Strides {
  int64_t batch, head, row; /**< in elements */
} Strides;

/**
 * O = softmax(scale * Q K^T + mask) V for every batch entry and head. S = scale * Q K^T are the
 * scores, P = softmax(S) the probabilities.
 *
 * Q and O are [batch, q_heads, q_len, head_dim], K and V are [batch, kv_heads, kv_len, head_dim].
 * Query head h reads key/value head h / (q_heads / kv_heads).
 */
typedef struct Problem {
  int batch, q_heads, kv_heads;    /**< q_heads is a multiple of kv_heads */
  int q_len, kv_len;               /**< rows of Q and O, and of K and V */
  int head_dim;                    /**< columns of all four, 1 to MAX_HEAD_DIM */
  Dtype dtype;                     /**< of Q, K and V */
  Dtype o_dtype;                   /**< of O: fp16 or bf16, as dtype unless that is DTYPE_E4M3 */
  MaskKind mask;                   /**< which keys a query attends to */
  float scale;                     /**< > 0 */
  int q_block_size, kv_block_size; /**< of the block mask; 0 without one */
  Dtype kv_dtype; /**< DTYPE_E4M3: K and V are a cache of e4m3 numbers, see decode.h; else any */
  int page_size;  /**< keys of a page of such a cache, see decode.h; 0: K and V have no pages */
  int window;     /**< a decode step's query attends to at most so many keys; 0: no limit */
  Strides q_strides, k_strides, v_strides, o_strides; /**< of each tensor */
} Problem;

/** Device pointers of one forward pass. */
typedef struct Tensors {
  const void *q, *k, *v; /**< the inputs, of Problem::dtype */
  void *o;               /**< the output, of Problem::o_dtype */
  float *lse; /**< [batch, q_heads, q_len]: ln of the sum of e^score over the attended keys */
  /** Step::workspace_bytes() for each head of a pass, or NULL. One pass at a time uses it: passes
   * in two streams, or in two branches of a graph, need one each. They would overwrite each other's
   * intermediate results, or take tiles from one counter, so that some tiles are never computed. */
  void *workspace;
  const struct BlockMask *block_mask; /**< in host memory, its tensors in device memory; or NULL */
  void *prepared; /**< what BlockMaskSupport::prepare() made of block_mask, or NULL */
  /** [batch, kv_heads], with DTYPE_E4M3 only: the values of Q are its e4m3 numbers times the scale
   * of the key/value head that the query head reads. */
  const float *q_scales;
  const float *k_scales; /**< the same for K, of its key/value head */
  const float *v_scales; /**< the same for V */
} Tensors;

/** What K and V of a decode step may be: bits of Step::caches. */
enum {
  CACHE_16_BIT = 1, /**< of Problem::dtype */
  CACHE_E4M3 = 2,   /**< of DTYPE_E4M3, with scales */
  CACHE_PAGES = 4   /**< in pages; else contiguous alone */
};

/** The hardware limit that a perfect version of a step would reach; reports compare with it. */
typedef enum Ceiling {
  CEILING_COPY,     /**< device memory: a plain copy, bytes read + written per second; of a decode
                         step, a kernel that only reads its K and V */
  CEILING_FFMA,     /**< fp32 multiply-adds on the CUDA cores */
  CEILING_MMA,      /**< mma.sync on the tensor cores */
  CEILING_WGMMA,    /**< wgmma on the tensor cores, compute capability 9.0 alone */
  CEILING_WGMMA_FP8 /**< wgmma with e4m3 operands, likewise */
} Ceiling;

/** One kernel launch of a pass. */
typedef struct KernelLaunch {
  const char *name;            /**< "scores" for scores_kernel */
  const void *kernel;          /**< as cudaFuncGetAttributes() takes it */
  dim3 grid, block;            /**< thread blocks, and threads of a block */
  size_t dynamic_shared_bytes; /**< of a thread block */
} KernelLaunch;

/** No step launches more kernels in a pass. */
enum { MAX_LAUNCHES = 6 };

/** What a step does with one problem: its tiles, its traffic and its launches. */
typedef struct Description {
  int block_m, block_n;   /**< rows of Q, and of K and V, in the tiles that a thread block works on;
                             0, of a kernel without tiles, counts as 1 */
  Ceiling ceiling;        /**< what the report compares the speed with */
  int compute_capability; /**< the least that it needs in fp16, times 10; 0: any */
  /** Device memory traffic for S and P per attended pair of query and key; 0 if they stay on chip.
   */
  int intermediate_bytes_per_entry;
  /** V of masked keys is multiplied by 0 instead of skipped: NaN or Inf in it spreads in a tile. */
  bool multiplies_masked_keys;
  int launch_count;                    /**< kernels of a pass */
  KernelLaunch launches[MAX_LAUNCHES]; /**< in this order */
} Description;

/** The descriptor of a step. Functions left NULL are not needed by that step. */
typedef struct Step {
  const char *name;      /**< "stepNN" */
  const char *after;     /**< the name of the step that it builds on; NULL: none */
  const char *title;     /**< a few words: what this step is */
  const char *idea;      /**< one sentence: what it teaches */
  const char *head_dims; /**< in words: which head dimensions it takes; NULL: all */
  bool fp8;              /**< it takes DTYPE_E4M3 alone; else fp16 and bf16 alone */
  bool nondeterministic; /**< the last bits of its result may differ from run to run */
  bool rounded_p; /**< of a backward step: dS is made of P in 16 bits, as other warps get it */

  /**
   * True if this step can solve `problem` on the current device. Otherwise writes to `why` one
   * sentence that names the option at fault, the value and what would be right. NULL: it can solve
   * every problem that has no block mask.
   */
  bool (*supports)(const Problem *problem, char *why, size_t why_size);

  /**
   * Bytes of device memory that forward() needs for each query head that it works on at a time.
   * NULL: none, and forward() works on all heads at once. Of a decode step they are those of the
   * whole pass.
   */
  size_t (*workspace_bytes)(const Problem *problem);
  bool workspace_zero; /**< it must be all 0 before the first pass; forward() leaves it so */
  /** Of a decode step with workspace_zero: only so many bytes at its start. NULL: all. */
  size_t (*zero_bytes)(const Problem *problem);

  /** Describes the work on `heads` query heads of a problem that supports() accepted. */
  void (*describe)(const Problem *problem, int heads, Description *description);

  /**
   * Enqueues the kernels on `stream`, for `heads` query heads at a time, 1 to 65535, if the step
   * needs a workspace; allocates nothing and waits for nothing.
   */
  cudaError_t (*forward)(const Problem *problem, const Tensors *tensors, int heads,
                         cudaStream_t stream);

  /** The same for a backward pass, in place of forward(): backward.h. `heads` is a multiple of the
   * query heads that share a key/value head. */
  cudaError_t (*backward)(const Problem *problem, const struct BackwardTensors *tensors, int heads,
                          cudaStream_t stream);

  /** The same for a decode step, in place of forward(): decode.h. */
  cudaError_t (*decode)(const Problem *problem, const struct DecodeTensors *tensors,
                        cudaStream_t stream);
  unsigned caches; /**< of a decode step: what its K and V may be, CACHE_16_BIT and so on */
  /** Bytes for what schedule() of a decode step writes; both are NULL if it has no schedule. */
  size_t (*schedule_bytes)(const Problem *problem);
  /** Enqueues what a batch of lengths needs once; decode() may then run any number of times. */
  cudaError_t (*schedule)(const Problem *problem, const struct DecodeTensors *tensors,
                          cudaStream_t stream);

  const struct BlockMaskSupport *block_masks; /**< NULL: the step takes the masks full and causal */
  const struct ReferenceRule *rule; /**< of a variant: host/check/reference.h; NULL: see Problem */
} Step;

#ifdef __cplusplus
extern "C" {
#endif

/** The one step this program is linked to. */
extern const Step step;

/** The query heads that share a key/value head. */
static inline int group_size(const Problem *problem) {
  return problem->q_heads / problem->kv_heads;
}

/** Query heads that a pass can work on at a time with so much workspace; 0: it is too little. */
static inline int heads_at_a_time(const Problem *problem, size_t workspace_bytes) {
  const size_t most = 65535; /* gridDim.y */
  const size_t all = (size_t)problem->batch * (size_t)problem->q_heads;
  if (step.workspace_bytes == NULL || step.decode != NULL) return (int)all;
  size_t heads = workspace_bytes / step.workspace_bytes(problem);
  if (heads > all) heads = all;
  if (heads > most) heads = most;
  if (step.backward != NULL) heads -= heads % (size_t)group_size(problem);
  return (int)heads;
}

#ifdef __cplusplus
}
#endif

#endif
