#include <stdlib.h>
#include <string.h>

#include "host/report/lab/parts.h"

typedef struct SourceFile {
  char *name;
  bool newer;   /* than the program: its lines are not those that were compiled */
  char *text;   /* with zeros for the ends of lines */
  char **lines; /* into the text */
  int line_count;
} SourceFile;

/** The whole file; an empty text if it cannot be read. */
static char *read_text(const char *name) {
  FILE *file = fopen(name, "r");
  size_t length = 0, capacity = 1 << 16;
  char *text = malloc(capacity);
  if (text == NULL) abort();
  while (file != NULL) {
    const size_t got = fread(text + length, 1, capacity - length - 1, file);
    length += got;
    if (got == 0) break;
    if (capacity - length > 1) continue;
    capacity *= 2;
    text = realloc(text, capacity);
    if (text == NULL) abort();
  }
  if (file != NULL) fclose(file);
  text[length] = '\0';
  return text;
}

static void cut_lines(SourceFile *file) {
  for (char *at = file->text; *at != '\0';) {
    if ((file->line_count & (file->line_count - 1)) == 0) {
      const size_t room = 2 * (size_t)file->line_count + 1;
      file->lines = realloc(file->lines, room * sizeof *file->lines);
      if (file->lines == NULL) abort();
    }
    file->lines[file->line_count++] = at;
    at += strcspn(at, "\n");
    if (*at != '\0') *at++ = '\0';
  }
}

static SourceFile *find_file(Sources *sources, const char *name) {
  for (size_t i = 0; i < sources->count; i++) {
    if (strcmp(sources->files[i].name, name) == 0) return &sources->files[i];
  }
  sources->files = realloc(sources->files, (sources->count + 1) * sizeof *sources->files);
  char *own_name = malloc(strlen(name) + 1);
  if (sources->files == NULL || own_name == NULL) abort();
  SourceFile *file = &sources->files[sources->count++];
  *file = (SourceFile){
      .name = strcpy(own_name, name), .newer = lab_source_is_newer(name), .text = read_text(name)};
  if (!file->newer) cut_lines(file);
  return file;
}

const char *source_line(Sources *sources, const char *file, int line) {
  if (file[0] == '\0') return NULL;
  const SourceFile *found = find_file(sources, file);
  return line >= 1 && line <= found->line_count ? found->lines[line - 1] : NULL;
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
    free(sources->files[i].name);
    free(sources->files[i].text);
    free(sources->files[i].lines);
  }
  free(sources->files);
  *sources = (Sources){NULL, 0};
}
