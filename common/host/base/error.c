#include "host/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** A value may be longer than the text: its middle is left out, since the end says what is wrong.
 */
static void write_long(Error *error, size_t length, const char *format, va_list arguments) {
  static const char GAP[] = " ... ";
  char *whole = malloc(length + 1);
  if (whole == NULL) return;
  vsnprintf(whole, length + 1, format, arguments);
  const size_t half = sizeof error->text / 2;
  char *end = error->text + half;
  memcpy(end, GAP, strlen(GAP));
  const size_t room = half - strlen(GAP);
  memcpy(end + strlen(GAP), whole + length + 1 - room, room);
  free(whole);
}

bool fail(Error *error, ExitCode code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  error->code = code;
  const int length = vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  if (length >= (int)sizeof error->text) {
    va_start(arguments, format);
    write_long(error, (size_t)length, format, arguments);
    va_end(arguments);
  }
  /* File names and values may hold anything; the message stays one line. */
  for (char *c = error->text; *c != '\0'; c++) {
    if ((unsigned char)*c < ' ') *c = '?';
  }
  return false;
}
