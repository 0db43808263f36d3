/*
 * Global memory: which bytes have ever been written, and which blocks touch them during a launch.
 *
 * Blocks run at the same time on several OS threads. Each notes on its own who touched what; what
 * they say is put together when the launch has ended, so that the result depends neither on the
 * order of blocks nor on their spread over OS threads.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { LARGEST_GRAIN = 16, GRAIN_STEP = 4 };

Region *lab_regions;
size_t lab_region_count;

/** What has been written of each allocation. The host may allocate from any thread. */
static struct {
  pthread_mutex_t lock;
  Region *list;
  size_t count, capacity;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Bits ----------------------------------------------------------------------------------- */

static size_t bit_words(size_t bytes) {
  return (bytes + 63) / 64;
}

static void set_bits(uint64_t *bits, size_t begin, size_t end) {
  for (size_t i = begin; i < end;) {
    if (i % 64 == 0 && end - i >= 64) {
      bits[i / 64] = UINT64_MAX;
      i += 64;
    } else {
      bits[i / 64] |= UINT64_C(1) << i % 64;
      i++;
    }
  }
}

static bool all_bits(const uint64_t *bits, size_t begin, unsigned count) {
  const uint64_t wanted = (UINT64_C(1) << count) - 1;
  const unsigned shift = begin % 64;
  if (((bits[begin / 64] >> shift) & wanted) == (wanted & UINT64_MAX >> shift)) {
    if (shift + count <= 64) return true;
    const unsigned beyond = shift + count - 64;
    const uint64_t rest = (UINT64_C(1) << beyond) - 1;
    return (bits[begin / 64 + 1] & rest) == rest;
  }
  return false;
}

/* --- Allocations ---------------------------------------------------------------------------- */

static Region *find_known(uintptr_t address) {
  for (size_t i = 0; i < known.count; i++) {
    if (address >= known.list[i].begin && address < known.list[i].end) return &known.list[i];
  }
  return NULL;
}

void lab_memory_allocated(uintptr_t begin, size_t size) {
  pthread_mutex_lock(&known.lock);
  if (known.count == known.capacity) {
    known.capacity = 2 * known.capacity + 16;
    known.list = realloc(known.list, known.capacity * sizeof *known.list);
    if (known.list == NULL) abort();
  }
  /* Without memory for the bits, the allocation counts as written. */
  known.list[known.count++] =
      (Region){.begin = begin, .end = begin + size, .initialised = calloc(bit_words(size) + 1, 8)};
  pthread_mutex_unlock(&known.lock);
}

void lab_memory_freed(uintptr_t begin) {
  pthread_mutex_lock(&known.lock);
  Region *region = find_known(begin);
  if (region != NULL) {
    free(region->initialised);
    *region = known.list[--known.count];
  }
  pthread_mutex_unlock(&known.lock);
}

void lab_memory_written(uintptr_t begin, size_t size) {
  pthread_mutex_lock(&known.lock);
  const Region *region = find_known(begin);
  if (region != NULL && region->initialised != NULL) {
    set_bits(region->initialised, begin - region->begin, begin - region->begin + size);
  }
  pthread_mutex_unlock(&known.lock);
}

void lab_free_regions(void) {
  pthread_mutex_lock(&known.lock);
  for (size_t i = 0; i < known.count; i++) free(known.list[i].initialised);
  free(known.list);
  known.list = NULL;
  known.count = known.capacity = 0;
  pthread_mutex_unlock(&known.lock);
}

static int by_address(const void *a, const void *b) {
  const Region *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/** Allocations do not come and go while a kernel runs. */
void lab_begin_regions(void) {
  SimtAllocation *live;
  lab_region_count = simt_memory_list(&live);
  lab_regions = calloc(lab_region_count + 1, sizeof *lab_regions);
  if (lab_regions == NULL) abort();
  pthread_mutex_lock(&known.lock);
  for (size_t i = 0; i < lab_region_count; i++) {
    Region *region = &lab_regions[i];
    const Region *before = find_known(live[i].begin);
    *region = (Region){.begin = live[i].begin, .end = live[i].end};
    if (before != NULL) region->initialised = before->initialised;
    if (live[i].name[0] != '\0') {
      snprintf(region->name, sizeof region->name, "%s", live[i].name);
    } else {
      snprintf(region->name, sizeof region->name, "allocation %u", live[i].ordinal);
    }
  }
  pthread_mutex_unlock(&known.lock);
  free(live);
  qsort(lab_regions, lab_region_count, sizeof *lab_regions, by_address);
}

void lab_describe_region(const Region *region, uintptr_t address, char *text, size_t text_size) {
  snprintf(text, text_size, "%s + %zu (%zu bytes)", region->name, (size_t)(address - region->begin),
           (size_t)(region->end - region->begin));
}

/* --- While a kernel runs -------------------------------------------------------------------- */

static size_t chunk_count(const Region *region) {
  return (region->end - region->begin + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count, size);
  if (memory == NULL) abort();
  return memory;
}

static Chunk *chunk_at(LabWorker *lab, size_t region, size_t offset) {
  if (lab->chunks == NULL) {
    lab->chunks_regions = lab_region_count;
    lab->chunks = allocate(lab_region_count, sizeof *lab->chunks);
  }
  if (lab->chunks[region] == NULL) {
    lab->chunks[region] = allocate(chunk_count(&lab_regions[region]), sizeof(Chunk));
  }
  Chunk *chunk = &lab->chunks[region][offset / CHUNK_BYTES];
  if (chunk->touchers == NULL) {
    chunk->grain = LARGEST_GRAIN;
    chunk->touchers = allocate(CHUNK_BYTES / LARGEST_GRAIN, sizeof(Toucher));
  }
  return chunk;
}

static void divide(Chunk *chunk) {
  const unsigned grain = chunk->grain / GRAIN_STEP;
  Toucher *finer = allocate(CHUNK_BYTES / grain, sizeof *finer);
  for (unsigned i = 0; i < CHUNK_BYTES / grain; i++) finer[i] = chunk->touchers[i / GRAIN_STEP];
  free(chunk->touchers);
  *chunk = (Chunk){grain, finer};
}

/** Of two sites the one that comes first in the program: it does not depend on who came first. */
static uint16_t first_site(const LabWorker *lab, uint16_t old, uint16_t site) {
  return lab->sites.sites[old].pc <= lab->sites.sites[site].pc ? old : site;
}

/** The running block among the two lowest. */
static void note(const LabWorker *lab, uint32_t blocks[2], uint16_t sites[2], uint16_t site) {
  const uint32_t own = lab->block_tag;
  for (int i = 0; i < 2; i++) {
    if (blocks[i] == own) {
      if (sites[i] != site) sites[i] = first_site(lab, sites[i], site);
      return;
    }
    if (blocks[i] != 0 && blocks[i] < own) continue;
    if (i == 0) {
      blocks[1] = blocks[0];
      sites[1] = sites[0];
    }
    blocks[i] = own;
    sites[i] = site;
    return;
  }
}

/** Bytes of one chunk; returns whether the running block had written them all. */
static bool use_chunk(LabWorker *lab, Chunk *chunk, unsigned begin, unsigned end, Use use,
                      uint16_t site) {
  while ((begin | end) % chunk->grain != 0) divide(chunk);
  bool own = true;
  for (unsigned i = begin / chunk->grain; i < end / chunk->grain; i++) {
    Toucher *toucher = &chunk->touchers[i];
    own = own && toucher->last_writer == lab->block_tag;
    if (use == WRITES) {
      note(lab, toucher->writers, toucher->write_sites, site);
      toucher->last_writer = lab->block_tag;
    } else if (use == READS) {
      note(lab, toucher->readers, toucher->read_sites, site);
    }
  }
  return own;
}

void lab_use_global(LabWorker *lab, size_t region, uintptr_t address, unsigned size, Use use,
                    uint32_t pc) {
  const Region *r = &lab_regions[region];
  const size_t offset = address - r->begin;
  const uint16_t site = (uint16_t)lab_site(&lab->sites, pc);
  const size_t left = CHUNK_BYTES - offset % CHUNK_BYTES;
  const unsigned here = size < left ? size : (unsigned)left;
  const unsigned begin = (unsigned)(offset % CHUNK_BYTES);
  bool own = use_chunk(lab, chunk_at(lab, region, offset), begin, begin + here, use, site);
  if (here < size) {
    own &= use_chunk(lab, chunk_at(lab, region, offset + here), 0, size - here, use, site);
  }
  if (use == WRITES || own || !(lab->checks & LAB_INIT) || r->initialised == NULL) return;
  if (!all_bits(r->initialised, offset, size)) {
    lab_report_here(lab, LAB_GLOBAL_UNWRITTEN, pc, 0, 0, address);
  }
}

/* --- After it ------------------------------------------------------------------------------- */

/** A block, counted from 1, and where it touched a byte; 0: none. */
typedef struct Visit {
  uint32_t block, pc;
} Visit;

/** What all workers together know of a byte: the two lowest blocks of each kind. */
typedef struct Summary {
  Visit writers[2], readers[2];
} Summary;

/** A block runs on one worker, so that it comes but once. */
static void merge(Visit *visits, const uint32_t blocks[2], const uint16_t sites[2],
                  const SiteTable *table) {
  for (int i = 0; i < 2 && blocks[i] != 0; i++) {
    const Visit own = {blocks[i], table->sites[sites[i]].pc};
    if (visits[0].block == 0 || own.block < visits[0].block) {
      visits[1] = visits[0];
      visits[0] = own;
    } else if (visits[1].block == 0 || own.block < visits[1].block) {
      visits[1] = own;
    }
  }
}

static const Chunk *chunk_of(const LabWorker *lab, size_t region, size_t chunk) {
  if (lab == NULL || lab->chunks == NULL || lab->chunks[region] == NULL) return NULL;
  const Chunk *c = &lab->chunks[region][chunk];
  return c->touchers != NULL ? c : NULL;
}

/** What is known of byte `at` of a chunk. */
static Summary summarise(LabWorker *const *workers, int count, size_t region, size_t chunk,
                         unsigned at) {
  Summary s = {.writers = {{0}}};
  for (int i = 0; i < count; i++) {
    const Chunk *c = chunk_of(workers[i], region, chunk);
    if (c == NULL) continue;
    const Toucher *t = &c->touchers[at / c->grain];
    merge(s.writers, t->writers, t->write_sites, &workers[i]->sites);
    merge(s.readers, t->readers, t->read_sites, &workers[i]->sites);
  }
  return s;
}

/** Some bytes that all the same blocks touched. */
typedef struct Piece {
  const Launch *launch;
  const Region *region;
  size_t offset;
  unsigned bytes;
} Piece;

static void add_race(FindingList *findings, const Piece *piece, LabKind kind, Visit visit,
                     Visit other) {
  const RawFinding key = {.kernel = piece->launch->kernel,
                          .kind = kind,
                          .pc = visit.pc,
                          .other_pc = other.pc,
                          .has_thread = false,
                          .block = visit.block - 1,
                          .other_block = other.block - 1};
  bool made;
  RawFinding *finding = lab_find_or_make(findings, &key, &made);
  finding->count += piece->bytes;
  if (made) {
    lab_describe_region(piece->region, piece->region->begin + piece->offset, finding->where,
                        sizeof finding->where);
  }
}

static void judge(const Summary *s, const Piece *piece, FindingList *findings) {
  const Visit *writers = s->writers, *readers = s->readers;
  if (writers[1].block != 0) {
    add_race(findings, piece, LAB_BLOCKS_WRITE_WRITE, writers[0], writers[1]);
  }
  if (readers[0].block == 0) return;
  if (readers[0].block != writers[0].block) {
    add_race(findings, piece, LAB_BLOCKS_WRITE_READ, readers[0], writers[0]);
  } else if (readers[1].block != 0) {
    add_race(findings, piece, LAB_BLOCKS_WRITE_READ, readers[1], writers[0]);
  } else if (writers[1].block != 0) {
    add_race(findings, piece, LAB_BLOCKS_WRITE_READ, readers[0], writers[1]);
  }
}

static void end_chunk(LabWorker *const *workers, int count, const Launch *launch, size_t region,
                      size_t chunk, bool check_blocks, FindingList *findings) {
  unsigned grain = CHUNK_BYTES;
  for (int i = 0; i < count; i++) {
    const Chunk *c = chunk_of(workers[i], region, chunk);
    if (c != NULL && c->grain < grain) grain = c->grain;
  }
  if (grain == CHUNK_BYTES) return;
  const Region *r = &lab_regions[region];
  for (unsigned at = 0; at < CHUNK_BYTES; at += grain) {
    const Summary s = summarise(workers, count, region, chunk, at);
    if (s.writers[0].block == 0) continue;
    const Piece piece = {launch, r, chunk * CHUNK_BYTES + at, grain};
    if (r->initialised != NULL) set_bits(r->initialised, piece.offset, piece.offset + grain);
    if (check_blocks) judge(&s, &piece, findings);
  }
}

static void free_chunks(LabWorker *lab) {
  for (size_t region = 0; lab->chunks != NULL && region < lab->chunks_regions; region++) {
    if (lab->chunks[region] == NULL) continue;
    const size_t count = chunk_count(&lab_regions[region]);
    for (size_t i = 0; i < count; i++) free(lab->chunks[region][i].touchers);
    free(lab->chunks[region]);
  }
  free(lab->chunks);
  lab->chunks = NULL;
}

void lab_end_regions(LabWorker *const *workers, int count, const Launch *launch, bool check_blocks,
                     FindingList *findings) {
  for (size_t region = 0; region < lab_region_count; region++) {
    const size_t chunks = chunk_count(&lab_regions[region]);
    for (size_t chunk = 0; chunk < chunks; chunk++) {
      end_chunk(workers, count, launch, region, chunk, check_blocks, findings);
    }
  }
  lab_forget_touched(workers, count);
}

void lab_forget_touched(LabWorker *const *workers, int count) {
  for (int i = 0; i < count; i++) free_chunks(workers[i]);
  free(lab_regions);
  lab_regions = NULL;
  lab_region_count = 0;
}
