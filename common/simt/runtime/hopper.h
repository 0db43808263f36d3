/**
 * @file
 * What the CPU backend keeps of the instructions of compute capability 9.0 while a block runs:
 * mbarrier.c, cluster.c, tensor_copy.c, wgmma.c and wgmma_math.c.
 */
#ifndef SIMT_HOPPER_STATE_H
#define SIMT_HOPPER_STATE_H

#include <semaphore.h>
#include <simt_cluster.h>
#include <simt_hopper.h>

#include "runtime.h"

enum {
  MAX_MBARRIERS = 32,
  NAMED_BARRIERS = 16,
  GROUP_WARPS = 4, /* of a warpgroup */
  GROUP_THREADS = GROUP_WARPS * WARP_SIZE,
  WARPGROUPS = MAX_WARPS / GROUP_WARPS,
  GROUP_ROWS = 64,   /* of A and D */
  WARP_ROWS = 16,    /* of these, those whose accumulators one warp holds */
  WGMMA_K = 16,      /* columns of A and rows of B, of 16-bit elements */
  MOST_DEPTH = 32,   /* the same of e4m3, in as many bytes */
  MAX_COLUMNS = 256, /* of B and D */
  MAX_DIMENSIONS = 5 /* of a tensor map */
};

typedef struct Mbarrier {
  uintptr_t address;
  unsigned arrivals;  /* that end a phase */
  unsigned phase;     /* the current one; its parity is the lowest bit */
  unsigned awaited;   /* the current one when a thread last passed a wait */
  int initialised_by; /* this thread */
  bool fenced;        /* tensor copies see it: fence.mbarrier_init */
  unsigned fenced_in; /* phase of the cluster's barrier */
  unsigned pending;   /* arrivals that it lacks */
  int64_t bytes;      /* of tensor copies that it lacks; negative: more came than were expected */
  const void *brought_by; /* the call site of the latest of these */
} Mbarrier;

typedef struct Cluster {
  Worker *const *members; /* by rank */
  unsigned size;
  unsigned threads, arrived, phase; /* of its barrier; threads: that have not exited */
} Cluster;

/** Blocks that may wait for each other: a cluster, or all of a cooperative launch. Each has a
 * worker of its own, because shared memory is the memory of an OS thread; of these workers only the
 * one whose turn it is runs. A block's turn ends when all its threads wait. */
typedef struct Team {
  Worker *const *members; /* by place */
  Cluster *clusters;      /* of these blocks */
  unsigned size, live;    /* live: blocks that have not ended */
  sem_t joined;
  uint64_t number; /* in the order in which teams are taken */
  uint64_t random; /* chooses whose turn comes */
  bool over;       /* no more teams */
  bool failed;     /* a block has: the others are abandoned */
} Team;

typedef struct NamedBarrier {
  unsigned threads, arrived; /* 0: nobody has arrived */
  int thread;                /* the latest to arrive */
  const void *call_site;
} NamedBarrier;

/** A tensor map, as kernels get it. */
typedef struct TensorMap {
  uint64_t address;
  uint64_t sizes[MAX_DIMENSIONS];             /* in elements, innermost first */
  uint64_t strides[MAX_DIMENSIONS];           /* in bytes */
  uint16_t box[MAX_DIMENSIONS];               /* in elements */
  uint8_t rank, element_bytes, swizzle_bytes; /* 0: no swizzle */
  uint8_t is_map;                             /* a byte that other memory is unlikely to hold */
} TensorMap;

typedef struct TensorCopy {
  TensorMap map;
  int coordinates[MAX_DIMENSIONS];
  uintptr_t shared;
  Worker *issuer, *target; /* target: whose shared memory this is */
  bool between;            /* blocks of a cluster: not from global memory */
  bool repeats;            /* another target of a multicast */
  bool has_data;           /* st.async stores `data` */
  unsigned char data[COPY_BYTES];
  unsigned bytes; /* of the whole box */
  int barrier;    /* of a load: of the target */
  bool adds;      /* a store that adds floats to what is there */
  int thread;
  unsigned group; /* of a store: the number of groups that the thread committed before */
  const void *call_site;
} TensorCopy;

