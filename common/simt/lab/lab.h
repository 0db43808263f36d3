/**
 * @file
 * The lab, a profiler and sanitizer for kernels on the CPU backend: counts by line of source, and
 * findings.
 *
 * A program requests checks with lab_start(), launches kernels that were compiled with
 * -fsanitize=thread, and takes the results. Of other kernels, only calls of the runtime are
 * counted: barriers, warp instructions, cp.async. Results do not depend on SIMT_THREADS.
 *
 * docs/lab.md explains the counts and findings. Kernels do not call these functions.
 */
#ifndef LAB_H
#define LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The checks; any combination is allowed. */
enum {
  LAB_RACES =
      1 << 0, /**< within a block; early use of copies, barriers and masks that lanes miss */
  LAB_BOUNDS = 1 << 1,    /**< accesses outside of allocations, requested shared memory, arrays */
  LAB_INIT = 1 << 2,      /**< reads of uninitialised shared memory, global memory and floats */
  LAB_ALIGNMENT = 1 << 3, /**< accesses that are not aligned to their size */
  LAB_BLOCKS = 1 << 4,    /**< races on global memory between thread blocks */
  LAB_TRAFFIC = 1 << 5,   /**< requests, sectors and bytes of global memory; instructions */
  LAB_BANKS = 1 << 6,     /**< wavefronts of shared memory */
  LAB_EVERYTHING = (1 << 7) - 1,
  /** With LAB_TRAFFIC or LAB_BANKS: keeps the first access of each instruction. */
  LAB_ACCESSES = 1 << 7
};

/** Starts these checks and drops earlier results. 0 ends all checks. */
void lab_start(unsigned checks);

/* --- Counts --------------------------------------------------------------------------------- */

/**
 * The accesses of one kind at one line. A request is one instruction of one warp. The fields of
 * global memory stay 0 for shared memory and the other way round; shared memory of other blocks has
 * those of global memory.
 */
typedef struct LabTraffic {
  uint64_t requests;
  uint64_t bytes; /**< requested by all lanes together */

  uint64_t sectors;      /**< distinct 32-byte sectors, by request */
  uint64_t used_bytes;   /**< distinct bytes of these that were requested */
  uint32_t most_sectors; /**< maximum per request */

  uint64_t wavefronts;       /**< passes through the banks */
  uint64_t ideal_wavefronts; /**< wavefronts if there were no bank conflicts */
  uint32_t most_ways;        /**< distinct words of one bank in one pass; 1: no conflict */
} LabTraffic;

typedef struct LabCounts {
  LabTraffic global_load, global_store; /**< without cp.async */
  LabTraffic tensor_load, tensor_store; /**< boxes, without what lies outside of the tensor */
  uint64_t box_sectors;                 /**< of loads, with it: what Nsight Compute counts */
  LabTraffic shared_load, shared_store; /**< with stmatrix, without ldmatrix and cp.async */
  LabTraffic ldmatrix;
  LabTraffic wgmma_read;   /**< of shared memory by wgmma: a request for each of a warpgroup */
  LabTraffic remote_load;  /**< of shared memory of other blocks of the cluster */
  LabTraffic remote_store; /**< the same, with st.async and bulk copies between blocks */
  LabTraffic copy_global;  /**< reads by cp.async, without zero fills. A sector counts once for
                              each 32 bytes of shared memory that it is copied to */
  uint64_t copy_lookups;   /**< what Nsight Compute calls L1 sectors of these: 32-byte pieces of
                              shared memory, counted per 128-byte line of the source */
  LabTraffic copy_shared;  /**< writes by cp.async: one request per instruction */
  uint64_t partial;        /**< requests in which not all live lanes of the warp take part */
  uint64_t mma;            /**< by warps; 2 * 16 * 8 * 16 floating-point operations each */
  uint64_t mma_under_copy; /**< with a cp.async of the warp in flight */
  uint64_t wgmma;          /**< by warpgroups */
  uint64_t wgmma_flop;     /**< floating-point operations of these */
  uint64_t shuffles, votes, reductions, warp_barriers; /**< by warps */
  uint64_t shuffles_under_wgmma;                       /**< with a wgmma of the warp in flight */
  uint64_t barriers;                                   /**< __syncthreads(), by warps */
  uint64_t atomics;                                    /**< by threads */
} LabCounts;

