/** @file --cases: one run for each line of a file of options, all in one process. */
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
 * Reads a file of cases. Each line holds options as a shell reads them, without command
 * substitution; they apply on top of `base`. A # begins a comment. EXIT_USAGE names the first
 * malformed line. Call cases_free() afterwards, also after a failure.
 */
bool cases_read(const char *path, const Options *base, CaseList *list, Error *error);
void cases_free(CaseList *list);

#endif