/** A growing list. */
typedef struct TensorCopies {
  TensorCopy *list;
  int count;
} TensorCopies;

/** One wgmma.mma_async of a warpgroup. Its parts of the four warps are computed apart. */
typedef struct Wgmma {
  SimtWgmma common; /* d and a are those of no thread */
  float *d[GROUP_THREADS];
  const uint32_t *a[GROUP_THREADS];
  unsigned issued, done; /* one bit per warp */
  unsigned continues;    /* by these warps, the sum of an instruction in flight */
  const void *call_site;
  double a_tile[GROUP_ROWS][MOST_DEPTH], b_tile[MOST_DEPTH][MAX_COLUMNS];
  float *saved; /* the accumulators at issue, by thread */
  size_t saved_floats;
} Wgmma;

enum { MAX_IN_FLIGHT = 64 };

/** The wgmma of a warpgroup in flight. They are numbered in the order of the program. */
typedef struct WarpGroup {
  Wgmma *ring[MAX_IN_FLIGHT]; /* number % MAX_IN_FLIGHT; allocated when first used */
  uint64_t issued[GROUP_WARPS], done[GROUP_WARPS]; /* by each warp */
  uint64_t committed[GROUP_WARPS][MAX_IN_FLIGHT];  /* `issued` at each commit */
  unsigned commits[GROUP_WARPS], waited[GROUP_WARPS];
} WarpGroup;

typedef struct Hopper {
  uintptr_t shared; /* where the dynamic shared memory of this OS thread begins */
  Mbarrier mbarriers[MAX_MBARRIERS];
  int mbarrier_count;
  NamedBarrier named[NAMED_BARRIERS];
  TensorCopies loads, stores; /* in flight */
  unsigned store_groups[MAX_THREADS];
  WarpGroup groups[WARPGROUPS];
  unsigned registers[MAX_WARPS];     /* per thread */
  const void *setmaxnreg[MAX_WARPS]; /* its last call site */
  unsigned free_registers; /* released by setmaxnreg, for all 32 lanes of a warp at a time */
} Hopper;

/** What a parked thread waits for. */
typedef enum Awaited {
  AN_MBARRIER,
  A_NAMED_BARRIER,
  ITS_WARPGROUP,
  REGISTERS_TO_BE_FREE,
  THE_CLUSTER,
  ANOTHER_VALUE /* in memory that it reads with atomics, again and again: atomic.c */
} Awaited;

/** Suspends the running thread until simt_unpark(). `number`: of the barrier, or how many. */
void simt_park(Awaited awaited, unsigned number, const void *call_site);
/** Continues the threads that wait for this. */
void simt_unpark(Worker *worker, Awaited awaited, unsigned number);

/** Says, in a report, what the thread waits for. */
void simt_describe_awaited(const Worker *worker, const Wait *wait, char *text, size_t text_size);

/** Says who changed the value there last. */
void simt_describe_value(const Worker *worker, const void *address, char *text, size_t text_size);

/** Ends the block; the report says `complaint`. */
__attribute__((noreturn, format(printf, 2, 3))) void simt_complain(const void *call_site,
                                                                   const char *complaint, ...);

/* --- turns.c */

/** Makes a team of these workers; a team of one needs no turns. */
void simt_team_begin(Team *team, Worker *const *members, unsigned size, unsigned cluster_size);
void simt_team_end(Team *team);
/** Each worker calls it when it is ready to run blocks; that at place 0 waits for all others. */
void simt_team_join(Team *team, unsigned place);
/** Lets the workers run the blocks of the next team; called by that at place 0, whose turn it is.
 * Returns when it is its turn again. */
void simt_team_start(Team *team, unsigned block_threads);
/** The worker's turn comes; false: there are no more teams. */
bool simt_team_await(Worker *worker);
/** No more teams: lets the other workers go. */
void simt_team_close(Team *team);
/** The worker's block has ended. Returns, to place 0, when all have. */
void simt_team_leave(Worker *worker, bool failed);

/** Can another block of the worker's cluster run? */
bool simt_cluster_can_run(const Worker *worker);

