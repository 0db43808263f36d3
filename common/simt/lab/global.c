/* Accesses to global memory. */
#include "internal.h"

static bool is_updated(const LabWorker *lab, const Cell *cell) {
  if (cell->write_epoch == lab->epoch) return true;
  if (cell->read_epoch != lab->epoch || !cell->has_atomics) return false;
  const Reader *readers = lab_readers(cell);
  for (unsigned i = 0; i < cell->count; i++) {
    if (readers[i].use > ATOMIC_LOADS) return true;
  }
  return false;
}

/** Has the running block written these bytes of a unit, or updated them by atomics? */
static bool has_written(LabWorker *lab, Chunk *chunk, const Cell *unit, unsigned begin,
                        unsigned end) {
  for (unsigned at = begin; at < end; at++) {
    const Cell *cell = unit;
    const unsigned in_unit = at % UNIT_BYTES;
    if (cell->split) cell = &cell->finer[in_unit / 4];
    if (cell->split) cell = &cell->finer[in_unit % 4];
    if (is_updated(lab, cell)) continue;
    const uint32_t history = chunk->histories[at / chunk->grain];
    if (!lab_history_writes(lab, history, lab->block_tag, false, true)) return false;
  }
  return true;
}

static Access access_of(LabWorker *lab, uintptr_t address, Use use, uint32_t pc) {
  const int thread = lab_thread(lab);
  const bool by_tensor = use == TENSOR_READS;
  return (Access){.lab = lab,
                  .by = lab,
                  .address = address,
                  .use = (uint8_t)use,
                  .thread = (uint16_t)thread,
                  .pc = pc,
                  .agent = (uint8_t)(by_tensor ? FIRST_MBARRIER + lab->reading_barrier : BY_THREAD),
                  .time = by_tensor ? lab->worker->hopper->mbarriers[lab->reading_barrier].phase
                                    : lab->times[thread],
                  .global = true};
}

void lab_use_global(LabWorker *lab, size_t region, uintptr_t address, unsigned size, Use use,
                    uint32_t pc) {
  const Region *r = &lab_regions[region];
  const Access access = access_of(lab, address, use, pc);
  const bool kept = (lab->checks & (LAB_BLOCKS | LAB_INIT)) != 0;
  const bool reads = use < WRITES || lab_updates(use) || use == ATOMIC_LOADS;
  const size_t first = address - r->begin;
  const bool unwritten = reads && lab->checks & LAB_INIT && !lab_is_written(r, first, size);
  bool own = true;
  if (!lab_is_atomic(use)) lab->dirty[access.thread] = SINCE_FENCE | SINCE_ATOMIC;
  if (use >= WRITES && use < ATOMIC_LOADS) lab_end_sequences(address, size);
  for (size_t offset = first; offset < first + size;) {
    Chunk *chunk = lab_chunk_at(lab, region, offset);
    const unsigned begin = (unsigned)(offset % CHUNK_BYTES), unit = begin / UNIT_BYTES;
    const unsigned rest = (unsigned)(first + size - offset),
                   space = UNIT_BYTES - begin % UNIT_BYTES;
    const unsigned end = begin + (rest < space ? rest : space);
    Page *page = lab_page_of(lab, chunk);
    if (kept) lab_touch(lab, chunk, begin, end);
    if (unwritten) own &= has_written(lab, chunk, &page->units[unit], begin, end);
    lab_use_unit(&access, &page->units[unit], begin % UNIT_BYTES, end - unit * UNIT_BYTES);
    offset += end - begin;
  }
  if (unwritten && !own) lab_suspect_read(lab, region, first, size, use, pc);
}

void lab_note_source(LabWorker *lab, uintptr_t address, unsigned size, uint32_t pc) {
  size_t region;
  if (!lab_find_region(lab, address, &region)) return;
  const Access access = access_of(lab, address, COPY_READS, pc);
  const size_t offset = address - lab_regions[region].begin;
  Chunk *chunk = lab_chunk_at(lab, region, offset);
  Page *page = lab_page_of(lab, chunk);
  const unsigned begin = offset % CHUNK_BYTES;
  lab_note_copy_read(&access, &page->units[begin / UNIT_BYTES]);
  /* Before the block's first fence or atomic, the note of its start says the same. */
  if (lab->talked && lab->checks & LAB_BLOCKS) lab_touch(lab, chunk, begin, begin + size);
}
