/*
 * Cells: who wrote some bytes last, and who has read them since. Shared memory has cells for all of
 * a block's accesses, global memory for those since the last barrier of the block.
 *
 * Two accesses are ordered if the same thread makes them, if a barrier of the block lies between
 * them, or as clocks.c and talk.c say. Two accesses that are not ordered are a race if one of them
 * writes, unless both are atomic. A cell keeps every reader that a later write may race with; of a
 * reader that is ordered before the next one of its warp it keeps the next one only.
 */
#include <string.h>

#include "internal.h"

enum { UNIT = 16 };

/* --- Readers -------------------------------------------------------------------------------- */

static Reader *add_reader(LabWorker *lab, Cell *cell) {
  const unsigned capacity = cell->capacity != 0 ? cell->capacity : FEW_READERS;
  if (cell->count == capacity) {
    const unsigned wanted = cell->capacity != 0 ? 2 * capacity : MORE_READERS;
    Reader *larger = lab_allocate(lab, wanted * sizeof *larger);
    memcpy(larger, lab_readers(cell), cell->count * sizeof *larger);
    cell->readers = larger;
    cell->capacity = (uint16_t)wanted;
  }
  return &(cell->capacity != 0 ? cell->readers : cell->few)[cell->count++];
}

/** Does every access that races with `reader` race with this one too, if one thread makes both? */
static inline bool is_alike(const Access *access, const Reader *reader) {
  return lab_is_atomic(access->use) ? reader->use == access->use : !lab_is_atomic(reader->use);
}

/** Is the access like those of this reader, but perhaps by another lane? If those are in the
 * histories, lanes may know more by now. */
static inline bool is_same(const Access *access, const Reader *reader) {
  return reader->time == access->time && reader->pc == access->pc &&
         reader->warp == access->thread / WARP_SIZE && reader->agent == access->agent &&
         reader->use == access->use && !reader->folded;
}

/** Notes a read or an atomic that is not like the one noted before. */
static __attribute__((noinline)) void add_user(const Access *access, Cell *cell) {
  LabWorker *lab = access->lab;
  const unsigned warp = access->thread / WARP_SIZE;
  const uint32_t bit = 1u << access->thread % WARP_SIZE;
  Reader *readers = (Reader *)lab_readers(cell), *free_place = NULL;
  const bool new_warp = !(cell->reading_warps >> warp & 1);
  cell->reading_warps |= 1u << warp;
  for (unsigned i = 0; i < cell->count && !new_warp; i++) {
    Reader *reader = &readers[i];
    if (reader->warp != warp || reader->agent != access->agent) continue;
    if (is_same(access, reader)) {
      reader->lanes |= bit;
      cell->recent = (uint16_t)i;
      return;
    }
    if (!is_alike(access, reader)) continue;
    /* What is ordered before this access need not be kept. */
    const bool peer = access->agent >= FIRST_PEER;
    const bool all = !peer && (access->agent != BY_THREAD || reader->time < lab->synced[warp]);
    reader->lanes = all ? 0 : reader->lanes & ~bit;
    if (reader->lanes == 0) free_place = reader;
  }
  if (free_place == NULL) free_place = add_reader(lab, cell);
  cell->recent = (uint16_t)(free_place - lab_readers(cell));
  *free_place =
      (Reader){access->pc, access->time, bit, access->agent, (uint8_t)warp, access->use, false};
  cell->has_atomics |= lab_is_atomic(access->use);
  cell->has_peers |= access->agent >= FIRST_PEER;
}

/** At the first use in an epoch: a barrier of the block orders only what its own threads did. */
static void begin_users(LabWorker *lab, Cell *cell) {
  Reader *readers = (Reader *)lab_readers(cell);
  const unsigned count = cell->has_peers && cell->read_epoch >= lab->first_epoch ? cell->count : 0;
  cell->read_epoch = lab->epoch;
  cell->count = 0;
  cell->has_atomics = false;
  for (unsigned i = 0; i < count; i++) {
    if (readers[i].agent < FIRST_PEER) continue;
    cell->has_atomics |= lab_is_atomic(readers[i].use);
    readers[cell->count++] = readers[i];
  }
  cell->has_peers = cell->count > 0;
  cell->reading_warps = cell->has_peers ? ~0u : 0;
  cell->recent = 0;
}

