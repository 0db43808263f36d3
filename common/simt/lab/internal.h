/**
 * @file
 * Declarations shared by the files of the lab. order.h has those of what orders accesses.
 *
 * - hooks.c, indices.c   functions that instrumented kernels call
 * - access.c     one access: its memory space, alignment and bounds checks, log record
 * - arrays.c     the shared memory of the running kernel
 * - logs.c       turns logs of lanes into requests of warps; behind.c: the same for lanes at
 *                different accesses; requests.c: counts sectors and bank conflicts
 * - worker.c     an OS thread's state and memory; table.c: a hash table
 * - first.c      the first access of each instruction, for drawings
 * - cells.c      who wrote and read some bytes, and which of these accesses race
 * - shared.c     the cells of shared memory; global.c: those of global memory, in pages.c
 * - clusters.c   the barrier of a cluster, and use of other blocks' memory; views.c: what blocks
 * know of each other; stamps.c: when a block used another's memory
 * - clocks.c     what barriers of a warp, mbarriers and named barriers order
 * - talk.c       what fences and atomics order, in a block and between blocks
 * - tensor_copies.c, warpgroups.c   tensor copies and wgmma
 * - histories.c  the accesses of all blocks to global memory; blocks.c: races between blocks
 * - regions.c    allocations, and which of their bytes have ever been written
 * - barriers.c   barriers and warp instructions that not all threads reach at the same place
 * - unwritten.c  reads of global memory that may be uninitialised
 * - sources.c    global memory that a cp.async has yet to read
 * - findings.c   the findings; sites.c: counts by program counter; results.c: by line of source
 * - observe.c    handles the runtime's events: launches, blocks, barriers, warp instructions
 */
#ifndef LAB_INTERNAL_H
#define LAB_INTERNAL_H

#include "simt/lab/lab.h"
#include "simt/lab/order.h"
#include "simt/runtime/hopper.h"
#include "simt/runtime/runtime.h"

enum {
  LOG_RECORDS = 128, /* per lane; when a log is full, the warp's logs are emptied */
  SECTOR_BYTES = 32,
  LINE_BYTES = 128, /* of L1 */
  BANKS = 32,
  BANK_BYTES = 4
};

/** One access of one lane. */
typedef struct Record {
  uintptr_t address;
  uint32_t pc;        /* relative to the start of the program */
  uint8_t size, kind; /* kind: a LabAccessKind */
  uint16_t copy;      /* LAB_COPY_GLOBAL: target as a 16-byte unit of shared memory, or NO_SOURCE;
                         LAB_COPY_SHARED: bytes it reads; else 0 */
} Record;

/* Target units are numbered modulo PIECES, which is even: two a sector. NO_SOURCE: zero fill. */
enum { PIECES = UINT16_MAX - 1, NO_SOURCE };

/** The accesses of one request, by lane. */
typedef struct Request {
  LabAccessKind kind;
  uint32_t pc;
  unsigned size;
  unsigned lanes;
  uintptr_t addresses[WARP_SIZE];
  uint16_t copies[WARP_SIZE]; /* as in Record */
} Request;

/* --- table.c -------------------------------------------------------------------------------- */

/** A hash table of numbers, initially all 0. */
typedef struct Table {
  struct Entry *entries; /* open addressing */
  size_t size, count;
  uint32_t round; /* incremented when the table is cleared */
} Table;

/** The number of this key, 0 if it is new; the pointer is valid until the next call. */
uint32_t *lab_entry(Table *table, uint64_t key);
/** The same, without adding the key. */
uint32_t lab_look_up(const Table *table, uint64_t key);
void lab_clear_table(Table *table);
void lab_free_table(Table *table);

/* --- Sites: program counters ---------------------------------------------------------------- */

typedef struct Site {
  uint32_t pc;
  LabCounts counts;
} Site;

/** Sites in the order of first use; index 0 is unused. */
typedef struct SiteTable {
  Site *sites;
  uint32_t count;
  Table by_pc;
} SiteTable;

/** The index of this pc's site, which is created if there is none. */
uint32_t lab_site(SiteTable *table, uint32_t pc);

/** The counts of this pc; the pointer is valid until the next site is created. */
LabCounts *lab_counts(SiteTable *table, uint32_t pc);
LabTraffic *lab_traffic_of(LabCounts *counts, LabAccessKind kind);
void lab_add_traffic(LabTraffic *sum, const LabTraffic *other);
void lab_free_sites(SiteTable *table);

/* --- First accesses -------------------------------------------------------------------------- */

/** The first access of an instruction; `taken` is false if there was none yet. */
typedef struct FirstAccess {
  bool taken;
  uint32_t pc;
  uint64_t launch, order; /* ordinal of the launch; number of the request in its worker */
  LabAccess access;       /* without its names */
} FirstAccess;

