/**
 * @file
 * One run as one JSON object. docs/json-rows.md lists the fields.
 */
#ifndef HOST_ROW_H
#define HOST_ROW_H

#include "host/error.h"
#include "host/run.h"

/** Appends the row to a file, or prints it if `path` is "-". EXIT_DEVICE if it cannot be written.
 */
bool row_append(const Run *run, const char *path, Error *error);

#endif
