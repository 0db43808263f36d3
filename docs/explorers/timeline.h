/**
 * @file
 * The timeline of a thread block: what its threads did to memory, as they did it, and the events of
 * one warp that follow from it. `make explorers` makes build/docs/explorers/data/timeline.js of it.
 */
#ifndef TIMELINE_H
#define TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention.h"

/* --- Records: timeline_record.c --------------------------------------------------------------- */

/** What a thread did. READ and WRITE are ordinary loads and stores, EXP is 2^x. */
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
  WRITE
} Action;

/** The memory of a run. The first four are [rows][head_dim]; MASK_BITS holds all that a step has
 * prepared of a mask. */
typedef enum Memory { Q, K, V, O, LSE, MASK_BITS, SHARED, MEMORIES } Memory;

typedef struct Range {
  uint64_t begin, end;
} Range;

/** One action of one thread. Places are bytes from the start of the memory. */
typedef struct Record {
  uint8_t action;
  uint8_t memory;  /**< that is accessed; of a COPY, that is read */
  bool zeros;      /**< COPY: nothing is read, zeros are written */
  uint8_t pending; /**< WAIT: groups that may stay in flight */
  uint32_t place;
  uint32_t target; /**< COPY: in shared memory */
} Record;

enum { MOST_THREADS = 256 };

/** All records of one thread block, in program order of each thread. */
typedef struct Log {
  Record *records[MOST_THREADS];
  size_t counts[MOST_THREADS], capacities[MOST_THREADS];
  int threads;
} Log;

/**
 * Records the next launch: the first thread block that reads this place of Q. Accesses to memory
 * outside of these ranges are ignored.
 */
void record_block(const Range memory[SHARED], uint32_t place_in_q);

/** Ends recording. The log is valid until the next call of record_block(). NULL: no thread block
 * has read that place. */
const Log *recorded_block(void);

/* --- Events: timeline_events.c ---------------------------------------------------------------- */

/** Prints the buffers of shared memory and the events of the first warp: two members of a JSON
 * object. `shared_bytes` is the size of dynamic shared memory. */
void print_timeline(const Log *log, const Problem *p, int block_n, uint32_t shared_bytes);

#endif
