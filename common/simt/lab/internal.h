/**
 * @file
 * Declarations shared by the files of the lab:
 *
 * - hooks.c      what the compiler has instrumented kernels call
 * - access.c     what an address is; alignment, bounds, logs
 * - arrays.c     which shared memory the running kernel has
 * - requests.c   logs of lanes become requests of warps; sectors and banks
 * - behind.c     the same, for lanes that are not all at the same access; table.c: numbers by key
 * - first.c      the first access of each instruction, for drawings
 * - shared.c     who wrote and read shared memory; global.c: and global memory
 * - blocks.c     of global memory, what all blocks of a launch together did
 * - barriers.c   who waits where, when not all of a block or warp wait at one place
 * - unwritten.c  reads of global memory that perhaps nobody wrote
 * - sources.c    global memory that a cp.async is yet to read
 * - findings.c   what went wrong; sites.c: counts by program counter; results.c: by line of source
 * - observe.c    what the runtime tells: launches, blocks, barriers, warp instructions
 */
#ifndef LAB_INTERNAL_H
#define LAB_INTERNAL_H

#include "simt/lab/lab.h"
#include "simt/runtime/runtime.h"

enum {
  LOG_RECORDS = 128, /* of a lane; when it is full, the logs of the warp are emptied */
  SECTOR_BYTES = 32,
  LINE_BYTES = 128, /* of L1 */
  BANKS = 32,
  BANK_BYTES = 4,
  COPY_LANES = 8 /* of cp.async, taken together */
};

typedef enum RecordKind {
  GLOBAL_LOAD,
  GLOBAL_STORE,
  SHARED_LOAD,
  SHARED_STORE,
  COPY_GLOBAL,
  COPY_SHARED,
  RECORD_KINDS
} RecordKind;

/** One access of one lane. */
typedef struct Record {
  uintptr_t address;
  uint32_t pc; /* behind the start of the program */
  uint8_t size, kind;
  uint16_t copy; /* COPY_GLOBAL: to which 16 bytes of shared memory, or NO_SOURCE; COPY_SHARED:
                    bytes it reads; else 0 */
} Record;

/* Pieces are told apart up to an even number: two are a sector. NO_SOURCE: a copy of zeros. */
enum { PIECES = UINT16_MAX - 1, NO_SOURCE };

/** The accesses of one request, by lane. */
typedef struct Request {
  RecordKind kind;
  uint32_t pc;
  unsigned size;
  unsigned lanes;
  uintptr_t addresses[WARP_SIZE];
  uint16_t copies[WARP_SIZE]; /* as in Record */
} Request;

/* --- table.c -------------------------------------------------------------------------------- */

/** Numbers by key; to begin with all zeros. */
typedef struct Table {
  struct Entry *entries; /* open addressing */
  size_t size, count;
  uint32_t round; /* how often it was cleared */
} Table;

/** The number of this key, 0 if it is new; the pointer holds until the next key. */
uint32_t *lab_entry(Table *table, uint64_t key);
void lab_clear_table(Table *table);
void lab_free_table(Table *table);

/** What realloc() gives; ends the program where there is no memory. */
void *lab_grown(void *memory, size_t size);

/* --- Sites: program counters ---------------------------------------------------------------- */

typedef struct Site {
  uint32_t pc;
  LabCounts counts;
} Site;

/** Sites in the order of first use; 0 is none. */
typedef struct SiteTable {
  Site *sites;
  uint32_t count, capacity;
  Table by_pc;
} SiteTable;

/** Of this pc, made where there is none. */
uint32_t lab_site(SiteTable *table, uint32_t pc);

/** Its counts; the pointer holds until the next site is made. */
LabCounts *lab_counts(SiteTable *table, uint32_t pc);
void lab_free_sites(SiteTable *table);

/* --- First accesses -------------------------------------------------------------------------- */

/** The first access of an instruction; `taken` is false where there was none yet. */
typedef struct FirstAccess {
  bool taken;
  uint32_t pc;
  uint64_t launch, order; /* which launch; how many requests its worker had seen before */
  LabAccess access;       /* but for its names */
} FirstAccess;