/** Two entries per site: an instruction may read one memory space and write another. */
typedef struct FirstTable {
  FirstAccess *list;
  size_t count;
} FirstTable;

/* --- Findings ------------------------------------------------------------------------------- */

typedef struct RawFinding {
  const void *kernel;
  LabKind kind;
  uint32_t pc, other_pc; /* other_pc 0: none */
  uint64_t count;
  bool has_thread;
  uint64_t block, thread, other_thread;
  uint64_t other_block; /* for races between blocks */
  unsigned order;       /* in its block */
  char where[320];
} RawFinding;

typedef struct FindingList {
  RawFinding *list;
  size_t count;
} FindingList;

/** Finds the finding of this kind and these places, or creates it and sets `*made`. */
RawFinding *lab_find_or_make(FindingList *list, const RawFinding *key, bool *made);

void lab_add_finding(FindingList *list, const RawFinding *other);
void lab_add_findings(FindingList *list, const FindingList *others);

/* --- mbarriers, tensor copies, wgmma ---------------------------------------------------------- */

/** The accumulators of a wgmma, or its operand A in registers, of one thread. */
typedef struct RegisterRange {
  uintptr_t begin, end;
  uint32_t pc; /* of the latest wgmma */
  uint16_t in_flight;
  bool accumulators;
  uint64_t number; /* of the latest wgmma, in its warpgroup */
} RegisterRange;

enum { RANGES = 32 };

typedef struct ThreadRegisters {
  RegisterRange ranges[RANGES];
  int count, oldest;
} ThreadRegisters;

/** Reads of 16 bytes of shared memory by wgmma and tensor stores. */
typedef struct AsyncReads {
  uint32_t block_epoch; /* LabWorker.first_epoch of the block that this is about */
  uint32_t pc;          /* of the latest */
  uint16_t thread, under_way;
  uint32_t ended[WARPGROUPS]; /* 1 + the number of the last wgmma; 0: none */
} AsyncReads;

/** The state of a block that uses these instructions. */
typedef struct LabHopper {
  uint16_t proxy_fences[MAX_WARPS], cluster_fences[MAX_WARPS]; /* the latter: for all blocks */
  bool registers_written[MAX_WARPS];                           /* since the last wgmma.fence */
  AsyncReads reads[MAX_SHARED_BYTES / COPY_BYTES];             /* of dynamic shared memory */
  ThreadRegisters registers[MAX_THREADS];
} LabHopper;

/* --- Workers -------------------------------------------------------------------------------- */

/** The lab's state of an OS thread that runs blocks. */
struct LabWorker {
  Worker *worker;
  const Launch *launch;
  unsigned checks;
  uintptr_t fibers;          /* local memory of the threads */
  uintptr_t shared, dynamic; /* all shared memory; its dynamic part */
  size_t shared_bytes;
  bool wiped_around_dynamic;   /* in this block, around the dynamic shared memory */
  bool wiped_between_arrays;   /* in this block, between the static arrays */
  uint64_t block;              /* its number in the grid */
  uint32_t block_tag;          /* the same, as in Point */
  uint32_t epoch, first_epoch; /* counts barriers; value at the block's start */
  uint32_t times[MAX_THREADS]; /* of each thread: counts what others can wait for */
  uint32_t synced[MAX_WARPS];  /* the time of all lanes after the last barrier of the warp */
  uint32_t talk_epoch;         /* the last with a fence, an acquire or a release */

  Record *logs;
  uint16_t log_counts[MAX_THREADS];
  uint32_t dirty_warps;

  Cell *shadow;      /* of all shared memory, one for 16 bytes */
  LabHopper *hopper; /* NULL: not used yet */
  Clocks *clocks;    /* the same */
  const Talk *talk[MAX_THREADS];
  bool talks; /* one of these is not NULL */
  Released released[MAX_THREADS];
  uint8_t dirty[MAX_THREADS]; /* what it has done: SINCE_FENCE, SINCE_ATOMIC */
  int reading_barrier;        /* of a tensor load that is issued */
  Release *block_release;     /* the latest of the block as a whole */
  struct LabCluster *cluster; /* NULL: none so far */
  bool source_reported;       /* the write that is checked is to the source of a copy in flight */
  struct ArenaPart *arena;    /* memory until the end of the launch */
  Page *pages, *free_pages;   /* of the running block; of others */
  bool unfolded;              /* some of their accesses are not in the histories yet */
  struct Histories *histories;
  Chunk **chunks; /* by region */
  size_t chunks_regions;
  size_t last_region;

