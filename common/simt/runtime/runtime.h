/**
 * @file
 * Declarations shared by the files of the CPU backend's runtime:
 *
 * - settings.c   the environment variables; allocate.c: memory that programs do not see
 * - fiber.c      stacks of CUDA threads; switch_*.S: switches between them
 * - block.c      runs a block; dynamic_shared.c: its memory
 * - scheduler.c  which thread runs next, who waits
 * - warp.c, atomic.c, tensor.c, copy_async.c   warp instructions, atomics, mma, cp.async
 * - arithmetic.c   rounding modes; hints.c: what may explain a wrong result
 * - mbarrier.c, tensor_copy.c, wgmma.c, wgmma_math.c   those of compute capability 9.0: hopper.h
 * - launch.c     the grid, and the OS threads that take blocks from it; watch.c: its time limit
 * - turns.c      the turns of blocks that may wait for each other; cluster.c: the barrier of a
 *                cluster: hopper.h
 * - fault.c      signals that kernels cause; alignment.c: misaligned accesses, which cause none
 * - report.c     error reports; source_line.c: file and line of an instruction
 * - api.c, event.c, errors.c     CUDA's own interface
 * - kernel.c, symbols.c, memory.c   attributes of kernels, variables, device memory: program.h
 *
 * An observer such as the lab sets simt_observer: observer.h. What users read: report.h.
 */
#ifndef SIMT_RUNTIME_H
#define SIMT_RUNTIME_H

#include <pthread.h>
#include <semaphore.h>
#include <simt.h>
#include <stdatomic.h>
#include <stdio.h>

#include "observer.h"
#include "report.h"

enum {
  WARP_SIZE = 32,
  MAX_THREADS = 1024, /* in a block */
  MAX_WARPS = MAX_THREADS / WARP_SIZE,
  /* Linux allows a program 65530 mappings: a worker with guarded stacks takes 2 * MAX_THREADS, each
     allocation 2. */
  GUARDED_WORKERS = 16,
  MAX_WORKERS = 256, /* blocks of a cooperative launch */
  MAX_CLUSTER = 8,   /* blocks: the portable limit */
  MAX_ALLOCATIONS = 15000,
  MAX_SHARED_BYTES = 227 << 10,
  COPY_BYTES = 16,        /* of a cp.async, and of a row of ldmatrix */
  COPY_TARGETS = 1 << 14, /* slots of COPY_BYTES: more than shared memory has */
  DEFAULT_SHARED_BYTES = 48 << 10
};

/** Unused bytes before and behind dynamic shared memory, for accesses out of bounds. Static
 * arrays of the checking build have equal distances: see cuda_runtime.h. */
#define SHARED_MARGIN 65536

/* A multiprocessor of compute capability 9.0. */
enum {
  THREADS_PER_MULTIPROCESSOR = 2048,
  BLOCKS_PER_MULTIPROCESSOR = 32,
  RESERVED_SHARED_BYTES = 1 << 10 /* of its shared memory, reserved for each block */
};

/* --- allocate.c ----------------------------------------------------------------------------- */

/** Like calloc() and realloc(), but end the program if there is no memory. */
void *simt_zeroed(size_t count, size_t size);
void *simt_resized(void *memory, size_t bytes);

/** The list with room for one more than `count` items of `size` bytes; NULL: an empty list. */
void *simt_with_room(void *list, size_t count, size_t size);

/* --- settings.c ----------------------------------------------------------------------------- */

typedef enum Order { FORWARD, REVERSE, RANDOM } Order;

typedef struct Settings {
  int workers;
  int multiprocessors; /* of the simulated device */
  Order order;
  uint64_t seed;
  size_t memory_bytes;
  size_t shared_bytes;       /* the most that a block may request */
  bool warps_complete_alone; /* each its part of a wgmma */
} Settings;

const Settings *simt_settings(void);

/** Reads the environment again. */
void simt_read_settings(void);

/* --- launch.c ------------------------------------------------------------------------------- */