static inline void note_user(const Access *access, Cell *cell) {
  const bool peer = access->agent >= FIRST_PEER;
  if (cell->read_epoch != access->lab->epoch &&
      (!peer || cell->read_epoch < access->lab->first_epoch)) {
    begin_users(access->lab, cell);
  } else if (cell->count > 0) {
    Reader *recent = (Reader *)&lab_readers(cell)[cell->recent];
    if (is_same(access, recent)) {
      recent->lanes |= 1u << access->thread % WARP_SIZE;
      return;
    }
  }
  add_user(access, cell);
}

/** Is it a race if this reader and the access are not ordered? */
static inline bool conflicts(const Access *access, const Reader *reader) {
  if (lab_is_atomic(access->use)) {
    return access->use != ATOMIC_LOADS && !lab_is_atomic(reader->use);
  }
  if (reader->use > READS && reader->use < WRITES && access->lab->source_reported) return false;
  return access->use >= WRITES || reader->use > ATOMIC_LOADS;
}

/** Is the access one by another block of the cluster, or of a copy that such a block has issued? */
static inline bool is_remote(const Access *access) {
  return access->by != access->lab;
}

/** Of lanes of the block, or of another one of its cluster, those whose accesses are not ordered
 * before this one. `epoch`: in which these were made. */
static uint32_t unordered_lanes(const Access *access, int agent, int warp, uint32_t lanes,
                                uint32_t epoch, uint32_t time) {
  if (agent >= FIRST_PEER) {
    return lab_unordered_peer(access, (unsigned)(agent - FIRST_PEER), warp, lanes, time);
  }
  if (!is_remote(access)) {
    if (epoch != access->lab->epoch && agent == BY_THREAD) return 0;
    return lab_unordered(access->lab, access->thread, agent, warp, lanes, time);
  }
  const Talk *talk = access->by->talk[access->thread];
  return lab_unknown(talk != NULL ? talk->peers : NULL, access->lab->worker->rank, agent, warp,
                     lanes, epoch, time);
}

/** A reader or atomic that the access races with; NULL: none. */
static const Reader *find_race(const Access *access, const Cell *cell, int *thread) {
  if (cell->read_epoch != access->lab->epoch && !cell->has_peers && !is_remote(access)) return NULL;
  if (cell->read_epoch < access->lab->first_epoch) return NULL;
  const Reader *readers = lab_readers(cell);
  for (unsigned i = 0; i < cell->count; i++) {
    const Reader *reader = &readers[i];
    if (!conflicts(access, reader)) continue;
    const uint32_t lanes = unordered_lanes(access, reader->agent, reader->warp, reader->lanes,
                                           cell->read_epoch, reader->time);
    if (lanes == 0) continue;
    *thread = reader->warp * WARP_SIZE + __builtin_ctz(lanes);
    return reader;
  }
  return NULL;
}

/* --- Findings ------------------------------------------------------------------------------- */

static void report(const Access *access, LabKind kind, uint32_t other_pc, int other_thread) {
  static const LabKind GLOBAL[] = {[LAB_RACE_WRITE_READ] = LAB_GLOBAL_RACE_WRITE_READ,
                                   [LAB_RACE_READ_WRITE] = LAB_GLOBAL_RACE_READ_WRITE,
                                   [LAB_RACE_WRITE_WRITE] = LAB_GLOBAL_RACE_WRITE_WRITE};
  if (access->global && kind <= LAB_RACE_WRITE_WRITE) kind = GLOBAL[kind];
  lab_report_here(access->by, kind, access->pc, other_pc, (uint64_t)other_thread, access->address);
}

/** A thread has written what the running thread's cp.async reads: the report names the writer. */
static void report_source(const Access *access, const Cell *cell) {
  LabWorker *lab = access->lab;
  lab->worker->running = cell->writer;
  lab_report_here(lab, LAB_COPY_SOURCE_WRITTEN, cell->write_pc, access->pc,
                  (uint64_t)access->thread, access->address);
  lab->worker->running = access->thread;
}

static inline bool written_in_block(const Access *access, const Cell *cell) {
  return cell->write_epoch >= access->lab->first_epoch;
}

/** Was the last write a plain one by another thread, or a tensor copy, that is not ordered before
 * this access? */
static inline bool fresh_from_another(const Access *access, const Cell *cell) {
  if (is_remote(access) || cell->agent >= FIRST_PEER) {
    if (cell->state == UPDATED) return false;
    return unordered_lanes(access, cell->agent, cell->writer / WARP_SIZE,
                           1u << cell->writer % WARP_SIZE, cell->write_epoch,
                           cell->write_time) != 0;
  }
  if (cell->agent != BY_THREAD) return !lab_has_seen(access->lab, cell->agent, cell->write_time);
  return cell->write_epoch == access->lab->epoch && cell->state != UPDATED &&
         cell->writer != access->thread &&
         lab_unordered(access->lab, access->thread, BY_THREAD, cell->writer / WARP_SIZE,
                       1u << cell->writer % WARP_SIZE, cell->write_time) != 0;
}

