/**
 * @file
 * --report: what the lab of the CPU backend saw, in words, drawings and JSON. On a GPU there is no
 * such lab. What makes the parts of a report is in host/lab.
 */
#ifndef HOST_LAB_REPORT_H
#define HOST_LAB_REPORT_H

#include <stdio.h>

#include "host/base/error.h"
#include "host/base/json.h"
#include "simt/lab/lab.h"

/** Parts of a report beside the checks of lab.h. */
enum {
  REPORT_COUNTS = 1 << 16,   /**< the totals of the runtime */
  REPORT_ANNOTATE = 1 << 18, /**< the source, with counts in the margin */
  REPORT_ROOFLINE = 1 << 19, /**< least times on a GPU */
  REPORT_ACCESS = 1 << 20,   /**< a drawing of one access */
  REPORT_JSON = 1 << 21
};

/** What a GPU can do at best. */
typedef struct Gpu {
  char name[64];
  double multiprocessors;
  double clock_mhz;       /**< of the multiprocessors */
  double mma_tflops;      /**< mma.sync, 16 bits in, fp32 out */
  double fp32_tflops;     /**< multiply-adds outside of the tensor cores */
  double memory_gb_per_s; /**< device memory */
  char source[192];       /**< where these numbers come from */
} Gpu;

/** What --report asks for. */
typedef struct ReportRequest {
  unsigned parts; /**< checks of lab.h and parts of the report; 0: no report */
  Gpu gpu;        /**< for REPORT_ROOFLINE */
  char access_file[256];
  int access_line;     /**< both for REPORT_ACCESS */
  char json_path[256]; /**< for REPORT_JSON */
} ReportRequest;

/** What a report leaves for the run's own JSON row. */
typedef struct LabSummary {
  bool reported; /**< what follows is known */
  size_t findings;
  LabCounts counts; /**< of the forward pass */
} LabSummary;

struct Run;

/** Reads the LIST of --report; NULL: everything. EXIT_USAGE in one line that says what would be
 * right. */
bool lab_report_parse(const char *list, ReportRequest *request, Error *error);

/** Chooses the build of the step that the request needs, and starts or stops the lab. */
bool lab_report_start(const ReportRequest *request, Error *error);

/**
 * Prints, once, what the run's options ask for, and fills run->lab. EXIT_USAGE if there is no
 * access to draw, EXIT_DEVICE if the JSON cannot be written.
 */
bool lab_report_finish(struct Run *run, FILE *out, Error *error);

/** Adds what is known of the run to its JSON row. */
void lab_report_add_to_row(JsonObject *row, const LabSummary *summary);

#endif
