/**
 * @file
 * The tiles of a thread block whose warps do the same: what its threads bring to shared memory, and
 * where it goes. timeline_tiles.c finds them in the records; timeline_events.c makes the events of
 * the first warp.
 */
#ifndef TIMELINE_TILES_H
#define TIMELINE_TILES_H

#include "timeline.h"

enum { MOST_TRANSFERS = 512, MOST_BUFFERS = 16 };

/** A tile, or bits of a mask, that the block brings to shared memory. */
typedef struct Transfer {
  int phase;
  Memory source;
  uint32_t begin, end;        /* in shared memory */
  int64_t first_row, end_row; /* of a tensor */
  int64_t end_of_read;        /* the rows from here on are zeros */
  int group;                  /* of cp.async */
} Transfer;

/** A part of shared memory that holds one thing at a time. */
typedef struct Buffer {
  uint32_t begin, end;
  unsigned holds; /* bit m: Memory m at some time; 0: probabilities */
} Buffer;

/** All of a thread block. */
typedef struct Tiles {
  Transfer transfers[MOST_TRANSFERS];
  Buffer buffers[MOST_BUFFERS];
  int transfer_count, buffer_count;
  const Problem *problem;
} Tiles;

extern Tiles tiles;

/** An ordinary load of a tensor is followed by the store of what was loaded. */
typedef struct Loaded {
  Memory source; /* MEMORIES: nothing */
  uint32_t place;
} Loaded;

/** A phase of a thread ends with this record. Within a phase a block brings at most one tile of
 * each tensor to shared memory. */
bool ends_phase(const Record *r);
/** Follows a thread's ordinary loads; returns whether this record stores what was loaded. */
bool follow_loads(const Record *r, Loaded *loaded);
/** The transfer of this phase; -1: none. */
int find_transfer(int phase, Memory source);
/** The buffer at this place of shared memory; -1: none. */
int buffer_of(uint32_t place);
const char *name_of(Memory memory);

/** Finds all transfers and buffers. */
void collect_tiles(const Log *log, const Problem *p, uint32_t shared_bytes);
/** Prints the buffers: a member of a JSON object. */
void print_buffers(void);

#endif
