#include "host/report/lab/parts.h"
#include "host/report/report.h"

/** Parts that need counts. */
enum { COUNTED_PARTS = REPORT_ANNOTATE | REPORT_ROOFLINE | REPORT_ACCESS | REPORT_JSON };

bool lab_report_start(const ReportRequest *request, Error *error) {
  unsigned checks = request->parts & LAB_EVERYTHING;
  if (request->parts & COUNTED_PARTS) checks |= LAB_TRAFFIC | LAB_BANKS;
  if (request->parts & REPORT_ACCESS) checks |= LAB_ACCESSES;
  if (request->parts & REPORT_JSON &&
      !json_check_path("--report=json:", request->json_path, error)) {
    return false;
  }
  lab_start(checks);
  return true;
}

static LabCounts forward_counts(const LabResults *results, const Description *description) {
  LabCounts sum = {.partial = 0};
  for (size_t i = 0; i < results->kernel_count; i++) {
    const LabKernel *kernel = &results->kernels[i];
    if (in_forward_pass(kernel, description)) lab_add_counts(&sum, &kernel->counts);
  }
  return sum;
}

static void print_findings(const LabResults *results, Sources *sources, const RunRecord *run,
                           FILE *out) {
  if (results->blocks_talk) {
    fprintf(out,
            "lab        blocks use atomics and fences: compared by release and acquire; not "
            "compared in global memory: different proxies, and the end of tensor stores\n");
  }
  for (size_t i = 0; i < results->line_count; i++) {
    source_line(sources, results->lines[i].file, results->lines[i].line);
  }
  print_newer_sources(sources, out);
  lab_print_findings(results, out);
  fprintf(out, "findings   %zu\n", run->lab.findings);
}

static bool print_parts(const RunRecord *run, const LabResults *results, Sources *sources,
                        FILE *out, Error *error) {
  const ReportRequest *request = run->request->report;
  const unsigned parts = request->parts;
  bool ok = true;
  const bool counted = parts & (LAB_TRAFFIC | LAB_BANKS);
  if (counted) print_tables(results, sources, out);
  /* Without the counts of a whole pass, nothing follows for its speed. */
  if (counted && run->complete) print_intensity(run, &run->lab.counts, out);
  if (parts & REPORT_ANNOTATE) print_annotated(results, sources, out);
  if (parts & REPORT_ROOFLINE && run->complete) print_roofline(run, &run->lab.counts, out);
  if (parts & REPORT_ACCESS) ok = draw_access(results, request, sources, out, error);
  print_findings(results, sources, run, out);
  if (ok && parts & REPORT_JSON) ok = append_records(run, results, sources, error);
  return ok;
}

bool lab_report_finish(RunRecord *run, FILE *out, Error *error) {
  const unsigned parts = run->request->report->parts;
  if ((parts & ~(unsigned)REPORT_COUNTS) == 0 || run->lab.reported) return true;
  LabResults results;
  Sources sources = {NULL, 0};
  bool ok = true;
  lab_take_results(&results);
  if (results.kernel_count > 0) {
    run->lab = (LabSummary){.reported = true,
                            .findings = results.finding_count,
                            .notes = results.note_count,
                            .counts = forward_counts(&results, &run->description)};
    ok = print_parts(run, &results, &sources, out, error);
  }
  sources_free(&sources);
  lab_free_results(&results);
  return ok;
}

void lab_report_add_to_record(JsonObject *object, const RunRecord *run) {
  if (!run->lab.reported) return;
  json_integer(object, "lab_findings", (int64_t)run->lab.findings);
  json_integer(object, "lab_notes", (int64_t)run->lab.notes);
  add_counts(object, "lab_", &run->lab.counts);
}