typedef struct Launch {
  const void *kernel;
  void (*entry)(void *arguments);
  void *arguments;
  size_t arguments_bytes;
  dim3 grid, block;
  dim3 cluster;     /* in blocks; 0: as the kernel was declared */
  bool cooperative; /* all blocks may wait for each other */
  size_t dynamic_shared_bytes;
  uint64_t ordinal; /* 1 for the program's first launch */
  uint64_t block_count;
  unsigned team_size;               /* in blocks */
  uint64_t team_count;              /* of teams, which are taken as a whole: most have one block */
  uint64_t team_stride, first_team; /* their order */
  _Atomic uint64_t next_team, blocks_done;
  int groups, workers_joined; /* a group of team_size workers runs a team; of all groups */
  struct Team *teams;         /* one for each group */
  atomic_bool failed;         /* no more blocks are started; the first failure is reported */
  atomic_bool timed_out;
  cudaError_t error;
  /* Workers that run blocks, and those of them whose threads only repeat atomics in vain. */
  _Atomic int running, stuck;
  struct Worker *const *workers;
} Launch;

/** Who changed the value at an address last, by an atomic. */
typedef struct Change {
  const void *address;
  uint3 block;
  int thread;
  const void *call_site;
} Change;

enum { KEPT_CHANGES = 256 };

/** So many atomics in vain, by the threads of a worker, before it is asked whether anybody goes on.
 */
enum { SIMT_PATIENCE = 1 << 18 };

/** After so many, the worker lets other threads of the system run: it may wait for one of them. */
enum { SIMT_BRIEF_PATIENCE = 1 << 8 };

/* --- scheduler.c ---------------------------------------------------------------------------- */

/** Why a block ended. */
typedef enum Outcome {
  FINISHED,
  DEADLOCK,
  DIVERGED,
  INCOMPLETE, /* lanes of a warp have exited before an mma or the like: Worker.complaint */
  NOT_IN_MASK,
  BAD_WIDTH,
  ASSERTED,
  MISALIGNED,
  COPIED_TWICE,
  READ_TOO_EARLY,
  COPY_ABANDONED,
  WRONG_CALL, /* Worker.complaint says what is wrong */
  FAULTED,
  TIMED_OUT,
  ABANDONED /* since another block of its team has failed */
} Outcome;

/** What a waiting thread waits for. */
typedef struct Wait {
  const SimtWarpOperation *operation; /* NULL: the block's barrier, or it is parked */
  unsigned mask;
  void *operands;
  const void *call_site;
  int awaited; /* by a parked thread: hopper.h */
  unsigned number;
  const void *address; /* of the thread's latest atomic */
} Wait;

/**
 * One bit per lane. A lane that is live but neither ready nor held nor parked nor in an instruction
 * is at the barrier.
 */
typedef struct Warp {
  unsigned live;
  unsigned ready;          /* may run, or runs */
  unsigned in_instruction; /* waits in a warp instruction */
  unsigned at_barrier;
  unsigned held;   /* waits until no other lane is ready, or one of them yields */
  unsigned parked; /* waits for what simt_park() was told */
} Warp;

/** One cp.async that has not been waited for. */
typedef struct AsyncCopy {
  void *shared;
  const void *global;
  unsigned source_bytes; /* 16, or 0: zeros */
  unsigned group;        /* number of groups the thread committed before */
  const void *call_site;
} AsyncCopy;

/** The last warp instruction that a thread has executed; NULL: none. */
typedef struct Executed {
  const void *call_site;
  unsigned mask;
} Executed;

/** The copies of one thread, oldest first. */
typedef struct AsyncQueue {
  AsyncCopy *copies;
  int count;
  int reading; /* copies that are not zero fills */
  unsigned committed;
  const void *last_wait; /* where in the kernel; NULL: nowhere yet */
} AsyncQueue;

/** The copy that a report is about. */
typedef struct BadCopy {
  AsyncCopy copy;
  int thread;
} BadCopy;

/** An address that is not aligned as required. */
typedef struct Misalignment {
  const char *what, *type; /* reports print both, one after the other */
  uintptr_t address;
  unsigned alignment;
} Misalignment;

/** A signal that a kernel caused. */
typedef struct Fault {
  int signal, code;
  uintptr_t address, pc;
  bool is_write;
} Fault;