enum { LAB_MMA_FLOP = 2 * 16 * 8 * 16, LAB_LANES = 32 };

/** The kinds of access that LabCounts distinguishes. */
typedef enum LabAccessKind {
  LAB_GLOBAL_LOAD,
  LAB_GLOBAL_STORE,
  LAB_COPY_GLOBAL,
  LAB_TENSOR_LOAD,
  LAB_TENSOR_STORE,
  LAB_COPY_SHARED,
  LAB_SHARED_LOAD,
  LAB_SHARED_STORE,
  LAB_LDMATRIX,
  LAB_WGMMA_READ,
  LAB_REMOTE_LOAD,
  LAB_REMOTE_STORE,
  LAB_ACCESS_KINDS
} LabAccessKind;

/** "global load" and the like; as a name, "global_load". */
const char *lab_access_text(LabAccessKind kind);
const char *lab_access_name(LabAccessKind kind);
bool lab_access_is_shared(LabAccessKind kind);
const LabTraffic *lab_traffic(const LabCounts *counts, LabAccessKind kind);
/** How much of the bytes of the sectors was requested; 0 if there are none, as for a box outside of
 * its tensor. */
double lab_used_percent(const LabTraffic *traffic);

/** One line of source in one kernel. */
typedef struct LabLine {
  const char *kernel; /**< name with template arguments */
  const char *file;   /**< as passed to the compiler */
  int line;           /**< 0: unknown */
  LabCounts counts;
} LabLine;

/** One kernel, over all its launches. */
typedef struct LabKernel {
  const void *kernel;
  const char *name;
  uint64_t launches, blocks;
  LabCounts counts; /**< of all its lines */
} LabKernel;

/**
 * The first access of an instruction: in the first launch, by the lowest block and its lowest warp
 * that executes it. For ldmatrix, lane i is the lane that passes the address of row i.
 */
typedef struct LabAccess {
  const char *kernel, *file;
  int line;
  LabAccessKind kind;
  uint64_t block;
  int warp;
  unsigned size;               /**< bytes per lane */
  uint32_t lanes;              /**< bit i: lane i takes part */
  LabTraffic traffic;          /**< of this access alone */
  char memory[LAB_LANES][48];  /**< name of the memory */
  uint64_t offsets[LAB_LANES]; /**< in that memory; in static shared memory, from the lowest lane */
  uint8_t banks[LAB_LANES];    /**< of the first byte; shared memory only */
} LabAccess;

/* --- Findings ------------------------------------------------------------------------------- */

/** In the order of reports: a barrier that threads miss is the cause of races after it. */
typedef enum LabKind {
  LAB_BARRIER_APART,     /**< threads of a block wait in __syncthreads() at two places */
  LAB_BARRIER_EXITED,    /**< threads wait in __syncthreads(), others have exited */
  LAB_BARRIER_REUSED,    /**< a named barrier whose phase before may still be going on */
  LAB_WARP_APART,        /**< lanes execute one warp instruction at two places */
  LAB_WARP_MASKS,        /**< lanes execute one warp instruction with different masks */
  LAB_NO_SOURCE,         /**< a shuffle reads a lane that is not in the mask, or has exited */
  LAB_CLUSTER_UNSTARTED, /**< use of shared memory of a block that may not have started */
  LAB_RACE_WRITE_READ,   /**< shared memory, no barrier between the accesses */
  LAB_RACE_READ_WRITE,
  LAB_RACE_WRITE_WRITE,
  LAB_CLUSTER_ENDED,     /**< use of shared memory of a block that may have ended */
  LAB_COPY_NOT_WAITED,   /**< read or written while a cp.async to it is in flight */
  LAB_COPY_NO_BARRIER,   /**< another thread's cp.async: it has waited, but no barrier since */
  LAB_COPY_OVER_READ,    /**< cp.async to memory that another thread may still read */
  LAB_TENSOR_NOT_WAITED, /**< use of what a tensor copy brings before a wait for its mbarrier */
  LAB_TENSOR_OVER_READ,  /**< tensor copy to memory that another thread may still read */
  LAB_ASYNC_OVER_READ,   /**< write to what a wgmma or tensor store may still read */
  LAB_NO_PROXY_FENCE,    /**< wgmma or tensor store of what threads stored, no fence.proxy.async */
  LAB_WGMMA_REGISTERS,   /**< accumulators used, or operands written, before the wait */
  LAB_WGMMA_NOT_COMMITTED, /**< the same, of a wgmma that is in no group */
  LAB_NO_WGMMA_FENCE,      /**< wgmma after its registers were written, no wgmma.fence between */
  LAB_COPY_SOURCE_WRITTEN, /**< write to global memory that a cp.async may still read */
  LAB_SHARED_UNWRITTEN,    /**< read, but not written in this block */
  LAB_SHARED_OUTSIDE,      /**< outside of the requested dynamic memory and the kernel's arrays */
  LAB_GLOBAL_OUTSIDE,      /**< outside of every allocation, in a freed one, or host memory */
  LAB_FLOAT_UNSET,         /**< uninitialised, used by mma, a shuffle or a conversion */
  LAB_GLOBAL_UNWRITTEN,    /**< read, not written by host, earlier launch or this block */
  LAB_INDEX_OUTSIDE,       /**< of an array of known length, in registers or memory */
  LAB_MISALIGNED,
  LAB_GLOBAL_RACE_WRITE_READ, /**< global memory, two threads of one block */
  LAB_GLOBAL_RACE_READ_WRITE,
  LAB_GLOBAL_RACE_WRITE_WRITE,
  LAB_BLOCKS_WRITE_WRITE, /**< global memory, two blocks of one launch */
  LAB_BLOCKS_WRITE_READ,
  LAB_LAUNCH_REFUSED, /**< exceeded the limits of the device */
  LAB_LAUNCH_FAILED,  /**< ended early: deadlock, divergent warp instruction, fault */
  LAB_SUM_UNORDERED,  /**< blocks add floats to the same place: a note, and no error */
  LAB_KINDS
} LabKind;

