/**
 * @file
 * Tests of host/io/npy.c: files are read back as they were written, files of other programs are
 * read or refused, and no half-written file is left.
 */
#include "host/io/npy.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../files_testing.h" /* last */

static const NpyTypes ANY_TYPE = {NPY_ANY_TYPE, "any"};
static const NpyTypes HALF_OR_BOOL = {1 << NPY_F2 | 1 << NPY_B1, "<f2 or |b1"};

static void write_bytes(const void *bytes, size_t count) {
  FILE *file = fopen(test_file, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

/** A file with the given dictionary, followed by `data_bytes` ones. Returns its size. */
static size_t make_file(int major, const char *dictionary, size_t data_bytes, char *file) {
  const size_t length = strlen(dictionary), width = major == 1 ? 2 : 4;
  memset(file, 0, 12);
  memcpy(file, "\x93NUMPY", 6);
  file[6] = (char)major;
  file[8] = (char)length;
  memcpy(file + 8 + width, dictionary, length);
  memset(file + 8 + width + length, 1, data_bytes);
  return 8 + width + length + data_bytes;
}

/** Reads `test_file`; the refusal must be one line that names the file and contains `text`. */
static void expect_refusal(NpyTypes types, const char *text) {
  NpyArray array;
  Error error;
  if (npy_read(test_file, types, &array, &error)) fail_msg("read: expected \"%s\"", text);
  if (strstr(error.text, text) == NULL) fail_msg("\"%s\": expected \"%s\"", error.text, text);
  assert_memory_equal(error.text, test_file, strlen(test_file));
  assert_int_equal(error.code, EXIT_USAGE);
  assert_null(array.data);
}

static void refuse(const char *dictionary, size_t data_bytes, const char *text) {
  char file[1024];
  write_bytes(file, make_file(1, dictionary, data_bytes, file));
  expect_refusal(HALF_OR_BOOL, text);
  unlink(test_file);
}

TEST(all_types_and_ranks_survive_a_round_trip) {
  const size_t sizes[] = {2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  const int64_t shape[] = {3, 1, 2, 1, 0, 2, 1, 2};
  unsigned char data[6 * 8];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i & 1);
  for (int type = NPY_F2; type <= NPY_B1; type++) {
    for (int rank = 0; rank <= NPY_MAX_RANK; rank++) {
      NpyArray array;
      Error error;
      size_t bytes = sizes[type];
      for (int i = 0; i < rank; i++) bytes *= (size_t)shape[i];
      const NpyFile file = {"a.npy", (NpyType)type, rank, shape, data};
      assert_true(npy_write(test_directory, &file, 1, &error));
      assert_true(npy_read(test_file, ANY_TYPE, &array, &error));
      assert_true(array.type == (NpyType)type && array.rank == rank && array.bytes == bytes);
      assert_memory_equal(array.shape, shape, (size_t)rank * sizeof shape[0]);
      assert_memory_equal(array.data, data, bytes);
      npy_free(&array);
      unlink(test_file);
    }
  }
}

TEST(written_bytes_are_those_of_numpy) {
  /* numpy.save() of numpy.array([[1, 2, 3]], '<u2') */
  const char expected[] =
      "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (1, 3), }"
      "                                                          \n\x01\x00\x02\x00\x03";
  const uint16_t data[] = {1, 2, 3};
  const int64_t shape[] = {1, 3};
  const NpyFile file = {"a.npy", NPY_U2, 2, shape, data};
  char found[256];
  Error error;
  assert_true(npy_write(test_directory, &file, 1, &error));
  FILE *stream = fopen(test_file, "rb");
  assert_non_null(stream);
  assert_int_equal(fread(found, 1, sizeof found, stream), sizeof expected);
  fclose(stream);
  assert_memory_equal(found, expected, sizeof expected);
  unlink(test_file);
}

TEST(headers_of_other_writers_are_read) {
  const struct {
    const char *dictionary;
    int rank;
    size_t bytes;
  } accepted[] = {
      {"{'descr':'<f2','fortran_order':False,'shape':(2,3)}", 2, 12},
      {"{\"shape\": (2, 3,), \"descr\": \"<f2\", \"fortran_order\": False}\n", 2, 12},
      {" {\t'fortran_order' : False , 'shape' : ( 2 , 3 ) ,\r\n'descr' : '<f2' , } ", 2, 12},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (2L, 3L), }", 2, 12},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (), }", 0, 2},
      {"{'descr': '<b1', 'fortran_order': False, 'shape': (5,), }", 1, 5},
  };
  for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
    for (int major = 1; major <= 3; major++) {
      char file[1024];
      NpyArray array;
      Error error;
      write_bytes(file, make_file(major, accepted[i].dictionary, accepted[i].bytes, file));
      if (!npy_read(test_file, HALF_OR_BOOL, &array, &error)) fail_msg("%s", error.text);
      assert_true(array.rank == accepted[i].rank && array.bytes == accepted[i].bytes);
      npy_free(&array);
      unlink(test_file);
    }
  }
}

