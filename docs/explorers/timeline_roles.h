/**
 * @file
 * The events of the roles of a thread block: warpgroups that multiply, and the warps of one that
 * does not: producers, and those that transpose V. The first thread of each stands for it.
 * timeline_buffers.c finds the buffers of shared memory in the records, timeline_roles.c the
 * events, both with timeline_scores.c for what backward passes have besides. timeline_columns.c
 * puts the events into columns and prints them.
 */
#ifndef TIMELINE_ROLES_H
#define TIMELINE_ROLES_H

#include "timeline.h"

/** What a buffer holds beside tensors: MEMORIES is the number of the next tile of queries. */
enum {
  TRANSPOSED = MEMORIES + 1, /* V in another order, written by a warp */
  P_TILE,                    /* written by a consumer of a backward pass */
  DS_TILE,                   /* the same; P may have been there before */
  RECEIVED                   /* dS of the other block of a cluster */
};

enum {
  MOST_ROLES = 16,
  GROUP_OF_WARPS = 128,
  WARP_THREADS = 32,
  MOST_EVENTS = 1024,
  MOST_BUFFERS = 40,
  MOST_BARRIERS = 64,
  MOST_LOADS = 512
};

/** QK to DQ are products. SOFTMAX is P of a backward pass, PUT writes it to shared memory, DS
 * computes dS and writes it. */
typedef enum Op {
  ASK,
  AWAIT_PHASE,
  ARRIVE_AT,
  TURN,
  PASS,
  QK,
  PV,
  DP,
  DV,
  DK,
  DQ,
  COMPLETE,
  TRANSPOSE,
  SOFTMAX,
  PUT,
  DS,
  SEND_ON,
  ADD_UP,
  LOOK_AT,
  HAND_ON,
  OUTPUT,
  STORE,
  STORED,
  DRAW_NUMBER,
  TELL,
  LEARN
} Op;

/** A tile that was asked for, or written for others: what a phase of an mbarrier brings. */
typedef struct Load {
  int barrier, phase, buffer;
  uint32_t first_row, end_row;
  int first_column, end_column;
} Load;

/** A part of shared memory. `full`: the mbarrier that counts its bytes, -1: none. */
typedef struct Buffer {
  uint32_t begin, end;
  int tensor; /* a Memory or one of the above */
  int full;
} Buffer;

/** `buffers`: whose bytes it counts, or whose readers, one bit each. */
typedef struct Barrier {
  uint32_t place;
  uint64_t buffers;
  bool is_full;
  int content; /* that it is full of, if a buffer holds several things one after the other, or 0 */
} Barrier;

typedef struct Event {
  Op op;
  int barrier, phase; /* -1: none */
  int buffer;         /* that is written or read; -1: none */
  int q_buffer; /* of QK: Q; of other products: A; of TRANSPOSE and DS: the source; of SEND_ON: the
                   target */
  uint64_t reads; /* of products: all buffers, one bit each */
  int tile;       /* of what streams: keys, or queries of a backward pass; -1: none */
  int load;       /* of ASK */
  bool numbers;   /* ASK: LSE or D come, too */
  int number;     /* TURN, PASS: the named barrier; COMPLETE: groups that may stay in flight */
  int group;      /* of products */
  int first_done, end_done; /* COMPLETE: groups */
  int count;                /* of wgmma, exponentials, boxes, floats that are added */
  int shuffles, votes;
  unsigned tensors; /* that are stored: one bit for each Memory */
  int from, column; /* it waits in these columns before its own */
} Event;

typedef struct Role {
  Event events[MOST_EVENTS];
  int count, placed;            /* events that have a column */
  int thread;                   /* that stands for it */
  unsigned loads;               /* one bit for each Memory */
  bool multiplies, is_consumer; /* it starts products; others than dQ */
} Role;

/** All of a thread block, or of the blocks of a cluster. */
typedef struct Roles {
  Role roles[MOST_ROLES];
  Load loads[MOST_LOADS];
  Buffer buffers[MOST_BUFFERS];
  Barrier barriers[MOST_BARRIERS];
  int role_count, load_count, buffer_count, barrier_count;
  int tile_rows; /* of what streams */
  int head_dim;
  bool backward;
  bool known; /* what the mbarriers bring: the events are read for the second time */
} Roles;

extern Roles all; /**< timeline_buffers.c */

/** A role while its records are read in order. */
typedef struct Reader {
  Role *role;
  const Log *log;
  bool began, open;       /* a wgmma since the last commit */
  int seen[MOST_BUFFERS]; /* the last load that was waited for */
  int groups, done;       /* committed, complete */
  int s_tile, pv_tile;    /* of the last product that is complete, that was started */
  int dp_tile, dq_tile;   /* the same of a backward pass: complete */
  Op scores;              /* the last that is complete: QK or DP */
  int product_of_group[MOST_EVENTS];
  int remotes; /* arrivals at an mbarrier of any block */
  int told;    /* the event that told of a tile of queries and has no buffer yet, -1: none */
  uint32_t told_place; /* where it wrote */
} Reader;

/* --- timeline_buffers.c ----------------------------------------------------------------------- */

/** One past the last thread that may have records. */
int end_of_threads(const Log *log);
/** The buffer at this place of shared memory; -1: none. */
int find_buffer(uint32_t place);
int barrier_at(uint32_t place);
/** Adds a buffer, or a part of the one that holds this and has this mbarrier, unless that is -1. */
void add_buffer(uint32_t begin, uint32_t end, int tensor, int full);
/** Adds what a phase of an mbarrier brings to a buffer, if it is not known yet. */
void add_load(Load load);
/** The load that brings this phase of a barrier to a buffer, -1: none. */
int find_load(int barrier, int phase, int buffer);
void collect_buffers(const Log *log);
/** What is known of the mbarriers before the events are read. */
void collect_barriers(void);

/* --- timeline_roles.c ------------------------------------------------------------------------- */

Event *last_event(Role *role); /**< NULL: there is none */
Event *add_event(Role *role, Op op);
/** The last event, if it is such an one, or a new one. */
Event *same_event(Role *role, Op op);

static inline bool is_product(Op op) {
  return op >= QK && op <= DQ;
}

/* --- timeline_scores.c: what backward passes have besides ------------------------------------- */

/** The product whose operands are there; `a` -1: in registers. */
Op product_of(int a_tensor, int b_tensor);
/** The buffers of what other blocks send, of dS and of P. */
void add_received(const Log *log);
void add_scores(const Log *log);
/** What the last event wrote or sent is a load for those who wait at this mbarrier. */
void show_scores(const Event *e, int barrier, int phase);
void send_on(Reader *reader, const Record *r);
/** All that is neither a product nor at an mbarrier nor a tensor copy. */
void compute_backward(Reader *reader, const Record *r);

/* --- timeline_columns.c ----------------------------------------------------------------------- */

/**
 * Gives each event a column, the earliest that what it waits for permits: the end of a phase of an
 * mbarrier, the arrivals at a named barrier, the event before. So what may happen at the same time
 * is in the same column. A column is no time.
 */
void place_events(void);

/** Prints roles, buffers, mbarriers and events: members of a JSON object. Of a cluster these are
 * those of the block of rank 0, and what the other block does to it. */
void print_columns(void);

#endif
