/*
 * The cells of shared memory, of 16 bytes each, or finer: cells.c.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

bool lab_create_shadow(SharedShadow *shadow, size_t bytes) {
  shadow->unit_count = bytes / UNIT_BYTES + 2;
  void *cells = mmap(NULL, shadow->unit_count * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) return false;
  shadow->units = cells;
  return true;
}

void lab_free_shadow(SharedShadow *shadow) {
  if (shadow->units != NULL) munmap(shadow->units, shadow->unit_count * sizeof(Cell));
  *shadow = (SharedShadow){0};
}

static Cell *unit_at(const LabWorker *lab, uintptr_t address) {
  return &lab->shadow.units[address / UNIT_BYTES - lab->shared / UNIT_BYTES];
}

void lab_use_shared(LabWorker *lab, uintptr_t address, unsigned size, Use use, uint32_t pc) {
  const int thread = lab_thread(lab);
  const Access access = {.lab = lab,
                         .address = address,
                         .use = (uint8_t)use,
                         .thread = (uint16_t)thread,
                         .pc = pc,
                         .agent = use == TENSOR_COPIES ? FIRST_MBARRIER : BY_THREAD,
                         .time = lab->times[thread]};
  const uintptr_t end = address + size;
  lab->dirty[thread] = SINCE_FENCE | SINCE_ATOMIC;
  if (use >= WRITES && lab->checks & LAB_RACES) lab_check_async_reads(lab, address, size, pc);
  while (address < end) {
    const unsigned begin = address % UNIT_BYTES;
    const unsigned rest = (unsigned)(end - address);
    const unsigned until = begin + rest < UNIT_BYTES ? begin + rest : UNIT_BYTES;
    lab_use_unit(&access, unit_at(lab, address), begin, until);
    address += until - begin;
  }
}

/** From its wait on, a cp.async counts as a store that its thread makes at that point; a tensor
 * copy as a store in the current phase of its mbarrier. */
void lab_copy_arrived(LabWorker *lab, uintptr_t address, int thread, int barrier, uint32_t pc) {
  const bool by_tensor = barrier >= 0;
  const Access access = {
      .lab = lab,
      .address = address,
      .use = COPIES,
      .thread = (uint16_t)thread,
      .pc = pc,
      .agent = (uint8_t)(by_tensor ? FIRST_MBARRIER + barrier : BY_THREAD),
      .time = by_tensor ? lab->worker->hopper->mbarriers[barrier].phase : lab->times[thread]};
  lab_arrive_in_cell(&access, unit_at(lab, address));
}
