#include <inttypes.h>
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

#define KIND(kind, text, member) [kind] = {text, #member, offsetof(LabCounts, member)}

static const struct {
  const char *text, *name;
  size_t offset;
} KINDS[LAB_ACCESS_KINDS] = {
    KIND(LAB_GLOBAL_LOAD, "global load", global_load),
    KIND(LAB_GLOBAL_STORE, "global store", global_store),
    KIND(LAB_COPY_GLOBAL, "cp.async from", copy_global),
    KIND(LAB_TENSOR_LOAD, "tensor load", tensor_load),
    KIND(LAB_TENSOR_STORE, "tensor store", tensor_store),
    KIND(LAB_COPY_SHARED, "cp.async to", copy_shared),
    KIND(LAB_SHARED_LOAD, "shared load", shared_load),
    KIND(LAB_SHARED_STORE, "shared store", shared_store),
    KIND(LAB_LDMATRIX, "ldmatrix", ldmatrix),
    KIND(LAB_WGMMA_READ, "wgmma read", wgmma_read),
    KIND(LAB_REMOTE_LOAD, "remote load", remote_load),
    KIND(LAB_REMOTE_STORE, "remote store", remote_store),
};

const char *lab_access_text(LabAccessKind kind) {
  return KINDS[kind].text;
}

const char *lab_access_name(LabAccessKind kind) {
  return KINDS[kind].name;
}

bool lab_access_is_shared(LabAccessKind kind) {
  return kind >= LAB_COPY_SHARED && kind <= LAB_WGMMA_READ;
}

LabTraffic *lab_traffic_of(LabCounts *counts, LabAccessKind kind) {
  return (LabTraffic *)(void *)((char *)counts + KINDS[kind].offset);
}

const LabTraffic *lab_traffic(const LabCounts *counts, LabAccessKind kind) {
  return lab_traffic_of((LabCounts *)(uintptr_t)counts, kind);
}

double lab_used_percent(const LabTraffic *traffic) {
  return traffic->sectors == 0
             ? 0.0
             : 100.0 * (double)traffic->used_bytes / (32.0 * (double)traffic->sectors);
}

void lab_add_traffic(LabTraffic *sum, const LabTraffic *other) {
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
  for (LabAccessKind kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    lab_add_traffic(lab_traffic_of(sum, kind), lab_traffic(other, kind));
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

void lab_print_kernel(const LabKernel *kernel, FILE *out) {
  const LabCounts *c = &kernel->counts;
  fprintf(out, "lab        %s: %" PRIu64 " launch%s, %" PRIu64 " blocks\n", kernel->name,
          kernel->launches, kernel->launches == 1 ? "" : "es", kernel->blocks);
  fprintf(out,
          "           %" PRIu64 " mma (%" PRIu64 " FLOP), %" PRIu64 " shuffles, %" PRIu64
          " barriers, %" PRIu64 " warp barriers, by warps; %" PRIu64 " atomics\n",
          c->mma, c->mma * LAB_MMA_FLOP, c->shuffles, c->barriers, c->warp_barriers, c->atomics);
  if (c->wgmma > 0) {
    fprintf(out, "           %" PRIu64 " wgmma (%" PRIu64 " FLOP), by warpgroups\n", c->wgmma,
            c->wgmma_flop);
  }
  fprintf(out, "           %-13s %10s %12s %10s %7s %12s %10s\n", "total", "requests", "bytes",
          "sectors", "used", "wavefronts", "conflicts");
  for (LabAccessKind kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    const LabTraffic *t = lab_traffic(c, kind);
    if (t->requests == 0) continue;
    fprintf(out, "           %-13s %10" PRIu64 " %12" PRIu64, lab_access_text(kind), t->requests,
            t->bytes);
    if (lab_access_is_shared(kind)) {
      fprintf(out, " %10s %7s %12" PRIu64 " %10" PRIu64 "\n", "", "", t->wavefronts,
              t->wavefronts - t->ideal_wavefronts);
    } else {
      fprintf(out, " %10" PRIu64 " %5.0f %%\n", t->sectors, lab_used_percent(t));
    }
  }
}
