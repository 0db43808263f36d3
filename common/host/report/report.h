/**
 * @file
 * What a person reads.
 */
#ifndef HOST_REPORT_H
#define HOST_REPORT_H

#include <stdio.h>

#include "host/run.h"

/** The report of one run, about 15 lines. */
void report_run(const Run *run, FILE *out);

/** What the step supports and how it would run this problem. */
void report_info(const Run *run, FILE *out);

/** The ceiling that bounds a step, in words. */
const char *ceiling_name(Ceiling ceiling);

/** How fast a timed run was, and what that is worth. All 0 when it was not timed. */
typedef struct Speed {
  double tflops;          /**< of the unmasked entries */
  double dense_tflops;    /**< as if nothing were masked */
  double gb_per_s;        /**< least traffic, and that of S and P where they leave the chip */
  double ceiling_percent; /**< of the ceiling that the step is judged against */
  double bound_ms;        /**< no faster than this, by the measured ceilings */
  const char *bound_by;   /**< the ceiling that says so, by name; "exp" beside those of steps */
} Speed;

Speed run_speed(const Run *run);

#endif
