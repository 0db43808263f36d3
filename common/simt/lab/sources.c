/*
 * A cp.async may read its source at any time until its thread has waited for it. So no thread may
 * write the source in between. A write by another thread before the cp.async or after the wait
 * needs a barrier in between. The runtime reads the source at the latest time: in the wait.
 */
#include <stdlib.h>

#include "internal.h"

enum { UNIT = COPY_BYTES };

/** The threads that wrote 16 bytes, or waited for copies of them, since the last barrier. */
typedef struct Source {
  User writers[3], copiers[3];
} Source;

/** The sources used in the current epoch. */
typedef struct Sources {
  Source *list;
  size_t count, capacity;
  Table by_unit; /* 1 + index */
  uint32_t epoch;
} Sources;

/* --- Units ---------------------------------------------------------------------------------- */

static Sources *current_sources(LabWorker *lab) {
  if (lab->recent_sources == NULL) lab->recent_sources = calloc(1, sizeof(Sources));
  Sources *s = lab->recent_sources;
  if (s == NULL) abort();
  if (s->epoch != lab->epoch) {
    s->epoch = lab->epoch;
    s->count = 0;
    lab_clear_table(&s->by_unit);
  }
  return s;
}

static Source *source_at(LabWorker *lab, uintptr_t unit) {
  Sources *s = current_sources(lab);
  uint32_t *place = lab_entry(&s->by_unit, unit);
  if (*place == 0) {
    if (s->count == s->capacity) {
      s->capacity = 2 * s->capacity + 256;
      s->list = lab_grown(s->list, s->capacity * sizeof *s->list);
    }
    lab_forget_users(s->list[s->count].writers);
    lab_forget_users(s->list[s->count].copiers);
    *place = (uint32_t)++s->count;
  }
  return &s->list[*place - 1];
}

static User running_user(const LabWorker *lab, uint32_t pc) {
  const int thread = lab_thread(lab);
  return (User){pc, lab->warp_epochs[thread / WARP_SIZE], lab_clock(lab, thread / WARP_SIZE),
                (uint16_t)thread, true};
}

/* --- Copies --------------------------------------------------------------------------------- */

/** Reports a write of the source by another thread that is not ordered before the copy. */
static void check_writes(LabWorker *lab, const AsyncCopy *copy) {
  if (current_sources(lab)->count == 0) return;
  const Source *source = source_at(lab, (uintptr_t)copy->global / UNIT);
  const User *writer = lab_find_unordered(lab, source->writers);
  if (writer == NULL) return;
  const int thread = lab_thread(lab);
  lab->worker->running = writer->thread; /* the report names the writer */
  lab_report_here(lab, LAB_COPY_SOURCE_WRITTEN, writer->pc, lab_pc(copy->call_site),
                  (uint64_t)thread, (uintptr_t)copy->global);
  lab->worker->running = thread;
}

void lab_source_issued(LabWorker *lab, const AsyncCopy *copy) {
  const uintptr_t begin = (uintptr_t)copy->global, end = begin + copy->source_bytes;
  if (lab->copies_reading == 0 || begin < lab->sources) lab->sources = begin;
  if (lab->copies_reading == 0 || end > lab->sources_end) lab->sources_end = end;
  lab->copies_reading++;
  if (lab->checks & LAB_RACES) check_writes(lab, copy);
}

void lab_source_arrived(LabWorker *lab, const AsyncCopy *copy) {
  if (copy->source_bytes == 0) return;
  lab->copies_reading--;
  if (!(lab->checks & LAB_RACES)) return;
  Source *source = source_at(lab, (uintptr_t)copy->global / UNIT);
  lab_note_user(source->copiers, running_user(lab, lab_pc(copy->call_site)));
}

/* --- Writes --------------------------------------------------------------------------------- */

static bool reads_from(const AsyncCopy *copy, uintptr_t begin, uintptr_t end) {
  const uintptr_t source = (uintptr_t)copy->global;
  return source < end && source + copy->source_bytes > begin;
}

/** Reports the first copy in flight that reads this range; returns whether there is one. */
static bool check_copies(LabWorker *lab, uintptr_t begin, uintptr_t end, uint32_t pc) {
  if (lab->copies_reading == 0 || end <= lab->sources || begin >= lab->sources_end) return false;
  for (int thread = 0; thread < MAX_THREADS; thread++) {
    const AsyncQueue *queue = &lab->worker->async[thread];
    for (int i = 0; i < queue->count; i++) {
      const AsyncCopy *copy = &queue->copies[i];
      if (!reads_from(copy, begin, end)) continue;
      lab_report_here(lab, LAB_COPY_SOURCE_WRITTEN, pc, lab_pc(copy->call_site), (uint64_t)thread,
                      begin);
      return true;
    }
  }
  return false;
}

void lab_source_written(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc) {
  if (!(lab->checks & LAB_RACES)) return;
  bool told = check_copies(lab, address, address + size, pc);
  const uintptr_t last = (address + size - 1) / UNIT;
  for (uintptr_t unit = address / UNIT; unit <= last; unit++) {
    Source *source = source_at(lab, unit);
    const User *copier = told ? NULL : lab_find_unordered(lab, source->copiers);
    if (copier != NULL) {
      lab_report_here(lab, LAB_COPY_SOURCE_WRITTEN, pc, copier->pc, copier->thread, address);
      told = true;
    }
    lab_note_user(source->writers, running_user(lab, pc));
  }
}

void lab_free_sources(LabWorker *lab) {
  if (lab->recent_sources == NULL) return;
  free(lab->recent_sources->list);
  lab_free_table(&lab->recent_sources->by_unit);
  free(lab->recent_sources);
}
