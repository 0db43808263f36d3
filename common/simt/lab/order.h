/**
 * @file
 * What orders the accesses of threads: clocks, fences and atomics, and the cells and histories that
 * say who has accessed which memory.
 */
#ifndef LAB_ORDER_H
#define LAB_ORDER_H

#include "simt/runtime/hopper.h"
#include "simt/runtime/runtime.h"

typedef struct LabWorker LabWorker; /* internal.h */

/* --- Clocks ---------------------------------------------------------------------------------- */

/** Who makes accesses that others can wait for, besides threads: for tensor copies their mbarriers,
 * whose time is the phase; for wgmma their warpgroups, whose time is the number of the instruction.
 */
enum {
  BY_THREAD,
  FIRST_MBARRIER,
  FIRST_GROUP = FIRST_MBARRIER + MAX_MBARRIERS,
  FIRST_THREAD = FIRST_GROUP + WARPGROUPS, /* in Clock.of */
  FIRST_PEER = 128 /* + rank: threads of another block of the cluster, whose time is a stamp */
};

/** What a thread has seen since the last barrier of the block: the accesses of agent a, or of
 * thread t, before time of[a], or of[FIRST_THREAD + t]. Threads share clocks, so they are not
 * changed while more than one has them. */
typedef struct Clock {
  struct Clock *next;      /* of all */
  struct Clock *next_free; /* if nobody has it */
  unsigned references;
  uint32_t of[];
} Clock;

/** What is known of a block of the cluster: its accesses before this epoch and, in this epoch,
 * those that the clock has seen. */
typedef struct Known {
  uint32_t epoch; /* LabWorker.epoch there; 0: nothing is known */
  const Clock *clock;
} Known;

/** What a thread knows of the blocks of its cluster, by rank; whether it has waited at the
 * cluster's barrier, so that all of them have started. Never changed. */
typedef struct View {
  Known of[MAX_CLUSTER];
  bool started;
} View;

/** What the threads that arrive at a barrier have seen. */
typedef struct Meeting {
  Clock *arriving, *ended; /* ended: up to the last phase that has ended; NULL: nothing */
  Clock *merged;           /* the last clock that was merged into `arriving` */
  Clock *from, *to;        /* the last clock of a thread that passed, before and after */
  const struct Talk *talk_arriving, *talk_ended;
  const View *view_arriving, *view_ended; /* of threads of other blocks */
  unsigned phase;
} Meeting;

/** The last time that a named barrier opened. */
typedef struct Opening {
  Clock *arrived; /* what arrived; NULL: it has not opened */
  Clock *known;   /* the last clock of a thread that was seen to know it */
  uint32_t epoch;
  const void *call_site; /* of the last arrival, and its thread */
  int thread;
} Opening;

/** The clocks of a block that uses other barriers than __syncthreads() and whole warps'. */
typedef struct Clocks {
  Clock *of_thread[MAX_THREADS];
  Meeting mbarriers[MAX_MBARRIERS], named[NAMED_BARRIERS];
  Opening openings[NAMED_BARRIERS];
  Meeting cluster;
  Clock *all, *free; /* of this OS thread */
  size_t width;      /* entries of a clock */
} Clocks;

/** The number of a block in Point and elsewhere: never 0. */
static inline uint32_t lab_block_tag(uint64_t block) {
  return (uint32_t)(1 + block % UINT32_MAX);
}

/** Accesses by lanes of one warp at one time, or by a tensor load, which count as one access. */
typedef struct Point {
  uint32_t block, epoch; /* of the access: LabWorker.block_tag, LabWorker.epoch */
  uint32_t time, lanes;  /* lanes 0: all accesses of an epoch without fences and atomics */
  uint8_t agent, warp;
} Point;

/* --- Talk: fences and atomics ----------------------------------------------------------------- */

/** What a thread has published by a fence: all that it had seen then. Never changed. */
typedef struct Fenced {
  const struct Fenced *next; /* by other threads of the block in the same epoch */
  const struct Heads *known;
  const Clock *clock; /* NULL: see Clocks */
  uint32_t epoch, time, synced;
  int thread;
} Fenced;

/** An atomic that published this. Those before it in its release sequence count too. */
typedef struct Release {
  const struct Release *previous;
  const Fenced *fenced;
  uint32_t sequence, index; /* a number for the whole sequence; place in it */
  uint32_t number;          /* of the launch, in order */
  uint32_t block, epoch;    /* LabWorker.block_tag, LabWorker.epoch */
  uint32_t time;            /* of the thread, when only the atomic itself was executed */
  int thread;
  uint32_t visited; /* by the search with this number */
} Release;

