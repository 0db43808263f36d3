/**
 * @file
 * Internal to the reports of the lab:
 *
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

/** Text of the source files that a report names; starts with all zeros. */
typedef struct Sources {
  struct SourceFile *files;
  size_t count;
} Sources;

/** Line `line` of a file, from 1 on, without its end; NULL if there is no such line or file, or if
 * the file is newer than the program. */
const char *source_line(Sources *sources, const char *file, int line);
/** Prints the source files that are newer than the program. */
void print_newer_sources(const Sources *sources, FILE *out);
void sources_free(Sources *sources);

/* --- table.c -------------------------------------------------------------------------------- */

/** True for a kernel of the forward pass, false for one that prepares a mask. */
bool in_forward_pass(const LabKernel *kernel, const Description *description);

/* --- What is printed ------------------------------------------------------------------------ */

/** Floating-point operations of mma and wgmma. */
double tensor_core_flop(const LabCounts *counts);

/** Wavefronts of all accesses to shared memory. */
uint64_t total_wavefronts(const LabCounts *counts);

/** What a line issues besides accesses, in the order of reports. */
typedef struct IssuedKind {
  const char *name, *brief; /**< in the JSON and in tables; in the margin of the source */
  size_t offset;            /**< of a uint64_t in LabCounts */
} IssuedKind;

enum { ISSUED_KINDS = 8 };
extern const IssuedKind ISSUED[ISSUED_KINDS];

static inline uint64_t issued(const LabCounts *counts, int kind) {
  const void *count = (const char *)counts + ISSUED[kind].offset;
  return *(const uint64_t *)count;
}

/** Prints the counts of each kernel and of its lines. */
void print_tables(const LabResults *results, Sources *sources, FILE *out);
/** Prints the FLOP per byte of the forward pass. */
void print_intensity(const RunRecord *run, const LabCounts *forward, FILE *out);

/** A unit of a GPU, and the least time that its share of the work takes there. */
typedef struct Bound {
  const char *unit, *work_unit, *peak_unit;
  double work, peak; /**< peak per second; work 0: none is counted */
  double seconds;
} Bound;

enum { BOUNDS = 4 };

/** Finds the bounds of the requested GPU from the counts of the forward pass. */
void find_bounds(const RunRecord *run, const LabCounts *forward, Bound bounds[BOUNDS]);
void print_roofline(const RunRecord *run, const LabCounts *forward, FILE *out);

/** Prints the source of the kernels with counts in the margin. */
void print_annotated(const LabResults *results, Sources *sources, FILE *out);

/** Draws the accesses of the requested line. EXIT_USAGE if there are none. */
bool draw_access(const LabResults *results, const ReportRequest *request, Sources *sources,
                 FILE *out, Error *error);

/** Appends the report as JSON lines. EXIT_DEVICE if that fails. */
bool append_records(const RunRecord *run, const LabResults *results, Sources *sources,
                    Error *error);

/** Adds the fields of `counts`; `prefix` begins their names. */
void add_counts(JsonObject *object, const char *prefix, const LabCounts *counts);

#endif
