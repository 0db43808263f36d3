/*
 * Shared memory: who wrote each byte, and who has read it since the last barrier.
 *
 * Two accesses are ordered if the same thread makes them, if a barrier lies between them, or if
 * threads of one warp make them with a __syncwarp() between, or with an mbarrier or named barrier
 * at which all its lanes have arrived. mbarriers and named barriers order what one warp did before
 * it arrived and what another does after it has waited. Two accesses that are not ordered are a
 * race if one of them writes, unless both are atomic. Shuffles do not order memory.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

enum { UNIT = 16, WORD = 4, WORDS = UNIT / WORD, BYTES = WORD };

/** One access to cells. */
typedef struct Access {
  LabWorker *lab;
  uintptr_t address;
  Use use;
  int thread;
  uint32_t pc, warp_epoch;
  int agent; /* of a write: clocks.c */
  uint32_t clock;
} Access;

/* --- Storage -------------------------------------------------------------------------------- */

static Cell *map_cells(size_t count) {
  void *cells = mmap(NULL, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return cells == MAP_FAILED ? NULL : cells;
}

bool lab_create_shadow(SharedShadow *shadow, size_t bytes) {
  shadow->unit_count = bytes / UNIT + 2;
  shadow->units = map_cells(shadow->unit_count);
  shadow->words = map_cells(shadow->unit_count * WORDS);
  shadow->bytes = map_cells(shadow->unit_count * UNIT);
  return shadow->units != NULL && shadow->words != NULL && shadow->bytes != NULL;
}

static void unmap_cells(Cell *cells, size_t count) {
  if (cells != NULL) munmap(cells, count * sizeof(Cell));
}

void lab_free_shadow(SharedShadow *shadow) {
  unmap_cells(shadow->units, shadow->unit_count);
  unmap_cells(shadow->words, shadow->unit_count * WORDS);
  unmap_cells(shadow->bytes, shadow->unit_count * UNIT);
  unmap_cells(shadow->atomics, shadow->unit_count * WORDS);
  *shadow = (SharedShadow){0};
}

/* --- One cell ------------------------------------------------------------------------------- */

/** Is our access not ordered with the other access of this epoch? */
static inline bool unordered(const Access *access, uint16_t thread, uint32_t warp_epoch,
                             uint32_t clock) {
  if (thread == access->thread) return false;
  if (thread / WARP_SIZE == access->thread / WARP_SIZE) return warp_epoch == access->warp_epoch;
  return !lab_has_seen(access->lab, thread / WARP_SIZE, clock);
}

void lab_note_user(User users[3], User own) {
  if (!users[0].present) {
    users[0] = own;
  } else if (users[0].thread / WARP_SIZE != own.thread / WARP_SIZE) {
    if (!users[2].present) users[2] = own;
  } else if (users[0].warp_epoch != own.warp_epoch) {
    users[0] = own;
    users[1].present = false;
  } else if (users[0].thread != own.thread && !users[1].present) {
    users[1] = own;
  }
}

static const User *find_unordered(const Access *access, const User users[3]) {
  for (int i = 0; i < 3; i++) {
    if (users[i].present &&
        unordered(access, users[i].thread, users[i].warp_epoch, users[i].clock)) {
      return &users[i];
    }
  }
  return NULL;
}

const User *lab_find_unordered(const LabWorker *lab, const User users[3]) {
  const int thread = lab_thread(lab);
  const Access own = {.lab = (LabWorker *)lab,
                      .thread = thread,
                      .warp_epoch = lab->warp_epochs[thread / WARP_SIZE]};
  return find_unordered(&own, users);
}

void lab_forget_users(User users[3]) {
  for (int i = 0; i < 3; i++) users[i].present = false;
}

static void report(const Access *access, LabKind kind, uint32_t other_pc, uint16_t other_thread) {
  lab_report_here(access->lab, kind, access->pc, other_pc, other_thread, access->address);
}

static inline bool written_in_block(const Access *access, const Cell *cell) {
  return cell->write_epoch >= access->lab->first_epoch;
}

/** Was the last write a plain one by another thread, or a tensor copy, that is not ordered before
 * this access? */
static inline bool fresh_from_another(const Access *access, const Cell *cell) {
  if (cell->agent >= FIRST_MBARRIER) {
    return !lab_has_seen(access->lab, cell->agent, cell->write_clock);
  }
  return cell->write_epoch == access->lab->epoch && cell->state != UPDATED &&
         unordered(access, cell->writer, cell->write_warp_epoch, cell->write_clock);
}

/** Was it written by a plain store or cp.async, and not made visible to tensor copies and wgmma? */
static inline bool lacks_proxy_fence(const Access *access, const Cell *cell) {
  return access->use == READS_AS_PROXY && cell->state != UPDATED && cell->agent < FIRST_MBARRIER &&
         lab_hopper(access->lab)->proxy_fences[cell->writer / WARP_SIZE] == cell->write_fences;
}

/** The finding for a use of shared memory that a copy is on its way to. */
static LabKind not_waited(const Cell *cell) {
  return cell->agent >= FIRST_MBARRIER ? LAB_TENSOR_NOT_WAITED : LAB_COPY_NOT_WAITED;
}

static void check_read(const Access *access, const Cell *cell) {
  const unsigned checks = access->lab->checks;
  if (!written_in_block(access, cell)) {
    if (checks & LAB_INIT) report(access, LAB_SHARED_UNWRITTEN, 0, 0);
  } else if (checks & LAB_RACES) {
    if (cell->state == COPY_UNDER_WAY) {
      report(access, not_waited(cell), cell->write_pc, cell->writer);
    } else if (fresh_from_another(access, cell)) {
      const LabKind kind = cell->agent >= FIRST_MBARRIER ? LAB_TENSOR_NOT_WAITED
                           : cell->state == COPIED       ? LAB_COPY_NO_BARRIER
                                                         : LAB_RACE_WRITE_READ;
      report(access, kind, cell->write_pc, cell->writer);
    } else if (lacks_proxy_fence(access, cell)) {
      report(access, LAB_NO_PROXY_FENCE, cell->write_pc, cell->writer);
    }
  }
}

static void note_read(const Access *access, Cell *cell) {
  if (cell->read_epoch != access->lab->epoch) lab_forget_users(cell->readers);
  cell->read_epoch = access->lab->epoch;
  lab_note_user(cell->readers, (User){access->pc, access->warp_epoch,
                                      lab_clock(access->lab, access->thread / WARP_SIZE),
                                      (uint16_t)access->thread, true});
}

static void check_write(const Access *access, const Cell *cell) {
  if (!(access->lab->checks & LAB_RACES)) return;
  if (written_in_block(access, cell)) {
    if (cell->state == COPY_UNDER_WAY) {
      report(access, not_waited(cell), cell->write_pc, cell->writer);
    } else if (fresh_from_another(access, cell)) {
      const LabKind kind =
          cell->agent >= FIRST_MBARRIER ? LAB_TENSOR_NOT_WAITED : LAB_RACE_WRITE_WRITE;
      report(access, kind, cell->write_pc, cell->writer);
    }
  }
  if (cell->read_epoch != access->lab->epoch) return;
  const User *reader = find_unordered(access, cell->readers);
  if (reader == NULL) return;
  const LabKind kind = access->use == COPIES          ? LAB_COPY_OVER_READ
                       : access->use == TENSOR_COPIES ? LAB_TENSOR_OVER_READ
                                                      : LAB_RACE_READ_WRITE;
  report(access, kind, reader->pc, reader->thread);
}

static inline bool is_atomic(Use use) {
  return use == ATOMICALLY || use == EXCHANGES;
}

/** When and where the writing access takes place. */
static void note_time(const Access *access, Cell *cell) {
  cell->write_pc = access->pc;
  cell->write_epoch = access->lab->epoch;
  cell->write_warp_epoch = access->warp_epoch;
  cell->write_clock = access->clock;
  cell->agent = (uint8_t)access->agent;
  const LabHopper *hopper = access->lab->hopper;
  cell->write_fences = hopper == NULL ? 0 : hopper->proxy_fences[access->thread / WARP_SIZE];
}

static void note_write(const Access *access, Cell *cell) {
  note_time(access, cell);
  cell->writer = (uint16_t)access->thread;
  cell->state = access->use == COPIES || access->use == TENSOR_COPIES ? COPY_UNDER_WAY
                : is_atomic(access->use)                              ? UPDATED
                                                                      : STORED;
  cell->read_epoch = 0;
}

/** Keeps the note of a plain write, because all later atomics of other threads race with it. */
static void use_cell_atomically(const Access *access, Cell *cell) {
  const bool written = written_in_block(access, cell);
  if (!written && access->use == ATOMICALLY && access->lab->checks & LAB_INIT) {
    report(access, LAB_SHARED_UNWRITTEN, 0, 0);
  }
  check_write(access, cell);
  if (!written) note_write(access, cell);
}

static void use_cell(const Access *access, Cell *cell) {
  if (is_atomic(access->use)) {
    use_cell_atomically(access, cell);
  } else if (access->use == READS || access->use == READS_AS_PROXY) {
    check_read(access, cell);
    if (access->use == READS) note_read(access, cell);
  } else {
    check_write(access, cell);
    note_write(access, cell);
  }
}

/* --- Split cells ------------------------------------------------------------------------------ */

static void split(Cell *cell, Cell *finer, int count) {
  if (cell->split) return;
  for (int i = 0; i < count; i++) finer[i] = *cell;
  cell->split = true;
}

/** After a write of the whole cell, all its parts are equal. */
static void join(const Access *access, Cell *cell, const Cell *finer) {
  if (access->use < WRITES || is_atomic(access->use)) return;
  *cell = finer[0];
  cell->split = false;
}

/** Bytes begin .. end - 1 of a word. */
static void use_word(const Access *access, Cell *word, Cell *bytes, unsigned begin, unsigned end) {
  const bool whole = begin == 0 && end == BYTES;
  if (whole && !word->split) {
    use_cell(access, word);
    return;
  }
  split(word, bytes, BYTES);
  for (unsigned i = begin; i < end; i++) use_cell(access, &bytes[i]);
  if (whole) join(access, word, bytes);
}

static void use_unit(const Access *access, size_t unit, unsigned begin, unsigned end) {
  SharedShadow *shadow = &access->lab->shadow;
  Cell *cell = &shadow->units[unit];
  const bool whole = begin == 0 && end == UNIT;
  if (whole && !cell->split) {
    use_cell(access, cell);
    return;
  }
  Cell *words = &shadow->words[unit * WORDS];
  split(cell, words, WORDS);
  for (unsigned i = begin / WORD; i <= (end - 1) / WORD; i++) {
    const unsigned first = i * WORD;
    use_word(access, &words[i], &shadow->bytes[unit * UNIT + first],
             begin > first ? begin - first : 0, end < first + WORD ? end - first : WORD);
  }
  if (whole) join(access, cell, words);
}

static size_t unit_of(const LabWorker *lab, uintptr_t address) {
  return address / UNIT - lab->shared / UNIT;
}

/* --- Atomics -------------------------------------------------------------------------------- */

static Cell *atomics_at(const Access *access, uintptr_t address) {
  return &access->lab->shadow.atomics[address / WORD - access->lab->shared / UNIT * WORDS];
}

static void note_atomic(const Access *access, unsigned size) {
  SharedShadow *shadow = &access->lab->shadow;
  if (shadow->atomics == NULL) shadow->atomics = map_cells(shadow->unit_count * WORDS);
  if (shadow->atomics == NULL) abort();
  for (unsigned at = 0; at < size; at += WORD) {
    note_read(access, atomics_at(access, access->address + at));
  }
}

/** A plain access races with an atomic of another thread that is not ordered before it. */
static void check_against_atomics(const Access *access, unsigned size) {
  const uintptr_t last = access->address + size - 1;
  for (uintptr_t at = access->address / WORD * WORD; at <= last; at += WORD) {
    const Cell *cell = atomics_at(access, at);
    if (cell->read_epoch != access->lab->epoch) continue;
    const User *user = find_unordered(access, cell->readers);
    if (user == NULL) continue;
    report(access, access->use == READS ? LAB_RACE_WRITE_READ : LAB_RACE_WRITE_WRITE, user->pc,
           user->thread);
    return;
  }
}

void lab_use_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, int thread,
                    uint32_t pc) {
  const int warp = thread / WARP_SIZE;
  const Access access = {lab,
                         address,
                         use,
                         thread,
                         pc,
                         lab->warp_epochs[warp],
                         use == TENSOR_COPIES ? FIRST_MBARRIER : warp,
                         lab_clock(lab, warp)};
  const uintptr_t end = address + size;
  if (use != READS && use != READS_AS_PROXY && lab->checks & LAB_RACES) {
    lab_check_async_reads(lab, address, size, pc);
  }
  if (is_atomic(use)) {
    note_atomic(&access, size);
  } else if (lab->shadow.atomics != NULL && lab->checks & LAB_RACES) {
    check_against_atomics(&access, size);
  }
  while (address < end) {
    const unsigned begin = address % UNIT;
    const unsigned rest = (unsigned)(end - address);
    const unsigned until = begin + rest < UNIT ? begin + rest : UNIT;
    use_unit(&access, unit_of(lab, address), begin, until);
    address += until - begin;
  }
}

