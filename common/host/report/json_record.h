/**
 * @file
 * One run as one JSON object. docs/json-rows.md lists the fields.
 */
#ifndef HOST_JSON_RECORD_H
#define HOST_JSON_RECORD_H

#include "host/base/error.h"
#include "host/base/json.h"
#include "host/report/record.h"

/**
 * Whether lines can be appended to `path`, as far as that can be told without opening it: a pipe's
 * reader would take the closing for the end. EXIT_USAGE if not; `option` is what the message names
 * before the path.
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
