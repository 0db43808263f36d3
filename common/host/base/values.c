#include "host/base/values.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** True for a decimal integer alone; strtoll would also accept a plus sign and leading blanks. */
static bool is_integer(const char *text) {
  const size_t digits = strspn(text + (*text == '-'), "0123456789");
  return digits > 0 && text[(*text == '-') + digits] == '\0';
}

bool parse_integer(const char *option, const char *text, int64_t least, int64_t most,
                   int64_t *value, Error *error) {
  errno = 0;
  const long long parsed = strtoll(text, NULL, 10);
  if (!is_integer(text)) {
    return fail(error, EXIT_USAGE, "--%s %s: must be an integer from %lld to %lld", option, text,
                (long long)least, (long long)most);
  }
  if (errno == ERANGE || parsed < least || parsed > most) {
    return fail(error, EXIT_USAGE, "--%s %s: must be from %lld to %lld", option, text,
                (long long)least, (long long)most);
  }
  *value = parsed;
  return true;
}

bool parse_real(const char *option, const char *text, double *value, Error *error) {
  char *end;
  errno = 0;
  const double parsed = strtod(text, &end);
  /* strtod alone would also accept a plus sign, leading blanks and hexadecimal numbers. */
  const bool decimal = *text != '+' && text[strspn(text, "0123456789.eE+-")] == '\0';
  if (!decimal || end == text || *end != '\0' || !isfinite(parsed)) {
    return fail(error, EXIT_USAGE, "--%s %s: must be a finite number", option, text);
  }
  if (errno == ERANGE) {
    return fail(error, EXIT_USAGE, "--%s %s: must be 0 or not so close to it", option, text);
  }
  *value = parsed;
  return true;
}

bool parse_seed(const char *text, uint64_t *seed, Error *error) {
  errno = 0;
  const unsigned long long parsed = strtoull(text, NULL, 10);
  if (!is_integer(text) || *text == '-' || errno == ERANGE) {
    return fail(error, EXIT_USAGE, "--seed %s: must be an integer from 0 to 2^64 - 1", text);
  }
  *seed = parsed;
  return true;
}

bool parse_name(const char *option, const char *text, const char *const *names, int count,
                int *index, Error *error) {
  char list[128] = "";
  for (int i = 0; i < count; i++) {
    if (strcmp(text, names[i]) == 0) {
      *index = i;
      return true;
    }
    const char *separator = i == 0 ? "" : i + 1 < count ? ", " : " or ";
    strncat(list, separator, sizeof list - strlen(list) - 1);
    strncat(list, names[i], sizeof list - strlen(list) - 1);
  }
  return fail(error, EXIT_USAGE, "--%s %s: must be %s", option, text, list);
}

bool parse_sizes(const char *option, const char *text, int most, int *first, int *second,
                 Error *error) {
  const size_t digits = strspn(text, "0123456789");
  const char *rest = text + digits + (text[digits] == 'x');
  const size_t more_digits = strspn(rest, "0123456789");
  if (digits == 0 || text[digits] != 'x' || more_digits == 0 || rest[more_digits] != '\0') {
    return fail(error, EXIT_USAGE, "--%s %s: must be two sizes such as 128x64", option, text);
  }
  const unsigned long a = strtoul(text, NULL, 10), b = strtoul(rest, NULL, 10);
  if (a < 1 || a > (unsigned long)most || b < 1 || b > (unsigned long)most) {
    return fail(error, EXIT_USAGE, "--%s %s: each size must be from 1 to %d", option, text, most);
  }
  *first = (int)a;
  *second = (int)b;
  return true;
}

const char *human_number(double value, const char *unit, char text[40]) {
  static const char PREFIXES[] = " kMGTP";
  int prefix = 0;
  while (value >= 1000 && prefix < 5) {
    value /= 1000;
    prefix++;
  }
  snprintf(text, 40, prefix == 0 ? "%.0f %.*s%s" : "%.2f %.*s%s", value, prefix > 0,
           &PREFIXES[prefix], unit);
  return text;
}
