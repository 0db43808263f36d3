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
  size_t count;
} Visits;

static void collect(const Visit *visit, void *context) {
  Visits *visits = context;
  visits->list = simt_with_room(visits->list, visits->count, sizeof *visits->list);
  visits->list[visits->count] = *visit;
  visits->list[visits->count].place = visits->count;
  visits->count++;
}

/** The number of the latest release that was known. If one access is ordered before another, it has
 * the lower number, because it was released later. */
static uint32_t latest_known(const Visit *visit) {
  uint32_t latest = 0;
  for (const Heads *h = visit->known; h != NULL; h = h->next) {
    if (h->release->number > latest) latest = h->release->number;
  }
  return latest;
}

/** Accesses of a block that are ordered behind each other come in the order of execution. In an
 * epoch without fences and atomics any order will do, so it is one that does not depend on
 * SIMT_ORDER. */
static int by_order(const void *a, const void *b) {
  const Visit *x = a, *y = b;
  const uint32_t known = latest_known(x), other = latest_known(y);
  if (known != other) return known < other ? -1 : 1;
  if (x->block != y->block) return x->block < y->block ? -1 : 1;
  if (x->point.epoch != y->point.epoch) return x->point.epoch < y->point.epoch ? -1 : 1;
  const bool quiet = x->point.lanes == 0;
  if (quiet != (y->point.lanes == 0)) return quiet ? -1 : 1;
  if (quiet && x->pc != y->pc) return x->pc < y->pc ? -1 : 1;
  return x->place > y->place ? -1 : 1;
}

/** `before` comes first by_order(). */
static bool is_ordered(const Visit *before, const Visit *after) {
  return before->block == after->block || lab_unpublished(after->known, &before->point) == 0;
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
  uint32_t verdict_count, race_count;
  Visits visits; /* of the piece that is being judged */
} Court;

static void add_race_of(Court *court, LabKind kind, const Visit *visit, const Visit *other) {
  court->races = simt_with_room(court->races, court->race_count, sizeof *court->races);
  court->races[court->race_count++] = (Race){kind, *visit, *other};
}

/** Kinds of accesses of which two are a race, unless they are of the same kind and not WRITTEN, or
 * both are atomic. */
typedef enum Kind {
  WRITTEN,
  READ,
  UPDATED_BY_ATOMICS,
  ADDED_TO, /* the same, with floats: the sum depends on the order */
  LOADED_BY_ATOMICS,
  KINDS
} Kind;

static Kind kind_of(const Visit *visit) {
  return visit->use == WRITES         ? WRITTEN
         : visit->use == ATOMIC_LOADS ? LOADED_BY_ATOMICS
         : visit->use == ADDS_FLOATS  ? ADDED_TO
         : lab_is_atomic(visit->use)  ? UPDATED_BY_ATOMICS
                                      : READ;
}

static bool is_updated(Kind kind) {
  return kind == UPDATED_BY_ATOMICS || kind == ADDED_TO;
}

static bool may_race(Kind a, Kind b) {
  return a == WRITTEN || b == WRITTEN || (a == READ && is_updated(b)) ||
         (is_updated(a) && b == READ) || (a == ADDED_TO && b == ADDED_TO);
}

/** Notes the first race of this pair of kinds. The reading or plain access comes first, or else the
 * lower block. */
static void note_race(Court *court, bool noted[KINDS][KINDS], const Visit *a, const Visit *b) {
  const Kind kind = kind_of(a), other = kind_of(b);
  if (noted[kind][other]) return;
  noted[kind][other] = noted[other][kind] = true;
  const bool updates = is_updated(kind) || is_updated(other);
  const bool swap = kind == other ? b->block < a->block
                    : updates     ? is_updated(kind)
                                  : kind == WRITTEN;
  const bool both_write =
      kind != READ && other != READ && kind != LOADED_BY_ATOMICS && other != LOADED_BY_ATOMICS;
  const LabKind race = kind == ADDED_TO && other == ADDED_TO ? LAB_SUM_UNORDERED
                       : both_write                          ? LAB_BLOCKS_WRITE_WRITE
                                                             : LAB_BLOCKS_WRITE_READ;
  add_race_of(court, race, swap ? b : a, swap ? a : b);
}

/** Compares each access with those that no later write is ordered behind. */
static void find_races(Court *court) {
  const Visit *all = court->visits.list;
  const size_t count = court->visits.count;
  bool noted[KINDS][KINDS] = {{false}};
  size_t front[KINDS] = {0}; /* so many are these */
  uint32_t *fronts = simt_resized(NULL, KINDS * count * sizeof *fronts);
  for (size_t i = 0; i < count; i++) {
    const Kind kind = kind_of(&all[i]);
    bool behind_all = kind == WRITTEN;
    for (Kind other = 0; other < KINDS; other++) {
      if (!may_race(kind, other)) continue;
      for (size_t k = 0; k < front[other] && !noted[kind][other]; k++) {
        const Visit *before = &all[fronts[other * count + k]];
        if (!is_ordered(before, &all[i])) note_race(court, noted, before, &all[i]);
      }
      behind_all = behind_all && !noted[kind][other];
    }
    for (Kind other = 0; other < KINDS && behind_all; other++) front[other] = 0;
    fronts[kind * count + front[kind]++] = (uint32_t)i;
  }
  free(fronts);
}

static Verdict judge(Court *court) {
  Visits *all = &court->visits;
  Verdict verdict = {.judged = true, .first = court->race_count};
  for (size_t i = 0; i < all->count; i++) {
    const Kind kind = kind_of(&all->list[i]);
    verdict.written |= kind == WRITTEN || is_updated(kind);
  }
  if (!court->check_blocks || !verdict.written) return verdict;
  qsort(all->list, all->count, sizeof *all->list, by_order);
  find_races(court);
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
      court->verdicts =
          simt_with_room(court->verdicts, court->verdict_count, sizeof *court->verdicts);
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
