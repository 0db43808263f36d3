/**
 * @file
 * Writes flat JSON objects, one per line ("JSON lines").
 *
 *     JsonObject record;
 *     json_begin(&record);
 *     json_string(&record, "step", "stepNN");
 *     json_number(&record, "ms", 1.25);
 *     bool ok = json_append_line("records.jsonl", json_end(&record), &error);
 *     json_free(&record);
 */
#ifndef HOST_JSON_H
#define HOST_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "host/base/error.h"

/** An object being built. It is small, so the program ends if there is no memory for it. */
typedef struct JsonObject {
  FILE *stream;
  char *text; /**< set by json_end() */
  size_t length;
} JsonObject;

/** Starts an empty object; freed by json_free(). */
void json_begin(JsonObject *object);

/** Adds a string; null if `value` is NULL. Bytes that are not valid UTF-8 become U+FFFD. */
void json_string(JsonObject *object, const char *key, const char *value);

void json_integer(JsonObject *object, const char *key, int64_t value);

/** Adds `value` with the fewest digits, 15 to 17, that keep all its bits; null if not finite. */
void json_number(JsonObject *object, const char *key, double value);

void json_bool(JsonObject *object, const char *key, bool value);

/** Adds an integer if it is `known`, else null. */
void json_known(JsonObject *object, const char *key, bool known, int64_t value);

/** Adds a list of strings. */
void json_strings(JsonObject *object, const char *key, const char *const *values, int count);

/** Adds a list of integers. */
void json_integers(JsonObject *object, const char *key, const int *values, int count);

/** Closes the object. Returns its line, without a newline. */
const char *json_end(JsonObject *object);

void json_free(JsonObject *object);

/**
 * Appends `line` and a newline to a file, created if missing, or to standard output if `path` is
 * "-". The line is one write() in append mode, so lines of several programs do not mix. Fails with
 * EXIT_DEVICE if writing fails; a partly written line is removed.
 */
bool json_append_line(const char *path, const char *line, Error *error);

/**
 * Checks that lines can be appended to `path`, which is created if missing. A pipe is not opened,
 * because its reader would see the end of the file. EXIT_USAGE if not; `option` begins the message.
 */
bool json_check_path(const char *option, const char *path, Error *error);

#endif