/** Lets other blocks of the team run, until this one's turn comes again; false: none can. */
bool simt_team_turn(Worker *worker);

/* --- scheduler.c */

/** The same, and ends the block if another one has failed. */
bool simt_let_others_run(Worker *worker);
/** Opens the cluster's barrier if all of its threads have arrived. */
void simt_open_cluster(Cluster *cluster);

/* --- cluster.c */

/** The worker of the block of this rank; ends the block if there is none. */
Worker *simt_cluster_member(unsigned rank, const void *call_site);
/** Ends the running block if the block of this worker of its cluster has ended. */
void simt_require_live(const Worker *member, const void *call_site);
/** The worker of the cluster whose shared memory this is, other than the running one; NULL: none.*/
Worker *simt_cluster_owner(const Worker *worker, const void *shared);

/** The worker's state, allocated at the first call. */
Hopper *simt_hopper(Worker *worker);

/** At the start of a block. */
void simt_begin_hopper(Worker *worker);
void simt_free_hopper(Worker *worker);

/** Lets one tensor load of the worker's cluster land; false: none is in flight. */
bool simt_land_tensor_load(Worker *worker);

/** Counts the bytes that a tensor load has brought. */
void simt_mbarrier_complete(const TensorCopy *copy);

/** The number of the mbarrier of a worker's block at this address; ends the running block if there
 * is none. */
int simt_find_mbarrier(Worker *worker, const void *barrier, const void *call_site);

/** Has the running thread waited at the cluster's barrier since a fence.mbarrier_init for this
 * mbarrier of a worker's block? Then it sees that it has been initialised. */
bool simt_is_published(const Worker *worker, const void *barrier);

/** Row `row` of the box of a copy: the part of it that is inside of the tensor, which may have 0
 * bytes. False after the last row. */
bool simt_box_row(const TensorCopy *copy, unsigned row, uintptr_t *address, size_t *bytes);

/** The number of wgmma of a warp that are in a group, committed by wgmma.commit_group. */
static inline uint64_t simt_committed_wgmma(const WarpGroup *group, int warp) {
  const unsigned commits = group->commits[warp];
  return commits > 0 ? group->committed[warp][(commits - 1) % MAX_IN_FLIGHT] : 0;
}

/** Columns of A. */
static inline int simt_wgmma_depth(const SimtWgmma *wgmma) {
  return wgmma->element == SIMT_E4M3 ? MOST_DEPTH : WGMMA_K;
}

enum { MOST_CHUNKS = 2 * (GROUP_ROWS + MAX_COLUMNS) };

/** The 16-byte pieces of shared memory that a wgmma reads, the 8 of each 8 x 8 core matrix
 * together; returns their number. */
int simt_wgmma_chunks(const Wgmma *wgmma, uintptr_t chunks[MOST_CHUNKS]);

/** Ends the block if the instruction is not one that the manual documents. */
void simt_check_wgmma(const SimtWgmma *wgmma, const void *call_site);
/** Reads what the instruction takes from shared memory. */
void simt_fetch_wgmma(Wgmma *wgmma);
/** Computes the part of one warp. */
void simt_compute_wgmma(Wgmma *wgmma, int warp);

/** The address of linear byte `at` of swizzled shared memory. */
static inline uintptr_t simt_swizzled(uintptr_t at, unsigned swizzle_bytes) {
  const uintptr_t rows = swizzle_bytes / 16; /* 16-byte chunks of a row, 1 or 0: no swizzle */
  return rows > 1 ? at ^ ((at >> 7 & (rows - 1)) << 4) : at;
}

/** Ends the block if the running thread, which is about to exit, or the block's end leaves work in
 * flight, or warps of a warpgroup with different numbers of registers. */
void simt_refuse_exit_of_stores(Worker *worker);
void simt_refuse_exit_of_wgmma(Worker *worker);
void simt_refuse_end_of_loads(Worker *worker);
void simt_refuse_end_of_arrivals(Worker *worker);
void simt_refuse_end_of_bytes(Worker *worker);
void simt_refuse_unequal_registers(Worker *worker);

#endif
