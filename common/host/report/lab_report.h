/**
 * @file
 * --report: the findings of the lab, a profiler and sanitizer for kernels on the CPU backend, as
 * text, drawings and JSON. The code is in report/lab.
 */
#ifndef HOST_LAB_REPORT_H
#define HOST_LAB_REPORT_H

#include <errno.h>
#include <limits.h>
#include <stdio.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/base/json.h"

/** Parts of a report; the checks of simt/lab/lab.h use the lower bits. */
enum {
  REPORT_COUNTS = 1 << 16,   /**< the totals of the runtime */
  REPORT_ANNOTATE = 1 << 18, /**< the source, with counts in the margin */
  REPORT_ROOFLINE = 1 << 19, /**< least times on a GPU */
  REPORT_ACCESS = 1 << 20,   /**< a drawing of one access */
  REPORT_JSON = 1 << 21
};

/** Peak rates of a GPU. */
typedef struct Gpu {
  char name[64];
  double multiprocessors;
  double clock_mhz;       /**< of the multiprocessors */
  double mma_tflops;      /**< mma.sync, 16 bits in, fp32 out */
  double wgmma_tflops;    /**< wgmma, the same; where there is none, the peak of mma */
  double fp32_tflops;     /**< multiply-adds on CUDA cores */
  double memory_gb_per_s; /**< device memory */
  char source[192];       /**< where these numbers come from */
} Gpu;

/** What --report asks for. */
typedef struct ReportRequest {
  unsigned parts; /**< checks of lab.h and parts of the report; 0: no report */
  Gpu gpu;        /**< for REPORT_ROOFLINE */
  char access_file[PATH_MAX];
  int access_line;          /**< both for REPORT_ACCESS */
  char json_path[PATH_MAX]; /**< for REPORT_JSON */
} ReportRequest;

struct Run;

#ifdef SIMT_BACKEND

/** Parses the LIST of --report; NULL: the default parts. EXIT_USAGE says what is allowed. */
bool lab_report_parse(const char *list, ReportRequest *request, Error *error);

/** Chooses the build of the step that the request needs and starts the lab, or else stops it. */
bool lab_report_start(const ReportRequest *request, Error *error);

/**
 * Prints the requested report, once for a run, and fills run->lab. EXIT_USAGE if there is no access
 * to draw, EXIT_DEVICE if the JSON cannot be written.
 */
bool lab_report_finish(struct Run *run, FILE *out, Error *error);

/** Adds findings and counts of the lab to the JSON record of a run. */
void lab_report_add_to_record(JsonObject *object, const struct Run *run);

#else /* on a GPU there is no lab */

static inline bool lab_report_parse(const char *list, ReportRequest *request, Error *error) {
  (void)list, (void)request;
  return fail(error, EXIT_USAGE,
              "--report: needs the CPU backend (make %s BACKEND=cpu); on a GPU use Nsight Compute",
              program_invocation_short_name);
}

static inline bool lab_report_start(const ReportRequest *request, Error *error) {
  (void)request, (void)error;
  return true;
}

static inline bool lab_report_finish(struct Run *run, FILE *out, Error *error) {
  (void)run, (void)out, (void)error;
  return true;
}

static inline void lab_report_add_to_record(JsonObject *object, const struct Run *run) {
  (void)object, (void)run;
}

#endif

#endif
