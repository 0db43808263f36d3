/**
 * @file
 * What the parts of a report of the lab know of each other:
 *
 * - request.c    the LIST of --report; gpu.c: what a GPU can do
 * - table.c      counts by line, hottest first, and intensity; roofline.c: least times
 * - drawing.c    one access; annotate.c: the source with counts; source.c: its text
 * - records.c    all of it as JSON
 */
#ifndef HOST_LAB_PARTS_H
#define HOST_LAB_PARTS_H

#include "host/report/lab_report.h"
#include "host/report/record.h"
#include "simt/lab/lab.h"

/* --- source.c ------------------------------------------------------------------------------- */

/** Text of the source files that a report names; to begin with all zeros. */
typedef struct Sources {
  struct SourceFile *files;
  size_t count;
} Sources;

/** Line `line` of a file, from 1 on, without its end; NULL if there is no such line or file, or if
 * the file is newer than the program. */
const char *source_line(Sources *sources, const char *file, int line);
void print_newer_sources(const Sources *sources, FILE *out);
void sources_free(Sources *sources);

/* --- gpu.c ---------------------------------------------------------------------------------- */

/** A GPU by its name, or from a file; EXIT_USAGE in one line. */
bool gpu_find(const char *name, Gpu *gpu, Error *error);

/* --- lab_report.c --------------------------------------------------------------------------- */

/** Is it a kernel of the forward pass, and not of what was prepared for a mask? */
bool in_forward_pass(const LabKernel *kernel, const Description *description);

/* --- What is printed ------------------------------------------------------------------------ */

/** All accesses that touch memory of the device, in bytes of whole sectors. */
double sector_bytes(const LabCounts *counts);

/** All passes through the banks of shared memory. */
uint64_t total_wavefronts(const LabCounts *counts);

/** What a line issues beside accesses, in the order of reports. */
typedef struct IssuedKind {
  const char *name, *brief; /**< in the JSON and in tables; in the margin of the source */
  size_t offset;            /**< of a uint64_t in LabCounts */
} IssuedKind;

enum { ISSUED_KINDS = 7 };
extern const IssuedKind ISSUED[ISSUED_KINDS];

static inline uint64_t issued(const LabCounts *counts, int kind) {
  const void *count = (const char *)counts + ISSUED[kind].offset;
  return *(const uint64_t *)count;
}

void print_tables(const LabResults *results, Sources *sources, FILE *out);
void print_intensity(const Run *run, const LabCounts *forward, FILE *out);

/** A unit of a GPU, and the least time that its share of the work takes there. */
typedef struct Bound {
  const char *unit, *work_unit, *peak_unit;
  double work, peak; /**< 0 work: the unit has none that is counted */
  double seconds;
} Bound;

enum { BOUNDS = 4 };

void find_bounds(const Run *run, const LabCounts *forward, Bound bounds[BOUNDS]);
void print_roofline(const Run *run, const LabCounts *forward, FILE *out);

void print_annotated(const LabResults *results, Sources *sources, FILE *out);

/** EXIT_USAGE if there was no access at that line. */
bool draw_access(const LabResults *results, const ReportRequest *request, Sources *sources,
                 FILE *out, Error *error);

/** Appends all as JSON lines. */
bool append_records(const Run *run, const LabResults *results, Sources *sources, Error *error);

/** Adds the fields of `counts`, their names behind `prefix`. */
void add_counts(JsonObject *object, const char *prefix, const LabCounts *counts);

#endif
