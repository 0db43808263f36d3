#include "host/base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/** Bytes of the UTF-8 sequence at `s` (Unicode, table 3-7), or 0 if it is invalid. */
static int utf8_length(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  const int length = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  for (int i = 1; i < length; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0;
  }
  /* Overlong forms, surrogates, and code points above U+10FFFF. */
  const bool invalid = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
                       (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
  return invalid ? 0 : length;
}

static void write_quoted(FILE *stream, const char *text) {
  fputc('"', stream);
  for (const unsigned char *s = (const unsigned char *)text; *s != '\0';) {
    const int length = utf8_length(s);
    if (length == 0) {
      fputs("\\ufffd", stream);
    } else if (*s < ' ') {
      fprintf(stream, "\\u%04x", (unsigned)*s);
    } else {
      if (*s == '"' || *s == '\\') fputc('\\', stream);
      fwrite(s, 1, (size_t)length, stream);
    }
    s += length > 0 ? length : 1;
  }
  fputc('"', stream);
}

/** Adds a key and, unless it is NULL, a value that needs no quotes. */
static void add(JsonObject *object, const char *key, const char *value) {
  if (ftell(object->stream) > 1) fputs(", ", object->stream);
  write_quoted(object->stream, key);
  fputs(": ", object->stream);
  if (value != NULL) fputs(value, object->stream);
}

void json_begin(JsonObject *object) {
  *object = (JsonObject){0};
  object->stream = open_memstream(&object->text, &object->length);
  if (object->stream == NULL) abort();
  fputc('{', object->stream);
}

void json_string(JsonObject *object, const char *key, const char *value) {
  add(object, key, value == NULL ? "null" : NULL);
  if (value != NULL) write_quoted(object->stream, value);
}

void json_integer(JsonObject *object, const char *key, int64_t value) {
  char digits[32];
  snprintf(digits, sizeof digits, "%" PRId64, value);
  add(object, key, digits);
}

void json_number(JsonObject *object, const char *key, double value) {
  char digits[32];
  for (int precision = 15; precision <= 17; precision++) {
    snprintf(digits, sizeof digits, "%.*g", precision, value);
    if (strtod(digits, NULL) == value) break;
  }
  add(object, key, isfinite(value) ? digits : "null");
}

void json_bool(JsonObject *object, const char *key, bool value) {
  add(object, key, value ? "true" : "false");
}

void json_known(JsonObject *object, const char *key, bool known, int64_t value) {
  if (known) {
    json_integer(object, key, value);
  } else {
    add(object, key, "null");
  }
}

void json_strings(JsonObject *object, const char *key, const char *const *values, int count) {
  add(object, key, "[");
  for (int i = 0; i < count; i++) {
    if (i > 0) fputs(", ", object->stream);
    write_quoted(object->stream, values[i]);
  }
  fputc(']', object->stream);
}

void json_integers(JsonObject *object, const char *key, const int *values, int count) {
  add(object, key, "[");
  for (int i = 0; i < count; i++) fprintf(object->stream, i > 0 ? ", %d" : "%d", values[i]);
  fputc(']', object->stream);
}

const char *json_end(JsonObject *object) {
  fputc('}', object->stream);
  if (fclose(object->stream) != 0) abort();
  return object->text;
}

void json_free(JsonObject *object) {
  free(object->text);
  *object = (JsonObject){0};
}

/** Appends the bytes with one write(). Returns 0, or the errno of the call that failed. */
static int append(const char *path, const char *bytes, size_t length) {
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  const ssize_t written = write(file, bytes, length);
  int cause = written < 0 ? errno : (size_t)written < length ? ENOSPC : 0;
  if (written > 0 && cause != 0 && ftruncate(file, lseek(file, 0, SEEK_CUR) - written) != 0) {
    cause = errno;
  }
  return close(file) == 0 || cause != 0 ? cause : errno;
}

bool json_append_line(const char *path, const char *line, Error *error) {
  int cause;
  if (strcmp(path, "-") == 0) {
    cause = puts(line) >= 0 && fflush(stdout) == 0 ? 0 : errno;
  } else {
    char *bytes;
    const int length = asprintf(&bytes, "%s\n", line);
    cause = length < 0 ? ENOMEM : append(path, bytes, (size_t)length);
    if (length >= 0) free(bytes);
  }
  return cause == 0 || fail(error, EXIT_DEVICE, "%s: cannot write: %s", path, strerror(cause));
}

bool json_check_path(const char *option, const char *path, Error *error) {
  /* Nothing is opened: a pipe's reader would see its end, and an interrupted run leave a file. */
  struct stat status;
  if (strcmp(path, "-") == 0) return true;
  bool ok = stat(path, &status) == 0;
  if (ok && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    ok = false;
  } else if (ok) {
    ok = access(path, W_OK) == 0;
  } else if (errno == ENOENT) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    ok = access(dirname(copy), W_OK | X_OK) == 0;
  }
  if (ok) return true;
  return fail(error, EXIT_USAGE,
              "%s%s: cannot write: %s; must be a file that can be written or created, or -", option,
              path, strerror(errno));
}
