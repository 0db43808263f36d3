/*
 * The first access of each instruction, for drawings of the addresses of its lanes.
 *
 * It is the first one by the lowest warp of the lowest block of the first launch. So it does not
 * depend on the order of blocks or their distribution over OS threads.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

bool lab_first_is_earlier(const FirstAccess *a, const FirstAccess *b) {
  if (a->launch != b->launch) return a->launch < b->launch;
  if (a->access.block != b->access.block) return a->access.block < b->access.block;
  if (a->access.warp != b->access.warp) return a->access.warp < b->access.warp;
  return a->order < b->order; /* same block, so same worker */
}

/** The entry of an instruction; the pointer is valid until the next call. */
static FirstAccess *first_at(SiteTable *sites, FirstTable *table, uint32_t pc, LabAccessKind kind) {
  const size_t at = 2 * (size_t)lab_site(sites, pc) + lab_access_is_shared(kind);
  if (at >= table->count) {
    const size_t count = 2 * at + 64;
    table->list = simt_resized(table->list, count * sizeof *table->list);
    memset(&table->list[table->count], 0, (count - table->count) * sizeof *table->list);
    table->count = count;
  }
  return &table->list[at];
}

static void describe_global(LabWorker *lab, LabAccess *access, int lane, uintptr_t address) {
  size_t found;
  const Region *region = lab_find_region(lab, address, &found) ? &lab_regions[found] : NULL;
  const bool remote = lab_owner(lab, address) != lab;
  snprintf(access->memory[lane], sizeof access->memory[lane], "%s",
           region != NULL ? region->name
           : remote       ? "shared memory of another block"
                          : "outside of all allocations");
  access->offsets[lane] = region != NULL ? address - region->begin : 0;
}

/** The linker places static arrays: only the distances between lanes are meaningful. */
static void describe_shared(const LabWorker *lab, LabAccess *access, int lane, uintptr_t address,
                            uintptr_t lowest) {
  const bool dynamic = address - lab->dynamic < MAX_SHARED_BYTES;
  const uintptr_t base = dynamic ? lab->dynamic : lowest;
  snprintf(access->memory[lane], sizeof access->memory[lane], "%s shared memory",
           dynamic ? "dynamic" : "static");
  access->offsets[lane] = address - base;
  access->banks[lane] = (uint8_t)((address - base / BANK_BYTES * BANK_BYTES) / BANK_BYTES % BANKS);
}

static void describe(LabWorker *lab, LabAccess *access, const uintptr_t *addresses) {
  uintptr_t lowest = UINTPTR_MAX;
  for (unsigned rest = access->lanes; rest != 0; rest &= rest - 1) {
    const uintptr_t address = addresses[__builtin_ctz(rest)];
    if (address < lowest) lowest = address;
  }
  for (unsigned rest = access->lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (lab_access_is_shared(access->kind)) {
      describe_shared(lab, access, lane, addresses[lane], lowest);
    } else {
      describe_global(lab, access, lane, addresses[lane]);
    }
  }
}

void lab_note_first(LabWorker *lab, LabAccessKind kind, uint32_t pc, int warp, unsigned size,
                    uint32_t lanes, const uintptr_t *addresses, const LabTraffic *traffic) {
  FirstAccess *first = first_at(&lab->sites, &lab->first, pc, kind);
  FirstAccess own = {.taken = true,
                     .pc = pc,
                     .launch = lab->launch->ordinal,
                     .order = lab->requests++,
                     .access = {.kind = kind,
                                .block = lab->block,
                                .warp = warp,
                                .size = size,
                                .lanes = lanes,
                                .traffic = *traffic}};
  if (first->taken && !lab_first_is_earlier(&own, first)) return;
  describe(lab, &own.access, addresses);
  *first = own;
}

void lab_add_first(SiteTable *sites, FirstTable *sum, const FirstTable *other) {
  for (size_t i = 0; i < other->count; i++) {
    const FirstAccess *theirs = &other->list[i];
    if (!theirs->taken) continue;
    FirstAccess *own = first_at(sites, sum, theirs->pc, theirs->access.kind);
    if (!own->taken || lab_first_is_earlier(theirs, own)) *own = *theirs;
  }
}

void lab_free_first(FirstTable *table) {
  free(table->list);
  *table = (FirstTable){NULL, 0};
}
