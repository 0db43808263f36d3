/*
 * A cp.async may read its source at any time until its thread has waited for it. So no thread may
 * write the source in between. For writes before the cp.async and after the wait it counts as two
 * reads of its thread: global.c. The runtime reads the source at the latest time: in the wait.
 */
#include "internal.h"

void lab_source_issued(LabWorker *lab, const AsyncCopy *copy) {
  const uintptr_t begin = (uintptr_t)copy->global, end = begin + copy->source_bytes;
  if (lab->copies_reading == 0 || begin < lab->sources) lab->sources = begin;
  if (lab->copies_reading == 0 || end > lab->sources_end) lab->sources_end = end;
  lab->copies_reading++;
}

void lab_source_arrived(LabWorker *lab, const AsyncCopy *copy) {
  if (copy->source_bytes == 0) return;
  lab->copies_reading--;
  if (!(lab->checks & LAB_RACES)) return;
  lab_note_source(lab, (uintptr_t)copy->global, copy->source_bytes, lab_pc(copy->call_site));
}

static bool reads_from(const AsyncCopy *copy, uintptr_t begin, uintptr_t end) {
  const uintptr_t source = (uintptr_t)copy->global;
  return source < end && source + copy->source_bytes > begin;
}

/** Reports the first copy in flight that reads what is written; returns whether there is one. */
bool lab_source_written(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc) {
  const uintptr_t begin = address, end = address + size;
  if (!(lab->checks & LAB_RACES) || lab->copies_reading == 0) return false;
  if (end <= lab->sources || begin >= lab->sources_end) return false;
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