/** A set of releases. Never changed. */
typedef struct Heads {
  const struct Heads *next;
  Release *release;
} Heads;

/** The state of a thread. Never changed. */
typedef struct Talk {
  const Fenced *fenced;  /* NULL: nothing */
  const Heads *known;    /* by acquiring */
  const Heads *observed; /* by atomics, so that the next fence makes them known */
  const View *peers;     /* NULL: nothing of other blocks of the cluster */
} Talk;

/** The last release of a thread, and its last atomics: so many at this address, nothing else. */
typedef struct Released {
  uint32_t sequence;
  const Fenced *fenced;
  const void *address;
  unsigned repeated;
} Released;

/** Has a thread used memory since its last fence, apart from an atomic that it spins on? Since its
 * last atomic on global memory? */
enum { SINCE_FENCE = 1, SINCE_ATOMIC = 2 };

/* --- Clusters --------------------------------------------------------------------------------- */

typedef struct Stamp {
  uint32_t epoch, time;
} Stamp;

/** The last use of a block's shared memory by a thread of another block. */
typedef struct RemoteUse {
  uint32_t stamp; /* 1 + its index; 0: none */
  uint32_t pc;
  uintptr_t address;
} RemoteUse;

typedef struct LabCluster {
  Stamp *stamps; /* of this block's accesses to others */
  uint32_t stamp_count;
  RemoteUse *uses[MAX_CLUSTER]; /* of this block's memory, by rank and thread; NULL: none so far */
  bool ended;
  uint32_t arrival_epoch; /* of the last arrival at the cluster's barrier */
  const View *opened;     /* what all knew when that barrier opened last */
  Release *releases[MAX_CLUSTER];
} LabCluster;

/* --- Cells ----------------------------------------------------------------------------------- */

/** The kind of an access. READS_AS_PROXY: by wgmma or a tensor copy from shared memory; COPY_READS,
 * TENSOR_READS: by cp.async or a tensor copy from global memory; COPIES, TENSOR_COPIES: by these
 * to shared memory; ADDS_FLOATS, EXCHANGES: an atomic that rounds, and one that ignores the old
 * value. */
typedef enum Use {
  READS,
  COPY_READS,
  TENSOR_READS,
  READS_AS_PROXY,
  WRITES,
  COPIES,
  TENSOR_COPIES,
  ATOMIC_LOADS,
  ATOMICALLY,
  ADDS_FLOATS,
  EXCHANGES
} Use;

static inline bool lab_is_atomic(Use use) {
  return use >= ATOMIC_LOADS;
}

/** Is it an atomic that makes the new value of the old one? */
static inline bool lab_updates(Use use) {
  return use == ATOMICALLY || use == ADDS_FLOATS;
}

/** Accesses since the last barrier of the block by lanes of one warp at one time and place. */
typedef struct Reader {
  uint32_t pc, time, lanes;
  uint8_t agent, warp; /* agent: the mbarrier of a tensor load, or BY_THREAD */
  uint8_t use;         /* reads and atomics */
  bool folded;         /* in the histories, with what its lanes knew then */
} Reader;

typedef enum CellState { STORED, COPY_UNDER_WAY, COPIED, UPDATED /* by atomics only */ } CellState;

enum { FEW_READERS = 1, MORE_READERS = 4, CELL_PARTS = 4 };

/** The last write to some bytes, and since then and the last barrier of the block all reads and
 * atomics, except those that are ordered before a later one of the list. */
typedef struct Cell {
  uint32_t write_pc, write_epoch;
  uint32_t write_time; /* of the writer, or of `agent` */
  uint16_t writer;
  uint16_t write_fences; /* that the writer's warp had executed: fence.proxy.async */
  uint8_t agent;         /* the mbarrier of a tensor copy, or BY_THREAD */
  uint8_t state;
  bool split; /* the finer cells hold the state */
  bool has_atomics;
  bool folded;    /* the write, as in Reader */
  bool has_peers; /* among the readers */
  uint32_t read_epoch;
  uint32_t reading_warps;
  uint16_t count, capacity; /* of readers; capacity 0: there are few */
  uint16_t recent;          /* the reader that was noted last */
  union {
    Reader few[FEW_READERS];
    Reader *readers;
  };
  struct Cell *finer; /* CELL_PARTS of them; NULL: never needed */
} Cell;

static inline const Reader *lab_readers(const Cell *cell) {
  return cell->capacity != 0 ? cell->readers : cell->few;
}

