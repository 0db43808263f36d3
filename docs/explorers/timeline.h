/**
 * @file
 * The timeline of a thread block: what its threads did to memory, as they did it, and the events of
 * one warp that follow from it, or of each role of the steps from 07 on. `make explorers` makes
 * build/docs/explorers/data/timeline.js of it.
 */
#ifndef TIMELINE_H
#define TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention.h"

/** timeline_data.c: ends the program with a message if something is not as it must be. */
void require(bool done, const char *what);

/* --- Records: timeline_record.c --------------------------------------------------------------- */

/** What a thread did. READ and WRITE are ordinary loads and stores, EXP is 2^x, and WRITE is also
 * stmatrix. From ARRIVE on: at mbarriers, tensor copies, wgmma, at named barriers, the draw of a
 * number, and the exchange with other blocks: additions to floats, turns, and copies to them. */
typedef enum Action {
  COPY,
  COMMIT,
  WAIT,
  BARRIER,
  LDMATRIX,
  MMA,
  SHUFFLE,
  VOTE,
  EXP,
  READ,
  WRITE,
  ARRIVE,
  AWAIT,
  TENSOR_LOAD,
  TENSOR_STORE,
  STORES_READ,
  WGMMA,
  WGMMA_COMMIT,
  WGMMA_WAIT,
  NAMED_SYNC,
  NAMED_ARRIVE,
  DRAW,
  ADD,
  LOOK,
  PASS_ON,
  SEND
} Action;

/** The memory of a run. The tensors up to D_V are [rows][head_dim], and of these the first four are
 * what the kernels read tile by tile; MASK_BITS holds all that a step has prepared of a mask.
 * Forward passes have neither gradients nor NUMBERS, the workspace in which a backward pass has
 * LSE, D and the sums of dQ. */
typedef enum Memory {
  Q,
  K,
  V,
  D_O,
  O,
  D_Q,
  D_K,
  D_V,
  LSE,
  NUMBERS,
  MASK_BITS,
  SHARED,
  MEMORIES
} Memory;

typedef struct Range {
  uint64_t begin, end;
} Range;

/** One action of one thread. Places are bytes from the start of the memory. */
typedef struct Record {
  uint8_t action;
  uint8_t memory;                 /**< that is accessed; of a COPY, that is read */
  bool zeros;                     /**< COPY: nothing is read, zeros are written */
  bool remote;                    /**< ARRIVE: at an mbarrier of any block of the cluster */
  uint8_t pending;                /**< of waits: groups that may stay in flight */
  uint16_t rows;                  /**< of a tensor copy */
  uint16_t columns, first_column; /**< TENSOR_LOAD: of the box */
  uint32_t place;   /**< of tensor copies the row; WGMMA: operand B; named barriers: the number */
  uint32_t target;  /**< in shared memory: of copies; ARRIVE and AWAIT: the mbarrier; WGMMA: A */
  uint32_t bytes;   /**< of a copy, WRITE or READ; ARRIVE: expected */
  uint32_t barrier; /**< TENSOR_LOAD and SEND: the mbarrier */
  int32_t phase; /**< of the mbarrier, that is awaited or arrived at; -1: none has begun before */
} Record;

/** Shared memory of the block of rank r of a cluster begins r times BLOCK_PLACES further. */
enum {
  MOST_BLOCK_THREADS = 512,
  MOST_BLOCKS = 2,
  MOST_THREADS = MOST_BLOCKS * MOST_BLOCK_THREADS,
  BLOCK_PLACES = 1 << 20,
  IN_REGISTERS = -1
};

/** All records of one thread block, or of the blocks of a cluster, in program order of each thread:
 * thread t of the block of rank r is MOST_BLOCK_THREADS r + t. */
typedef struct Log {
  Record *records[MOST_THREADS];
  size_t counts[MOST_THREADS], capacities[MOST_THREADS];
  int threads, blocks; /* of a block; of the cluster */
} Log;

/**
 * Records the next launch: the first thread block that reads this place of Q. Accesses to memory
 * outside of these ranges are ignored.
 */
void record_block(const Range memory[SHARED], uint32_t place_in_q);

/** Ends recording. The log is valid until the next call of record_block(). NULL: no thread block
 * has read that place. */
const Log *recorded_block(void);

/** Is it a step of warpgroups, whose first thread block is recorded? */
static inline bool has_roles(const Description *d) {
  return d->ceiling == CEILING_WGMMA || d->ceiling == CEILING_WGMMA_FP8;
}

/* --- Events: timeline_events.c ---------------------------------------------------------------- */

/** Prints the buffers of shared memory and the events of the first warp: two members of a JSON
 * object. `shared_bytes` is the size of dynamic shared memory. */
void print_timeline(const Log *log, const Problem *p, const Description *d, uint32_t shared_bytes);

/* --- Roles: timeline_roles.c ------------------------------------------------------------------ */

/** The same for a step with wgmma: prints roles, buffers, mbarriers and the events of each role. */
void print_roles(const Log *log, const Problem *p, const Description *d);

#endif
