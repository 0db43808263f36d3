/**
 * @file
 * For the tests of host/io/npy.c: files made by hand in a directory of their own, and what their
 * refusal must say. Includes cmocka.h.
 */
#ifndef NPY_TESTING_H
#define NPY_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/io/npy.h"

#include <cmocka.h> /* last: its macro fail() would hide ours */

static const NpyTypes ANY_TYPE = {0x3f, "<f2, <f4, <f8, <u2, <i4 or |b1"};

static char directory[] = "/tmp/test_npy.XXXXXX";
static char path[64];

static inline int create_directory(void **state) {
  (void)state;
  if (!mkdtemp(directory)) return -1;
  snprintf(path, sizeof path, "%s/a.npy", directory);
  return 0;
}

/** Removing fails, and so do the tests, if one of them left a file behind. */
static inline int remove_directory(void **state) {
  (void)state;
  return rmdir(directory);
}

static inline void write_file(const void *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

static inline size_t read_file(void *bytes, size_t size) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  const size_t count = fread(bytes, 1, size, file);
  fclose(file);
  return count;
}

/** Bytes of a file made by hand. */
typedef struct Bytes {
  unsigned char data[1024];
  size_t count;
} Bytes;

/** A file with the given dictionary, followed by `data_bytes` ones. */
static inline Bytes make_file(int major, const char *dictionary, size_t data_bytes) {
  Bytes file = {.count = 0};
  const size_t length = strlen(dictionary), width = major == 1 ? 2 : 4;
  memcpy(file.data, "\x93NUMPY", 6);
  file.data[6] = (unsigned char)major;
  file.data[8] = (unsigned char)length;
  file.data[9] = (unsigned char)(length >> 8);
  memcpy(file.data + 8 + width, dictionary, length);
  memset(file.data + 8 + width + length, 1, data_bytes);
  file.count = 8 + width + length + data_bytes;
  return file;
}

/** Reads `path` and checks that the refusal is one line, names the file and goes on with `text`. */
static inline void expect_refusal(const char *text) {
  NpyArray array;
  Error error;
  char whole[512];
  assert_false(npy_read(path, ANY_TYPE, &array, &error));
  snprintf(whole, sizeof whole, "%s: %s", path, text);
  assert_string_equal(error.text, whole);
  assert_int_equal(error.code, EXIT_USAGE);
  assert_null(array.data);
}

static inline void refuse_bytes(const void *bytes, size_t count, const char *text) {
  write_file(bytes, count);
  expect_refusal(text);
  unlink(path);
}

static inline void refuse_dictionary(const char *dictionary, size_t data_bytes, const char *text) {
  const Bytes file = make_file(1, dictionary, data_bytes);
  refuse_bytes(file.data, file.count, text);
}

#define WITH_TYPE(type) "{'descr': " type ", 'fortran_order': False, 'shape': (2,), }"
#define WITH_ORDER(order) "{'descr': '<f2', 'fortran_order': " order ", 'shape': (2,), }"
#define WITH_SHAPE(shape) "{'descr': '<f2', 'fortran_order': False, 'shape': " shape ", }"

#endif
