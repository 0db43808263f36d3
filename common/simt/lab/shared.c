/* The cells of shared memory, of 16 bytes each, or finer: cells.c. */
#include "internal.h"

/* --- What wgmma and tensor stores read -------------------------------------------------------- */

AsyncReads *lab_async_reads(LabWorker *lab, uintptr_t address) {
  AsyncReads *reads = &lab_hopper(lab)->reads[(address - lab->dynamic) / COPY_BYTES];
  if (reads->block_epoch != lab->first_epoch) {
    *reads = (AsyncReads){.block_epoch = lab->first_epoch};
  }
  return reads;
}

void lab_begin_async_read(LabWorker *lab, uintptr_t address, uint32_t pc) {
  AsyncReads *reads = lab_async_reads(lab, address);
  reads->under_way++;
  reads->pc = pc;
  reads->thread = (uint16_t)lab_thread(lab);
}

/** Has the thread that makes the access waited for what a warpgroup did at this time? */
static bool has_seen(const Access *access, int agent, uint32_t time) {
  if (access->by == access->lab) return lab_has_seen(access->lab, agent, time);
  const Talk *talk = access->by->talk[access->thread];
  return lab_unknown(talk != NULL ? talk->peers : NULL, access->lab->worker->rank, agent, 0, 1, 0,
                     time) == 0;
}

/** May a wgmma or a tensor store still read this? */
static bool may_still_read(const Access *access, const AsyncReads *reads) {
  if (reads->under_way > 0) return true;
  for (int group = 0; group < WARPGROUPS; group++) {
    const uint32_t ended = reads->ended[group];
    if (ended > 0 && !has_seen(access, FIRST_GROUP + group, ended - 1)) return true;
  }
  return false;
}

/** Reports a write to shared memory that one of them may still read. */
static void check_async_reads(const Access *access, unsigned size) {
  LabWorker *lab = access->lab;
  const uintptr_t address = access->address;
  if (lab->hopper == NULL || address - lab->dynamic >= MAX_SHARED_BYTES) return;
  const uintptr_t last = (address + size - 1) / COPY_BYTES * COPY_BYTES;
  for (uintptr_t at = address / COPY_BYTES * COPY_BYTES; at <= last; at += COPY_BYTES) {
    const AsyncReads *reads = lab_async_reads(lab, at);
    if (!may_still_read(access, reads)) continue;
    lab_report_here(access->by, LAB_ASYNC_OVER_READ, access->pc, reads->pc, reads->thread, address);
    return;
  }
}

/* --- Accesses --------------------------------------------------------------------------------- */

static Cell *unit_at(const LabWorker *lab, uintptr_t address) {
  return &lab->shadow[address / UNIT_BYTES - lab->shared / UNIT_BYTES];
}

void lab_use_cells(const Access *access, unsigned size) {
  LabWorker *lab = access->lab;
  uintptr_t address = access->address;
  const uintptr_t end = address + size;
  if (access->use >= WRITES && lab->checks & LAB_RACES) check_async_reads(access, size);
  while (address < end) {
    const unsigned begin = address % UNIT_BYTES;
    const unsigned rest = (unsigned)(end - address);
    const unsigned until = begin + rest < UNIT_BYTES ? begin + rest : UNIT_BYTES;
    lab_use_unit(access, unit_at(lab, address), begin, until);
    address += until - begin;
  }
}

void lab_use_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  const int thread = lab_thread(lab);
  const Access access = {.lab = lab,
                         .by = lab,
                         .address = address,
                         .use = (uint8_t)use,
                         .thread = (uint16_t)thread,
                         .pc = pc,
                         .agent = use == TENSOR_COPIES ? FIRST_MBARRIER : BY_THREAD,
                         .time = lab->times[thread]};
  lab->dirty[thread] = SINCE_FENCE | SINCE_ATOMIC;
  lab_use_cells(&access, size);
}

/** From its wait on, a cp.async counts as a store that its thread makes at that point; a tensor
 * copy as a store in the current phase of its mbarrier. */
void lab_copy_arrived(LabWorker *lab, uintptr_t address, int thread, int barrier, uint32_t pc) {
  const bool by_tensor = barrier >= 0;
  const Access access = {
      .lab = lab,
      .by = lab,
      .address = address,
      .use = COPIES,
      .thread = (uint16_t)thread,
      .pc = pc,
      .agent = (uint8_t)(by_tensor ? FIRST_MBARRIER + barrier : BY_THREAD),
      .time = by_tensor ? lab->worker->hopper->mbarriers[barrier].phase : lab->times[thread]};
  lab_arrive_in_cell(&access, unit_at(lab, address));
}
