/*
 * Reads of global memory that neither the host, nor an earlier launch, nor the reading block wrote.
 * If the block uses no atomics or fences, they become findings when it ends. Otherwise another
 * block may have written the memory and signalled it; this is decided when the launch ends. The
 * result does not depend on the order of blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/** Reads of one place by one instruction in one block. */
typedef struct Suspect {
  size_t region, offset;
  uint64_t block, thread; /* the lowest thread */
  uint64_t count;
  uint32_t pc;
  uint8_t size;
  bool atomic;
} Suspect;

/** `list`: of the running block, in the order of their first read; `kept`: of earlier blocks. */
typedef struct Suspects {
  Suspect *list;
  size_t count;
  Table by_place; /* 1 + index */
  Suspect *kept;
  size_t kept_count;
} Suspects;

void lab_suspect_read(LabWorker *lab, size_t region, size_t offset, unsigned size, Use use,
                      uint32_t pc) {
  if (lab->suspects == NULL) lab->suspects = simt_zeroed(1, sizeof *lab->suspects);
  Suspects *s = lab->suspects;
  const Suspect own = {.region = region,
                       .offset = offset,
                       .block = lab->block,
                       .thread = (uint64_t)lab_thread(lab),
                       .pc = pc,
                       .size = (uint8_t)size,
                       .atomic = lab_updates(use)};
  /* All reads of one place by one instruction have the same size. */
  const uint64_t site = lab_site(&lab->sites, pc);
  uint32_t *entry = lab_entry(&s->by_place, (lab_regions[region].begin + offset) << 16 ^ site);
  if (*entry == 0) {
    s->list = simt_with_room(s->list, s->count, sizeof *s->list);
    s->list[s->count++] = own;
    *entry = (uint32_t)s->count;
  }
  Suspect *suspect = &s->list[*entry - 1];
  suspect->count++;
  if (own.thread < suspect->thread) suspect->thread = own.thread;
}

static void add(const LabWorker *lab, const Suspect *suspect, FindingList *findings) {
  RawFinding finding = {.kernel = lab->launch->kernel,
                        .kind = LAB_GLOBAL_UNWRITTEN,
                        .pc = suspect->pc,
                        .count = suspect->count,
                        .has_thread = true,
                        .block = suspect->block,
                        .thread = suspect->thread};
  const Region *region = &lab_regions[suspect->region];
  lab_describe_region(region, region->begin + suspect->offset, finding.where, sizeof finding.where);
  lab_add_finding(findings, &finding);
}

/* --- When the block has ended --------------------------------------------------------------- */

static int by_place(const void *a, const void *b) {
  const Suspect *x = a, *y = b;
  if (x->region != y->region) return x->region < y->region ? -1 : 1;
  return (x->offset > y->offset) - (x->offset < y->offset);
}

void lab_end_suspects(LabWorker *lab) {
  Suspects *s = lab->suspects;
  if (s == NULL || s->count == 0) return;
  /* Of several places that a thread reads, the lowest is reported. */
  qsort(s->list, s->count, sizeof *s->list, by_place);
  if (lab->talked) {
    s->kept = simt_resized(s->kept, (s->kept_count + s->count) * sizeof *s->kept);
    memcpy(s->kept + s->kept_count, s->list, s->count * sizeof *s->list);
    s->kept_count += s->count;
  } else {
    for (size_t i = 0; i < s->count; i++) add(lab, &s->list[i], &lab->block_findings);
  }
  lab_clear_table(&s->by_place);
  s->count = 0;
}

/* --- When the launch has ended --------------------------------------------------------------- */

/** Has a block other than `own` written this byte, or set it by an atomic? */
static bool written_elsewhere(const LabWorker *lab, size_t region, size_t offset, uint32_t own) {
  if (lab->chunks == NULL || lab->chunks[region] == NULL) return false;
  const Chunk *chunk = &lab->chunks[region][offset / CHUNK_BYTES];
  if (chunk->histories == NULL) return false;
  const uint32_t history = chunk->histories[offset % CHUNK_BYTES / chunk->grain];
  return lab_history_writes(lab, history, own, true, false);
}

static bool all_written_elsewhere(LabWorker *const *workers, int count, const Suspect *suspect) {
  const uint32_t own = lab_block_tag(suspect->block);
  for (unsigned i = 0; i < suspect->size; i++) {
    bool written = false;
    for (int w = 0; w < count && !written; w++) {
      written = written_elsewhere(workers[w], suspect->region, suspect->offset + i, own);
    }
    if (!written) return false;
  }
  return true;
}

void lab_judge_suspects(LabWorker *const *workers, int count, bool talk, FindingList *findings) {
  for (int w = 0; w < count; w++) {
    const Suspects *s = workers[w]->suspects;
    for (size_t i = 0; s != NULL && i < s->kept_count; i++) {
      const Suspect *suspect = &s->kept[i];
      /* Without fences, only an atomic reliably reads a value that another block has set. */
      const bool excused =
          (talk || suspect->atomic) && all_written_elsewhere(workers, count, suspect);
      if (!excused) add(workers[w], suspect, findings);
    }
  }
}

void lab_free_suspects(LabWorker *lab) {
  if (lab->suspects == NULL) return;
  free(lab->suspects->list);
  lab_free_table(&lab->suspects->by_place);
  free(lab->suspects->kept);
  free(lab->suspects);
}
