/**
 * @file
 * Functions of the CPU backend for the instructions that compute capability 9.0 added: mbarriers,
 * tensor copies (TMA), wgmma, setmaxnreg. device/ptx_hopper.cuh calls them.
 *
 * What is asynchronous on the GPU happens here as late as the instruction set allows. A tensor copy
 * lands when no thread of the block can run. A wgmma reads its operands, and writes its
 * accumulators, when a warp waits for it. Until then targets hold NaN.
 */
#ifndef SIMT_HOPPER_H
#define SIMT_HOPPER_H

#include <cuda.h>
#include <simt.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- mbarriers ------------------------------------------------------------------------------ */

/** Makes the 8 bytes at `barrier`, in shared memory, a barrier whose phases each take so many
 * arrivals. */
void simt_mbarrier_init(void *barrier, unsigned arrivals);

/** Tensor copies see the barriers that this thread has initialised. */
void simt_fence_mbarrier_init(void);

/** One arrival, after adding `bytes` to what the phase expects of tensor copies. */
void simt_mbarrier_arrive(void *barrier, unsigned bytes);

/** Waits until the phase of this parity has ended: returns at once unless it is the current one. */
void simt_mbarrier_wait(void *barrier, unsigned parity);

/* --- Tensor copies -------------------------------------------------------------------------- */

/**
 * Copies the box at `coordinates`, innermost first, to `shared`, swizzled as the map says; elements
 * outside of the tensor become 0. When it has landed, all bytes of the box count for `barrier`.
 */
void simt_tensor_load(void *shared, const CUtensorMap *map, void *barrier, const int *coordinates);

/** Copies a box from shared memory; elements outside of the tensor are left out. */
void simt_tensor_store(const CUtensorMap *map, const void *shared, const int *coordinates);

/** Copies so many bytes, a multiple of 16, to shared memory; both sides are multiples of 16. */
void simt_bulk_load(void *shared, const void *global, unsigned bytes, void *barrier);

/** Adds the floats in so many bytes of shared memory to those in global memory. It belongs to a
 * group, as stores do. */
void simt_bulk_reduce_add(void *global, const void *shared, unsigned bytes);

/** The stores of this thread since the last call become a group. */
void simt_bulk_commit(void);

/** Waits until at most the latest `pending` groups of this thread are unfinished. */
void simt_bulk_wait(unsigned pending);

/** Orders the accesses of this thread to shared memory before later ones by tensor copies and
 * wgmma. */
void simt_fence_proxy_async(void);

/* --- wgmma ---------------------------------------------------------------------------------- */

/** Four numbers rounded to e4m3, the first in the lowest byte; beyond 448, to 448. */
uint32_t simt_pack_e4m3(float x0, float x1, float x2, float x3);
/** The two in the lower half of `pair` as fp16, exactly. */
uint32_t simt_e4m3_to_half2(uint32_t pair);

/** D (64 x n) = A (64 x 16) B (16 x n), plus D if `accumulate`. */
typedef struct SimtWgmma {
  float *d;          /**< n / 2 accumulators of this thread */
  const uint32_t *a; /**< four registers of this thread; NULL: A is in shared memory */
  uint64_t a_descriptor, b_descriptor;
  int n; /**< columns: a multiple of 8 up to 256 */
  bool accumulate, transpose_a, transpose_b;
  SimtElement element;
} SimtWgmma;

/** wgmma.mma_async, by all threads of a warpgroup. The arrays must stay until its wait. */
void simt_wgmma(const SimtWgmma *operands);
void simt_wgmma_fence(void);
void simt_wgmma_commit(void);
/** Ends the launch if a wait for all but `pending` groups would complete a wgmma whose accumulators
 * are none of these; `count` 0 is not checked. */
void simt_wgmma_named(unsigned pending, const float *const *accumulators, unsigned count);
void simt_wgmma_wait(unsigned pending);

/* --- Warp specialisation --------------------------------------------------------------------- */

/** setmaxnreg.inc if `more`, which waits until other warps have released enough, or .dec. */
void simt_set_registers(unsigned registers, bool more);

#ifdef __cplusplus
}
#endif

#endif
