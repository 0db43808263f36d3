#include "host/base/text_file.h"

FILE *text_file_open(const char *path) {
  FILE *file = fopen(path, "r");
  if (file == NULL) return NULL;
  const int first = getc(file);
  if (first == 0xef && getc(file) == 0xbb && getc(file) == 0xbf) return file;
  if (first == 0xef) {
    rewind(file);
  } else {
    ungetc(first, file); /* a pipe cannot be rewound */
  }
  return file;
}