/** One access to cells. */
typedef struct Access {
  LabWorker *lab; /* of the block whose memory it is */
  LabWorker *by;  /* of the thread */
  uintptr_t address;
  uint32_t pc;
  uint32_t time; /* of the thread, or of `agent` */
  uint16_t thread;
  uint8_t agent, use;
  bool global;
} Access;

/* --- Global memory -------------------------------------------------------------------------- */

/** An allocation at the start of a launch. */
typedef struct Region {
  uintptr_t begin, end;
  uint64_t *initialised; /* one bit per byte; NULL: all bytes are */
  char name[48];
} Region;

enum {
  CHUNK_BYTES = 4096,
  UNIT_BYTES = 16,
  CHUNK_UNITS = CHUNK_BYTES / UNIT_BYTES,
  TOUCHED_BITS = 64
};

/** The accesses of the running block to a chunk since its last barrier. */
typedef struct Page {
  struct Page *next;
  struct Chunk *chunk;
  uint64_t
      touched[CHUNK_UNITS / TOUCHED_BITS]; /* units whose accesses are not in the histories yet */
  Cell units[CHUNK_UNITS];
} Page;

/** CHUNK_BYTES of memory, in the largest pieces that no access divides. */
typedef struct Chunk {
  unsigned grain;      /* bytes per piece: 16, 4 or 1; 0: never used */
  uint32_t page_epoch; /* of the block, when `page` was taken */
  Page *page;
  uint32_t *histories; /* by piece: histories.c; 0: no access */
} Chunk;

static inline size_t lab_chunk_count(const Region *region) {
  return (region->end - region->begin + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

/** An access that is part of a history. */
typedef struct Visit {
  uint32_t block, pc; /* LabWorker.block_tag */
  Use use;
  Point point;
  const Heads *known; /* when it was made */
  size_t place;       /* of those of its block, the later ones have the lower numbers */
} Visit;

/* --- Functions -------------------------------------------------------------------------------- */

/* worker.c */
/** Memory that is freed when the launch has ended. */
void *lab_allocate(LabWorker *lab, size_t size);
void lab_free_arena(LabWorker *lab);

/* cells.c */
/** Uses bytes begin .. end - 1 of a cell of 16 bytes. */
void lab_use_unit(const Access *access, Cell *unit, unsigned begin, unsigned end);
/** Is the access the last write of the cell? If so, its copy has arrived. */
void lab_arrive_in_cell(const Access *access, Cell *cell);
/** Notes that a cp.async has read until now. */
void lab_note_copy_read(const Access *access, Cell *unit);

/* shared.c */
void lab_use_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);
void lab_use_cells(const Access *access, unsigned size);
/** `barrier`: of a tensor copy, which has landed; -1: a cp.async, which its thread waits for. */
void lab_copy_arrived(LabWorker *lab, uintptr_t address, int thread, int barrier, uint32_t pc);

/* clocks.c */
Clocks *lab_clocks(LabWorker *lab);
void lab_begin_clocks(LabWorker *lab);
void lab_free_clocks(LabWorker *lab);
/** Notes that all lanes of a warp have waited for what an agent did before this time. */
void lab_see(LabWorker *lab, int warp, int agent, uint32_t time);
/** The lanes whose accesses at this point are not ordered before what the thread does next. */
unsigned lab_unordered(LabWorker *lab, int thread, int agent, int warp, unsigned lanes,
                       uint32_t time);
/** A __syncthreads(), a __syncwarp() of these lanes. */
void lab_meet_all(LabWorker *lab);
void lab_meet_lanes(LabWorker *lab, int warp, unsigned lanes);
void lab_mbarrier_arrived(Worker *owner, int barrier);
void lab_mbarrier_passed(int barrier, bool of_cluster);
/** The running thread arrives at the cluster's barrier; the barrier opens for a block; the running
 * thread has waited. */
void lab_arrive_at_cluster(LabWorker *lab);
const Meeting *lab_open_cluster(LabWorker *lab);
void lab_pass_cluster(LabWorker *lab);
void lab_named_barrier_arrived(unsigned id);
void lab_named_barrier_opens(unsigned id, bool waits);
/** What the running thread has done and knows, for threads of other blocks. */
const View *lab_publish_view(LabWorker *lab);

/* views.c */
/** A copy that lives until the end of the launch. */
Clock *lab_kept_clock(LabWorker *lab, const Clock *clock);
/** What the thread knows; NULL: nothing. */
const View *lab_view_of(const LabWorker *lab, int thread);
const View *lab_join_views(LabWorker *lab, const View *a, const View *b);
/** Of an agent's accesses in the block of this rank, by these lanes at this time of an epoch: the
 * lanes that are not known. */
unsigned lab_unknown(const View *view, unsigned rank, int agent, int warp, unsigned lanes,
                     uint32_t epoch, uint32_t time);

/* stamps.c */
/** It is made when it is first needed. */
LabCluster *lab_cluster(LabWorker *lab);
/** The stamp of what the thread does now. */
uint32_t lab_stamp(LabWorker *lab, int thread);
/** As lab_unknown() for accesses of threads of this rank to another block's memory, at a stamp. */
unsigned lab_unordered_peer(const Access *access, unsigned rank, int warp, unsigned lanes,
                            uint32_t stamp);

/* clusters.c */
void lab_begin_cluster(LabWorker *lab);
void lab_free_cluster(LabWorker *lab);
void lab_cluster_arrived(void);
void lab_cluster_opens(void);
void lab_cluster_passed(void);
void lab_block_ended(void);
/** Notes a use of shared memory of another block, that of `owner`; false, with a report: that block
 * may not have started, or may have ended. Nothing is noted of what `lands`: a block that ends
 * before a copy to it has landed is stopped anyway. */
bool lab_touch_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, bool lands, uint32_t pc);
/** An access to it. */
void lab_use_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, unsigned size, Use use,
                    uint32_t pc);