#define WITH_TYPE(type) "{'descr': " type ", 'fortran_order': False, 'shape': (2,), }"
#define WITH_SHAPE(shape) "{'descr': '<f2', 'fortran_order': False, 'shape': " shape ", }"

TEST(files_that_cannot_be_used_are_refused) {
  expect_refusal(ANY_TYPE, "cannot open: No such file or directory");
  assert_int_equal(mkfifo(test_file, 0600), 0);
  expect_refusal(ANY_TYPE, "expected a regular file");
  unlink(test_file);
  refuse(WITH_TYPE("'<f4'"), 8, "element type '<f4': expected <f2 or |b1");
  refuse(WITH_TYPE("'>f2'"), 4, "big-endian elements (>f2): expected little-endian");
  refuse(WITH_TYPE("[('a', '<f2')]"), 4, "element type [('a': expected <f2 or |b1");
  refuse("{'descr': '<f2', 'fortran_order': True, 'shape': (2,), }", 4, "expected C order");
  refuse("{'descr': '<f2', 'shape': ()}", 2, "'fortran_order'");
  refuse(WITH_SHAPE("[2]"), 4, "shape [2], }: expected at most 8 dimensions");
  refuse(WITH_SHAPE("(2 3)"), 12, "each a length from 0 to 2^63 - 1");
  refuse(WITH_SHAPE("(-2,)"), 2, "each a length");
  refuse(WITH_SHAPE("(9223372036854775808,)"), 0, "each a length");
  refuse(WITH_SHAPE("(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 2, "at most 8 dimensions");
  refuse(WITH_SHAPE("(2,"), 4, "each a length");
  refuse(WITH_SHAPE("(2, 3)"), 13,
         "trailing bytes: 13 bytes of data, expected 12 for shape (2, 3)");
  refuse(WITH_SHAPE("(4294967296, 4294967296)"), 0, "is too big: expected below 2^63 bytes");
}

TEST(bools_other_than_0_and_1_are_refused) {
  char file[1024];
  const size_t count = make_file(1, WITH_TYPE("'|b1'"), 2, file);
  file[count - 1] = 2;
  write_bytes(file, count);
  expect_refusal(ANY_TYPE, "element 1 is 2: expected a bool, 0 or 1");
  unlink(test_file);
}

TEST(every_truncation_is_refused) {
  for (int major = 1; major <= 4; major++) {
    char file[1024];
    size_t count = make_file(major, WITH_SHAPE("(2, 3)"), 12, file);
    if (major == 4) {
      write_bytes(file, count);
      expect_refusal(ANY_TYPE, "format version 4.0: expected 1.0, 2.0 or 3.0");
    }
    while (count-- > 0) {
      write_bytes(file, count);
      expect_refusal(ANY_TYPE, "");
    }
  }
  unlink(test_file);
}

TEST(a_failed_write_leaves_all_files_as_they_were) {
  static const char data[1000];
  const int64_t shape[] = {sizeof data};
  const NpyFile files[] = {{"b.npy", NPY_B1, 0, shape, data}, {"a.npy", NPY_B1, 1, shape, data}};
  char expected[128], kept[8];
  Error error;
  snprintf(expected, sizeof expected, "%s: cannot write: File too large", test_file);
  write_bytes("old", 3);
  const rlim_t before = limit_files(500);
  const bool ok = npy_write(test_directory, files, 2, &error);
  limit_files(before);
  assert_false(ok);
  assert_int_equal(error.code, EXIT_DEVICE);
  assert_string_equal(error.text, expected);
  FILE *file = fopen(test_file, "rb");
  assert_non_null(file);
  assert_int_equal(fread(kept, 1, sizeof kept, file), 3);
  fclose(file);
  unlink(test_file); /* removing the directory fails if anything else is left */
  assert_false(npy_write("/no/such", files, 2, &error));
  assert_string_equal(error.text, "/no/such/b.npy: cannot write: No such file or directory");
}

RUN_TESTS(create_test_directory, remove_test_directory)