/** By site, two each: an instruction may read one memory and write another. */
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
  uint64_t other_block; /* of races between blocks */
  char where[160];
} RawFinding;

typedef struct FindingList {
  RawFinding *list;
  size_t count, capacity;
} FindingList;

/** The finding of this kind and these places, made where there is none; `*made` says which. */
RawFinding *lab_find_or_make(FindingList *list, const RawFinding *key, bool *made);

/** Adds `other`, with all its occurrences. */
void lab_add_finding(FindingList *list, const RawFinding *other);
void lab_add_findings(FindingList *list, const FindingList *others);

/* --- Shared memory -------------------------------------------------------------------------- */

/** An access since the last barrier. Three are kept: the latest, one of another thread of its
 * warp, and one of another warp. If the next access races with any, it races with one of these. */
typedef struct User {
  uint32_t pc, warp_epoch;
  uint16_t thread;
  bool present;
} User;

typedef enum CellState { STORED, COPY_UNDER_WAY, COPIED, UPDATED /* by atomics alone */ } CellState;

/** Who last wrote some bytes, and who has read them since the last barrier. */
typedef struct Cell {
  uint32_t write_pc, write_epoch, write_warp_epoch;
  uint16_t writer;
  uint8_t state;
  bool split; /* what is known is in the finer cells */
  uint32_t read_epoch;
  User readers[3];
} Cell;

/** Three grains, so that each access finds cells as large as itself: 16 bytes, 4 and 1. */
typedef struct SharedShadow {
  Cell *units, *words, *bytes;
  Cell *atomics; /* by word: its readers are those that used it atomically; NULL: nobody has */
  size_t unit_count;
} SharedShadow;

/* --- Global memory -------------------------------------------------------------------------- */

/** An allocation as a launch finds it. */
typedef struct Region {
  uintptr_t begin, end;
  uint64_t *initialised; /* a bit for each byte; NULL: all of it */
  char name[48];
} Region;

/**
 * Who touched a piece of memory in this launch: of the blocks that wrote it, and of those that read
 * it, the two of the lowest numbers, lowest first. Blocks are counted from 1; 0: nobody.
 */
typedef struct Toucher {
  uint32_t writers[2], readers[2], last_writer;
  uint16_t write_sites[2], read_sites[2]; /* of each, the first in the program */
} Toucher;

enum { CHUNK_BYTES = 4096 };

/** Of CHUNK_BYTES of memory, in pieces as large as all accesses allow. */
typedef struct Chunk {
  unsigned grain; /* bytes of a piece: 16, 4 or 1 */
  Toucher *touchers;
  /* Of atomics: `writers` are all who used it, `readers` those who set it whatever was there. NULL:
     there were none. */
  Toucher *atomics;
} Chunk;

