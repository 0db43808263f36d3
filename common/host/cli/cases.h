/**
 * @file
 * Many problems in one process: a file of options.
 */
#ifndef HOST_CASES_H
#define HOST_CASES_H

#include <wordexp.h>

#include "host/base/error.h"
#include "host/cli/options.h"

/** One line of the file. */
typedef struct Case {
  int line;
  char *text;      /**< as written, for the report */
  wordexp_t words; /**< the options point into it */
  Options options;
} Case;

typedef struct CaseList {
  Case *cases;
  size_t count;
} CaseList;

/**
 * Reads the lines of a file, which apply on top of `base`. A line holds options as a shell takes
 * them, without commands; what follows a # is a comment. EXIT_USAGE names the first malformed line.
 * Freed by cases_free(), after a failure too.
 */
bool cases_read(const char *path, const Options *base, CaseList *list, Error *error);
void cases_free(CaseList *list);

#endif
