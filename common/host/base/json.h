/**
 * @file
 * Writes flat JSON objects, one per line ("JSON lines"). A reader is not needed here.
 *
 *     JsonObject row;
 *     json_begin(&row);
 *     json_string(&row, "step", "step04");
 *     json_number(&row, "ms", 1.25);
 *     const char *line = json_end(&row);
 *     bool ok = json_append_line("rows.jsonl", line, &error);
 *     json_free(&row);
 */
#ifndef HOST_JSON_H
#define HOST_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "host/base/error.h"

/** An object being built. */
typedef struct JsonObject {
  char *text; /**< what has been written so far; NULL when memory ran out */
  size_t length, capacity;
} JsonObject;

/** Starts an empty object; freed by json_free(). */
void json_begin(JsonObject *object);

/** Adds text. Bytes that are not UTF-8 become U+FFFD, so that the line is valid whatever comes. */
void json_string(JsonObject *object, const char *key, const char *value);

void json_integer(JsonObject *object, const char *key, int64_t value);

/** Adds the shortest of 15 to 17 digits that reads back as `value`; null for NaN and infinities. */
void json_number(JsonObject *object, const char *key, double value);

void json_bool(JsonObject *object, const char *key, bool value);

void json_null(JsonObject *object, const char *key);

/** Closes the object. Returns its line, without a newline, or NULL when memory ran out. */
const char *json_end(JsonObject *object);

void json_free(JsonObject *object);

/**
 * Appends `line` and a newline to a file that is created if need be, or to standard output if
 * `path` is
 * "-". Programs that append to one file at the same time do not mix their lines. On failure
 * (EXIT_DEVICE, also for a NULL line) a file is left as it was.
 */
bool json_append_line(const char *path, const char *line, Error *error);

#endif
