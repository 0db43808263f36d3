#include <stdlib.h>
#include <string.h>

#include "host/report/lab/parts.h"

const char LIMIT_FINDING_TEXT[] = "worse than the step declares";

bool in_forward_pass(const LabKernel *kernel, const Description *d) {
  for (int i = 0; i < d->launch_count; i++) {
    if (kernel->kernel == d->launches[i].kernel) return true;
  }
  return false;
}

/** One more, of this line. */
static char *add(LimitFindings *findings, const LabLine *line) {
  LimitFinding *larger = realloc(findings->list, (findings->count + 1) * sizeof *larger);
  if (larger == NULL) abort();
  findings->list = larger;
  LimitFinding *made = &findings->list[findings->count++];
  *made = (LimitFinding){.line = line};
  return made->what;
}

static void check_line(LimitFindings *findings, const LabLine *line,
                       const PerformanceLimits *limits) {
  for (int kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    const LabTraffic *t = lab_traffic(&line->counts, (LabAccessKind)kind);
    const bool shared = lab_access_is_shared((LabAccessKind)kind);
    const unsigned value = shared ? t->most_ways : t->most_sectors;
    const int limit = shared ? limits->shared_ways : limits->sectors_per_request;
    if (limit == 0 || value <= (unsigned)limit) continue;
    snprintf(add(findings, line), sizeof findings->list->what, "%s %u, declared %d",
             shared ? "ways of a shared memory conflict" : "sectors per request", value, limit);
  }
}

/** A share of the mma that is too small is told of the line with most of those that lack a copy. */
static void check_mma(LimitFindings *findings, const LabResults *results, const LabKernel *kernel,
                      int percent) {
  const uint64_t mma = kernel->counts.mma, under = kernel->counts.mma_under_copy;
  const LabLine *worst = NULL;
  if (100 * under >= (uint64_t)percent * mma) return;
  for (size_t i = 0; i < results->line_count; i++) {
    const LabLine *line = &results->lines[i];
    const uint64_t alone = line->counts.mma - line->counts.mma_under_copy;
    if (strcmp(line->kernel, kernel->name) != 0 || alone == 0) continue;
    if (worst == NULL || alone > worst->counts.mma - worst->counts.mma_under_copy) worst = line;
  }
  snprintf(add(findings, worst), sizeof findings->list->what,
           "%.1f %% of the mma under copies in flight, declared %d %%",
           100.0 * (double)under / (double)mma, percent);
}

LimitFindings find_limits_exceeded(const LabResults *results, const Description *d) {
  LimitFindings findings = {NULL, 0};
  for (size_t k = 0; k < results->kernel_count; k++) {
    const LabKernel *kernel = &results->kernels[k];
    if (!in_forward_pass(kernel, d)) continue;
    for (size_t i = 0; i < results->line_count; i++) {
      if (strcmp(results->lines[i].kernel, kernel->name) != 0) continue;
      check_line(&findings, &results->lines[i], &d->limits);
    }
    check_mma(&findings, results, kernel, d->limits.mma_under_copy_percent);
  }
  return findings;
}

void print_limits_exceeded(const LimitFindings *findings, FILE *out) {
  for (size_t i = 0; i < findings->count; i++) {
    const LimitFinding *f = &findings->list[i];
    fprintf(out, "finding    %s: %s\n           at %s:%d in %s\n", LIMIT_FINDING_TEXT, f->what,
            f->line->file, f->line->line, f->line->kernel);
  }
}
