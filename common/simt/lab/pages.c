/*
 * What is noted of global memory. What the running block has accessed since its last barrier is in
 * pages of cells, as for shared memory; barriers of the block, and what makes threads know of other
 * blocks, add it to the histories of the memory, by which blocks.c finds races between blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { LARGEST_GRAIN = 16, GRAIN_STEP = 4 };

/* --- Chunks and pages ----------------------------------------------------------------------- */

Chunk *lab_chunk_at(LabWorker *lab, size_t region, size_t offset) {
  if (lab->chunks == NULL) {
    lab->chunks_regions = lab_region_count;
    lab->chunks = simt_zeroed(lab_region_count, sizeof *lab->chunks);
  }
  if (lab->chunks[region] == NULL) {
    lab->chunks[region] = simt_zeroed(lab_chunk_count(&lab_regions[region]), sizeof(Chunk));
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

Page *lab_page_of(LabWorker *lab, Chunk *chunk) {
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
    chunk->histories = simt_zeroed(CHUNK_BYTES / LARGEST_GRAIN, sizeof *chunk->histories);
  }
  while ((begin | end) % chunk->grain != 0) {
    chunk->grain /= GRAIN_STEP;
    const unsigned pieces = CHUNK_BYTES / chunk->grain;
    uint32_t *finer = simt_zeroed(pieces, sizeof *finer);
    for (unsigned i = 0; i < pieces; i++) finer[i] = chunk->histories[i / GRAIN_STEP];
    free(chunk->histories);
    chunk->histories = finer;
  }
}

void lab_touch(LabWorker *lab, Chunk *chunk, unsigned begin, unsigned end) {
  const unsigned unit = begin / UNIT_BYTES;
  need_histories(chunk, begin, end);
  lab->unfolded = true;
  chunk->page->touched[unit / TOUCHED_BITS] |= UINT64_C(1) << unit % TOUCHED_BITS;
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
    for (unsigned i = 0; i < CHUNK_UNITS / TOUCHED_BITS; i++) {
      for (uint64_t rest = page->touched[i]; rest != 0; rest &= rest - 1) {
        const unsigned unit = i * TOUCHED_BITS + (unsigned)__builtin_ctzll(rest);
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
