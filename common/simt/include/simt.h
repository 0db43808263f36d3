/**
 * @file
 * What the CPU backend has beyond CUDA: the functions that its headers call, and those that
 * programs and tests may call.
 *
 * CUDA threads are fibers; thread blocks are spread over OS threads, one block at a time on each.
 * A fiber runs until it waits: at a barrier or at a warp instruction. A warp instruction is
 * executed once for the whole warp, when the last lane that it waits for arrives. Atomics and
 * fences let other threads run first, so a lock or a flag within a block works. A thread that spins
 * on memory without either, or on another block, may spin forever.
 *
 * Four environment variables, read at first use; a wrong value ends the program with exit code 2:
 *
 * - SIMT_THREADS: OS threads, 1 to 16 (default: one per CPU). The thread that launches is one of
 *   them.
 * - SIMT_ORDER: forward (default), reverse or random:SEED; the order in which blocks start, and in
 *   which threads go on after a wait. A right kernel does not depend on it.
 * - SIMT_MEMORY: size of the simulated device memory in bytes, or with K, M or G for powers of 1024
 *   (default: half of the machine's memory). Only memory that is written is taken from the machine.
 * - SIMT_SHARED: shared memory that a block of the simulated device may ask for, 48K to 227K
 *   (default: 227K); a multiprocessor has 1K more. With less, programs must do as on smaller GPUs.
 */
#ifndef SIMT_H
#define SIMT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Reads the environment variables again; takes effect with the next launch or allocation. */
void simt_reread_environment(void);

/** Gives the allocation that starts at `pointer` a name, for reports. At most 31 characters count.
 */
cudaError_t simt_name_allocation(const void *pointer, const char *name);

/** The first and the last `bytes`, a multiple of 256, of the allocation are guard bands: the lab
 * reports kernels that use them, and reports count bytes from what lies between. */
cudaError_t simt_guard_allocation(const void *pointer, size_t bytes);

/**
 * All kernels together may take this many seconds from now on; 0: no limit. A launch that is not
 * done by then ends with cudaErrorLaunchTimeout and a line that says how many of its blocks were
 * done. A kernel that is extern "C", or in a program without symbols, is stopped only between two
 * blocks.
 */
void simt_set_time_limit(double seconds);

/** While a kernel runs, `show` is called ten times a second, in a thread of its own; NULL: no
 * more. */
void simt_set_progress(void (*show)(uint64_t blocks_done, uint64_t blocks));

/* --- Counters ------------------------------------------------------------------------------- */

/** What a warp instruction is counted as. */
typedef enum SimtKind {
  SIMT_SHUFFLE,
  SIMT_VOTE,
  SIMT_REDUCTION,
  SIMT_SYNCWARP,
  SIMT_LDMATRIX,
  SIMT_MMA,
  SIMT_KINDS
} SimtKind;

typedef struct SimtCounters {
  uint64_t launches, blocks, threads;
  uint64_t barriers; /**< times that a block passed a __syncthreads() */
  uint64_t atomics;  /**< by threads, not by warps */
  uint64_t warp_instructions[SIMT_KINDS];
  uint64_t async_copies; /**< cp.async, by threads */
  uint64_t
      mma_under_copy; /**< of the mma, those whose warp had copies that it had not waited for */
} SimtCounters;

/** What was counted since the last reset, in kernels that have ended. */
void simt_read_counters(SimtCounters *counters);
void simt_reset_counters(void);

/* --- Within a kernel ------------------------------------------------------------------------ */

/** Where in the grid a block is. */
typedef struct SimtBlock {
  uint3 index;
  dim3 dim, grid;
} SimtBlock;

/** What a thread knows of itself. */
typedef struct SimtThread {
  uint3 index;
  const SimtBlock *block;
} SimtThread;

/**
 * Each fiber owns an aligned slot of this size: its SimtThread at the start, inaccessible pages,
 * its stack in the upper half. So the stack pointer tells who runs.
 */
#define SIMT_SLOT_BYTES ((uintptr_t)1 << 18)

/** The running thread; only within a kernel. */
static inline __attribute__((always_inline)) const SimtThread *simt_self(void) {
  uintptr_t stack_pointer;
#if defined(__x86_64__)
  __asm__("movq %%rsp, %0" : "=r"(stack_pointer));
#elif defined(__aarch64__)
  __asm__("mov %0, sp" : "=r"(stack_pointer));
#else
#error "The CPU backend runs on x86-64 and aarch64."
#endif
  return (const SimtThread *)(stack_pointer & ~(SIMT_SLOT_BYTES - 1));
}

