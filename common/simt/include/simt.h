/**
 * @file
 * Functions of the CPU backend that CUDA does not have: those that its headers call, and those that
 * programs and tests may call.
 *
 * CUDA threads are fibers; thread blocks are spread over OS threads, one block at a time on each.
 * The blocks of a cluster have an OS thread each, of which one runs at a time. A fiber runs until
 * it waits: at a barrier or at a warp instruction. A warp instruction is executed once for the
 * whole warp, when the last lane that it waits for arrives. Atomics and fences let other threads
 * run first, so a lock or a flag within a block works. A thread that spins on memory without
 * either, or on another block, may spin forever.
 *
 * Six environment variables, read at first use; a wrong value ends the program with exit code 2:
 *
 * - SIMT_THREADS: OS threads, 1 to 16 (default: one per CPU). The thread that launches is one of
 *   them.
 * - SIMT_ORDER: forward (default), reverse or random:SEED; the order in which blocks start, and in
 *   which threads continue after a wait. A correct kernel does not depend on it.
 * - SIMT_MEMORY: size of the simulated device memory in bytes, or with K, M or G for powers of 1024
 *   (default: half of the machine's memory). Only memory that is written is taken from the machine.
 * - SIMT_SHARED: shared memory that a block of the simulated device may ask for, 48K to 227K
 *   (default: 227K); a multiprocessor has 1K more. A lower value simulates a smaller GPU.
 * - SIMT_SMS: multiprocessors of the simulated device, 1 to 1024 (default: 4). Nothing runs on
 * them, but programs ask how many there are.
 * - SIMT_WGMMA: warpgroup (default) or warp; whether the first wait of a warp completes a wgmma for
 *   the whole warpgroup, or each warp's own wait completes its part.
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

/** Names the allocation at `pointer` for reports. Only the first 31 characters are kept. */
cudaError_t simt_name_allocation(const void *pointer, const char *name);

/** Makes the first and the last `bytes` (a multiple of 256) of the allocation guard bands. The lab
 * reports accesses to them; offsets in reports are relative to the end of the first band. */
cudaError_t simt_guard_allocation(const void *pointer, size_t bytes);

/**
 * Limits the time of all kernels together from now on; 0: no limit. A launch that exceeds it ends
 * with cudaErrorLaunchTimeout and a report of the number of finished blocks. A kernel that is
 * extern "C", or in a program without symbols, is stopped only between two blocks.
 */
void simt_set_time_limit(double seconds);

/** Calls `show` ten times a second while a kernel runs, in a separate thread; NULL: no calls. */
void simt_set_progress(void (*show)(uint64_t blocks_done, uint64_t blocks));

/** Is the file newer than the program? If so, line numbers in reports may differ. */
bool simt_source_is_newer(const char *file);

/* --- Counters ------------------------------------------------------------------------------- */

/** The kinds of warp instructions that are counted. */
typedef enum SimtKind {
  SIMT_SHUFFLE,
  SIMT_VOTE,
  SIMT_REDUCTION,
  SIMT_SYNCWARP,
  SIMT_LDMATRIX, /**< this and the rest need all lanes of the warp */
  SIMT_STMATRIX,
  SIMT_MMA,
  SIMT_WGMMA,
  SIMT_WGMMA_SYNC, /**< wgmma.fence, .commit_group and .wait_group */
  SIMT_SETMAXNREG,
  SIMT_KINDS
} SimtKind;

typedef struct SimtCounters {
  uint64_t launches, blocks, threads;
  uint64_t barriers; /**< times that a block passed a __syncthreads() */
  uint64_t atomics;  /**< by threads, not by warps */
  uint64_t warp_instructions[SIMT_KINDS];
  uint64_t async_copies;   /**< cp.async, by threads */
  uint64_t mma_under_copy; /**< mma whose warp had copies in flight */
  uint64_t tensor_copies;
} SimtCounters;

/** The counts since the last reset, of kernels that have ended. */
void simt_read_counters(SimtCounters *counters);
void simt_reset_counters(void);

/* --- Hints ---------------------------------------------------------------------------------- */

/** How kernels execute what is legal, but often a mistake. If another reading changes the result of
 * a kernel, it depends on that. */
typedef enum SimtReading {
  SIMT_AS_WRITTEN,
  /* Where a shuffle finds no lane to read, a lane gets the largest or the smallest number of its
   * type, not its own value. */
  SIMT_KEPT_LARGEST,
  SIMT_KEPT_SMALLEST,
  SIMT_DOWN_AS_XOR,    /**< __shfl_down_sync is __shfl_xor_sync: all lanes of a reduction get it */
  SIMT_ACTIVE_TOGETHER /**< __activemask() is all lanes that come to it before the others go on */
} SimtReading;

