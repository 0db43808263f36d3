/*
 * Races between blocks: compares the accesses of all blocks to global memory when a launch has
 * ended. Two accesses are ordered if what the later one knew by acquiring had been released after
 * the earlier one: talk.c.
 */
#include <stdlib.h>

#include "internal.h"

/* --- The accesses to a piece ------------------------------------------------------------------ */

/** The accesses of all workers, by block and place. */
typedef struct Visits {
  Visit *list;
  size_t count, capacity;
} Visits;

static void collect(const Visit *visit, void *context) {
  Visits *visits = context;
  if (visits->count == visits->capacity) {
    visits->capacity = 2 * visits->capacity + 16;
    visits->list = lab_grown(visits->list, visits->capacity * sizeof *visits->list);
  }
  visits->list[visits->count++] = *visit;
}

static int by_block(const void *a, const void *b) {
  const Visit *x = a, *y = b;
  if (x->block != y->block) return x->block < y->block ? -1 : 1;
  return (x->pc > y->pc) - (x->pc < y->pc);
}

static bool writes(const Visit *visit) {
  return visit->use == WRITES;
}
static bool reads(const Visit *visit) {
  return visit->use == READS || visit->use == ATOMIC_LOADS;
}
static bool reads_plainly(const Visit *visit) {
  return visit->use == READS;
}
static bool updates(const Visit *visit) {
  return visit->use == ATOMICALLY || visit->use == EXCHANGES;
}

static bool is_ordered(const Visit *a, const Visit *b) {
  return a->block == b->block || lab_unpublished(b->known, &a->point) == 0 ||
         lab_unpublished(a->known, &b->point) == 0;
}

/** The places and blocks of a race. */
typedef struct Race {
  LabKind kind;
  Visit visit, other;
} Race;

/** What is known of all pieces with the same history: races first .. first + count - 1. */
typedef struct Verdict {
  bool judged, written;
  uint32_t first, count;
} Verdict;

/** The verdicts of a launch. */
typedef struct Court {
  LabWorker *const *workers;
  int count;
  const Launch *launch;
  bool check_blocks;
  FindingList *findings;
  Table by_histories; /* of all workers: 1 + index */
  Verdict *verdicts;
  Race *races;
  uint32_t verdict_count, race_count, verdict_capacity, race_capacity;
  Visits visits; /* of the piece that is being judged */
} Court;

/** The race between the lowest blocks: of those of `other` the lowest that has one. */
static void find_race(Court *court, LabKind kind, bool (*is_visit)(const Visit *),
                      bool (*is_other)(const Visit *)) {
  const Visits *all = &court->visits;
  for (size_t i = 0; i < all->count; i++) {
    const Visit *other = &all->list[i];
    if (!is_other(other)) continue;
    for (size_t k = 0; k < all->count; k++) {
      const Visit *visit = &all->list[k];
      if (!is_visit(visit) || is_ordered(visit, other)) continue;
      if (court->race_count == court->race_capacity) {
        court->race_capacity = 2 * court->race_capacity + 16;
        court->races = lab_grown(court->races, court->race_capacity * sizeof *court->races);
      }
      /* Of two writers, the lower block comes first. */
      const bool swap = is_visit == is_other && other->block < visit->block;
      court->races[court->race_count++] =
          swap ? (Race){kind, *other, *visit} : (Race){kind, *visit, *other};
      return;
    }
  }
}

static Verdict judge(Court *court) {
  Visits *all = &court->visits;
  Verdict verdict = {.judged = true, .first = court->race_count};
  qsort(all->list, all->count, sizeof *all->list, by_block);
  for (size_t i = 0; i < all->count; i++) {
    verdict.written |= writes(&all->list[i]) || updates(&all->list[i]);
  }
  if (!court->check_blocks || !verdict.written) return verdict;
  find_race(court, LAB_BLOCKS_WRITE_WRITE, writes, writes);
  find_race(court, LAB_BLOCKS_WRITE_READ, reads, writes);
  find_race(court, LAB_BLOCKS_WRITE_WRITE, writes, updates);
  find_race(court, LAB_BLOCKS_WRITE_READ, reads_plainly, updates);
  verdict.count = court->race_count - verdict.first;
  return verdict;
}

/* --- Pieces ----------------------------------------------------------------------------------- */

