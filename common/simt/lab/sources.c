/*
 * A cp.async may read its source at any time until its thread has waited for it, a tensor load
 * until its phase has ended. So no thread may write the source in between, whatever barriers there
 * are. For writes before the cp.async and after the wait, and for those of other blocks, it counts
 * as two reads of its thread, a tensor load as one read of its mbarrier: global.c. The runtime
 * reads the source at the latest time: in the wait.
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
  if (!(lab->checks & (LAB_RACES | LAB_BLOCKS))) return;
  lab_note_source(lab, (uintptr_t)copy->global, copy->source_bytes, lab_pc(copy->call_site));
}

static bool reads_from(const AsyncCopy *copy, uintptr_t begin, uintptr_t end) {
  const uintptr_t source = (uintptr_t)copy->global;
  return source < end && source + copy->source_bytes > begin;
}

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

static bool loads_from(const TensorCopy *load, uintptr_t begin, uintptr_t end) {
  uintptr_t address;
  size_t bytes;
  for (unsigned row = 0; simt_box_row(load, row, &address, &bytes); row++) {
    if (address < end && address + bytes > begin) return true;
  }
  return false;
}

static bool check_loads(LabWorker *lab, uintptr_t begin, uintptr_t end, uint32_t pc) {
  const Hopper *hopper = lab->worker->hopper;
  size_t region;
  if (hopper == NULL || hopper->loads.count == 0) return false;
  if (!lab_find_region(lab, begin, &region)) return false;
  for (int i = 0; i < hopper->loads.count; i++) {
    const TensorCopy *load = &hopper->loads.list[i];
    const Region *r = &lab_regions[region];
    if (load->map.address - r->begin >= r->end - r->begin) continue;
    if (!loads_from(load, begin, end)) continue;
    lab_report_here(lab, LAB_GLOBAL_RACE_READ_WRITE, pc, lab_pc(load->call_site),
                    (uint64_t)load->thread, begin);
    return true;
  }
  return false;
}

bool lab_source_written(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc) {
  if (!(lab->checks & LAB_RACES)) return false;
  return check_copies(lab, address, address + size, pc) ||
         check_loads(lab, address, address + size, pc);
}
