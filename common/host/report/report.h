/**
 * @file
 * A run as text, with a line on a terminal's stderr that shows every second how far it is, and as
 * one JSON object. docs/json-records.md lists the fields of that.
 */
#ifndef HOST_REPORT_H
#define HOST_REPORT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "host/base/error.h"
#include "host/base/json.h"
#include "host/report/record.h"

/** Before the pass: the step, the problem, the device and the kernels. */
void report_request(const Run *run, FILE *out);

/** After it: traffic, counts or speed, the verdict, and what the run did not cover. */
void report_result(const Run *run, FILE *out);

/** What the step supports and how it would run this problem. */
void report_info(const Run *run, FILE *out);

/** Before long work; the line appears after one second. */
void progress_start(void);

/** Of a kernel on the CPU backend. */
void progress_blocks(uint64_t done, uint64_t total);

/** Of the reference. Takes the line away when all rows are done. */
void progress_rows(size_t done, size_t total);

/** Takes the line away if it is there. */
void progress_end(void);

/**
 * Whether lines can be appended to `path`, which is created. A pipe is not tried: its reader would
 * take the closing for the end. EXIT_USAGE if not; `option` is what the message names before the
 * path.
 */
bool json_check_path(const char *option, const char *path, Error *error);

/** Appends the record of a run to a file, or prints it if `path` is "-". EXIT_DEVICE on failure. */
bool json_append_run(const Run *run, const char *path, Error *error);

/** The same for what --ceilings measured. */
bool json_append_ceilings(const Device *device, const Ceilings *ceilings, const char *path,
                          Error *error);

/** Adds the fields of the problem and its work, for the records of the lab. */
void json_add_problem(JsonObject *object, const Run *run);

#endif