  SiteTable sites;
  FindingList findings, block_findings; /* of ended blocks; of the running block */
  FirstTable first;
  uint64_t requests;                /* counted with LAB_ACCESSES */
  struct Behind *behind[MAX_WARPS]; /* NULL: not needed so far */
  bool atomics, fences;             /* used: atomics on global memory; fences */
  bool talked;                      /* this block used one that other blocks can observe */
  void *synchronising;              /* the address of the atomic that is being executed */
  struct Suspects *suspects;

  unsigned copies_reading;        /* cp.async of this block in flight from global memory */
  uintptr_t sources, sources_end; /* range of their source addresses */
};

/** Of this OS thread, while it runs blocks of a launch that the lab observes. */
extern _Thread_local LabWorker *lab_worker;

/** Regions of the running launch, sorted by address. */
extern Region *lab_regions;
extern size_t lab_region_count;

/** A static array that the running kernel may use. lab_arrays begins with the kernel's own ones. */
typedef struct SharedArray {
  uintptr_t begin; /* relative to LabWorker.shared */
  size_t size;
  const char *name;
} SharedArray;

extern SharedArray *lab_arrays;
extern size_t lab_array_count;

/** Whose shared memory this is: of another block of the cluster, or else `lab`. */
static inline LabWorker *lab_owner(const LabWorker *lab, uintptr_t address) {
  const Cluster *cluster = lab->worker->cluster;
  for (unsigned rank = 0; rank < cluster->size && cluster->size > 1; rank++) {
    LabWorker *owner = cluster->members[rank]->lab;
    if (owner != NULL && address - owner->shared < owner->shared_bytes) return owner;
  }
  return (LabWorker *)(uintptr_t)lab;
}

static inline int lab_thread(const LabWorker *lab) {
  return lab->worker->running;
}

/** Has the running thread waited for what this agent did at this time? */
static inline bool lab_has_seen(const LabWorker *lab, int agent, uint32_t time) {
  return lab->clocks != NULL && lab->clocks->of_thread[lab_thread(lab)]->of[agent] > time;
}

/** Program counters are stored relative to this symbol. */
extern const char __executable_start[];
static inline uint32_t lab_pc(const void *return_address) {
  return (uint32_t)((const char *)return_address - __executable_start - 1);
}

static inline const Record *lab_log_of(const LabWorker *lab, int warp, int lane) {
  return &lab->logs[(size_t)(warp * WARP_SIZE + lane) * LOG_RECORDS];
}

/* access.c */
void lab_access(LabWorker *lab, uintptr_t address, unsigned size, bool is_write, uint32_t pc);

/* findings.c */
/** Counts a finding of the running thread; returns it if its `where` must be set, else NULL. */
RawFinding *lab_count_finding(LabWorker *lab, LabKind kind, uint32_t pc, uint32_t other_pc,
                              uint64_t other_thread);
void lab_report_here(LabWorker *lab, LabKind kind, uint32_t pc, uint32_t other_pc,
                     uint64_t other_thread, uintptr_t address);

/* arrays.c */
void lab_begin_arrays(const Launch *launch);
void lab_end_arrays(void);
/** Was the access added by the compiler, so that it is not in the source? */
bool lab_is_of_compiler(const LabWorker *lab, uintptr_t address, unsigned size);
/** Is it static shared memory of a program without symbols? */
bool lab_is_unnamed_static(const LabWorker *lab, uintptr_t address);
/** Describes where the address is in the kernel's shared memory, or how far from it. */
void lab_describe_shared(const LabWorker *lab, uintptr_t address, char *text, size_t text_size);
/** Removes the values of other blocks from static arrays. */
void lab_fill_arrays(const LabWorker *lab);
/** Is an access outside of shared memory harmless? If so, removes values of other blocks there. */
bool lab_may_leave_shared(LabWorker *lab, uintptr_t address, unsigned size);

/** All checks of an access except alignment. */
void lab_check_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);
void lab_check_global(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);
/** `use` is that of an atomic; either memory space. */
void lab_check_atomic(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);

/* barriers.c: called when a barrier opens, and when these lanes execute a warp instruction */
void lab_check_barrier(LabWorker *lab);
void lab_check_lanes(LabWorker *lab, const SimtWarpOperation *operation, int warp, unsigned lanes);
/** `lane` of the running warp reads lane `source`, which takes no part. */
void lab_no_source(int lane, int source, const void *call_site);

/* logs.c */
void lab_log(LabWorker *lab, LabAccessKind kind, uintptr_t address, unsigned size, uint32_t pc,
             unsigned copy);
/** Turns the logs of a warp into requests and empties them. */
void lab_flush_warp(LabWorker *lab, int warp);

