/*
 * A report as JSON lines: a record of the run, of each kernel, source line and finding, and of each
 * unit of a roofline. docs/json-records.md lists the fields.
 */
#include <stdlib.h>
#include <string.h>

#include "host/base/version.h"
#include "host/report/lab/parts.h"
#include "host/report/report.h"

/* --- Counts --------------------------------------------------------------------------------- */

static void add_count(JsonObject *object, const char *prefix, const char *name, const char *field,
                      uint64_t value) {
  char key[80];
  snprintf(key, sizeof key, "%s%s%s", prefix, name, field);
  json_integer(object, key, (int64_t)value);
}

static void add_traffic(JsonObject *object, const char *prefix, LabAccessKind kind,
                        const LabTraffic *t) {
  const char *name = lab_access_name(kind);
  add_count(object, prefix, name, "_requests", t->requests);
  add_count(object, prefix, name, "_bytes", t->bytes);
  if (lab_access_is_shared(kind)) {
    add_count(object, prefix, name, "_wavefronts", t->wavefronts);
    add_count(object, prefix, name, "_conflicts", t->wavefronts - t->ideal_wavefronts);
    add_count(object, prefix, name, "_most_ways", t->most_ways);
  } else {
    add_count(object, prefix, name, "_sectors", t->sectors);
    add_count(object, prefix, name, "_used_bytes", t->used_bytes);
    add_count(object, prefix, name, "_most_sectors", t->most_sectors);
  }
}

void add_counts(JsonObject *object, const char *prefix, const LabCounts *c) {
  for (LabAccessKind kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    add_traffic(object, prefix, kind, lab_traffic(c, kind));
  }
  for (int kind = 0; kind < ISSUED_KINDS; kind++) {
    add_count(object, prefix, ISSUED[kind].name, "", issued(c, kind));
  }
  add_count(object, prefix, "partial", "", c->partial);
  add_count(object, prefix, "mma_flop", "", c->mma * LAB_MMA_FLOP);
  add_count(object, prefix, "mma_under_copy", "", c->mma_under_copy);
  add_count(object, prefix, "wgmma_flop", "", c->wgmma_flop);
  add_count(object, prefix, "shuffles_under_wgmma", "", c->shuffles_under_wgmma);
}

/* --- Records -------------------------------------------------------------------------------- */

static void begin(JsonObject *object, const RunRecord *run, const char *record) {
  json_begin(object);
  json_string(object, "record", record);
  json_string(object, "step", run->step);
}

/** Ends the object and appends its line. */
static void end(JsonObject *object, FILE *lines) {
  if (ftell(lines) > 0) fputc('\n', lines);
  fputs(json_end(object), lines);
  json_free(object);
}

static void add_run(const RunRecord *run, FILE *lines) {
  JsonObject object;
  begin(&object, run, "run");
  json_string(&object, "commit", version_commit());
  if (run->add_problem != NULL) run->add_problem(&object, run);
  json_integer(&object, "findings", (int64_t)run->lab.findings);
  json_integer(&object, "notes", (int64_t)run->lab.notes);
  add_counts(&object, "", &run->lab.counts);
  end(&object, lines);
}

static void add_kernel(const RunRecord *run, const LabKernel *kernel, FILE *lines) {
  JsonObject object;
  begin(&object, run, "kernel");
  json_string(&object, "kernel", kernel->name);
  json_bool(&object, "forward", in_forward_pass(kernel, &run->description));
  json_integer(&object, "launches", (int64_t)kernel->launches);
  json_integer(&object, "blocks", (int64_t)kernel->blocks);
  add_counts(&object, "", &kernel->counts);
  end(&object, lines);
}

static void add_line(const RunRecord *run, const LabLine *line, Sources *sources, FILE *lines) {
  const char *text = source_line(sources, line->file, line->line);
  JsonObject object;
  begin(&object, run, "line");
  json_string(&object, "kernel", line->kernel);
  json_string(&object, "file", line->file);
  json_integer(&object, "line", line->line);
  json_string(&object, "source", text != NULL ? text + strspn(text, " \t") : NULL);
  add_counts(&object, "", &line->counts);
  end(&object, lines);
}

static void add_finding(const RunRecord *run, const char *kind, const LabFinding *f, FILE *lines) {
  JsonObject object;
  begin(&object, run, kind);
  json_string(&object, "what", lab_kind_text(f->kind));
  json_string(&object, "kernel", f->kernel);
  json_string(&object, "place", f->place);
  json_string(&object, "other_place", f->other_place);
  json_string(&object, "calls", f->calls[0] != '\0' ? f->calls + strlen(", ") : NULL);
  json_string(&object, "other_calls",
              f->other_calls[0] != '\0' ? f->other_calls + strlen(", ") : NULL);
  json_integer(&object, "count", (int64_t)f->count);
  const bool between_blocks = lab_is_between_blocks(f->kind);
  json_known(&object, "block", f->has_thread || between_blocks, f->block);
  json_known(&object, "other_block", between_blocks, f->other_block);
  json_known(&object, "thread", f->has_thread, f->thread);
  json_string(&object, "where", f->where);
  end(&object, lines);
}

static void add_bounds(const RunRecord *run, FILE *lines) {
  Bound bounds[BOUNDS];
  find_bounds(run, &run->lab.counts, bounds);
  for (int i = 0; i < BOUNDS; i++) {
    JsonObject object;
    begin(&object, run, "bound");
    json_string(&object, "gpu", run->request->report->gpu.name);
    json_string(&object, "unit", bounds[i].unit);
    json_number(&object, "work", bounds[i].work);
    json_number(&object, "peak_per_s", bounds[i].peak);
    json_number(&object, "least_ms", 1e3 * bounds[i].seconds);
    end(&object, lines);
  }
}

static void add_all(const RunRecord *run, const LabResults *results, Sources *sources,
                    FILE *lines) {
  add_run(run, lines);
  for (size_t i = 0; i < results->kernel_count; i++) add_kernel(run, &results->kernels[i], lines);
  for (size_t i = 0; i < results->line_count; i++)
    add_line(run, &results->lines[i], sources, lines);
  for (size_t i = 0; i < results->finding_count; i++)
    add_finding(run, "finding", &results->findings[i], lines);
  for (size_t i = 0; i < results->note_count; i++)
    add_finding(run, "note", &results->notes[i], lines);
  if (run->request->report->parts & REPORT_ROOFLINE && run->complete) add_bounds(run, lines);
}

bool append_records(const RunRecord *run, const LabResults *results, Sources *sources,
                    Error *error) {
  char *text = NULL;
  size_t size;
  FILE *lines = open_memstream(&text, &size);
  if (lines == NULL) abort();
  add_all(run, results, sources, lines);
  if (fclose(lines) != 0) abort();
  const bool ok = json_append_line(run->request->report->json_path, text, error);
  free(text);
  return ok;
}