static void arrive(const Access *access, Cell *cell) {
  if (cell->state != COPY_UNDER_WAY || cell->writer != access->thread) return;
  note_time(access, cell);
  cell->state = COPIED;
}

/** From its wait on, a cp.async counts as a store that its thread makes at that point; a tensor
 * copy as a store in the current phase of its mbarrier. */
void lab_copy_arrived(LabWorker *lab, uintptr_t address, int thread, int barrier, uint32_t pc) {
  const int warp = thread / WARP_SIZE;
  const bool by_tensor = barrier >= 0;
  const Access access = {
      lab,
      address,
      COPIES,
      thread,
      pc,
      lab->warp_epochs[warp],
      by_tensor ? FIRST_MBARRIER + barrier : warp,
      by_tensor ? lab->worker->hopper->mbarriers[barrier].phase : lab_clock(lab, warp)};
  const size_t unit = unit_of(lab, address);
  Cell *words = &lab->shadow.words[unit * WORDS], *bytes = &lab->shadow.bytes[unit * UNIT];
  arrive(&access, &lab->shadow.units[unit]);
  for (int i = 0; i < WORDS && lab->shadow.units[unit].split; i++) {
    arrive(&access, &words[i]);
    for (int k = 0; k < BYTES && words[i].split; k++) arrive(&access, &bytes[i * BYTES + k]);
  }
}
