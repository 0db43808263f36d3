#include <string.h>

#include "host/lab_report.h"

#ifdef SIMT_BACKEND

static const struct {
  const char *name;
  unsigned part;
} PARTS[] = {
    {"races", LAB_RACES},         {"bounds", LAB_BOUNDS},    {"init", LAB_INIT},
    {"alignment", LAB_ALIGNMENT}, {"blocks", LAB_BLOCKS},    {"traffic", LAB_TRAFFIC},
    {"banks", LAB_BANKS},         {"limits", REPORT_LIMITS}, {"counts", REPORT_COUNTS},
};
enum { PART_COUNT = sizeof PARTS / sizeof *PARTS };

static unsigned part_named(const char *name, size_t length) {
  for (int i = 0; i < PART_COUNT; i++) {
    if (strlen(PARTS[i].name) == length && strncmp(PARTS[i].name, name, length) == 0) {
      return PARTS[i].part;
    }
  }
  return 0;
}

bool lab_report_parse(const char *list, unsigned *parts, Error *error) {
  *parts = 0;
  if (list == NULL) {
    for (int i = 0; i < PART_COUNT; i++) *parts |= PARTS[i].part;
    return true;
  }
  for (const char *name = list;; name++) {
    const size_t length = strcspn(name, ",");
    const unsigned part = part_named(name, length);
    if (part == 0) {
      char names[128] = "";
      for (int i = 0; i < PART_COUNT; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ", PARTS[i].name);
      }
      return fail(error, EXIT_USAGE, "--report=%s: must be one or more of %s, with commas between",
                  list, names);
    }
    *parts |= part;
    name += length;
    if (*name == '\0') return true;
  }
}

#else

bool lab_report_parse(const char *list, unsigned *parts, Error *error) {
  (void)list;
  *parts = 0;
  return fail(error, EXIT_USAGE,
              "--report: needs the CPU backend (make %s BACKEND=cpu); on a GPU use Nsight Compute",
              step.name);
}

#endif
