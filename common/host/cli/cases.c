#define _POSIX_C_SOURCE 200809L
#include "host/cli/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 64 };

#define BLANKS " \t\r\n"

void cases_free(CaseList *list) {
  for (size_t i = 0; i < list->count; i++) {
    free(list->cases[i].text);
    free(list->cases[i].words);
  }
  free(list->cases);
  *list = (CaseList){0};
}

enum { TOO_MANY_WORDS = -1, OPEN_QUOTE = -2 };

/**
 * Cuts `text` into words in place. As in a shell, quotes may stand anywhere in a word; they vanish,
 * and what is between them means nothing else. Returns the number of words, or what is wrong.
 */
static int split(char *text, char **words) {
  int count = 0;
  for (const char *from = text;;) {
    from += strspn(from, BLANKS);
    if (*from == '\0' || *from == '#') return count;
    if (count == MOST_WORDS) return TOO_MANY_WORDS;
    words[count++] = text;
    bool quoted = false;
    for (; *from != '\0' && (quoted || strchr(BLANKS, *from) == NULL); from++) {
      if (*from == '"') {
        quoted = !quoted;
      } else {
        *text++ = *from;
      }
    }
    if (quoted) return OPEN_QUOTE;
    if (*from != '\0') from++;
    *text++ = '\0'; /* never beyond `from`: the word is no longer than what it was made from */
  }
}

/** Applies a line on top of `options`, which keep pointing into it. */
static bool parse_line(char *line, Options *options, int *count, Error *error) {
  char program[] = "";
  char *argv[MOST_WORDS + 2] = {program};
  *count = split(line, argv + 1);
  if (*count == OPEN_QUOTE) return fail(error, EXIT_USAGE, "quote without end");
  if (*count == TOO_MANY_WORDS) return fail(error, EXIT_USAGE, "more than %d words", MOST_WORDS);
  return options_parse(*count + 1, argv, options, error);
}

/** Adds a case; none for an empty line. */
static bool add_case(CaseList *list, int line, const char *text, const Options *base,
                     Error *error) {
  Case added = {line, strdup(text), strdup(text), *base};
  Case *larger = realloc(list->cases, sizeof(Case) * (list->count + 1));
  if (larger != NULL) list->cases = larger;
  int words = 0;
  bool ok = (larger != NULL && added.text != NULL && added.words != NULL) ||
            fail(error, EXIT_DEVICE, "out of host memory");
  ok = ok && parse_line(added.words, &added.options, &words, error);
  const Options *o = &added.options;
  if (ok && (o->cases_path != NULL || o->ceilings || o->help || o->version)) {
    ok = fail(error, EXIT_USAGE, "--cases, --ceilings, --help and --version cannot stand here");
  }
  if (ok && words > 0) {
    added.text[strcspn(added.text, "\r\n")] = '\0';
    list->cases[list->count++] = added;
  } else {
    free(added.text);
    free(added.words);
  }
  return ok;
}

bool cases_read(const char *path, const Options *base, CaseList *list, Error *error) {
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    return fail(error, EXIT_USAGE, "--cases %s: cannot read it: %s", path, strerror(errno));
  }
  Options without_cases = *base;
  without_cases.cases_path = NULL;
  char *text = NULL;
  size_t capacity = 0;
  bool ok = true;
  ssize_t length;
  for (int line = 1; ok && (length = getline(&text, &capacity, file)) >= 0; line++) {
    Error reason = {0};
    ok = strlen(text) == (size_t)length ? add_case(list, line, text, &without_cases, &reason)
                                        : fail(&reason, EXIT_USAGE, "holds a NUL byte");
    if (!ok) fail(error, reason.code, "%s:%d: %s", path, line, reason.text);
  }
  if (ok && ferror(file)) ok = fail(error, EXIT_USAGE, "--cases %s: cannot read it", path);
  if (ok && list->count == 0) ok = fail(error, EXIT_USAGE, "--cases %s: holds no case", path);
  free(text);
  fclose(file);
  return ok;
}