static inline size_t lab_chunk_count(const Region *region) {
  return (region->end - region->begin + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

/* --- Workers -------------------------------------------------------------------------------- */

/** What the lab keeps for an OS thread that runs blocks. */
typedef struct LabWorker {
  Worker *worker;
  const Launch *launch;
  unsigned checks;
  uintptr_t fibers;          /* local memory of the threads */
  uintptr_t shared, dynamic; /* all shared memory; its dynamic part */
  size_t shared_bytes;
  bool wiped_around_dynamic;       /* in this block, what lies around its dynamic shared memory */
  bool wiped_between_arrays;       /* the same of its static arrays */
  uint64_t block;                  /* its number in the grid */
  uint32_t block_tag;              /* the same, as touchers have it */
  uint32_t epoch, first_epoch;     /* counts barriers; the block's first */
  uint32_t warp_epochs[MAX_WARPS]; /* counts __syncwarp() */

  Record *logs;
  uint16_t log_counts[MAX_THREADS];
  uint32_t dirty_warps;

  SharedShadow shadow;
  Chunk **chunks; /* by region */
  size_t chunks_regions;
  size_t last_region;

  SiteTable sites;
  FindingList findings, block_findings; /* of blocks that have ended, and of the running one */
  FirstTable first;
  uint64_t requests;                /* seen with LAB_ACCESSES */
  struct Behind *behind[MAX_WARPS]; /* NULL: the warp never had need of it */
  bool atomics, fences;             /* of global memory */
  bool talked;                      /* in this block there was one that other blocks can notice */
  struct Suspects *suspects;

  unsigned copies_reading;        /* cp.async of this block that are under way from global memory */
  uintptr_t sources, sources_end; /* what they read lies between these */
  struct Sources *recent_sources;
} LabWorker;

static inline uint64_t lab_block_number(const Worker *worker) {
  const uint3 i = worker->block.index;
  const dim3 grid = worker->block.grid;
  return i.x + grid.x * (i.y + (uint64_t)grid.y * i.z);
}

/** A block as Toucher knows it. */
static inline uint32_t lab_block_tag(uint64_t block) {
  return (uint32_t)(1 + block % UINT32_MAX);
}

/** Of this OS thread, while it runs blocks of a launch that is watched. */
extern _Thread_local LabWorker *lab_worker;

/** Regions of the running launch, by address. */
extern Region *lab_regions;
extern size_t lab_region_count;

/** A static array that the kernel of the running launch may use. */
typedef struct SharedArray {
  uintptr_t begin; /* behind LabWorker.shared */
  size_t size;
  const char *name;
} SharedArray;

/** The kernel's own ones first. */
extern SharedArray *lab_arrays;
extern size_t lab_array_count;

static inline int lab_thread(const LabWorker *lab) {
  return lab->worker->running;
}

/** Program counters are stored relative to this. */
extern const char __executable_start[];
static inline uint32_t lab_pc(const void *return_address) {
  return (uint32_t)((const char *)return_address - __executable_start - 1);
}

static inline const Record *lab_log_of(const LabWorker *lab, int warp, int lane) {
  return &lab->logs[(size_t)(warp * WARP_SIZE + lane) * LOG_RECORDS];
}

/* access.c */
void lab_access(LabWorker *lab, uintptr_t address, unsigned size, bool is_write, uint32_t pc);
void lab_log(LabWorker *lab, RecordKind kind, uintptr_t address, unsigned size, uint32_t pc,
             unsigned copy);
/** One more of the running thread's; it is returned if `where` is still to be told, else NULL. */
RawFinding *lab_count_finding(LabWorker *lab, LabKind kind, uint32_t pc, uint32_t other_pc,
                              uint64_t other_thread);
void lab_report_here(LabWorker *lab, LabKind kind, uint32_t pc, uint32_t other_pc,
                     uint64_t other_thread, uintptr_t address);

/* arrays.c */
void lab_begin_arrays(const Launch *launch);
void lab_end_arrays(void);
/** Is it no access of the source, but one that the compiler has added for itself? */
bool lab_is_of_compiler(const LabWorker *lab, uintptr_t address, unsigned size);
/** Static shared memory of a program without symbols. */
bool lab_is_unnamed_static(const LabWorker *lab, uintptr_t address);
/** Says where the address is in the kernel's shared memory, or how far from it. */
void lab_describe_shared(const LabWorker *lab, uintptr_t address, char *text, size_t text_size);
/** Leaves nothing of other blocks in static arrays. */
void lab_fill_arrays(const LabWorker *lab);
/** May an access be made that is not in the kernel's shared memory, as it damages nothing? What it
 * finds there is then nothing of other blocks either. */
bool lab_may_leave_shared(LabWorker *lab, uintptr_t address, unsigned size);

/** What becomes of the memory that a thread accesses. */
typedef enum Use {
  READS,
  WRITES,
  COPIES /* cp.async, to shared memory */,
  ATOMICALLY,
  EXCHANGES /* atomically, whatever was there */
} Use;

/** All checks of an access, but alignment. */
void lab_check_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);
void lab_check_global(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);
/** ATOMICALLY or EXCHANGES, of either memory. */
void lab_check_atomic(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc);

/* barriers.c */
/** To be called when a barrier opens. */
void lab_check_barrier(LabWorker *lab);
/** To be called when these lanes carry out a warp instruction. */
void lab_check_lanes(LabWorker *lab, const SimtWarpOperation *operation, int warp, unsigned lanes);

/* requests.c */
/** Makes requests of the logs of a warp, and empties them. */
void lab_flush_warp(LabWorker *lab, int warp);
void lab_count_request(LabWorker *lab, Request *request, int warp, unsigned live);
void lab_count_ldmatrix(LabWorker *lab, const void *const *rows, int matrices, uint32_t pc);

/* behind.c */
/** Is there something that lanes of the warp may still join? */
bool lab_is_behind(const LabWorker *lab, int warp);
/** Empties the logs of a warp, from the `first` record of each lane on, of which the lanes `going`
 * wait for nobody; 0: all wait. */
void lab_flush_apart(LabWorker *lab, int warp, unsigned first, unsigned going);
void lab_free_behind(LabWorker *lab);

/* first.c */
/** One access of the warp of the running thread, and its counts. */
void lab_note_first(LabWorker *lab, LabAccessKind kind, uint32_t pc, int warp, unsigned size,
                    uint32_t lanes, const uintptr_t *addresses, const LabTraffic *traffic);
/** Of two tables of a kernel, of which `sites` goes with the first, the first access of each. */
void lab_add_first(SiteTable *sites, FirstTable *sum, const FirstTable *other);
bool lab_first_is_earlier(const FirstAccess *a, const FirstAccess *b);
void lab_free_first(FirstTable *table);

/* shared.c */
bool lab_create_shadow(SharedShadow *shadow, size_t bytes);
void lab_free_shadow(SharedShadow *shadow);
void lab_use_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, int thread,
                    uint32_t pc);
