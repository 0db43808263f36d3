#include "host/cli/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/text_file.h"

void cases_free(CaseList *list) {
  for (size_t i = 0; i < list->count; i++) {
    free(list->cases[i].text);
    wordfree(&list->cases[i].words);
  }
  free(list->cases);
  *list = (CaseList){0};
}

/** Splits a line into words as a shell does and applies them on top of `options`, whose strings
 * then point into `words`. */
static bool parse_line(const char *line, wordexp_t *words, Options *options, Error *error) {
  words->we_offs = 1; /* room for the name of the program */
  if (wordexp(line, words, WRDE_NOCMD | WRDE_UNDEF | WRDE_DOOFFS) != 0) {
    return fail(error, EXIT_USAGE, "cannot be split into words as a shell does");
  }
  words->we_wordv[0] = (char *)(uintptr_t)step.name;
  return options_parse((int)words->we_wordc + 1, words->we_wordv, options, error);
}

/** Cuts off a comment: a # that begins a word and is not in double quotes. */
static void cut_comment(char *text) {
  bool quoted = false;
  for (char *c = text; *c != '\0'; c++) {
    quoted ^= *c == '"';
    if (*c != '#' || quoted || (c > text && strchr(" \t", c[-1]) == NULL)) continue;
    *c = '\0';
    return;
  }
}

/** Adds a case. A line without words adds none. */
static bool add_case(CaseList *list, int line, char *text, const Options *base, Error *error) {
  Case added = {.line = line, .options = *base};
  text[strcspn(text, "\r\n")] = '\0';
  added.text = strdup(text);
  cut_comment(text);
  Case *larger = realloc(list->cases, sizeof(Case) * (list->count + 1));
  if (larger != NULL) list->cases = larger;
  bool ok =
      (larger != NULL && added.text != NULL) || fail(error, EXIT_DEVICE, "out of host memory");
  ok = ok && parse_line(text, &added.words, &added.options, error);
  const Options *o = &added.options;
  if (ok && (o->cases_path != NULL || o->ceilings || o->help || o->version)) {
    ok = fail(error, EXIT_USAGE, "--cases, --ceilings, --help and --version cannot stand here");
  }
  if (ok && added.words.we_wordc > 0) {
    list->cases[list->count++] = added;
  } else {
    free(added.text);
    wordfree(&added.words);
  }
  return ok;
}

bool cases_read(const char *path, const Options *base, CaseList *list, Error *error) {
  FILE *file = text_file_open(path);
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
