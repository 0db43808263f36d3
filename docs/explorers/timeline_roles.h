/**
 * @file
 * The events of the roles of a thread block: warpgroups that multiply, and the warps of one that
 * does not: producers, and those that transpose V. The first thread of each stands for it.
 * timeline_roles.c makes them of the records; timeline_columns.c puts them into columns and prints
 * them.
 */
#ifndef TIMELINE_ROLES_H
#define TIMELINE_ROLES_H

#include "timeline.h"

enum {
  MOST_ROLES = 8,
  GROUP_OF_WARPS = 128,
  WARP_THREADS = 32,
  MOST_EVENTS = 1024,
  MOST_BUFFERS = 24,
  MOST_BARRIERS = 32,
  MOST_LOADS = 256,
  TRANSPOSED = MEMORIES + 1 /* V in another order, written by a warp */
};

typedef enum Op {
  ASK,
  AWAIT_PHASE,
  ARRIVE_AT,
  TURN,
  PASS,
  QK,
  PV,
  COMPLETE,
  TRANSPOSE,
  SOFTMAX,
  OUTPUT,
  STORE,
  STORED,
  DRAW_NUMBER,
  TELL,
  LEARN
} Op;

/** A tile that was asked for. */
typedef struct Load {
  int barrier, phase;
  Memory tensor;
  uint32_t first_row, end_row;
} Load;

/** A part of shared memory. `full`: the mbarrier that counts its bytes, -1: none. */
typedef struct Buffer {
  uint32_t begin, end;
  int tensor; /* a Memory, TRANSPOSED, or MEMORIES: the next tile of queries */
  int full;
} Buffer;

/** `buffer`: whose bytes it counts, or whose readers; -1: none. */
typedef struct Barrier {
  uint32_t place;
  int buffer;
  bool is_full;
} Barrier;

typedef struct Event {
  Op op;
  int barrier, phase; /* -1: none */
  int buffer;         /* that is written or read; -1: none */
  int q_buffer;       /* of QK; of TRANSPOSE: the source */
  int tile;           /* of keys; -1: none */
  int load;           /* of ASK */
  int number;         /* TURN, PASS: the named barrier; COMPLETE: groups that may stay in flight */
  int group;          /* of QK and PV */
  int first_done, end_done; /* COMPLETE: groups */
  int count;                /* of wgmma, exponentials, boxes */
  int shuffles, votes;
  int from, column; /* it waits in these columns before its own */
} Event;

typedef struct Role {
  Event events[MOST_EVENTS];
  int count, placed; /* events that have a column */
  int thread;        /* that stands for it */
  bool loads_q, loads_k, multiplies;
} Role;

/** All of a thread block. */
typedef struct Roles {
  Role roles[MOST_ROLES];
  Load loads[MOST_LOADS];
  Buffer buffers[MOST_BUFFERS];
  Barrier barriers[MOST_BARRIERS];
  int role_count, load_count, buffer_count, barrier_count;
  int keys_per_tile;
} Roles;

/**
 * Gives each event a column, the earliest that what it waits for permits: the end of a phase of an
 * mbarrier, the arrivals at a named barrier, the event before. So what may happen at the same time
 * is in the same column. A column is no time.
 */
void place_events(Roles *all);

/** Prints roles, buffers, mbarriers and events: members of a JSON object. */
void print_columns(const Roles *all);

#endif