void lab_copy_arrived(LabWorker *lab, uintptr_t address, int thread, uint32_t pc);
void lab_note_user(User users[3], User own);
void lab_forget_users(User users[3]);
/** One with nothing between it and the running thread's access; NULL: none. */
const User *lab_find_unordered(const LabWorker *lab, const User users[3]);

/* global.c */
void lab_use_global(LabWorker *lab, size_t region, uintptr_t address, unsigned size, Use use,
                    uint32_t pc);
void lab_begin_regions(void);
/** These offsets count as written from now on. */
void lab_mark_written(const Region *region, size_t begin, size_t end);
void lab_free_regions(void);
void lab_memory_allocated(uintptr_t begin, size_t size);
void lab_memory_freed(uintptr_t begin);
void lab_memory_written(uintptr_t begin, size_t size);

/* blocks.c */
void lab_end_regions(LabWorker *const *workers, int count, const Launch *launch, bool check_blocks,
                     FindingList *findings);
/** Frees what is known of the launch. */
void lab_forget_touched(LabWorker *const *workers, int count);

/* unwritten.c */
/** A read of what neither the host, nor an earlier launch, nor the running block has written, but
 * another block may have. */
void lab_suspect_read(LabWorker *lab, size_t region, size_t offset, unsigned size, Use use,
                      uint32_t pc);
/** When the running block ends: where it has not talked, makes findings of its suspects. */
void lab_end_suspects(LabWorker *lab);
/** Makes findings of those that no other block can have written before. */
void lab_judge_suspects(LabWorker *const *workers, int count, bool talk, FindingList *findings);
void lab_free_suspects(LabWorker *lab);

/* sources.c */
void lab_source_issued(LabWorker *lab, const AsyncCopy *copy);
void lab_source_arrived(LabWorker *lab, const AsyncCopy *copy);
void lab_source_written(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc);
void lab_free_sources(LabWorker *lab);

/* results.c: what has been seen in the launches that have ended */
void lab_forget_store(void);
FindingList *lab_begin_store(const Launch *launch, bool blocks_not_checked);
void lab_store(const Launch *launch, const LabWorker *lab);
/** Findings alone. */
void lab_store_findings(const FindingList *findings);
void lab_store_time(double milliseconds);
void lab_store_failure(const Failure *failure);

/** "name + offset" for an address in a region. */
void lab_describe_region(const Region *region, uintptr_t address, char *text, size_t text_size);

#endif