/** Was it written by a plain store or cp.async, and not made visible to tensor copies and wgmma? */
static inline bool lacks_proxy_fence(const Access *access, const Cell *cell) {
  if (access->use != READS_AS_PROXY || cell->state == UPDATED) return false;
  const int warp = cell->writer / WARP_SIZE;
  if (cell->agent >= FIRST_PEER) {
    Worker *writer = access->lab->worker->cluster->members[cell->agent - FIRST_PEER];
    return lab_hopper(writer->lab)->cluster_fences[warp] == cell->write_fences;
  }
  return cell->agent == BY_THREAD &&
         lab_hopper(access->lab)->proxy_fences[warp] == cell->write_fences;
}

static inline bool by_tensor_copy(const Cell *cell) {
  return cell->agent != BY_THREAD && cell->agent < FIRST_PEER;
}

/** The finding for a use of shared memory that a copy is on its way to. */
static LabKind not_waited(const Cell *cell) {
  return by_tensor_copy(cell) ? LAB_TENSOR_NOT_WAITED : LAB_COPY_NOT_WAITED;
}

/** Does the running block see another value than the one last written? Reports it. */
static void check_write_read(const Access *access, const Cell *cell) {
  if (cell->state == COPY_UNDER_WAY) {
    report(access, not_waited(cell), cell->write_pc, cell->writer);
  } else if (!fresh_from_another(access, cell)) {
    if (!lacks_proxy_fence(access, cell)) return;
    report(access, LAB_NO_PROXY_FENCE, cell->write_pc, cell->writer);
  } else if (access->use == COPY_READS) {
    report_source(access, cell);
  } else {
    report(access,
           by_tensor_copy(cell)    ? LAB_TENSOR_NOT_WAITED
           : cell->state == COPIED ? LAB_COPY_NO_BARRIER
                                   : LAB_RACE_WRITE_READ,
           cell->write_pc, cell->writer);
  }
}

static void check_read(const Access *access, const Cell *cell) {
  const unsigned checks = access->lab->checks;
  if (cell->has_atomics && checks & LAB_RACES) {
    int thread;
    const Reader *updater = find_race(access, cell, &thread);
    if (updater != NULL) report(access, LAB_RACE_WRITE_READ, updater->pc, thread);
  }
  if (!written_in_block(access, cell)) {
    if (checks & LAB_INIT && !access->global) report(access, LAB_SHARED_UNWRITTEN, 0, 0);
  } else if (checks & LAB_RACES) {
    check_write_read(access, cell);
  }
}

static void check_write(const Access *access, const Cell *cell) {
  if (!(access->lab->checks & LAB_RACES)) return;
  if (written_in_block(access, cell)) {
    if (cell->state == COPY_UNDER_WAY) {
      report(access, not_waited(cell), cell->write_pc, cell->writer);
    } else if (fresh_from_another(access, cell)) {
      const LabKind kind = by_tensor_copy(cell)          ? LAB_TENSOR_NOT_WAITED
                           : access->use == ATOMIC_LOADS ? LAB_RACE_WRITE_READ
                                                         : LAB_RACE_WRITE_WRITE;
      report(access, kind, cell->write_pc, cell->writer);
    }
  }
  int thread;
  const Reader *reader = find_race(access, cell, &thread);
  if (reader == NULL) return;
  const LabKind kind = reader->use == COPY_READS      ? LAB_COPY_SOURCE_WRITTEN
                       : reader->use == ATOMIC_LOADS  ? LAB_RACE_READ_WRITE
                       : lab_is_atomic(reader->use)   ? LAB_RACE_WRITE_WRITE
                       : access->use == COPIES        ? LAB_COPY_OVER_READ
                       : access->use == TENSOR_COPIES ? LAB_TENSOR_OVER_READ
                                                      : LAB_RACE_READ_WRITE;
  report(access, kind, reader->pc, thread);
}

/* --- One cell ------------------------------------------------------------------------------- */

