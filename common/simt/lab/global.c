/*
 * Global memory. What the running block has accessed since its last barrier is in pages of cells,
 * as for shared memory; barriers of the block, and what makes threads know of other blocks, add it
 * to the histories of the memory, by which blocks.c finds races between blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { LARGEST_GRAIN = 16, GRAIN_STEP = 4, BITS = 64 };

/* --- Chunks and pages ----------------------------------------------------------------------- */

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
  return &lab->chunks[region][offset / CHUNK_BYTES];
}

void lab_free_chunks(LabWorker *lab) {
  for (size_t region = 0; lab->chunks != NULL && region < lab->chunks_regions; region++) {
    if (lab->chunks[region] == NULL) continue;
    const size_t count = lab_chunk_count(&lab_regions[region]);
    for (size_t i = 0; i < count; i++) free(lab->chunks[region][i].histories);
    free(lab->chunks[region]);
  }
  free(lab->chunks);
  lab->chunks = NULL;
}

/** Cells of earlier epochs are out of date, so pages need not be cleared. */
static Page *page_of(LabWorker *lab, Chunk *chunk) {
  if (chunk->page_epoch == lab->epoch) return chunk->page;
  Page *page = lab->free_pages;
  if (page != NULL) {
    lab->free_pages = page->next;
  } else {
    page = lab_allocate(lab, sizeof *page);
  }
  page->next = lab->pages;
  lab->pages = page;
  page->chunk = chunk;
  chunk->page = page;
  chunk->page_epoch = lab->epoch;
  return page;
}

/** The histories of a chunk, in pieces that bytes begin .. end - 1 do not divide. */
static void need_histories(Chunk *chunk, unsigned begin, unsigned end) {
  if (chunk->histories == NULL) {
    chunk->grain = LARGEST_GRAIN;
    chunk->histories = allocate(CHUNK_BYTES / LARGEST_GRAIN, sizeof *chunk->histories);
  }
  while ((begin | end) % chunk->grain != 0) {
    chunk->grain /= GRAIN_STEP;
    const unsigned pieces = CHUNK_BYTES / chunk->grain;
    uint32_t *finer = allocate(pieces, sizeof *finer);
    for (unsigned i = 0; i < pieces; i++) finer[i] = chunk->histories[i / GRAIN_STEP];
    free(chunk->histories);
    chunk->histories = finer;
  }
}

/* --- Folding -------------------------------------------------------------------------------- */

/** Adds to the histories of `size` bytes from `begin` on. */
static void fold_cell(LabWorker *lab, Chunk *chunk, unsigned begin, unsigned size, Cell *cell) {
  const unsigned part = size / CELL_PARTS;
  for (unsigned i = 0; i < CELL_PARTS && cell->split; i++) {
    fold_cell(lab, chunk, begin + i * part, part, &cell->finer[i]);
  }
  if (cell->split) return;
  const unsigned end = begin + size;
  for (unsigned at = begin; at < end; at += chunk->grain) {
    uint32_t *history = &chunk->histories[at / chunk->grain];
    *history = lab_add_to_history(lab, *history, cell);
  }
  lab_mark_folded(lab, cell);
}

void lab_fold(LabWorker *lab) {
  if (!lab->unfolded) return;
  lab->unfolded = false;
  lab_begin_fold(lab);
  for (Page *page = lab->pages; page != NULL; page = page->next) {
    for (unsigned i = 0; i < CHUNK_UNITS / BITS; i++) {
      for (uint64_t rest = page->touched[i]; rest != 0; rest &= rest - 1) {
        const unsigned unit = i * BITS + (unsigned)__builtin_ctzll(rest);
        fold_cell(lab, page->chunk, unit * UNIT_BYTES, UNIT_BYTES, &page->units[unit]);
      }
      page->touched[i] = 0;
    }
  }
}

void lab_end_pages(LabWorker *lab) {
  lab_fold(lab);
  while (lab->pages != NULL) {
    Page *page = lab->pages;
    lab->pages = page->next;
    page->next = lab->free_pages;
    lab->free_pages = page;
  }
}

/* --- Accesses ------------------------------------------------------------------------------- */

static bool is_updated(const LabWorker *lab, const Cell *cell) {
  if (cell->write_epoch == lab->epoch) return true;
  if (cell->read_epoch != lab->epoch || !cell->has_atomics) return false;
  const Reader *readers = lab_readers(cell);
  for (unsigned i = 0; i < cell->count; i++) {
    if (readers[i].use == ATOMICALLY || readers[i].use == EXCHANGES) return true;
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
                  .address = address,
                  .use = (uint8_t)use,
                  .thread = (uint16_t)thread,
                  .pc = pc,
                  .agent = (uint8_t)(by_tensor ? FIRST_MBARRIER + lab->reading_barrier : BY_THREAD),
                  .time = by_tensor ? lab->worker->hopper->mbarriers[lab->reading_barrier].phase
                                    : lab->times[thread],
                  .global = true};
}

/** Makes the next fold look at a unit, of which bytes begin .. end - 1 of the chunk are used. */
static void touch(LabWorker *lab, Chunk *chunk, unsigned begin, unsigned end) {
  const unsigned unit = begin / UNIT_BYTES;
  need_histories(chunk, begin, end);
  lab->unfolded = true;
  chunk->page->touched[unit / BITS] |= UINT64_C(1) << unit % BITS;
}

void lab_use_global(LabWorker *lab, size_t region, uintptr_t address, unsigned size, Use use,
                    uint32_t pc) {
  const Region *r = &lab_regions[region];
  const Access access = access_of(lab, address, use, pc);
  const bool kept = (lab->checks & (LAB_BLOCKS | LAB_INIT)) != 0;
  const bool reads = use < WRITES || use == ATOMICALLY || use == ATOMIC_LOADS;
  const size_t first = address - r->begin;
  const bool unwritten = reads && lab->checks & LAB_INIT && !lab_is_written(r, first, size);
  bool own = true;
  if (!lab_is_atomic(use)) lab->dirty[access.thread] = SINCE_FENCE | SINCE_ATOMIC;
  if (use >= WRITES && use < ATOMIC_LOADS) lab_end_sequences(address, size);
  for (size_t offset = first; offset < first + size;) {
    Chunk *chunk = chunk_at(lab, region, offset);
    const unsigned begin = (unsigned)(offset % CHUNK_BYTES), unit = begin / UNIT_BYTES;
    const unsigned rest = (unsigned)(first + size - offset),
                   space = UNIT_BYTES - begin % UNIT_BYTES;
    const unsigned end = begin + (rest < space ? rest : space);
    Page *page = page_of(lab, chunk);
    if (kept) touch(lab, chunk, begin, end);
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
  Chunk *chunk = chunk_at(lab, region, offset);
  Page *page = page_of(lab, chunk);
  const unsigned begin = offset % CHUNK_BYTES;
  lab_note_copy_read(&access, &page->units[begin / UNIT_BYTES]);
  /* Before the block's first fence or atomic, the note of its start says the same. */
  if (lab->talked && lab->checks & LAB_BLOCKS) touch(lab, chunk, begin, begin + size);
}
