/**
 * @file
 * A program without the option --report, such as f01, is examined if the variable REPORT holds what
 * this option would. A program that would end with 0 ends with 1 if there are findings.
 */
#include <stdlib.h>
#include <unistd.h>

#include "host/report/record.h"

static ReportRequest request;

static void report(int code, void *unused) {
  RunRecord run = {.step = "exercise", .request = &(RunRequest){.report = &request}};
  Error error;
  (void)unused;
  fflush(stdout);
  if (!lab_report_finish(&run, stdout, &error)) fprintf(stderr, "REPORT: %s\n", error.text);
  if (fflush(stdout) == 0 && run.lab.findings > 0 && code == EXIT_SUCCESS) _exit(EXIT_WRONG);
}

__attribute__((constructor)) static void begin(void) {
  const char *list = getenv("REPORT");
  Error error;
  if (list == NULL) return;
  if (!report_request_parse(*list == '\0' ? NULL : list, &request, &error) ||
      !lab_report_start(&request, &error)) {
    fprintf(stderr, "REPORT: %s\n", error.text);
    exit(error.code);
  }
  on_exit(report, NULL);
}