/** When and where the writing access takes place. */
static void note_time(const Access *access, Cell *cell) {
  cell->write_pc = access->pc;
  cell->write_epoch = access->lab->epoch;
  cell->write_time = access->time;
  cell->agent = access->agent;
  cell->folded = false;
  const LabHopper *hopper = access->by->hopper;
  const int warp = access->thread / WARP_SIZE;
  cell->write_fences = hopper == NULL      ? 0
                       : is_remote(access) ? hopper->cluster_fences[warp]
                                           : hopper->proxy_fences[warp];
}

static void note_write(const Access *access, Cell *cell) {
  note_time(access, cell);
  cell->writer = access->thread;
  cell->state = access->use == COPIES || access->use == TENSOR_COPIES ? COPY_UNDER_WAY
                : lab_is_atomic(access->use)                          ? UPDATED
                                                                      : STORED;
}

/** Keeps the note of a plain write, because all later atomics of other threads race with it. */
static void use_cell_atomically(const Access *access, Cell *cell) {
  const bool written = written_in_block(access, cell) || access->global;
  if (!written && lab_updates(access->use) && access->lab->checks & LAB_INIT) {
    report(access, LAB_SHARED_UNWRITTEN, 0, 0);
  }
  check_write(access, cell);
  if (!written) note_write(access, cell);
  note_user(access, cell);
}

static void use_cell(const Access *access, Cell *cell) {
  if (lab_is_atomic(access->use)) {
    use_cell_atomically(access, cell);
  } else if (access->use < WRITES) {
    check_read(access, cell);
    if (access->use != READS_AS_PROXY) note_user(access, cell);
  } else {
    check_write(access, cell);
    note_write(access, cell);
    cell->read_epoch = 0;
    cell->has_atomics = cell->has_peers = false;
  }
}

/* --- Split cells ------------------------------------------------------------------------------ */

/** Copies all but the finer cells, and the readers to memory of the target. */
static void copy_cell(LabWorker *lab, Cell *target, const Cell *source) {
  const Cell before = *target;
  *target = *source;
  target->finer = before.finer;
  target->split = false;
  target->count = 0;
  target->capacity = before.capacity;
  if (before.capacity != 0) target->readers = before.readers;
  if (source->read_epoch != lab->epoch && !source->has_peers) return;
  for (unsigned i = 0; i < source->count; i++) *add_reader(lab, target) = lab_readers(source)[i];
}

static void split(LabWorker *lab, Cell *cell) {
  if (cell->split) return;
  if (cell->finer == NULL) cell->finer = lab_allocate(lab, CELL_PARTS * sizeof *cell->finer);
  for (int i = 0; i < CELL_PARTS; i++) copy_cell(lab, &cell->finer[i], cell);
  cell->split = true;
}

/** Bytes begin .. end - 1 of a cell of `size` bytes. */
static void use_part(const Access *access, Cell *cell, unsigned size, unsigned begin,
                     unsigned end) {
  const bool whole = begin == 0 && end == size;
  if (whole && !cell->split) {
    use_cell(access, cell);
    return;
  }
  split(access->lab, cell);
  const unsigned part = size / CELL_PARTS;
  for (unsigned i = begin / part; i <= (end - 1) / part; i++) {
    const unsigned first = i * part;
    use_part(access, &cell->finer[i], part, begin > first ? begin - first : 0,
             end < first + part ? end - first : part);
  }
  /* After a write of the whole cell, all its parts are equal. */
  if (whole && access->use >= WRITES && !lab_is_atomic(access->use)) {
    copy_cell(access->lab, cell, &cell->finer[0]);
  }
}

void lab_use_unit(const Access *access, Cell *unit, unsigned begin, unsigned end) {
  if (unit->split && begin % CELL_PARTS == 0 && end == begin + CELL_PARTS &&
      !unit->finer[begin / CELL_PARTS].split) {
    use_cell(access, &unit->finer[begin / CELL_PARTS]);
    return;
  }
  use_part(access, unit, UNIT, begin, end);
}

/* --- Copies --------------------------------------------------------------------------------- */

void lab_arrive_in_cell(const Access *access, Cell *cell) {
  for (int i = 0; i < CELL_PARTS && cell->split; i++) lab_arrive_in_cell(access, &cell->finer[i]);
  if (cell->split || cell->state != COPY_UNDER_WAY || cell->writer != access->thread) return;
  note_time(access, cell);
  cell->state = COPIED;
}

void lab_note_copy_read(const Access *access, Cell *cell) {
  for (int i = 0; i < CELL_PARTS && cell->split; i++) lab_note_copy_read(access, &cell->finer[i]);
  if (!cell->split) note_user(access, cell);
}
