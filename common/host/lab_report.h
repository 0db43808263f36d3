/**
 * @file
 * --report: what the lab of the CPU backend saw, in words. On a GPU there is no such lab.
 */
#ifndef HOST_LAB_REPORT_H
#define HOST_LAB_REPORT_H

#include <stdio.h>

#include "attention.h"
#include "host/error.h"

#ifdef SIMT_BACKEND
#include "simt/lab/lab.h"
#else
typedef struct LabResults LabResults;
#endif

/** Parts of a report beside the checks of lab.h. */
enum { REPORT_COUNTS = 1 << 16, REPORT_LIMITS = 1 << 17 };

/** Reads the LIST of --report; NULL: everything. EXIT_USAGE with the valid names. */
bool lab_report_parse(const char *list, unsigned *parts, Error *error);

/** Chooses the build of the step that `parts` need, and starts or stops the lab. */
bool lab_report_start(unsigned parts, Error *error);

/**
 * Prints the table of lines and the findings, with those of LabLimits; returns how many findings
 * there are. Lines that launched before the step's forward pass, for a mask, are held to no limit.
 */
size_t lab_report_print(const LabResults *results, const Description *description, unsigned parts,
                        FILE *out);

#endif