/** An OS thread that runs blocks. Nothing in it is shared with others while a kernel runs. */
struct Worker {
  pthread_t os_thread;
  void *own_stack;           /* stack pointer of the OS thread while a fiber runs */
  void *stacks[MAX_THREADS]; /* stack pointers of the fibers that do not run */
  char *slots;               /* memory of the fibers */
  int fiber_count;
  size_t stack_used; /* most bytes of a stack that kernels have used */

  const Launch *launch;
  SimtBlock block;
  dim3 threads_dim; /* the block shape of the fibers' SimtThreads */
  int thread_count; /* of a block */
  bool in_kernel;

  int number;              /* of this worker */
  struct Team *team;       /* in which it runs blocks at this place */
  struct Cluster *cluster; /* in which they have this rank */
  unsigned place, rank;
  sem_t turn;
  bool begun, live;                 /* its block has begun, has not ended */
  unsigned char *shared;            /* smem of its OS thread */
  struct LabWorker *lab;            /* of the observer */
  unsigned arrived_at[MAX_THREADS]; /* 1 + the phase of the cluster's barrier; 0: it has waited */

  int running; /* index of the running thread in its block */
  unsigned live_threads;
  bool (*land_next)(
      Worker *); /* lets a copy land that threads may wait for; false: there is none */
  unsigned barrier_arrived, barrier_true, barrier_result;
  unsigned ready_warps; /* bit w: warps[w].ready != 0 */
  Warp warps[MAX_WARPS];
  Wait waits[MAX_THREADS];
  Executed executed[MAX_THREADS];
  unsigned asked_who_is_active[MAX_WARPS]; /* lanes that called __activemask() */
  AsyncQueue async[MAX_THREADS];
  uint16_t under_way[COPY_TARGETS]; /* copies to each slot, by the low bits of the address */

  struct Hopper *hopper; /* hopper.h; NULL: not used yet */

  uint64_t idle_atomics; /* since the last one that changed a value */
  _Atomic uint64_t changes;
  uint64_t changes_seen;             /* of all workers */
  Change kept_changes[KEPT_CHANGES]; /* by address */

  Order order;
  uint64_t random_state;
  bool random_upwards; /* direction in which the running warp's lanes are chosen */
  SimtCounters counters;
  Hints hints; /* of the running launch */

  /* While the runtime accesses memory for a kernel: the call site, and whether it writes. */
  const void *access_call_site;
  bool access_is_write;

  Outcome outcome;
  uint64_t failed_launch; /* ordinal of the last launch with a failed block here, 0: none */
  uint64_t failed_turn;   /* number of blocks started before that block */
  Fault fault;            /* TIMED_OUT: pc only */
  Misalignment misalignment;
  BadCopy bad_copy;
  int shuffle_width;
  char complaint[160];
  const char *assertion, *assertion_file;
  int assertion_line;
};

/** The number of the worker's block in the grid. */
static inline uint64_t simt_block_number(const Worker *worker) {
  const uint3 i = worker->block.index;
  const dim3 grid = worker->block.grid;
  return i.x + grid.x * (i.y + (uint64_t)grid.y * i.z);
}

/** The worker of this OS thread; NULL unless it runs blocks. */
extern _Thread_local Worker *simt_worker;

/** Runs the threads of a block, whose fibers have been started, until the block ends. */
Outcome simt_run_threads(Worker *worker);

/** Ends the running thread; returns only if it was the last of its block. */
void simt_exit_thread(Worker *worker);

/** Ends the running thread's block after a failed call. */
__attribute__((noreturn)) void simt_end_block(Outcome outcome, const Wait *culprit);

/** Lets other threads of the block run. */
void simt_yield(void);

/** Suspends the running thread until no other lane of its warp is ready, or one of them yields. */
void simt_hold(void);

/** simt_warp_instruction() for a caller that is itself called from the kernel. */
void simt_warp_instruction_at(const SimtWarpOperation *operation, unsigned mask, void *operands,
                              const void *call_site);

/** Ends the block if the address is not aligned; `what` is its name in the report. */
static inline void simt_require_aligned(const void *address, unsigned alignment, const char *what,
                                        const void *call_site) {
  if ((uintptr_t)address % alignment == 0) return;
  simt_worker->misalignment = (Misalignment){what, "", (uintptr_t)address, alignment};
  simt_end_block(MISALIGNED, &(Wait){.call_site = call_site});
}

