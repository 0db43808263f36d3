/**
 * @file
 * Reports of a run: as text, as a progress line on a terminal's stderr, updated every second, and
 * as one JSON object, whose fields docs/json-records.md lists.
 */
#ifndef HOST_REPORT_H
#define HOST_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "host/base/error.h"
#include "host/base/json.h"
#include "host/report/record.h"

/** Prints, before the pass, the step, the problem, the device and the kernels. */
void report_request(const RunRecord *run, FILE *out);

/** Prints, after it, traffic, counts or speed, the verdict, and what the run did not cover. */
void report_result(const RunRecord *run, FILE *out);

/** Prints what the step supports and how it would run this problem. */
void report_info(const RunRecord *run, FILE *out);

/** Begins the progress line of long work; it appears after one second. */
void progress_start(void);

/** Shows how many blocks of a kernel are done, on the CPU backend. */
void progress_blocks(uint64_t done, uint64_t total);

/** Shows how many rows of the reference are done; removes the line after the last. */
void progress_rows(size_t done, size_t total);

/** Removes the progress line, if there is one. */
void progress_end(void);

/** Appends the record of a run to a file, or prints it if `path` is "-". EXIT_DEVICE on failure. */
bool json_append_run(const RunRecord *run, const char *path, Error *error);

/**
 * Appends what the step is, takes and needs, and how it would run this problem, for programs that
 * choose among steps.
 */
bool json_append_info(const RunRecord *run, const char *path, Error *error);

/** The same for the ceilings that --ceilings measured. */
bool json_append_ceilings(const Device *device, const Ceilings *ceilings, const char *path,
                          Error *error);

/** Adds the fields of the problem and its work, which records of the lab have, too; of the result.
 */
void json_add_problem(JsonObject *object, const RunRecord *run);
void json_add_result(JsonObject *object, const RunRecord *run);

#endif
