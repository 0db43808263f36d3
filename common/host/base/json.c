#define _POSIX_C_SOURCE 200809L

#include "host/base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/** Adds bytes and a terminating zero. After a failure the object stays NULL, which json_end()
 * reports. */
static void append(JsonObject *object, const char *bytes, size_t length) {
  if (!object->text) return;
  if (object->capacity - object->length <= length) {
    const size_t capacity = 2 * (object->capacity + length);
    char *grown = realloc(object->text, capacity);
    if (!grown) {
      json_free(object);
      return;
    }
    object->text = grown;
    object->capacity = capacity;
  }
  memcpy(object->text + object->length, bytes, length);
  object->length += length;
  object->text[object->length] = '\0';
}

static void append_text(JsonObject *object, const char *text) {
  append(object, text, strlen(text));
}

/** Length of the UTF-8 sequence at `s` (Unicode, table 3-7), or 0 if there is no valid one. */
static size_t utf8_length(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  /* The second byte excludes overlong forms, surrogates, and what lies beyond U+10FFFF. */
  const unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
  if (s[1] < low || s[1] > high) return 0;
  const size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  for (size_t i = 2; i < length; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0;
  }
  return length;
}

static void append_quoted(JsonObject *object, const char *text) {
  append_text(object, "\"");
  for (const unsigned char *s = (const unsigned char *)text; *s;) {
    const size_t length = utf8_length(s);
    char escape[8];
    if (length == 0) {
      append_text(object, "\\ufffd");
    } else if (*s == '"' || *s == '\\') {
      snprintf(escape, sizeof escape, "\\%c", *s);
      append_text(object, escape);
    } else if (*s < ' ') {
      snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*s);
      append_text(object, escape);
    } else {
      append(object, (const char *)s, length);
    }
    s += length ? length : 1;
  }
  append_text(object, "\"");
}

static void append_key(JsonObject *object, const char *key) {
  if (object->length > 1) append_text(object, ", ");
  append_quoted(object, key);
  append_text(object, ": ");
}

void json_begin(JsonObject *object) {
  object->length = 0;
  object->capacity = 1024;
  object->text = malloc(object->capacity);
  append_text(object, "{");
}

void json_string(JsonObject *object, const char *key, const char *value) {
  append_key(object, key);
  append_quoted(object, value);
}

void json_integer(JsonObject *object, const char *key, int64_t value) {
  char digits[32];
  snprintf(digits, sizeof digits, "%" PRId64, value);
  append_key(object, key);
  append_text(object, digits);
}

void json_number(JsonObject *object, const char *key, double value) {
  if (!isfinite(value)) {
    json_null(object, key);
    return;
  }
  char digits[32];
  for (int precision = 15; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, value);
    if (strtod(digits, NULL) == value) break;
  }
  append_key(object, key);
  append_text(object, digits);
}

void json_bool(JsonObject *object, const char *key, bool value) {
  append_key(object, key);
  append_text(object, value ? "true" : "false");
}

void json_null(JsonObject *object, const char *key) {
  append_key(object, key);
  append_text(object, "null");
}

const char *json_end(JsonObject *object) {
  append_text(object, "}");
  return object->text;
}

void json_free(JsonObject *object) {
  free(object->text);
  object->text = NULL;
}

/** Returns 0, or the errno of what failed. */
static int write_all(int file, const char *bytes, size_t length) {
  while (length > 0) {
    const ssize_t written = write(file, bytes, length);
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) {
      bytes += written;
      length -= (size_t)written;
    }
  }
  return 0;
}

/** A file to append to, or -1. */
static int open_to_append(const char *path, bool *created) {
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
  const int file = open(path, flags | O_EXCL, 0666);
  *created = file >= 0;
  return file < 0 && errno == EEXIST ? open(path, flags, 0666) : file;
}

/** Undoes what a full disk cut short, under the lock. Returns 0, or the errno of what failed. */
static int take_back(int file, const char *path, off_t size, bool created) {
  if (ftruncate(file, size) != 0) return errno;
  return created && size == 0 && unlink(path) != 0 ? errno : 0;
}

enum { REMOVED = -1 };

/** Appends under a lock. REMOVED: whoever had created the file took it back meanwhile. */
static int append_locked(int file, const char *path, bool created, const char *bytes,
                         size_t length) {
  struct stat status;
  /* Some file systems know no locks: there a single write is what keeps lines whole. */
  const bool locked = flock(file, LOCK_EX) == 0;
  if (fstat(file, &status) != 0) return errno;
  if (S_ISREG(status.st_mode) && status.st_nlink == 0) return REMOVED;
  const int cause = write_all(file, bytes, length);
  if (!cause || !locked || !S_ISREG(status.st_mode)) return cause;
  const int second_cause = take_back(file, path, status.st_size, created);
  return second_cause ? second_cause : cause;
}

static int append_to_file(const char *path, const char *bytes, size_t length) {
  int cause = REMOVED;
  for (int attempt = 0; attempt < 100 && cause == REMOVED; attempt++) {
    bool created;
    const int file = open_to_append(path, &created);
    if (file < 0) return errno;
    cause = append_locked(file, path, created, bytes, length);
    if (close(file) != 0 && !cause) cause = errno;
  }
  return cause == REMOVED ? ENOENT : cause;
}

bool json_append_line(const char *path, const char *line, Error *error) {
  const size_t length = line ? strlen(line) + 1 : 0;
  char *bytes = line ? malloc(length) : NULL;
  if (!bytes) return fail(error, EXIT_DEVICE, "%s: cannot write: out of memory", path);
  memcpy(bytes, line, length - 1);
  bytes[length - 1] = '\n';

  int cause = 0;
  if (strcmp(path, "-") == 0) {
    /* What the program printed before must come before the line. */
    cause = fflush(stdout) == 0 ? write_all(STDOUT_FILENO, bytes, length) : errno;
  } else {
    cause = append_to_file(path, bytes, length);
  }
  free(bytes);
  return !cause || fail(error, EXIT_DEVICE, "%s: cannot write: %s", path, strerror(cause));
}
