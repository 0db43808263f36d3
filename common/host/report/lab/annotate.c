/* Prints the source of a kernel with counts in the margin: all functions that have counts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/report/lab/parts.h"

/** Lines first .. last of a file: one function. */
typedef struct Span {
  int first, last;
} Span;

static const char *line_at(Sources *sources, const char *file, int line) {
  const char *text = source_line(sources, file, line);
  return text != NULL ? text : "";
}

/** True if a declaration begins or continues on this line; code within functions is indented. */
static bool is_heading(const char *text) {
  return text[0] != '\0' && strchr(" \t}#/*", text[0]) == NULL;
}

/** From the heading of the function that holds `line` to its closing brace in the first column. */
static Span function_of(Sources *sources, const char *file, int line) {
  Span span = {line, line};
  while (span.first > 1 && !is_heading(line_at(sources, file, span.first))) span.first--;
  while (span.first > 1 && is_heading(line_at(sources, file, span.first - 1))) span.first--;
  while (source_line(sources, file, span.last + 1) != NULL &&
         line_at(sources, file, span.last)[0] != '}') {
    span.last++;
  }
  return span;
}

/** Writes what a line issues besides accesses: "8192 mma". */
static void issued_text(const LabCounts *c, char *text, size_t text_size) {
  size_t length = 0;
  for (int kind = 0; kind < ISSUED_KINDS && length < text_size; kind++) {
    if (issued(c, kind) == 0) continue;
    length += (size_t)snprintf(text + length, text_size - length, "%s%" PRIu64 " %s",
                               length > 0 ? ", " : "", issued(c, kind), ISSUED[kind].brief);
  }
}

static void print_count(uint64_t count, int width, FILE *out) {
  if (count > 0) {
    fprintf(out, "%*" PRIu64 " ", width, count);
  } else {
    fprintf(out, "%*s ", width, "");
  }
}

static void print_margin(const LabCounts *c, FILE *out) {
  uint64_t sectors = 0, conflicts = 0;
  char others[64] = "";
  for (LabAccessKind kind = 0; kind < LAB_ACCESS_KINDS; kind++) {
    const LabTraffic *t = lab_traffic(c, kind);
    sectors += t->sectors;
    conflicts += t->wavefronts - t->ideal_wavefronts;
  }
  issued_text(c, others, sizeof others);
  print_count(sectors, 10, out);
  print_count(total_wavefronts(c), 10, out);
  print_count(conflicts, 10, out);
  fprintf(out, "%-13s |", others);
}

/** Prints the lines of one kernel in one file: results->lines[first .. end - 1]. */
static void print_file(const LabResults *results, size_t first, size_t end, Sources *sources,
                       FILE *out) {
  const char *file = results->lines[first].file;
  int next = 1; /* line to be printed */
  fprintf(out, "annotate   %s in %s\n", results->lines[first].kernel, file);
  fprintf(out, "%10s %10s %10s %-13s |\n", "sectors", "wavefronts", "conflicts", "issued");
  for (size_t i = first; i < end;) {
    const Span span = function_of(sources, file, results->lines[i].line);
    if (next > 1) fprintf(out, "%46s |  ...\n", "");
    for (next = span.first; next <= span.last; next++) {
      static const LabCounts NONE;
      const bool counted = i < end && results->lines[i].line == next;
      print_margin(counted ? &results->lines[i].counts : &NONE, out);
      const char *text = line_at(sources, file, next);
      fprintf(out, text[0] != '\0' ? "%5d  %s\n" : "%5d\n", next, text);
      i += counted;
    }
  }
}

void print_annotated(const LabResults *results, Sources *sources, FILE *out) {
  for (size_t first = 0; first < results->line_count;) {
    const LabLine *line = &results->lines[first];
    size_t end = first + 1;
    while (end < results->line_count && strcmp(results->lines[end].kernel, line->kernel) == 0 &&
           strcmp(results->lines[end].file, line->file) == 0) {
      end++;
    }
    if (line->line == 0) {
      fprintf(out, "annotate   %s: some counts belong to no known line\n", line->kernel);
    } else if (source_line(sources, line->file, line->line) == NULL) {
      fprintf(out, "annotate   %s: no lines of %s\n", line->kernel, line->file);
    } else {
      print_file(results, first, end, sources, out);
    }
    first = end;
  }
}
