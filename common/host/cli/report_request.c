#include "host/cli/report_request.h"

#include "attention.h" /* for SIMT_BACKEND */

#ifdef SIMT_BACKEND

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "host/base/values.h"
#include "simt/lab/lab.h"

/** Names of parts; a name that ends in a colon takes an argument. */
static const struct {
  const char *name;
  unsigned part;
  bool by_default;
} PARTS[] = {
    {"races", LAB_RACES, true},
    {"bounds", LAB_BOUNDS, true},
    {"init", LAB_INIT, true},
    {"alignment", LAB_ALIGNMENT, true},
    {"blocks", LAB_BLOCKS, true},
    {"traffic", LAB_TRAFFIC, true},
    {"banks", LAB_BANKS, true},
    {"counts", REPORT_COUNTS, true},
    {"annotate", REPORT_ANNOTATE, false},
    {"roofline:", REPORT_ROOFLINE, false},
    {"access:", REPORT_ACCESS, false},
    {"json:", REPORT_JSON, false},
};
enum { PART_COUNT = sizeof PARTS / sizeof *PARTS };

static unsigned default_parts(void) {
  unsigned parts = 0;
  for (int i = 0; i < PART_COUNT; i++) parts |= PARTS[i].by_default ? PARTS[i].part : 0;
  return parts;
}

/** The part that an item of the list names, and its argument; 0 if there is no such part. */
static unsigned part_of(const char *item, const char **argument) {
  for (int i = 0; i < PART_COUNT; i++) {
    const size_t length = strlen(PARTS[i].name);
    const bool takes_argument = PARTS[i].name[length - 1] == ':';
    if (strncmp(PARTS[i].name, item, length) != 0) continue;
    if (!takes_argument && item[length] != '\0') continue;
    *argument = item + length;
    return PARTS[i].part;
  }
  return 0;
}

static bool unknown_part(const char *list, Error *error) {
  return fail(error, EXIT_USAGE,
              "--report=%s: must be one or more of races, bounds, init, alignment, blocks, "
              "traffic, banks, counts, annotate, roofline:GPU, access:FILE:LINE and "
              "json:FILE, with commas between",
              list);
}

/** Parses FILE:LINE; FILE may hold colons. */
static bool parse_access(const char *text, ReportRequest *request, Error *error) {
  const char *colon = strrchr(text, ':');
  int64_t line;
  Error unused;
  if (colon == NULL || colon == text || !parse_integer("", colon + 1, 1, INT_MAX, &line, &unused)) {
    return fail(error, EXIT_USAGE,
                "--report=access:%s: must be a source file, a colon and the number of a line",
                text);
  }
  snprintf(request->access_file, sizeof request->access_file, "%.*s", (int)(colon - text), text);
  request->access_line = (int)line;
  return true;
}

static bool parse_json_path(const char *text, ReportRequest *request, Error *error) {
  snprintf(request->json_path, sizeof request->json_path, "%s", text);
  return *text != '\0' || fail(error, EXIT_USAGE, "--report=json: must name a file");
}

static bool parse_item(const char *list, const char *item, ReportRequest *request, Error *error) {
  const char *argument;
  const unsigned part = part_of(item, &argument);
  if (part == 0) return unknown_part(list, error);
  if (request->parts & part) {
    return fail(error, EXIT_USAGE, "--report=%s: %s: the part is asked for twice", list, item);
  }
  request->parts |= part;
  switch (part) {
    case REPORT_ROOFLINE:
      return gpu_find(argument, &request->gpu, error);
    case REPORT_ACCESS:
      return parse_access(argument, request, error);
    case REPORT_JSON:
      return parse_json_path(argument, request, error);
    default:
      return true;
  }
}

bool report_request_parse(const char *list, ReportRequest *request, Error *error) {
  *request = (ReportRequest){.parts = list == NULL ? default_parts() : 0};
  if (list == NULL) return true;
  for (const char *at = list;; at++) {
    char item[PATH_MAX + 32];
    const size_t length = strcspn(at, ",");
    if (length >= sizeof item) return unknown_part(list, error);
    snprintf(item, sizeof item, "%.*s", (int)length, at);
    if (!parse_item(list, item, request, error)) return false;
    at += length;
    if (*at == '\0') break;
  }
  /* json:FILE alone asks for the default parts. */
  if (request->parts == REPORT_JSON) request->parts |= default_parts();
  return true;
}

#else

#include <errno.h> /* program_invocation_short_name */

bool report_request_parse(const char *list, ReportRequest *request, Error *error) {
  (void)list, (void)request;
  return fail(error, EXIT_USAGE,
              "--report: needs the CPU backend (make %s BACKEND=cpu); on a GPU use Nsight Compute",
              program_invocation_short_name);
}

#endif
