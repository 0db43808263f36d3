#include "host/lab_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/step_build.h"

#ifdef SIMT_BACKEND

enum { MOST_LINES = 12 };

bool lab_report_start(unsigned parts, Error *error) {
  unsigned checks = parts & LAB_EVERYTHING;
  if (parts & REPORT_LIMITS) checks |= LAB_TRAFFIC | LAB_BANKS;
  if (!step_build_choose(checks != 0)) {
    return fail(error, EXIT_USAGE, "--report: this program was linked without the checking build");
  }
  lab_start(checks);
  return true;
}

/* --- The table ------------------------------------------------------------------------------ */

/** One kind of access at one line. */
typedef struct Row {
  const LabLine *line;
  const char *what;
  const LabTraffic *traffic;
} Row;

/** Most work for the memory first. */
static int by_heat(const void *a, const void *b) {
  const Row *x = a, *y = b;
  const uint64_t heat_x = x->traffic->sectors + x->traffic->wavefronts;
  const uint64_t heat_y = y->traffic->sectors + y->traffic->wavefronts;
  if (heat_x != heat_y) return heat_x < heat_y ? 1 : -1;
  if (x->line != y->line) return x->line < y->line ? -1 : 1; /* the order of the results */
  return strcmp(x->what, y->what);
}

static size_t take_rows(const LabLine *line, Row rows[7]) {
  const LabCounts *c = &line->counts;
  const Row all[] = {
      {line, "global load", &c->global_load},   {line, "global store", &c->global_store},
      {line, "cp.async from", &c->copy_global}, {line, "cp.async to", &c->copy_shared},
      {line, "shared load", &c->shared_load},   {line, "shared store", &c->shared_store},
      {line, "ldmatrix", &c->ldmatrix},
  };
  size_t count = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i].traffic->requests > 0) rows[count++] = all[i];
  }
  return count;
}

static void print_row(const Row *row, FILE *out) {
  const LabTraffic *t = row->traffic;
  fprintf(out, "           %-13s %10" PRIu64, row->what, t->requests);
  if (t->sectors > 0) {
    fprintf(out, " %10" PRIu64 " sectors, %4.1f each, %3.0f %% used  ", t->sectors,
            (double)t->sectors / (double)t->requests,
            100.0 * (double)t->used_bytes / (32.0 * (double)t->sectors));
  } else {
    fprintf(out, " %10" PRIu64 " waves, %" PRIu64 " conflicts, %u-way  ", t->wavefronts,
            t->wavefronts - t->ideal_wavefronts, t->most_ways);
  }
  fprintf(out, "%s:%d\n", row->line->file, row->line->line);
}

static void print_kernel(const LabResults *results, const LabKernel *kernel, FILE *out) {
  const LabCounts *c = &kernel->counts;
  Row *rows = malloc((7 * results->line_count + 1) * sizeof *rows);
  if (rows == NULL) return;
  size_t count = 0;
  for (size_t i = 0; i < results->line_count; i++) {
    if (strcmp(results->lines[i].kernel, kernel->name) == 0) {
      count += take_rows(&results->lines[i], &rows[count]);
    }
  }
  qsort(rows, count, sizeof *rows, by_heat);
  fprintf(out, "lab        %s: %" PRIu64 " launch%s, %" PRIu64 " blocks\n", kernel->name,
          kernel->launches, kernel->launches == 1 ? "" : "es", kernel->blocks);
  fprintf(out,
          "           %" PRIu64 " mma (%" PRIu64 " FLOP), %" PRIu64 " shuffles, %" PRIu64
          " barriers, %" PRIu64 " warp barriers, by warps; %" PRIu64 " atomics\n",
          c->mma, c->mma * LAB_MMA_FLOP, c->shuffles, c->barriers, c->warp_barriers, c->atomics);
  for (size_t i = 0; i < count && i < MOST_LINES; i++) print_row(&rows[i], out);
  if (count > MOST_LINES) fprintf(out, "           and %zu more\n", count - MOST_LINES);
  free(rows);
}

/* --- What the step says of itself ----------------------------------------------------------- */

static size_t limit_exceeded(const LabLine *line, const char *what, unsigned value, int limit,
                             FILE *out) {
  if (limit == 0 || value <= (unsigned)limit) return 0;
  fprintf(out, "finding    worse than the step declares: %s %u, declared %d\n", what, value, limit);
  fprintf(out, "           at %s:%d in %s\n", line->file, line->line, line->kernel);
  return 1;
}

static size_t check_line(const LabLine *line, const Description *d, FILE *out) {
  const LabCounts *c = &line->counts;
  const LabTraffic *const global[] = {&c->global_load, &c->global_store, &c->copy_global};
  const LabTraffic *const shared[] = {&c->shared_load, &c->shared_store, &c->ldmatrix,
                                      &c->copy_shared};
  size_t findings = 0;
  for (int i = 0; i < 3; i++) {
    findings += limit_exceeded(line, "sectors per request", global[i]->most_sectors,
                               d->limits.sectors_per_request, out);
  }
  for (int i = 0; i < 4; i++) {
    findings += limit_exceeded(line, "ways of a shared memory conflict", shared[i]->most_ways,
                               d->limits.shared_ways, out);
  }
  return findings;
}

/** Is it one of the forward pass, and not of what was prepared for a mask? */
static bool in_description(const LabKernel *kernel, const Description *d) {
  for (int i = 0; i < d->launch_count; i++) {
    if (kernel->kernel == d->launches[i].kernel) return true;
  }
  return false;
}

static size_t check_limits(const LabResults *results, const Description *d, FILE *out) {
  size_t findings = 0;
  for (size_t k = 0; k < results->kernel_count; k++) {
    const LabKernel *kernel = &results->kernels[k];
    if (!in_description(kernel, d)) continue;
    for (size_t i = 0; i < results->line_count; i++) {
      if (strcmp(results->lines[i].kernel, kernel->name) == 0) {
        findings += check_line(&results->lines[i], d, out);
      }
    }
    const uint64_t mma = kernel->counts.mma, under = kernel->counts.mma_under_copy;
    if (100 * under >= (uint64_t)d->limits.mma_under_copy_percent * mma) continue;
    fprintf(out,
            "finding    worse than the step declares: %.1f %% of the mma under copies in flight, "
            "declared %d %%\n           in %s\n",
            100.0 * (double)under / (double)mma, d->limits.mma_under_copy_percent, kernel->name);
    findings++;
  }
  return findings;
}

size_t lab_report_print(const LabResults *results, const Description *description, unsigned parts,
                        FILE *out) {
  if (parts & (LAB_TRAFFIC | LAB_BANKS)) {
    for (size_t i = 0; i < results->kernel_count; i++) {
      print_kernel(results, &results->kernels[i], out);
    }
  }
  if (results->blocks_not_checked) {
    fprintf(out, "lab        blocks talk by atomics and fences: races between them not checked\n");
  }
  lab_print_findings(results, out);
  size_t findings = results->finding_count;
  if (parts & REPORT_LIMITS) findings += check_limits(results, description, out);
  if (parts & ~(unsigned)REPORT_COUNTS) fprintf(out, "findings   %zu\n", findings);
  return findings;
}

#else

bool lab_report_start(unsigned parts, Error *error) {
  (void)parts;
  (void)error;
  return true;
}

size_t lab_report_print(const LabResults *results, const Description *description, unsigned parts,
                        FILE *out) {
  (void)results;
  (void)description;
  (void)parts;
  (void)out;
  return 0;
}

#endif