/* requests.c */
/** A pass through the banks that takes so many wavefronts, where one would do without conflicts. */
void lab_add_wavefronts(LabTraffic *traffic, unsigned ways);
void lab_count_request(LabWorker *lab, Request *request, int warp, unsigned live);
/** An ldmatrix or, with LAB_SHARED_STORE, an stmatrix. */
void lab_count_matrices(LabWorker *lab, LabAccessKind kind, const void *const *rows, int matrices,
                        uint32_t pc);

/* behind.c */
/** Are there requests that lanes of the warp may still join? */
bool lab_is_behind(const LabWorker *lab, int warp);
/** Empties the logs of a warp, from record `first` of each lane on. `going`: the lanes that wait
 * for no other thread; 0: all lanes wait. */
void lab_flush_apart(LabWorker *lab, int warp, unsigned first, unsigned going);
void lab_free_behind(LabWorker *lab);

/* first.c: lab_note_first() notes one access by the running thread's warp, and its counts */
void lab_note_first(LabWorker *lab, LabAccessKind kind, uint32_t pc, int warp, unsigned size,
                    uint32_t lanes, const uintptr_t *addresses, const LabTraffic *traffic);
/** Merges `other` into `sum`, whose sites are `sites`: keeps the earlier access of each entry. */
void lab_add_first(SiteTable *sites, FirstTable *sum, const FirstTable *other);
bool lab_first_is_earlier(const FirstAccess *a, const FirstAccess *b);
void lab_free_first(FirstTable *table);

/* clocks.c: the state of the running block, made when it first needs one */
LabHopper *lab_hopper(LabWorker *lab);
void lab_begin_hopper(LabWorker *lab);

/* tensor_copies.c */
void lab_tensor_copy_issued(const TensorCopy *copy);
void lab_tensor_copy_landed(const TensorCopy *copy);
void lab_proxy_fence(bool of_cluster);

/* warpgroups.c */
void lab_wgmma_issued(const Wgmma *wgmma, bool first_warp);
void lab_wgmma_done(const Wgmma *wgmma, bool reads_end);
void lab_wgmma_fence(void);
bool lab_wgmma_in_flight(const Worker *worker, int warp);
/** An access to local memory, which holds what are registers on a GPU. */
void lab_use_local(LabWorker *lab, uintptr_t address, bool is_write, uint32_t pc);

/* shared.c */
/** What wgmma and tensor stores read of 16 bytes. */
AsyncReads *lab_async_reads(LabWorker *lab, uintptr_t address);
/** Notes that the running thread, or its warpgroup, begins such a read. */
void lab_begin_async_read(LabWorker *lab, uintptr_t address, uint32_t pc);

/* regions.c */
bool lab_find_region(LabWorker *lab, uintptr_t address, size_t *found);
bool lab_is_written(const Region *region, size_t offset, unsigned size);
void lab_begin_regions(void);
void lab_mark_written(const Region *region, size_t begin, size_t end);
void lab_free_regions(void);
/** "name + offset" for an address in a region. */
void lab_describe_region(const Region *region, uintptr_t address, char *text, size_t text_size);
void lab_memory_allocated(uintptr_t begin, size_t size);
void lab_memory_freed(uintptr_t begin);
void lab_memory_written(uintptr_t begin, size_t size);

/* blocks.c */
void lab_end_regions(LabWorker *const *workers, int count, const Launch *launch, bool check_blocks,
                     FindingList *findings);
void lab_forget_touched(LabWorker *const *workers, int count);

/* unwritten.c */
/** Notes a read of memory that only another block of this launch can have written. */
void lab_suspect_read(LabWorker *lab, size_t region, size_t offset, unsigned size, Use use,
                      uint32_t pc);
/** When the running block ends: turns its suspects into findings, unless LabWorker.talked. */
void lab_end_suspects(LabWorker *lab);
/** Turns kept suspects into findings if no other block can have written their memory. */
void lab_judge_suspects(LabWorker *const *workers, int count, bool talk, FindingList *findings);
void lab_free_suspects(LabWorker *lab);

/* sources.c */
void lab_source_issued(LabWorker *lab, const AsyncCopy *copy);
void lab_source_arrived(LabWorker *lab, const AsyncCopy *copy);
/** Reports the first copy in flight that reads what is written; returns whether there is one. */
bool lab_source_written(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc);

/* results.c: the results of launches that have ended */
void lab_forget_store(void);
FindingList *lab_begin_store(const Launch *launch, bool talk);
void lab_store(const Launch *launch, const LabWorker *lab);
void lab_store_findings(const FindingList *findings);
void lab_store_time(double milliseconds);
void lab_store_failure(const Failure *failure);

#endif
