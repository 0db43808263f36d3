/*
 * A cp.async may read its source at any time until its thread has waited for it. So nobody may
 * write it meanwhile, nor may another thread just before, with no barrier between; the runtime
 * reads it as late as it may, in that wait.
 */
#include <stdlib.h>

#include "internal.h"

enum { UNIT = COPY_BYTES };

/** Who last wrote some bytes of a unit. It counts only in its epoch. */
typedef struct Write {
  uintptr_t unit;
  uint32_t epoch, warp_epoch, pc;
  uint16_t thread;
} Write;

/** Of the current epoch; open addressing. */
typedef struct Writes {
  Write *list;
  size_t count, size;
  uint32_t epoch;
} Writes;

/* --- Writes --------------------------------------------------------------------------------- */

/** The write of this unit, or a place for it. */
static Write *place_of(const Writes *w, uintptr_t unit) {
  for (size_t i = unit * 0x9e3779b97f4a7c15 >> 32;; i++) {
    Write *place = &w->list[i % w->size];
    if (place->epoch != w->epoch || place->unit == unit) return place;
  }
}

static void grow(Writes *w) {
  const Writes old = *w;
  w->size = 2 * old.size + 256;
  w->list = calloc(w->size, sizeof *w->list);
  if (w->list == NULL) abort();
  for (size_t i = 0; i < old.size; i++) {
    if (old.list[i].epoch == w->epoch) *place_of(w, old.list[i].unit) = old.list[i];
  }
  free(old.list);
}

/** With what is written from now on in it. */
static Writes *current_writes(LabWorker *lab) {
  if (lab->writes == NULL) lab->writes = calloc(1, sizeof *lab->writes);
  Writes *w = lab->writes;
  if (w == NULL) abort();
  if (w->epoch != lab->epoch) w->count = 0;
  w->epoch = lab->epoch;
  return w;
}

static void note_write(LabWorker *lab, uintptr_t unit, uint32_t pc) {
  Writes *w = current_writes(lab);
  if (2 * w->count >= w->size) grow(w);
  const int thread = lab_thread(lab);
  Write *place = place_of(w, unit);
  w->count += place->epoch != w->epoch;
  *place = (Write){unit, w->epoch, lab->warp_epochs[thread / WARP_SIZE], pc, (uint16_t)thread};
}

/* --- Copies --------------------------------------------------------------------------------- */

/** Has another thread written the source, with nothing between that and the copy? */
static void check_writes(LabWorker *lab, const AsyncCopy *copy) {
  const Writes *w = current_writes(lab);
  if (w->count == 0) return;
  const int thread = lab_thread(lab), warp = thread / WARP_SIZE;
  const Write *write = place_of(w, (uintptr_t)copy->global / UNIT);
  if (write->epoch != w->epoch || write->thread == thread) return;
  if (write->thread / WARP_SIZE == warp && write->warp_epoch != lab->warp_epochs[warp]) return;
  lab->worker->running = write->thread; /* whose write is told */
  lab_report_here(lab, LAB_COPY_SOURCE_WRITTEN, write->pc, lab_pc(copy->call_site),
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
  lab->copies_reading -= copy->source_bytes > 0;
}

static bool reads_from(const AsyncCopy *copy, uintptr_t begin, uintptr_t end) {
  const uintptr_t source = (uintptr_t)copy->global;
  return source < end && source + copy->source_bytes > begin;
}

/** Reports the first copy under way that reads some of this. */
static void check_copies(LabWorker *lab, uintptr_t begin, uintptr_t end, uint32_t pc) {
  if (end <= lab->sources || begin >= lab->sources_end) return;
  for (int thread = 0; thread < MAX_THREADS; thread++) {
    const AsyncQueue *queue = &lab->worker->async[thread];
    for (int i = 0; i < queue->count; i++) {
      const AsyncCopy *copy = &queue->copies[i];
      if (!reads_from(copy, begin, end)) continue;
      lab_report_here(lab, LAB_COPY_SOURCE_WRITTEN, pc, lab_pc(copy->call_site), (uint64_t)thread,
                      begin);
      return;
    }
  }
}

void lab_source_written(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc) {
  if (!(lab->checks & LAB_RACES)) return;
  if (lab->copies_reading > 0) check_copies(lab, address, address + size, pc);
  const uintptr_t last = (address + size - 1) / UNIT;
  for (uintptr_t unit = address / UNIT; unit <= last; unit++) note_write(lab, unit, pc);
}

void lab_free_writes(LabWorker *lab) {
  if (lab->writes != NULL) free(lab->writes->list);
  free(lab->writes);
}
