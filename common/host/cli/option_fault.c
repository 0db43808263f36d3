#include "host/cli/option_fault.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef const struct argp_option *Option;

/** Options that a word can mean: one by its letter or whole name, or all whose names begin so. */
enum { MOST_MEANINGS = 64 };

static size_t find_meanings(Option options, const char *word, Option meanings[MOST_MEANINGS]) {
  const bool is_long = word[1] == '-';
  const char *name = word + 2;
  const size_t length = strcspn(name, "=");
  size_t count = 0;
  for (Option o = options; o->name != NULL || o->doc != NULL; o++) {
    if (o->name == NULL || count == MOST_MEANINGS) continue;
    if (is_long ? strncmp(o->name, name, length) != 0 : o->key != word[1]) continue;
    if (!is_long || strlen(o->name) == length) {
      meanings[0] = o;
      return 1;
    }
    meanings[count++] = o;
  }
  return count;
}

/** "--seqlen, --seqlen-kv or --seed" */
static void join_names(const Option *meanings, size_t count, char *text, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < count && used < size; i++) {
    const char *before = i == 0 ? "" : i + 1 < count ? ", " : " or ";
    used += (size_t)snprintf(text + used, size - used, "%s--%s", before, meanings[i]->name);
  }
}

/** Describes the fault of an option; false if it has none. */
static bool describe(Option options, const char *word, char *fault, size_t size) {
  Option meanings[MOST_MEANINGS];
  if (word == NULL || word[0] != '-' || word[1] == '\0') return false;
  const size_t count = find_meanings(options, word, meanings);
  const bool has_value = word[1] == '-' ? strchr(word, '=') != NULL : word[2] != '\0';
  if (count == 0) {
    snprintf(fault, size, "no such option");
  } else if (count > 1) {
    char names[512];
    join_names(meanings, count, names, sizeof names);
    snprintf(fault, size, "may be short for %s", names);
  } else if (meanings[0]->arg == NULL && has_value) {
    snprintf(fault, size, "takes no value");
  } else if (meanings[0]->arg != NULL && !has_value &&
             !(meanings[0]->flags & OPTION_ARG_OPTIONAL)) {
    snprintf(fault, size, "needs a value");
  } else {
    return false;
  }
  return true;
}

void option_fault(const struct argp_option *options, const struct argp_state *state, Error *error) {
  char fault[600] = "not understood";
  /* argp has passed the option, or not if it is a letter with more behind it. */
  const char *word = state->argv[state->next > 1 ? state->next - 1 : 1];
  if (!describe(options, word, fault, sizeof fault)) {
    const char *next = state->argv[state->next];
    if (describe(options, next, fault, sizeof fault)) word = next;
  }
  fail(error, EXIT_USAGE, "%s: %s; --help lists the options", word, fault);
}
