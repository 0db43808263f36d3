/**
 * @file
 * What a person reads.
 */
#ifndef HOST_REPORT_H
#define HOST_REPORT_H

#include <stdio.h>

#include "host/report/record.h"

/** Before the pass: the step, the problem, the device and the kernels. */
void report_request(const Run *run, FILE *out);

/** After it: traffic, counts or speed, the verdict, and what the run did not cover. */
void report_result(const Run *run, FILE *out);

/** What the step supports and how it would run this problem. */
void report_info(const Run *run, FILE *out);

#endif
