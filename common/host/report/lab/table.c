/* Prints the counts as a table: totals of each kernel, and its lines, most work first. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/values.h"
#include "host/report/lab/parts.h"

enum { MOST_LINES = 12, SOURCE_COLUMNS = 100 };

bool in_forward_pass(const LabKernel *kernel, const Description *d) {
  for (int i = 0; i < d->launch_count; i++) {
    if (kernel->kernel == d->launches[i].kernel) return true;
  }
  return false;
}

/** Of all sectors that accesses to device memory touch. */
static double sector_bytes(const LabCounts *c) {
  return 32.0 * (double)(c->global_load.sectors + c->global_store.sectors + c->copy_global.sectors +
                         c->tensor_load.sectors + c->tensor_store.sectors);
}

double tensor_core_flop(const LabCounts *c) {
  return (double)c->mma * LAB_MMA_FLOP + (double)c->wgmma_flop;
}

uint64_t total_wavefronts(const LabCounts *c) {
  return c->shared_load.wavefronts + c->shared_store.wavefronts + c->ldmatrix.wavefronts +
         c->copy_shared.wavefronts + c->wgmma_read.wavefronts;
}

const IssuedKind ISSUED[ISSUED_KINDS] = {
    {"mma", "mma", offsetof(LabCounts, mma)},
    {"wgmma", "wgmma", offsetof(LabCounts, wgmma)},
    {"shuffles", "shfl", offsetof(LabCounts, shuffles)},
    {"votes", "vote", offsetof(LabCounts, votes)},
    {"reductions", "redux", offsetof(LabCounts, reductions)},
    {"barriers", "bar", offsetof(LabCounts, barriers)},
    {"warp_barriers", "wbar", offsetof(LabCounts, warp_barriers)},
    {"atomics", "atom", offsetof(LabCounts, atomics)},
};

/* --- Lines ---------------------------------------------------------------------------------- */

/** Sectors, wavefronts, and what the line issues besides accesses. */
static uint64_t work_of(const LabLine *line) {
  uint64_t work = 0;
  for (int kind = 0; kind < ISSUED_KINDS; kind++) work += issued(&line->counts, kind);
  for (LabAccessKind kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    const LabTraffic *t = lab_traffic(&line->counts, kind);
    work += t->sectors + t->wavefronts;
  }
  return work;
}

/** Most work first; equal work in the order of the results. */
static int by_work(const void *a, const void *b) {
  const LabLine *x = *(const LabLine *const *)a, *y = *(const LabLine *const *)b;
  const uint64_t work_x = work_of(x), work_y = work_of(y);
  if (work_x != work_y) return work_x < work_y ? 1 : -1;
  return (x > y) - (x < y);
}

static void print_traffic(LabAccessKind kind, const LabTraffic *t, FILE *out) {
  fprintf(out, "             %-13s %10" PRIu64 " requests ", lab_access_text(kind), t->requests);
  if (lab_access_is_shared(kind)) {
    fprintf(out, "%10" PRIu64 " wavefronts, %" PRIu64 " conflicts, %u-way\n", t->wavefronts,
            t->wavefronts - t->ideal_wavefronts, t->most_ways);
  } else {
    fprintf(out, "%10" PRIu64 " sectors, %.1f each, at most %u, %.0f %% used\n", t->sectors,
            (double)t->sectors / (double)t->requests, t->most_sectors, lab_used_percent(t));
  }
}

static void print_issued(const LabCounts *c, FILE *out) {
  for (int kind = 0; kind < ISSUED_KINDS; kind++) {
    if (issued(c, kind) == 0) continue;
    fprintf(out, "             %-13s %10" PRIu64, ISSUED[kind].name, issued(c, kind));
    if (kind == 0) fprintf(out, ", %" PRIu64 " of them with a copy in flight", c->mma_under_copy);
    if (ISSUED[kind].offset == offsetof(LabCounts, shuffles) && c->shuffles_under_wgmma > 0) {
      fprintf(out, ", %" PRIu64 " of them with a wgmma in flight", c->shuffles_under_wgmma);
    }
    fputc('\n', out);
  }
}

static void print_line(const LabLine *line, Sources *sources, FILE *out) {
  const char *text = source_line(sources, line->file, line->line);
  if (line->line == 0) {
    fprintf(out, "           an unknown line\n");
  } else {
    fprintf(out, "           %s:%d", line->file, line->line);
    if (text != NULL) fprintf(out, "  %.*s", SOURCE_COLUMNS, text + strspn(text, " \t"));
    fputc('\n', out);
  }
  for (LabAccessKind kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    const LabTraffic *t = lab_traffic(&line->counts, kind);
    if (t->requests > 0) print_traffic(kind, t, out);
  }
  print_issued(&line->counts, out);
  if (line->counts.partial > 0) {
    fprintf(out, "             partial       %10" PRIu64 " requests without some live lanes\n",
            line->counts.partial);
  }
}

/* --- Kernels -------------------------------------------------------------------------------- */

static void print_kernel(const LabResults *results, const LabKernel *kernel, Sources *sources,
                         FILE *out) {
  const LabLine **lines = malloc((results->line_count + 1) * sizeof *lines);
  size_t count = 0;
  if (lines == NULL) abort();
  for (size_t i = 0; i < results->line_count; i++) {
    const LabLine *line = &results->lines[i];
    if (strcmp(line->kernel, kernel->name) == 0 && work_of(line) > 0) lines[count++] = line;
  }
  qsort(lines, count, sizeof *lines, by_work);
  lab_print_kernel(kernel, out);
  for (size_t i = 0; i < count && i < MOST_LINES; i++) print_line(lines[i], sources, out);
  if (count > MOST_LINES) {
    fprintf(out, "           and %zu more lines; --report=annotate shows all\n",
            count - MOST_LINES);
  }
  free(lines);
}

void print_tables(const LabResults *results, Sources *sources, FILE *out) {
  for (size_t i = 0; i < results->kernel_count; i++) {
    if (results->kernels[i].launches == 0) continue; /* the launch was refused */
    print_kernel(results, &results->kernels[i], sources, out);
  }
}

void print_intensity(const RunRecord *run, const LabCounts *forward, FILE *out) {
  char flop[40], bytes[40], issued[40];
  const double least = run->work.must_move_bytes, counted = sector_bytes(forward);
  const double flops = run->work.flops;
  fprintf(out, "intensity  %s of the unmasked entries, %s issued as %s\n",
          human_number(flops, "FLOP", flop),
          human_number(tensor_core_flop(forward), "FLOP", issued),
          forward->wgmma > 0 ? "wgmma" : "mma");
  fprintf(out, "           %.1f FLOP a byte that must move (%s)\n", flops / least,
          human_number(least, "B", bytes));
  if (counted == 0) return;
  fprintf(out, "           %.1f FLOP a byte of the sectors counted (%s, caches ignored)\n",
          flops / counted, human_number(counted, "B", bytes));
}