/** From now on. A kernel that fails under another reading, since it takes a value for an index,
 * say, is not reported; the next call forgets its error. */
void simt_read_as(SimtReading reading);

/** What may explain a wrong result: a shuffle from a lane that takes no part, lanes that a shuffle
 * left with their own value, a distance of 32 lanes or more, lanes that shuffle at different
 * places, a call of __activemask(). */
typedef struct SimtHint {
  SimtReading reading; /**< shows whether it matters; of values that are kept, SIMT_KEPT_LARGEST or,
                          for __shfl_down_sync, SIMT_DOWN_AS_XOR; SIMT_AS_WRITTEN: none does */
  char text[1280];     /**< one sentence without a full stop; empty if there is nothing to say */
} SimtHint;

enum { SIMT_MOST_HINTS = 8 };

/** What kernels have done since the last reset of the counters, at different places. `i` counts
 * from 0; false if there are no more. */
bool simt_hint(int i, SimtHint *hint);

/* --- Within a kernel ------------------------------------------------------------------------ */

/** The position of a block in the grid. */
typedef struct SimtBlock {
  uint3 index;
  dim3 dim, grid;
} SimtBlock;

/** The position of a thread in its block. */
typedef struct SimtThread {
  uint3 index;
  const SimtBlock *block;
} SimtThread;

/**
 * Each fiber owns an aligned slot of this size: its SimtThread at the start, inaccessible pages,
 * its stack in the upper half. So the stack pointer identifies the running thread.
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

/** A warp instruction: its name in reports, and the function that executes it. */
typedef struct SimtWarpOperation {
  const char *name;
  SimtKind kind;
  /** operands[lane] is what that lane passed, NULL for lanes that are not in `mask`. NULL: nothing
   * but the wait for the other lanes is to be done. */
  void (*execute)(void **operands, unsigned mask);
} SimtWarpOperation;

/**
 * Executes `operation` for the lanes in `mask` that have not exited. The last of them to arrive
 * executes it for all; the operands stay on the lanes' stacks. Lanes of one mask that arrive with
 * different operations or masks end the launch with a report of their call sites.
 */
void simt_warp_instruction(const SimtWarpOperation *operation, unsigned mask, void *operands);

/** Waits for all live threads of the block; returns how many passed a nonzero predicate. */
unsigned simt_barrier(int predicate);

extern const SimtWarpOperation simt_shuffle_index, simt_shuffle_up, simt_shuffle_down,
    simt_shuffle_xor, simt_vote_ballot, simt_vote_any, simt_vote_all, simt_syncwarp;

/** Bits of the largest and the smallest number of a type. */
typedef struct SimtExtremes {
  uint64_t largest, smallest;
} SimtExtremes;

/** The `bits` of the lane that `shuffle` and `lane_argument` select, as in PTX's shfl.sync. */
uint64_t simt_shuffle(const SimtWarpOperation *shuffle, unsigned mask, uint64_t bits,
                      unsigned lane_argument, int width, const SimtExtremes *extremes);

/** The calling lane alone, if it is not read otherwise. */
unsigned simt_active_mask(void);

/** The lanes whose predicate is not zero; `vote` only names the instruction in reports. */
unsigned simt_vote(const SimtWarpOperation *vote, unsigned mask, int predicate);

extern const SimtWarpOperation simt_match_any, simt_match_all;

/** The lanes whose `bits` are those of the calling lane; of simt_match_all 0 unless all are. */
unsigned simt_match(const SimtWarpOperation *match, unsigned mask, uint64_t bits);

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
  SIMT_ATOMIC_EXCHANGE,
  SIMT_ATOMIC_COUNT,     /* up to the operand, then from 0 again */
  SIMT_ATOMIC_COUNT_DOWN /* to 0, then from the operand again */
} SimtAtomic;

/** What an atomic does to its memory: SIMT_ADDS_FLOATS rounds, so that the order of such updates
 * shows in the result; SIMT_EXCHANGES ignores the old value. */
typedef enum SimtAccess {
  SIMT_LOADS,
  SIMT_STORES,
  SIMT_UPDATES,
  SIMT_ADDS_FLOATS,
  SIMT_EXCHANGES
} SimtAccess;

/** What an atomic orders, as in PTX: .relaxed, .acquire, .release, .acq_rel. */
typedef enum SimtOrder {
  SIMT_RELAXED,
  SIMT_ACQUIRE = 1 << 0,
  SIMT_RELEASE = 1 << 1,
  SIMT_ACQ_REL = SIMT_ACQUIRE | SIMT_RELEASE
} SimtOrder;

