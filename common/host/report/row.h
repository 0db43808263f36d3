/**
 * @file
 * One run as one JSON object. docs/json-rows.md lists the fields.
 */
#ifndef HOST_ROW_H
#define HOST_ROW_H

#include "host/base/error.h"
#include "host/run.h"

/**
 * Whether lines can be appended to `path`, as far as that can be told without opening it: a pipe's
 * reader would take the closing for the end. EXIT_USAGE if not; `option` is what the message names
 * before the path.
 */
bool row_check_path(const char *option, const char *path, Error *error);

/** Appends the row to a file, or prints it if `path` is "-". EXIT_DEVICE if it cannot be written.
 */
bool row_append(const Run *run, const char *path, Error *error);

/** The same for what --ceilings found. */
bool row_append_ceilings(const Device *device, const Ceilings *ceilings, const char *path,
                         Error *error);

#endif