/* talk.c */
/** The running thread knows this, too. */
void lab_add_view(LabWorker *lab, const View *view);
/** What a block has done until all its threads have arrived at the cluster's barrier. */
Release *lab_release_block(LabWorker *lab, const Talk *talk, const Clock *clock, uint32_t epoch);
void lab_know_releases(LabWorker *lab, Release *const *releases, unsigned count);
void lab_begin_talk(LabWorker *lab);
void lab_fence(void);
/** An atomic of the running thread on global memory: before and after it is executed. */
void lab_begin_atomic(LabWorker *lab, void *address, SimtAccess access, SimtOrder order);
void lab_end_atomic(SimtAccess access, bool writes, SimtOrder order);
/** A plain store ends the release sequence of atomics at its address. */
void lab_end_sequences(uintptr_t address, unsigned size);
const Talk *lab_join_talk(LabWorker *lab, const Talk *a, const Talk *b);
void lab_set_talk(LabWorker *lab, int thread, const Talk *talk);
/** The lanes of these accesses that none of the releases, nor what they knew, has published. */
unsigned lab_unpublished(const Heads *known, const Point *point);
void lab_forget_releases(void);

/* global.c */
void lab_use_global(LabWorker *lab, size_t region, uintptr_t address, unsigned size, Use use,
                    uint32_t pc);
/** Notes that a cp.async of the running thread has read these bytes until now. */
void lab_note_source(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc);

/* pages.c */
Chunk *lab_chunk_at(LabWorker *lab, size_t region, size_t offset);
/** The page of a chunk in this epoch. Cells of earlier epochs are out of date, so that pages need
 * not be cleared. */
Page *lab_page_of(LabWorker *lab, Chunk *chunk);
/** Makes the next fold look at a unit, of which bytes begin .. end - 1 of the chunk are used. */
void lab_touch(LabWorker *lab, Chunk *chunk, unsigned begin, unsigned end);
/** Adds what is noted of the running block to the histories. */
void lab_fold(LabWorker *lab);
/** At a barrier of the block: nothing that was noted can race with what its threads do next. */
void lab_end_pages(LabWorker *lab);
void lab_free_chunks(LabWorker *lab);

/* histories.c */
/** The history that follows `history` by what a cell has noted since the last fold. */
uint32_t lab_add_to_history(LabWorker *lab, uint32_t history, const Cell *cell);
/** Notes that all of this is in the histories. */
void lab_mark_folded(LabWorker *lab, Cell *cell);
void lab_begin_fold(LabWorker *lab);
/** Calls `visit` for each access of a history, the latest first. */
void lab_visit_history(const LabWorker *lab, uint32_t history,
                       void (*visit)(const Visit *visit, void *context), void *context);
/** Has this block written there, by WRITES, EXCHANGES or, with `updates`, ATOMICALLY? If `others`,
 * has another block? */
bool lab_history_writes(const LabWorker *lab, uint32_t history, uint32_t block, bool others,
                        bool updates);
void lab_free_histories(LabWorker *lab);

#endif