/** Read-modify-write of 4 or 8 bytes; returns what was there before. The last two are relaxed. */
uint32_t simt_atomic_32(SimtAtomic operation, void *address, uint32_t operand, SimtOrder order);
uint64_t simt_atomic_64(SimtAtomic operation, void *address, uint64_t operand, SimtOrder order);
uint32_t simt_compare_and_swap_32(void *address, uint32_t expected, uint32_t desired);
uint64_t simt_compare_and_swap_64(void *address, uint64_t expected, uint64_t desired);
/** Atomic loads and stores of 4 bytes: ld.acquire, st.release. */
uint32_t simt_load_acquire_32(const void *address);
void simt_store_release_32(void *address, uint32_t value);
/** The same for ld.relaxed and st.relaxed, which order nothing; each of four words by itself. */
uint32_t simt_load_relaxed_32(const void *address);
void simt_store_relaxed_128(void *address, const uint32_t words[4]);

/** Reduces the values of all lanes in `mask`; `operation` must not be an exchange. */
unsigned simt_reduce(SimtAtomic operation, unsigned mask, unsigned value);

/** Orders memory, for other blocks too, and lets other threads of the block run. */
void simt_thread_fence(void);
/** The same within the block only. */
void simt_block_fence(void);

/** The element types of the tensor cores; e4m3 for wgmma only. */
typedef enum SimtElement { SIMT_FP16, SIMT_BF16, SIMT_E4M3 } SimtElement;

/** Four registers, passed as one machine vector: they never have an address in the kernel. */
typedef float SimtFloats __attribute__((vector_size(16)));
typedef uint32_t SimtWords __attribute__((vector_size(16)));

/** ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: the first `matrices` words are this
 * lane's registers. */
SimtWords simt_ldmatrix(const void *row, int matrices, bool transposed);

/** stmatrix.sync.aligned.m8n8.x{1,2,4}.shared.b16: the reverse, from the first `matrices` words. */
void simt_stmatrix(void *row, SimtWords registers, int matrices);

/** mma.sync.aligned.m16n8k16.row.col with fp32 accumulators: returns a b + d. */
SimtFloats simt_mma(SimtFloats d, SimtWords a, uint32_t b0, uint32_t b1, SimtElement element);

/**
 * cp.async.cg.shared.global of 16 bytes: copies `global` if `source_bytes` is 16, writes zeros if
 * it is 0; values between, which hardware accepts, end the launch. These errors end it with a
 * report: a thread exits before it has waited for its copies, an ldmatrix reads bytes to which a
 * copy is in flight, or two copies to the same place are not ordered.
 */
void simt_copy_async_16(void *shared, const void *global, unsigned source_bytes);
void simt_commit_group(void);
void simt_wait_group(unsigned still_pending);

/** Barrier `id`, 1 to 15, for so many threads of the block; waits for them if `wait`. */
void simt_named_barrier(unsigned id, unsigned threads, bool wait);

typedef enum SimtArithmetic {
  SIMT_ADD,
  SIMT_MULTIPLY,
  SIMT_DIVIDE,
  SIMT_FUSED, /**< x y + z */
  SIMT_SQUARE_ROOT,
  SIMT_TO_FLOAT /**< of a double */
} SimtArithmetic;

typedef enum SimtRounding { SIMT_NEAREST_EVEN, SIMT_TOWARDS_ZERO, SIMT_UP, SIMT_DOWN } SimtRounding;

/** The result of an operation on floats, rounded once, to a float. */
float simt_round(SimtArithmetic operation, SimtRounding rounding, double x, double y, double z);

/** Tells the observer that a float with the bits of new memory and new stacks is used. */
void simt_use_unset(void);

/** End the launch with a report; outside of a kernel they abort the program. */
__attribute__((noreturn)) void simt_trap(void);
__attribute__((noreturn)) void simt_assert_fail(const char *expression, const char *file, int line,
                                                const char *function);

/* --- Launches ------------------------------------------------------------------------------- */

/** Runs `entry(arguments)` once for each thread of the grid; `kernel` identifies the kernel.
 * `cluster`: the shape of its clusters in blocks, or NULL; `cooperative`: all blocks run at the
 * same time. */
void simt_launch(const void *kernel, dim3 grid, dim3 block, const dim3 *cluster, bool cooperative,
                 size_t dynamic_shared_bytes, cudaStream_t stream, void (*entry)(void *arguments),
                 void *arguments, size_t arguments_bytes);

#ifdef __cplusplus
}
#endif

#endif
