/** @file What the runtime says of kernels: reports of failures, hints, lines of source. */
#ifndef SIMT_REPORT_H
#define SIMT_REPORT_H

#include "observer.h"

/* --- hints.c -------------------------------------------------------------------------------- */

/** What is often a mistake though the launch goes on. */
typedef enum HintKind {
  SOURCE_MISSING,
  KEPT_OWN_VALUE,
  FAR_LANE,
  LANES_APART,
  ACTIVE_MASK
} HintKind;

/** All of one kind at one place; the first of them, by block. */
typedef struct Hint {
  HintKind kind;
  const void *call_site, *other_site; /* LANES_APART: where the others are */
  const SimtWarpOperation *operation; /* NULL: __activemask() */
  uint64_t block;
  unsigned lanes; /* KEPT_OWN_VALUE: of all of them */
  int width;
  bool goes_up, goes_down; /* KEPT_OWN_VALUE: the shuffle; neither: __shfl_xor_sync */
  char what[128];
} Hint;

typedef struct Hints {
  Hint list[SIMT_MOST_HINTS];
  int count;
} Hints;

/** Describes why `lane` gets no value from lane `source`. */
void simt_describe_no_source(const Worker *worker, int lane, int source, char *text,
                             size_t text_size);

/** Notes a hint of the running block; returns it if the rest of it must be set, else NULL. */
Hint *simt_note_hint(Worker *worker, HintKind kind, const void *call_site);

/** Adds the hints of a launch to those since the last reset; the pool is locked. */
void simt_keep_hints(const Hints *hints);
void simt_forget_hints(void);

/* --- report.c, source_line.c ---------------------------------------------------------------- */

/** The noun after a number. */
static inline const char *simt_bytes(size_t count) {
  return count == 1 ? "byte" : "bytes";
}

/** Formats the threads whose bits are set in lanes[warp] as ranges: "0-15,32,40-47". A list that
 * does not fit ends in "...". */
void simt_format_threads(const unsigned *lanes, char *text, size_t text_size);

/** Writes to stderr how the worker's block failed; returns the error of the launch. */
cudaError_t simt_report_failure(const Worker *worker);

/** Tells the observer of a launch that exceeds the limits. */
void simt_tell_refusal(const void *kernel, const char *why);

/** Reports that the launch exceeded the time limit, and where the worker's block was stopped;
 * NULL: no block was. */
cudaError_t simt_report_timeout(const Launch *launch, const Worker *worker);

/** Reports damaged slack after the launch. */
void simt_report_damage(const Launch *launch, const char *damage);

/** "file:line" of the code at `pc` and of the calls that led there, or as much as is known. */
void simt_source_line(uintptr_t pc, char *text, size_t text_size);

/** Source place of an instruction: the innermost line of a kernel outside of PTX wrappers. */
typedef struct SourcePlace {
  uintptr_t pc;
  char file[512]; /* empty: unknown */
  int line;
  char innermost[528]; /* "file:line" */
  char calls[512];     /* ", called at file:line" for each call that was inlined around it */
  uint64_t chain;      /* a hash of all these lines */
} SourcePlace;

/** Fills in file and line of all pcs in one call, because addr2line is slow to start. */
void simt_source_places(SourcePlace *places, size_t count);
void simt_kernel_name(const void *kernel, char *text, size_t text_size);

#endif
