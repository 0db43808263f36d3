#include <simt.h>
#include <stdlib.h>
#include <string.h>

#include "host/report/lab/parts.h"

typedef struct SourceFile {
  char *name;
  bool newer;   /* than the program: its lines may differ from those that were compiled */
  char **lines; /* without newlines */
  int line_count;
} SourceFile;

/** Reads all lines; none if the file cannot be read. */
static void read_lines(SourceFile *source) {
  FILE *file = fopen(source->name, "r");
  char *line = NULL;
  size_t capacity = 0;
  while (file != NULL && getline(&line, &capacity, file) >= 0) {
    source->lines = realloc(source->lines, (size_t)(source->line_count + 1) * sizeof(char *));
    if (source->lines == NULL) abort();
    line[strcspn(line, "\n")] = '\0';
    source->lines[source->line_count++] = line;
    line = NULL; /* getline() allocates the next */
  }
  free(line);
  if (file != NULL) fclose(file);
}

static SourceFile *find_file(Sources *sources, const char *name) {
  for (size_t i = 0; i < sources->count; i++) {
    if (strcmp(sources->files[i].name, name) == 0) return &sources->files[i];
  }
  sources->files = realloc(sources->files, (sources->count + 1) * sizeof *sources->files);
  if (sources->files == NULL) abort();
  SourceFile *source = &sources->files[sources->count++];
  *source = (SourceFile){.name = strdup(name), .newer = simt_source_is_newer(name)};
  if (source->name == NULL) abort();
  if (!source->newer) read_lines(source);
  return source;
}

const char *source_line(Sources *sources, const char *file, int line) {
  if (file[0] == '\0') return NULL;
  const SourceFile *source = find_file(sources, file);
  return line >= 1 && line <= source->line_count ? source->lines[line - 1] : NULL;
}

void print_newer_sources(const Sources *sources, FILE *out) {
  for (size_t i = 0; i < sources->count; i++) {
    if (!sources->files[i].newer) continue;
    fprintf(out, "lab        %s is newer than this program: lines may differ and are not quoted\n",
            sources->files[i].name);
  }
}

void sources_free(Sources *sources) {
  for (size_t i = 0; i < sources->count; i++) {
    SourceFile *source = &sources->files[i];
    for (int line = 0; line < source->line_count; line++) free(source->lines[line]);
    free(source->lines);
    free(source->name);
  }
  free(sources->files);
  *sources = (Sources){NULL, 0};
}
