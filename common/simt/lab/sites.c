#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { FIRST_SIZE = 1024 };

static uint32_t slot_of(const SiteTable *table, uint32_t pc) {
  uint32_t slot = pc * 0x9e3779b1u >> 7;
  for (;; slot++) {
    const uint32_t site = table->index[slot % table->index_size];
    if (site == 0 || table->sites[site].pc == pc) return slot % table->index_size;
  }
}

static void grow(SiteTable *table) {
  free(table->index);
  table->index_size = table->index_size == 0 ? FIRST_SIZE : 2 * table->index_size;
  table->capacity = table->index_size / 2;
  table->index = calloc(table->index_size, sizeof *table->index);
  table->sites = realloc(table->sites, table->capacity * sizeof *table->sites);
  if (table->index == NULL || table->sites == NULL) abort();
  if (table->count == 0) table->count = 1; /* 0 is none */
  for (uint32_t site = 1; site < table->count; site++) {
    table->index[slot_of(table, table->sites[site].pc)] = site;
  }
}

uint32_t lab_site(SiteTable *table, uint32_t pc) {
  if (table->count >= table->capacity) grow(table);
  const uint32_t slot = slot_of(table, pc);
  if (table->index[slot] == 0) {
    table->sites[table->count] = (Site){.pc = pc};
    table->index[slot] = table->count++;
  }
  return table->index[slot];
}

LabCounts *lab_counts(SiteTable *table, uint32_t pc) {
  const uint32_t site = lab_site(table, pc); /* may move the sites */
  return &table->sites[site].counts;
}

void lab_free_sites(SiteTable *table) {
  free(table->sites);
  free(table->index);
  *table = (SiteTable){0};
}

const char *lab_access_text(LabAccessKind kind) {
  static const char *const TEXTS[LAB_ACCESS_KINDS] = {
      [LAB_GLOBAL_LOAD] = "global load",   [LAB_GLOBAL_STORE] = "global store",
      [LAB_COPY_GLOBAL] = "cp.async from", [LAB_COPY_SHARED] = "cp.async to",
      [LAB_SHARED_LOAD] = "shared load",   [LAB_SHARED_STORE] = "shared store",
      [LAB_LDMATRIX] = "ldmatrix",
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
      [LAB_SHARED_LOAD] = &c->shared_load, [LAB_SHARED_STORE] = &c->shared_store,
      [LAB_LDMATRIX] = &c->ldmatrix,
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
  add_traffic(&sum->global_load, &other->global_load);
  add_traffic(&sum->global_store, &other->global_store);
  add_traffic(&sum->shared_load, &other->shared_load);
  add_traffic(&sum->shared_store, &other->shared_store);
  add_traffic(&sum->ldmatrix, &other->ldmatrix);
  add_traffic(&sum->copy_global, &other->copy_global);
  add_traffic(&sum->copy_shared, &other->copy_shared);
  sum->copy_lookups += other->copy_lookups;
  sum->partial += other->partial;
  sum->mma += other->mma;
  sum->mma_under_copy += other->mma_under_copy;
  sum->shuffles += other->shuffles;
  sum->votes += other->votes;
  sum->reductions += other->reductions;
  sum->warp_barriers += other->warp_barriers;
  sum->barriers += other->barriers;
  sum->atomics += other->atomics;
}
