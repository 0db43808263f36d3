/*
 * Global memory: which bytes have ever been written, and which blocks access them during a launch.
 *
 * Blocks run at the same time on several OS threads. Each OS thread has its own records of the
 * accesses; blocks.c merges them.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "simt/runtime/kernels.h"

enum { LARGEST_GRAIN = 16, GRAIN_STEP = 4 };

Region *lab_regions;
size_t lab_region_count;

/** The written bytes of each allocation. The host may allocate from any thread. */
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

void lab_mark_written(const Region *region, size_t begin, size_t end) {
  if (region->initialised != NULL) set_bits(region->initialised, begin, end);
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
    known.list = lab_grown(known.list, known.capacity * sizeof *known.list);
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
  if (region != NULL) lab_mark_written(region, begin - region->begin, begin - region->begin + size);
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

/** Adds the `__device__` variables: all of their bytes have a value from the start. */
static void add_variables(const SimtVariable *variables, size_t count) {
  for (size_t i = 0; i < count; i++) {
    Region *region = &lab_regions[lab_region_count++];
    *region = (Region){.begin = variables[i].begin, .end = variables[i].begin + variables[i].size};
    memcpy(region->name, variables[i].name, sizeof region->name);
  }
}

/** The allocations do not change while a kernel runs. */
void lab_begin_regions(void) {
  SimtAllocation *live;
  SimtVariable *variables;
  const size_t variable_count = simt_device_variables(&variables);
  lab_region_count = simt_memory_list(&live);
  lab_regions = calloc(lab_region_count + variable_count + 1, sizeof *lab_regions);
  if (lab_regions == NULL) abort();
  pthread_mutex_lock(&known.lock);
  for (size_t i = 0; i < lab_region_count; i++) {
    Region *region = &lab_regions[i];
    const Region *before = find_known(live[i].begin);
    *region = (Region){.begin = live[i].begin, .end = live[i].end};
    if (before != NULL && before->initialised != NULL) {
      region->initialised = before->initialised + live[i].guard / 64;
    }
    if (live[i].name[0] != '\0') {
      snprintf(region->name, sizeof region->name, "%s", live[i].name);
    } else {
      snprintf(region->name, sizeof region->name, "allocation %u", live[i].ordinal);
    }
  }
  pthread_mutex_unlock(&known.lock);
  add_variables(variables, variable_count);
  free(variables);
  free(live);
  qsort(lab_regions, lab_region_count, sizeof *lab_regions, by_address);
}

void lab_describe_region(const Region *region, uintptr_t address, char *text, size_t text_size) {
  snprintf(text, text_size, "%s + %zu (%zu bytes)", region->name, (size_t)(address - region->begin),
           (size_t)(region->end - region->begin));
}

/* --- While a kernel runs -------------------------------------------------------------------- */

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
    lab->chunks[region] = allocate(lab_chunk_count(&lab_regions[region]), sizeof(Chunk));
  }
  Chunk *chunk = &lab->chunks[region][offset / CHUNK_BYTES];
  if (chunk->touchers == NULL) {
    chunk->grain = LARGEST_GRAIN;
    chunk->touchers = allocate(CHUNK_BYTES / LARGEST_GRAIN, sizeof(Toucher));
  }
  return chunk;
}

/** Frees the pieces and returns finer ones, `grain` bytes each. */
static Toucher *divided(Toucher *touchers, unsigned grain) {
  if (touchers == NULL) return NULL;
  Toucher *finer = allocate(CHUNK_BYTES / grain, sizeof *finer);
  for (unsigned i = 0; i < CHUNK_BYTES / grain; i++) finer[i] = touchers[i / GRAIN_STEP];
  free(touchers);
  return finer;
}

static void divide(Chunk *chunk) {
  chunk->grain /= GRAIN_STEP;
  chunk->touchers = divided(chunk->touchers, chunk->grain);
  chunk->atomics = divided(chunk->atomics, chunk->grain);
}

/** The site with the lower pc, so that the result does not depend on the order of accesses. */
static uint16_t first_site(const LabWorker *lab, uint16_t old, uint16_t site) {
  return lab->sites.sites[old].pc <= lab->sites.sites[site].pc ? old : site;
}

/** Adds the running block to the two lowest if it belongs there. */
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

static void note_writer(const LabWorker *lab, Toucher *toucher, uint16_t site) {
  note(lab, toucher->writers, toucher->write_sites, site);
  toucher->last_writer = lab->block_tag;
}

static void note_reader(const LabWorker *lab, Toucher *toucher, uint16_t site) {
  note(lab, toucher->readers, toucher->read_sites, site);
}

static bool wrote_last(const LabWorker *lab, const Chunk *chunk, unsigned i) {
  return chunk->touchers[i].last_writer == lab->block_tag ||
         (chunk->atomics != NULL && chunk->atomics[i].last_writer == lab->block_tag);
}

/** Notes an access to bytes of one chunk; returns whether the running block had written them. */
static bool use_chunk(LabWorker *lab, Chunk *chunk, unsigned begin, unsigned end, Use use,
                      uint16_t site) {
  while ((begin | end) % chunk->grain != 0) divide(chunk);
  const bool atomic = use == ATOMICALLY || use == EXCHANGES;
  if (atomic && chunk->atomics == NULL) {
    chunk->atomics = allocate(CHUNK_BYTES / chunk->grain, sizeof(Toucher));
  }
  bool own = true;
  for (unsigned i = begin / chunk->grain; i < end / chunk->grain; i++) {
    own = own && wrote_last(lab, chunk, i);
    if (use == WRITES) {
      note_writer(lab, &chunk->touchers[i], site);
    } else if (use == READS) {
      note_reader(lab, &chunk->touchers[i], site);
    } else if (atomic) {
      note_writer(lab, &chunk->atomics[i], site);
      if (use == EXCHANGES) note_reader(lab, &chunk->atomics[i], site);
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
  const bool reads = use == READS || use == ATOMICALLY;
  if (!reads || own || !(lab->checks & LAB_INIT) || r->initialised == NULL) return;
  if (all_bits(r->initialised, offset, size)) return;
  lab_suspect_read(lab, region, offset, size, use, pc);
}