/** A warp instruction: its name in reports, and how it is carried out. */
typedef struct SimtWarpOperation {
  const char *name;
  SimtKind kind;
  /** operands[lane] is what that lane passed, NULL for lanes that are not in `mask`. */
  void (*execute)(void **operands, unsigned mask);
} SimtWarpOperation;

/**
 * Carries out `operation` for the lanes in `mask` that have not exited: the last of them to arrive
 * does it for all, while their operands stay on their stacks. Lanes of one mask that arrive with
 * different operations or masks end the launch with a report, which says where in the kernel
 * this was called from.
 */
void simt_warp_instruction(const SimtWarpOperation *operation, unsigned mask, void *operands);

/** Waits for the block's threads that have not exited; returns how many gave a nonzero predicate.
 */
unsigned simt_barrier(int predicate);

extern const SimtWarpOperation simt_shuffle_index, simt_shuffle_up, simt_shuffle_down,
    simt_shuffle_xor, simt_vote_ballot, simt_vote_any, simt_vote_all, simt_syncwarp;

/** The `bits` of the lane that `shuffle` and `lane_argument` choose, as PTX's shfl.sync does. */
uint64_t simt_shuffle(const SimtWarpOperation *shuffle, unsigned mask, uint64_t bits,
                      unsigned lane_argument, int width);

/** The lanes whose predicate is not zero; `vote` is only a name. */
unsigned simt_vote(const SimtWarpOperation *vote, unsigned mask, int predicate);

typedef enum SimtAtomic {
  SIMT_ATOMIC_ADD,
  SIMT_ATOMIC_ADD_FLOAT,
  SIMT_ATOMIC_MAX_SIGNED,
  SIMT_ATOMIC_MAX_UNSIGNED,
  SIMT_ATOMIC_MIN_SIGNED,
  SIMT_ATOMIC_MIN_UNSIGNED,
  SIMT_ATOMIC_AND,
  SIMT_ATOMIC_OR,
  SIMT_ATOMIC_XOR,
  SIMT_ATOMIC_EXCHANGE
} SimtAtomic;

/** Read-modify-write of 4 or 8 bytes; returns what was there before. */
uint32_t simt_atomic_32(SimtAtomic operation, void *address, uint32_t operand);
uint64_t simt_atomic_64(SimtAtomic operation, void *address, uint64_t operand);
uint32_t simt_compare_and_swap_32(void *address, uint32_t expected, uint32_t desired);
uint64_t simt_compare_and_swap_64(void *address, uint64_t expected, uint64_t desired);

/** What `operation` makes of the values of all lanes in `mask`; exchanges are none. */
unsigned simt_reduce(SimtAtomic operation, unsigned mask, unsigned value);

/** Orders memory, for other blocks too, and lets other threads of the block go first. */
void simt_thread_fence(void);
/** The same, of which other blocks notice nothing. */
void simt_block_fence(void);

/** The 16-bit element types of the tensor cores. */
typedef enum SimtElement { SIMT_FP16, SIMT_BF16 } SimtElement;

/** Four registers, passed as one machine vector: they never have an address in the kernel. */
typedef float SimtFloats __attribute__((vector_size(16)));
typedef uint32_t SimtWords __attribute__((vector_size(16)));

/** ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: the first `matrices` words are this
 * lane's registers. */
SimtWords simt_ldmatrix(const void *row, int matrices, bool transposed);

/** mma.sync.aligned.m16n8k16.row.col with fp32 accumulators: returns a b + d. */
SimtFloats simt_mma_m16n8k16(SimtFloats d, SimtWords a, uint32_t b0, uint32_t b1,
                             SimtElement element);

/**
 * cp.async.cg.shared.global of 16 bytes: all come from `global` where `source_bytes` is 16, and are
 * zeros where it is 0; the numbers between, which hardware takes too, end the launch. A thread that
 * ends before it has waited for its copies, ldmatrix of what is still being copied, and two copies
 * to one place in no order end the launch with a report.
 */
void simt_copy_async_16(void *shared, const void *global, unsigned source_bytes);
void simt_commit_group(void);
void simt_wait_group(unsigned still_pending);

/** Tells the observer that a float is used whose bits are those of new memory and new stacks. */
void simt_use_unset(void);

/** End the launch with a report; outside a kernel the program, as abort() does. */
__attribute__((noreturn)) void simt_trap(void);
__attribute__((noreturn)) void simt_assert_fail(const char *expression, const char *file, int line,
                                                const char *function);

/* --- Launches ------------------------------------------------------------------------------- */

/** Runs `entry(arguments)` once for each thread of the grid; `kernel` is what CUDA calls it by. */
void simt_launch(const void *kernel, dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                 cudaStream_t stream, void (*entry)(void *arguments), void *arguments,
                 size_t arguments_bytes);

#ifdef __cplusplus
}
#endif

#endif
