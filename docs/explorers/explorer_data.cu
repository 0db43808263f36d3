/**
 * @file
 * Prints the data of the explorers: `explorer_data fragments`, `explorer_data banks` and
 * `explorer_data shares`. `make explorers` writes it to build/docs/explorers/data. For a test
 * `explorer_data schedule` prints who has which keys of a decode problem.
 */
#include "explorer_data.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("explorer_data: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(EXIT_FAILURE);
}

void check(cudaError_t error) {
  if (error != cudaSuccess) fail("%s", cudaGetErrorString(error));
}

void *device_memory(size_t bytes, const void *content) {
  void *memory;
  check(cudaMalloc(&memory, bytes));
  if (content != NULL) check(cudaMemcpy(memory, content, bytes, cudaMemcpyHostToDevice));
  return memory;
}

void print_integers(const char *name, const int *list, int count) {
  printf("\"%s\": [", name);
  for (int i = 0; i < count; i++) printf(i == 0 ? "%d" : ",%d", list[i]);
  printf("]");
}

int main(int count, char **words) {
  const char *what = count >= 2 ? words[1] : "";
  if (strcmp(what, "fragments") == 0) {
    print_fragments();
  } else if (strcmp(what, "banks") == 0) {
    print_banks();
  } else if (strcmp(what, "shares") == 0) {
    print_shares();
  } else if (strcmp(what, "schedule") == 0) {
    print_schedule(count - 2, words + 2);
  } else {
    fail("say which data: fragments, banks, shares or schedule");
  }
  return 0;
}