/** Dynamic shared memory: dynamic_shared.c. */
extern _Thread_local unsigned char smem[];

/* --- block.c -------------------------------------------------------------------------------- */

/** Runs the block worker->block of worker->launch to its end. */
Outcome simt_run_block(Worker *worker);

/* --- atomic.c ------------------------------------------------------------------------------- */

/** The value that an atomic stores in place of `a`. */
uint32_t simt_apply_32(SimtAtomic operation, uint32_t a, uint32_t b);

/* --- copy_async.c --------------------------------------------------------------------------- */

/** Does a lane of the running warp have a copy from memory in flight? */
bool simt_warp_copies_in_flight(const Worker *worker);

/** The number of copies in flight to this address, or to another one of its slot. */
static inline uint16_t *simt_under_way_to(Worker *worker, const void *shared) {
  return &worker->under_way[(uintptr_t)shared / COPY_BYTES % COPY_TARGETS];
}

/** Ends the block if a copy is in flight to 16 bytes that the running thread is about to read. */
void simt_refuse_read(Worker *worker, const void *shared);

/** Ends the block if the running thread, which is about to exit, has copies in flight. */
void simt_refuse_exit(Worker *worker);

/** Called at the start of a thread. */
void simt_start_copies(Worker *worker, int thread);

/** Drops the copies of a failed block that are in flight. */
void simt_forget_copies(Worker *worker);
void simt_free_copies(Worker *worker);

/* --- fiber.c -------------------------------------------------------------------------------- */

/** Gives the worker at least `count` fibers; false if there is no memory for them. */
bool simt_fibers_create(Worker *worker, int count);
void simt_fibers_destroy(Worker *worker);

/** Fills the part of the stacks that blocks have used with NaN, so that an uninitialised local
 * variable does not hold a value of the last block. */
void simt_fibers_refill(Worker *worker, int count);

/** Makes the fiber call `begin`, which must not return, at the next switch to it. */
void simt_fiber_start(Worker *worker, int index, void (*begin)(void));

SimtThread *simt_fiber_thread(const Worker *worker, int index);

/** Is this address in one of the worker's fibers, or in the pages that guard their stacks? */
bool simt_in_fibers(const Worker *worker, uintptr_t address);
bool simt_in_stack_guard(const Worker *worker, uintptr_t address);

/** Stores the stack pointer in *save and continues where `load` was stored. */
void simt_switch(void **save, void *load);

/** The second half of simt_switch(); the signal handler continues here with a new stack pointer. */
void simt_switch_resume(void);

/* --- fault.c -------------------------------------------------------------------------------- */

/** Installs the signal handlers, again if the host has replaced them since the last launch. */
void simt_faults_watch(void);

/** Called by each OS thread that runs blocks: gives it a signal stack. */
void simt_faults_use_own_stack(void);

/** For signal handlers. The second function ends the block that was interrupted, when the handler
 * returns; it returns false if no kernel was interrupted. */
uintptr_t simt_interrupted_pc(void *context);
bool simt_leave_block(void *context, Outcome outcome);

/* --- watch.c -------------------------------------------------------------------------------- */

void simt_watch_begin(Launch *launch, Worker *const *workers);
void simt_watch_end(void);
double simt_time_limit(void);

/* --- warp.c --------------------------------------------------------------------------------- */

/** Is any instruction read otherwise than written? */
bool simt_reads_otherwise(void);

/* --- event.c -------------------------------------------------------------------------------- */

/** Of a clock that only goes forward. */
double simt_clock_ms(void);

/* --- errors.c ------------------------------------------------------------------------------- */

/** Stores `error`, unless it is cudaSuccess, for cudaGetLastError(); returns it. */
cudaError_t simt_set_last_error(cudaError_t error);

/** The result of an API call: the sticky error, or otherwise its own error. */
cudaError_t simt_result(cudaError_t error);

/** The error that every call returns after a kernel has failed. */
cudaError_t simt_sticky_error(void);
void simt_set_sticky_error(cudaError_t error);
void simt_forget_errors(void);

#endif
