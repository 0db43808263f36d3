/*
 * Races between blocks: merges the global memory accesses of all blocks when a launch has ended.
 * The result depends neither on the order of blocks nor on their distribution over OS threads.
 */
#include <stdlib.h>

#include "internal.h"

/** A block, counted from 1 (0: none), and where it accessed a byte. */
typedef struct Visit {
  uint32_t block, pc;
} Visit;

/** The accesses to a byte in all workers: the two lowest blocks of each kind. */
typedef struct Summary {
  Visit writers[2], readers[2], users[2]; /* users: by atomics */
} Summary;

/** Each block runs on one worker, so it is merged only once. */
static void merge(Visit *visits, const uint32_t blocks[2], const uint16_t sites[2],
                  const SiteTable *table) {
  for (int i = 0; i < 2 && blocks[i] != 0; i++) {
    const Visit own = {blocks[i], table->sites[sites[i]].pc};
    if (visits[0].block == 0 || own.block < visits[0].block) {
      visits[1] = visits[0];
      visits[0] = own;
    } else if (visits[1].block == 0 || own.block < visits[1].block) {
      visits[1] = own;
    }
  }
}

static const Chunk *chunk_of(const LabWorker *lab, size_t region, size_t chunk) {
  if (lab == NULL || lab->chunks == NULL || lab->chunks[region] == NULL) return NULL;
  const Chunk *c = &lab->chunks[region][chunk];
  return c->touchers != NULL ? c : NULL;
}

/** The accesses to byte `at` of a chunk. */
static Summary summarise(LabWorker *const *workers, int count, size_t region, size_t chunk,
                         unsigned at) {
  Summary s = {.writers = {{0}}};
  for (int i = 0; i < count; i++) {
    const Chunk *c = chunk_of(workers[i], region, chunk);
    if (c == NULL) continue;
    const Toucher *t = &c->touchers[at / c->grain];
    merge(s.writers, t->writers, t->write_sites, &workers[i]->sites);
    merge(s.readers, t->readers, t->read_sites, &workers[i]->sites);
    if (c->atomics == NULL) continue;
    const Toucher *a = &c->atomics[at / c->grain];
    merge(s.users, a->writers, a->write_sites, &workers[i]->sites);
  }
  return s;
}

/** Bytes that the same blocks accessed. */
typedef struct Piece {
  const Launch *launch;
  const Region *region;
  size_t offset;
  unsigned bytes;
} Piece;

static void add_race(FindingList *findings, const Piece *piece, LabKind kind, Visit visit,
                     Visit other) {
  const RawFinding key = {.kernel = piece->launch->kernel,
                          .kind = kind,
                          .pc = visit.pc,
                          .other_pc = other.pc,
                          .has_thread = false,
                          .block = visit.block - 1,
                          .other_block = other.block - 1};
  bool made;
  RawFinding *finding = lab_find_or_make(findings, &key, &made);
  finding->count += piece->bytes;
  if (made) {
    lab_describe_region(piece->region, piece->region->begin + piece->offset, finding->where,
                        sizeof finding->where);
  }
}

/** Reports a race between the lowest two different blocks of `visits` and `others`. */
static void judge_pair(LabKind kind, const Visit *visits, const Visit *others, const Piece *piece,
                       FindingList *findings) {
  if (visits[0].block == 0 || others[0].block == 0) return;
  if (visits[0].block != others[0].block) {
    add_race(findings, piece, kind, visits[0], others[0]);
  } else if (visits[1].block != 0) {
    add_race(findings, piece, kind, visits[1], others[0]);
  } else if (others[1].block != 0) {
    add_race(findings, piece, kind, visits[0], others[1]);
  }
}

static void judge(const Summary *s, const Piece *piece, FindingList *findings) {
  if (s->writers[1].block != 0) {
    add_race(findings, piece, LAB_BLOCKS_WRITE_WRITE, s->writers[0], s->writers[1]);
  }
  judge_pair(LAB_BLOCKS_WRITE_READ, s->readers, s->writers, piece, findings);
  judge_pair(LAB_BLOCKS_WRITE_WRITE, s->writers, s->users, piece, findings);
  judge_pair(LAB_BLOCKS_WRITE_READ, s->readers, s->users, piece, findings);
}

static void end_chunk(LabWorker *const *workers, int count, const Launch *launch, size_t region,
                      size_t chunk, bool check_blocks, FindingList *findings) {
  unsigned grain = CHUNK_BYTES;
  for (int i = 0; i < count; i++) {
    const Chunk *c = chunk_of(workers[i], region, chunk);
    if (c != NULL && c->grain < grain) grain = c->grain;
  }
  if (grain == CHUNK_BYTES) return;
  const Region *r = &lab_regions[region];
  for (unsigned at = 0; at < CHUNK_BYTES; at += grain) {
    const Summary s = summarise(workers, count, region, chunk, at);
    if (s.writers[0].block == 0 && s.users[0].block == 0) continue;
    const Piece piece = {launch, r, chunk * CHUNK_BYTES + at, grain};
    lab_mark_written(r, piece.offset, piece.offset + grain);
    if (check_blocks) judge(&s, &piece, findings);
  }
}

static void free_chunks(LabWorker *lab) {
  for (size_t region = 0; lab->chunks != NULL && region < lab->chunks_regions; region++) {
    if (lab->chunks[region] == NULL) continue;
    const size_t count = lab_chunk_count(&lab_regions[region]);
    for (size_t i = 0; i < count; i++) {
      free(lab->chunks[region][i].touchers);
      free(lab->chunks[region][i].atomics);
    }
    free(lab->chunks[region]);
  }
  free(lab->chunks);
  lab->chunks = NULL;
}

void lab_end_regions(LabWorker *const *workers, int count, const Launch *launch, bool check_blocks,
                     FindingList *findings) {
  for (size_t region = 0; region < lab_region_count; region++) {
    const size_t chunks = lab_chunk_count(&lab_regions[region]);
    for (size_t chunk = 0; chunk < chunks; chunk++) {
      end_chunk(workers, count, launch, region, chunk, check_blocks, findings);
    }
  }
  lab_forget_touched(workers, count);
}

void lab_forget_touched(LabWorker *const *workers, int count) {
  for (int i = 0; i < count; i++) free_chunks(workers[i]);
  free(lab_regions);
  lab_regions = NULL;
  lab_region_count = 0;
}