static const Chunk *chunk_of(const LabWorker *lab, size_t region, size_t chunk) {
  if (lab->chunks == NULL || lab->chunks[region] == NULL) return NULL;
  const Chunk *c = &lab->chunks[region][chunk];
  return c->histories != NULL ? c : NULL;
}

static uint32_t history_at(const LabWorker *lab, size_t region, size_t chunk, unsigned at) {
  const Chunk *c = chunk_of(lab, region, chunk);
  return c != NULL ? c->histories[at / c->grain] : 0;
}

/** The verdict on byte `at` of a chunk; NULL: no access. */
static const Verdict *verdict_on(Court *court, size_t region, size_t chunk, unsigned at) {
  uint32_t number = 0; /* of the histories in the workers so far */
  for (int i = 0; i < court->count; i++) {
    const uint32_t history = history_at(court->workers[i], region, chunk, at);
    if (history == 0) continue;
    uint32_t *entry = lab_entry(&court->by_histories,
                                (uint64_t)(number * MAX_WORKERS + (unsigned)i) << 32 | history);
    if (*entry == 0) {
      if (court->verdict_count == court->verdict_capacity) {
        court->verdict_capacity = 2 * court->verdict_capacity + 64;
        court->verdicts =
            lab_grown(court->verdicts, court->verdict_capacity * sizeof *court->verdicts);
      }
      court->verdicts[court->verdict_count] = (Verdict){.judged = false};
      *entry = ++court->verdict_count;
    }
    number = *entry;
  }
  if (number == 0) return NULL;
  Verdict *verdict = &court->verdicts[number - 1];
  if (verdict->judged) return verdict;
  court->visits.count = 0;
  for (int i = 0; i < court->count; i++) {
    lab_visit_history(court->workers[i], history_at(court->workers[i], region, chunk, at), collect,
                      &court->visits);
  }
  *verdict = judge(court);
  return verdict;
}

static void add_race(const Court *court, const Race *race, const Region *region, size_t offset,
                     unsigned bytes) {
  const RawFinding key = {.kernel = court->launch->kernel,
                          .kind = race->kind,
                          .pc = race->visit.pc,
                          .other_pc = race->other.pc,
                          .has_thread = false,
                          .block = race->visit.block - 1,
                          .other_block = race->other.block - 1};
  bool made;
  RawFinding *finding = lab_find_or_make(court->findings, &key, &made);
  finding->count += bytes;
  if (!made) return;
  lab_describe_region(region, region->begin + offset, finding->where, sizeof finding->where);
}

static void end_chunk(Court *court, size_t region, size_t chunk) {
  unsigned grain = CHUNK_BYTES;
  for (int i = 0; i < court->count; i++) {
    const Chunk *c = chunk_of(court->workers[i], region, chunk);
    if (c != NULL && c->grain < grain) grain = c->grain;
  }
  if (grain == CHUNK_BYTES) return;
  const Region *r = &lab_regions[region];
  for (unsigned at = 0; at < CHUNK_BYTES; at += grain) {
    const Verdict *verdict = verdict_on(court, region, chunk, at);
    if (verdict == NULL || !verdict->written) continue;
    const size_t offset = chunk * CHUNK_BYTES + at;
    lab_mark_written(r, offset, offset + grain);
    for (uint32_t i = verdict->first; i < verdict->first + verdict->count; i++) {
      add_race(court, &court->races[i], r, offset, grain);
    }
  }
}

void lab_end_regions(LabWorker *const *workers, int count, const Launch *launch, bool check_blocks,
                     FindingList *findings) {
  Court court = {.workers = workers,
                 .count = count,
                 .launch = launch,
                 .check_blocks = check_blocks,
                 .findings = findings};
  for (size_t region = 0; region < lab_region_count; region++) {
    const size_t chunks = lab_chunk_count(&lab_regions[region]);
    for (size_t chunk = 0; chunk < chunks; chunk++) end_chunk(&court, region, chunk);
  }
  lab_free_table(&court.by_histories);
  free(court.verdicts);
  free(court.races);
  free(court.visits.list);
  lab_forget_touched(workers, count);
}

void lab_forget_touched(LabWorker *const *workers, int count) {
  for (int i = 0; i < count; i++) lab_free_chunks(workers[i]);
  free(lab_regions);
  lab_regions = NULL;
  lab_region_count = 0;
  lab_forget_releases();
}
