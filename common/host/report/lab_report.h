/**
 * @file
 * --report: the findings of the lab, a profiler and sanitizer for kernels on the CPU backend, as
 * text, drawings and JSON. The code is in report/lab.
 */
#ifndef HOST_LAB_REPORT_H
#define HOST_LAB_REPORT_H

#include <stdio.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/base/json.h"
#include "host/cli/report_request.h"

struct RunRecord;

#ifdef SIMT_BACKEND

/** Starts the checks that the request needs, none or more. */
bool lab_report_start(const ReportRequest *request, Error *error);

/**
 * Prints the requested report, once for a run, and fills run->lab. EXIT_USAGE if there is no access
 * to draw, EXIT_DEVICE if the JSON cannot be written.
 */
bool lab_report_finish(struct RunRecord *run, FILE *out, Error *error);

/** Adds findings and counts of the lab to the JSON record of a run. */
void lab_report_add_to_record(JsonObject *object, const struct RunRecord *run);

#else /* on a GPU there is no lab */

static inline bool lab_report_start(const ReportRequest *request, Error *error) {
  (void)request, (void)error;
  return true;
}

static inline bool lab_report_finish(struct RunRecord *run, FILE *out, Error *error) {
  (void)run, (void)out, (void)error;
  return true;
}

static inline void lab_report_add_to_record(JsonObject *object, const struct RunRecord *run) {
  (void)object, (void)run;
}

#endif

#endif