/** All errors of one kind at the same place or pair of places. */
typedef struct LabFinding {
  LabKind kind;
  const char *kernel;
  const char *place; /**< "file:line" of the access; NULL for those of a launch */
  /** Place of the earlier access, of the other block's access, or where others wait; or NULL. */
  const char *other_place;
  /** The inlined calls around each of the two: ", called at file:line", innermost first. */
  const char *calls, *other_calls;
  uint64_t count;         /**< accesses; for races between blocks, bytes */
  bool has_thread;        /**< false for races between blocks, and for launches */
  uint64_t block, thread; /**< of the first occurrence, by block and thread */
  uint64_t other_thread;  /**< made the earlier access, or waits at the other place */
  uint64_t other_block;   /**< races between blocks: the block at the other place */
  unsigned order;         /**< of the first occurrence among the findings of its block */
  char where[320];        /**< memory and offset of the first, or which threads wait */
} LabFinding;

/** One sentence without a full stop: the meaning of such a finding. */
const char *lab_kind_text(LabKind kind);

/** Is it about two blocks, `block` and `other_block`? */
bool lab_is_between_blocks(LabKind kind);

/* --- Results -------------------------------------------------------------------------------- */

/**
 * The results since lab_start(). Kernels are sorted by name; lines and accesses by kernel, file and
 * line; findings by kind and place.
 */
typedef struct LabResults {
  LabKernel *kernels;
  size_t kernel_count;
  LabLine *lines;
  size_t line_count;
  LabFinding *findings;
  size_t finding_count;
  LabFinding *notes; /**< what is no error, but worth knowing; behind the findings */
  size_t note_count;
  LabAccess *accesses; /**< with LAB_ACCESSES: those of one line in the order they were made */
  size_t access_count;
  bool blocks_talk; /**< LAB_BLOCKS: blocks of a launch used atomics and fences */
  double kernel_ms; /**< wall time of the launches, on this machine */
  void *strings;    /**< owned: storage of the names */
} LabResults;

/** Ends the program when memory runs out. To be freed with lab_free_results(). */
void lab_take_results(LabResults *results);
void lab_free_results(LabResults *results);

/** Adds the counts of `other`; takes the larger of two maxima. */
void lab_add_counts(LabCounts *sum, const LabCounts *other);

/** Prints what a kernel did: instructions, and a table of the accesses of each kind. */
void lab_print_kernel(const LabKernel *kernel, FILE *out);

/** Prints the findings as text, one paragraph each, then the notes. */
void lab_print_findings(const LabResults *results, FILE *out);

#ifdef __cplusplus
}
#endif

#endif
