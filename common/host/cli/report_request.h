/**
 * @file
 * What --report asks for: findings and counts of the lab, a profiler and sanitizer for kernels on
 * the CPU backend.
 */
#ifndef HOST_REPORT_REQUEST_H
#define HOST_REPORT_REQUEST_H

#include <limits.h>

#include "host/base/error.h"

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

/** Parses the LIST of --report; NULL: the default parts. EXIT_USAGE says what is allowed. */
bool report_request_parse(const char *list, ReportRequest *request, Error *error);

/** Finds a GPU by its name, or reads it from a file; EXIT_USAGE if that fails. */
bool gpu_find(const char *name, Gpu *gpu, Error *error);

#endif
