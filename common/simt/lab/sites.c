#include <stdlib.h>
#include <string.h>

#include "internal.h"

uint32_t lab_site(SiteTable *table, uint32_t pc) {
  uint32_t *site = lab_entry(&table->by_pc, pc);
  if (*site != 0) return *site;
  table->sites = simt_with_room(table->sites, table->count, sizeof *table->sites);
  if (table->count == 0) table->count = 1; /* index 0 is unused */
  table->sites[table->count] = (Site){.pc = pc};
  return *site = table->count++;
}

LabCounts *lab_counts(SiteTable *table, uint32_t pc) {
  const uint32_t site = lab_site(table, pc); /* may move the sites */
  return &table->sites[site].counts;
}

void lab_free_sites(SiteTable *table) {
  free(table->sites);
  lab_free_table(&table->by_pc);
  *table = (SiteTable){0};
}

const char *lab_access_text(LabAccessKind kind) {
  static const char *const TEXTS[LAB_ACCESS_KINDS] = {
      [LAB_GLOBAL_LOAD] = "global load",   [LAB_GLOBAL_STORE] = "global store",
      [LAB_COPY_GLOBAL] = "cp.async from", [LAB_COPY_SHARED] = "cp.async to",
      [LAB_SHARED_LOAD] = "shared load",   [LAB_SHARED_STORE] = "shared store",
      [LAB_LDMATRIX] = "ldmatrix",         [LAB_TENSOR_LOAD] = "tensor load",
      [LAB_TENSOR_STORE] = "tensor store", [LAB_WGMMA_READ] = "wgmma read",
  };
  return TEXTS[kind];
}

bool lab_access_is_shared(LabAccessKind kind) {
  return kind >= LAB_COPY_SHARED;
}

const LabTraffic *lab_traffic(const LabCounts *c, LabAccessKind kind) {
  const LabTraffic *const parts[LAB_ACCESS_KINDS] = {
      [LAB_GLOBAL_LOAD] = &c->global_load, [LAB_GLOBAL_STORE] = &c->global_store,
      [LAB_COPY_GLOBAL] = &c->copy_global, [LAB_COPY_SHARED] = &c->copy_shared,
      [LAB_TENSOR_LOAD] = &c->tensor_load, [LAB_TENSOR_STORE] = &c->tensor_store,
      [LAB_SHARED_LOAD] = &c->shared_load, [LAB_SHARED_STORE] = &c->shared_store,
      [LAB_LDMATRIX] = &c->ldmatrix,       [LAB_WGMMA_READ] = &c->wgmma_read,
  };
  return parts[kind];
}

static void add_traffic(LabTraffic *sum, const LabTraffic *other) {
  sum->requests += other->requests;
  sum->bytes += other->bytes;
  sum->sectors += other->sectors;
  sum->used_bytes += other->used_bytes;
  sum->wavefronts += other->wavefronts;
  sum->ideal_wavefronts += other->ideal_wavefronts;
  if (other->most_sectors > sum->most_sectors) sum->most_sectors = other->most_sectors;
  if (other->most_ways > sum->most_ways) sum->most_ways = other->most_ways;
}

void lab_add_counts(LabCounts *sum, const LabCounts *other) {
  for (int kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    add_traffic((LabTraffic *)lab_traffic(sum, (LabAccessKind)kind),
                lab_traffic(other, (LabAccessKind)kind));
  }
  sum->copy_lookups += other->copy_lookups;
  sum->partial += other->partial;
  sum->mma += other->mma;
  sum->mma_under_copy += other->mma_under_copy;
  sum->wgmma += other->wgmma;
  sum->wgmma_flop += other->wgmma_flop;
  sum->box_sectors += other->box_sectors;
  sum->shuffles += other->shuffles;
  sum->shuffles_under_wgmma += other->shuffles_under_wgmma;
  sum->votes += other->votes;
  sum->reductions += other->reductions;
  sum->warp_barriers += other->warp_barriers;
  sum->barriers += other->barriers;
  sum->atomics += other->atomics;
}
