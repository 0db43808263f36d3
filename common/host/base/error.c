#include "host/base/error.h"

#include <stdarg.h>
#include <stdio.h>

bool fail(Error *error, ExitCode code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  error->code = code;
  vsnprintf(error->text, sizeof error->text, format, arguments);
  va_end(arguments);
  /* File names and values may hold control characters; the message must stay one line. */
  for (char *c = error->text; *c != '\0'; c++) {
    if ((unsigned char)*c < ' ') *c = '?';
  }
  return false;
}
