#define _POSIX_C_SOURCE 200809L
#include "host/cli/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/run.h"

enum { MOST_WORDS = 64 };

#define BLANKS " \t\r\n"

/** One line of the file. */
typedef struct Case {
  int line;
  char *text;  /**< as written, for the report */
  char *words; /**< cut into words; the options point into it */
  Options options;
} Case;

typedef struct CaseList {
  Case *cases;
  size_t count;
} CaseList;

static void cases_free(CaseList *list) {
  for (size_t i = 0; i < list->count; i++) {
    free(list->cases[i].text);
    free(list->cases[i].words);
  }
  free(list->cases);
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

/** Parses one line; an empty one adds no case. */
static bool add_case(CaseList *list, const char *path, int line, const char *text,
                     const Options *base, Error *error) {
  char program[] = "";
  char *argv[MOST_WORDS + 2] = {program};
  Case new_case = {line, strdup(text), strdup(text), *base};
  Case *larger = realloc(list->cases, sizeof(Case) * (list->count + 1));
  if (larger != NULL) list->cases = larger;
  if (larger == NULL || new_case.text == NULL || new_case.words == NULL) {
    return fail(error, EXIT_DEVICE, "out of host memory: %s", path);
  }
  list->cases[list->count++] = new_case;
  Case *added = &list->cases[list->count - 1];
  added->text[strcspn(added->text, "\r\n")] = '\0';

  const int words = split(added->words, argv + 1);
  if (words == OPEN_QUOTE) return fail(error, EXIT_USAGE, "%s:%d: quote without end", path, line);
  if (words == TOO_MANY_WORDS) {
    return fail(error, EXIT_USAGE, "%s:%d: more than %d words", path, line, MOST_WORDS);
  }
  Error reason = {0};
  if (!options_parse(words + 1, argv, &added->options, &reason)) {
    return fail(error, EXIT_USAGE, "%s:%d: %.900s", path, line, reason.text);
  }
  const Options *o = &added->options;
  if (o->cases_path != NULL || o->ceilings || o->help || o->version) {
    return fail(error, EXIT_USAGE,
                "%s:%d: --cases, --ceilings, --help and --version cannot stand here", path, line);
  }
  if (words == 0) {
    free(added->text);
    free(added->words);
    list->count--;
  }
  return true;
}

static bool read_cases(const char *path, const Options *base, CaseList *list, Error *error) {
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
    if (strlen(text) != (size_t)length) {
      ok = fail(error, EXIT_USAGE, "%s:%d: holds a NUL byte, must be text", path, line);
      break;
    }
    ok = add_case(list, path, line, text, &without_cases, error);
  }
  if (ok && ferror(file)) ok = fail(error, EXIT_USAGE, "--cases %s: cannot read it", path);
  if (ok && list->count == 0) ok = fail(error, EXIT_USAGE, "--cases %s: holds no case", path);
  free(text);
  fclose(file);
  return ok;
}

ExitCode run_cases(const char *path, const Options *base, const Device *device, Error *error) {
  CaseList list = {0};
  ExitCode worst = EXIT_RIGHT;
  if (!read_cases(path, base, &list, error)) {
    cases_free(&list);
    return error->code;
  }
  for (size_t i = 0; i < list.count; i++) {
    static const char *const VERDICTS[] = {"right", "WRONG", "refused", "failed"};
    const Case *c = &list.cases[i];
    Error reason = {0};
    const ExitCode code = run_options(&c->options, device, true, &reason);
    const Options *o = &c->options;
    const bool unchecked =
        code == EXIT_RIGHT && (o->check == CHECK_NONE || o->info || o->draw_mask);
    printf("%s:%d: %s: %s\n", path, c->line, unchecked ? "not checked" : VERDICTS[code], c->text);
    fflush(stdout);
    if (code >= EXIT_USAGE) fprintf(stderr, "%s:%d: %s\n", path, c->line, reason.text);
    if (code > worst) worst = code;
  }
  cases_free(&list);
  error->text[0] = '\0';
  return worst;
}

ExitCode run_tour(const Options *base, const Device *device, Error *error) {
  static const char *const MASKS[] = {"causal", "window:200", "document:3", "interleaved:1",
                                      "random:0.5"};
  ExitCode code = EXIT_RIGHT;
  for (size_t i = 0; i < sizeof MASKS / sizeof *MASKS && code == EXIT_RIGHT; i++) {
    char program[] = "", words[256];
    char *argv[MOST_WORDS + 2] = {program};
    snprintf(words, sizeof words, "-b 1 -n 1024 --mask %s --mask-block 64x64 --min-time 0.1",
             MASKS[i]);
    printf("%s./%s %s\n\n", i == 0 ? "" : "\n", step.name, words);
    Options options = *base;
    const int count = split(words, argv + 1);
    if (!options_parse(count + 1, argv, &options, error)) return error->code;
    options.draw_mask = true;
    code = run_options(&options, device, false, error);
    options.draw_mask = false;
    if (code == EXIT_RIGHT) code = run_options(&options, device, false, error);
  }
  return code;
}
