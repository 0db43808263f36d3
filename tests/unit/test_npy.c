/** @file Tests of host/npy.c: what it reads and writes, and above all what it refuses, and how. */
#define _POSIX_C_SOURCE 200809L

#include "host/npy.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[] = "/tmp/test_npy.XXXXXX";
static char path[64];

static int create_directory(void **state) {
  (void)state;
  if (!mkdtemp(directory)) return -1;
  snprintf(path, sizeof path, "%s/a.npy", directory);
  return 0;
}

/** Removing fails, and so do the tests, if one of them left a file behind. */
static int remove_directory(void **state) {
  (void)state;
  return rmdir(directory);
}

static void write_file(const void *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

static size_t read_file(void *bytes, size_t size) {
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
static Bytes make_file(int major, const char *dictionary, size_t data_bytes) {
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
static void expect_refusal(const char *text) {
  NpyArray array;
  Error error;
  char whole[512];
  assert_false(npy_read(path, &array, &error));
  snprintf(whole, sizeof whole, "%s: %s", path, text);
  assert_string_equal(error.text, whole);
  assert_int_equal(error.code, EXIT_USAGE);
  assert_null(array.data);
}

static void refuse_bytes(const void *bytes, size_t count, const char *text) {
  write_file(bytes, count);
  expect_refusal(text);
  unlink(path);
}

static void refuse_dictionary(const char *dictionary, size_t data_bytes, const char *text) {
  const Bytes file = make_file(1, dictionary, data_bytes);
  refuse_bytes(file.data, file.count, text);
}

static void all_types_and_ranks_survive_a_round_trip(void **state) {
  (void)state;
  const char *const names[] = {"<f2", "<f4", "<f8", "<u2", "<i4", "|b1"};
  const size_t sizes[] = {2, 4, 8, 2, 4, 1};
  const int64_t shape[] = {3, 1, 2, 1, 1, 2, 1, 2};
  unsigned char data[24 * 8], file[1024];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i & 1);
  for (int type = NPY_F2; type <= NPY_B1; type++) {
    assert_string_equal(npy_type_name((NpyType)type), names[type]);
    assert_int_equal(npy_type_bytes((NpyType)type), sizes[type]);
    for (int rank = 0; rank <= NPY_MAX_RANK; rank++) {
      NpyArray array;
      Error error;
      size_t bytes = sizes[type];
      for (int i = 0; i < rank; i++) bytes *= (size_t)shape[i];
      assert_true(npy_write(path, (NpyType)type, rank, shape, data, &error));
      assert_int_equal((read_file(file, sizeof file) - bytes) % 64, 0);
      assert_true(npy_read(path, &array, &error));
      assert_int_equal(array.type, type);
      assert_int_equal(array.rank, rank);
      assert_memory_equal(array.shape, shape, (size_t)rank * sizeof shape[0]);
      assert_int_equal(array.bytes, bytes);
      assert_memory_equal(array.data, data, bytes);
      npy_free(&array);
      npy_free(&array);
      unlink(path);
    }
  }
}

static void written_bytes_are_those_of_numpy(void **state) {
  (void)state;
  /* numpy.save() of numpy.array([[1, 2, 3]], '<u2') */
  const char expected[] =
      "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (1, 3), }"
      "                                                          \n\x01\x00\x02\x00\x03";
  const uint16_t data[] = {1, 2, 3};
  const int64_t shape[] = {1, 3};
  unsigned char file[256];
  Error error;
  assert_true(npy_write(path, NPY_U2, 2, shape, data, &error));
  assert_int_equal(read_file(file, sizeof file), sizeof expected);
  assert_memory_equal(file, expected, sizeof expected);
  unlink(path);
}

static void empty_arrays_are_arrays(void **state) {
  (void)state;
  const int64_t shape[] = {4, 0};
  NpyArray array;
  Error error;
  assert_true(npy_write(path, NPY_F4, 2, shape, NULL, &error));
  assert_true(npy_read(path, &array, &error));
  assert_int_equal(array.bytes, 0);
  assert_int_equal(array.shape[0], 4);
  npy_free(&array);
  unlink(path);
}

static void headers_of_other_writers_are_read(void **state) {
  (void)state;
  const struct {
    const char *dictionary;
    int rank;
    size_t bytes;
  } accepted[] = {
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }   \n", 2, 12},
      {"{'descr':'<f2','fortran_order':False,'shape':(2,3)}", 2, 12},
      {"{\"shape\": (2, 3,), \"descr\": \"<f2\", \"fortran_order\": False}\n", 2, 12},
      {" {\t'fortran_order' : False , 'shape' : ( 2 , 3 ) ,\r\n'descr' : '<f2' , } ", 2, 12},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (2L, 3L), }", 2, 12},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", 1, 6},
      {"{'descr': '<f2', 'fortran_order': False, 'shape': (), }", 0, 2},
      {"{'descr': '<b1', 'fortran_order': False, 'shape': (5,), }", 1, 5},
  };
  for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
    for (int major = 1; major <= 3; major++) {
      const Bytes file = make_file(major, accepted[i].dictionary, accepted[i].bytes);
      NpyArray array;
      Error error = {.text = ""};
      write_file(file.data, file.count);
      if (!npy_read(path, &array, &error)) fail_msg("%s: %s", accepted[i].dictionary, error.text);
      assert_int_equal(array.rank, accepted[i].rank);
      assert_int_equal(array.bytes, accepted[i].bytes);
      npy_free(&array);
      unlink(path);
    }
  }
}

static void files_that_cannot_be_opened_are_named(void **state) {
  (void)state;
  NpyArray array;
  Error error;
  expect_refusal("cannot open: No such file or directory");
  assert_false(npy_read(directory, &array, &error));
  assert_non_null(strstr(error.text, ": expected a regular file"));
  assert_int_equal(mkfifo(path, 0600), 0);
  expect_refusal("expected a regular file");
  unlink(path);
}

static void files_of_another_kind_are_refused(void **state) {
  (void)state;
  refuse_bytes("", 0, "no .npy file: it starts with \"\", expected \"\\x93NUMPY\"");
  refuse_bytes("PK\3\4 archive", 12,
               "no .npy file: it starts with \"PK\\x03\\x04 arc\", expected \"\\x93NUMPY\"");
  refuse_bytes("\"\\\n", 3,
               "no .npy file: it starts with \"\\x22\\x5c\\x0a\", expected \"\\x93NUMPY\"");
  refuse_bytes("\x93NUM", 4, "truncated: 4 bytes, expected at least 10");
  refuse_bytes("\x93NUMPY\2\0\1\0", 10, "truncated: 10 bytes, expected at least 12");
  refuse_bytes("\x93NUMPY\1\0\5\0{", 11, "truncated: 11 bytes, expected at least 15");
  refuse_bytes("\x93NUMPY\2\0\xff\xff\xff\xff{", 13,
               "truncated: 13 bytes, expected at least 4294967307");
  refuse_bytes("\x93NUMPY\4\0\1\0{", 11, "format version 4.0: expected 1.0, 2.0 or 3.0");
  refuse_bytes("\x93NUMPY\0\0\1\0{", 11, "format version 0.0: expected 1.0, 2.0 or 3.0");
  refuse_bytes("\x93NUMPY\1\1\1\0{", 11, "format version 1.1: expected 1.0, 2.0 or 3.0");
}

#define WITH_TYPE(type) "{'descr': " type ", 'fortran_order': False, 'shape': (2,), }"
#define WITH_ORDER(order) "{'descr': '<f2', 'fortran_order': " order ", 'shape': (2,), }"
#define WITH_SHAPE(shape) "{'descr': '<f2', 'fortran_order': False, 'shape': " shape ", }"

static void other_types_and_orders_are_refused(void **state) {
  (void)state;
  refuse_dictionary(WITH_TYPE("'<i8'"), 16,
                    "element type \"<i8\": expected <f2, <f4, <f8, <u2, <i4 or |b1");
  refuse_dictionary(WITH_TYPE("'|O\n'"), 16,
                    "element type \"|O\\x0a\": expected <f2, <f4, <f8, <u2, <i4 or |b1");
  refuse_dictionary(WITH_TYPE("''"), 4,
                    "element type \"\": expected <f2, <f4, <f8, <u2, <i4 or |b1");
  refuse_dictionary(WITH_TYPE("'>f2'"), 4,
                    "big-endian elements (>f2): expected little-endian, .astype('<f2')");
  refuse_dictionary(WITH_TYPE("[('a', '<f2')]"), 4,
                    "byte 10 of the header: expected an element type such as '<f2', found "
                    "\"[('a', '<f2')], 'fortran\"");
  refuse_dictionary(WITH_ORDER("True"), 4,
                    "Fortran order: expected C order, numpy.ascontiguousarray(...)");
  refuse_dictionary(WITH_ORDER("0"), 4,
                    "byte 34 of the header: expected True or False, found \"0, 'shape': (2,), }\"");
}

static void malformed_headers_are_refused(void **state) {
  (void)state;
#define AT(byte, what, found) "byte " #byte " of the header: expected " what ", found \"" found "\""
  refuse_dictionary("", 0, "the header ends too early: expected '{'");
  refuse_dictionary("{'descr", 0,
                    "byte 2 of the header: expected text that ends with a quote, "
                    "found \"descr\"");
  refuse_dictionary("{'descr' '<f2'}", 0, AT(9, "':'", "'<f2'}"));
  refuse_dictionary("{'descr': '<f2' 'shape': ()}", 2, AT(16, "',' or '}'", "'shape': ()}"));
  refuse_dictionary("{'descr': '<f2', 'shape': ()}", 2, "the header has no 'fortran_order'");
  refuse_dictionary("{}", 2, "the header has no 'descr'");
  refuse_dictionary("{,}", 2, AT(1, "a key in quotes", ",}"));
  refuse_dictionary("{'shape': (), 'shape': ()}", 2,
                    AT(14, "each of 'descr', 'fortran_order' and 'shape' once", "'shape': ()}"));
  refuse_dictionary("{'axes': ()}", 2,
                    AT(1, "each of 'descr', 'fortran_order' and 'shape' once", "'axes': ()}"));
  refuse_dictionary(WITH_SHAPE("()") " x", 2, AT(56, "nothing after '}'", "x"));
  refuse_dictionary(WITH_SHAPE("[2]"), 4, AT(50, "a shape such as (3, 4)", "[2], }"));
  refuse_dictionary(WITH_SHAPE("(2 3)"), 12, AT(53, "',' or ')'", "3), }"));
  refuse_dictionary(WITH_SHAPE("(,)"), 2, AT(51, "a length from 0 to 2^63 - 1", ",), }"));
  refuse_dictionary(WITH_SHAPE("(-2,)"), 2, AT(51, "a length from 0 to 2^63 - 1", "-2,), }"));
  refuse_dictionary(WITH_SHAPE("(02,)"), 4, AT(51, "a length from 0 to 2^63 - 1", "02,), }"));
  refuse_dictionary(WITH_SHAPE("(2.5,)"), 4, AT(52, "',' or ')'", ".5,), }"));
  refuse_dictionary(WITH_SHAPE("(2)"), 4,
                    AT(52, "',' because (3) is a number to Python and (3,) a shape", "), }"));
  refuse_dictionary(WITH_SHAPE("(1, 1, 1, 1, 1, 1, 1, 1, 1)"), 2,
                    AT(75, "')' after at most 8 dimensions", "1), }"));
  refuse_dictionary("{'descr': '<f2', 'fortran_order': False, 'shape': (2,", 4,
                    "the header ends too early: expected a length from 0 to 2^63 - 1");
  refuse_dictionary("{'descr': '<f2', 'fortran_order': Fal", 4, AT(34, "True or False", "Fal"));
#undef AT
}

static void headers_that_lie_about_the_size_are_refused(void **state) {
  (void)state;
  refuse_dictionary(WITH_SHAPE("(2, 3)"), 11,
                    "truncated: 11 bytes of data, expected 12 for shape (2, 3) of <f2");
  refuse_dictionary(WITH_SHAPE("(2, 3)"), 13,
                    "trailing bytes: 13 bytes of data, expected 12 for shape (2, 3) of <f2");
  refuse_dictionary(WITH_SHAPE("(0,)"), 1,
                    "trailing bytes: 1 bytes of data, expected 0 for shape (0,) of <f2");
  refuse_dictionary(WITH_SHAPE("()"), 0,
                    "truncated: 0 bytes of data, expected 2 for shape () of <f2");
  refuse_dictionary(WITH_SHAPE("(1099511627776,)"), 8,
                    "truncated: 8 bytes of data, expected 2199023255552 for shape (1099511627776,)"
                    " of <f2");
  refuse_dictionary(WITH_SHAPE("(4611686018427387904,)"), 0,
                    "shape (4611686018427387904,) of <f2 is too big: expected below 2^63 bytes");
  refuse_dictionary(WITH_SHAPE("(4294967296, 4294967296)"), 0,
                    "shape (4294967296, 4294967296) of <f2 is too big: expected below 2^63 bytes");
  refuse_dictionary(WITH_SHAPE("(9223372036854775808,)"), 0,
                    "byte 51 of the header: expected a length from 0 to 2^63 - 1, found "
                    "\"9223372036854775808,), }\"");
}

static void bools_other_than_0_and_1_are_refused(void **state) {
  (void)state;
  Bytes file = make_file(1, WITH_TYPE("'|b1'"), 2);
  file.data[file.count - 1] = 2;
  refuse_bytes(file.data, file.count, "element 1 is 2: expected a bool, 0 or 1");
}

/** Whatever the bytes, the answer is an array that fits its data, or one line that names the file.
 */
static bool read_anything(const Bytes *file) {
  NpyArray array;
  Error error = {.text = ""};
  write_file(file->data, file->count);
  const bool ok = npy_read(path, &array, &error);
  if (ok) {
    size_t bytes = npy_type_bytes(array.type);
    for (int i = 0; i < array.rank; i++) bytes *= (size_t)array.shape[i];
    assert_int_equal(array.bytes, bytes);
    assert_in_range(bytes, 0, file->count);
    npy_free(&array);
  } else {
    assert_int_equal(error.code, EXIT_USAGE);
    assert_memory_equal(error.text, path, strlen(path));
    for (const char *c = error.text; *c; c++) assert_in_range(*c, ' ', '~');
    assert_null(array.data);
  }
  return ok;
}

static void every_truncation_is_refused(void **state) {
  (void)state;
  for (int major = 1; major <= 3; major++) {
    Bytes file = make_file(major, WITH_SHAPE("(2, 3)"), 12);
    assert_true(read_anything(&file));
    while (file.count-- > 0) assert_false(read_anything(&file));
  }
  unlink(path);
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525 + 1013904223;
  return *state >> 8;
}

static void mutated_files_never_crash(void **state) {
  (void)state;
  const char alphabet[] = "{}()'\",: 0123456789LTrueFalsdcpnot_h<>|bfi\n\\";
  uint32_t random = 20240229;
  int accepted = 0;
  print_message("seed %u\n", (unsigned)random);
  for (int i = 0; i < 10000; i++) {
    Bytes file = make_file(1 + i % 3, WITH_SHAPE("(2, 3)"), 12);
    for (uint32_t edits = 1 + next_random(&random) % 4; edits > 0; edits--) {
      const size_t at = next_random(&random) % file.count;
      const uint32_t kind = next_random(&random) % 4;
      if (kind == 0) file.data[at] = (unsigned char)next_random(&random);
      if (kind == 1) file.data[at] = (unsigned char)alphabet[next_random(&random) % 44];
      if (kind == 2) memmove(file.data + at, file.data + at + 1, --file.count - at);
      if (kind == 3) memmove(file.data + at + 1, file.data + at, file.count++ - at);
    }
    accepted += read_anything(&file);
  }
  unlink(path);
  /* Some edits touch only data or blanks; that most are noticed shows that the reader is strict. */
  assert_in_range(accepted, 1, 2000);
}

static void a_full_disk_leaves_no_file_and_keeps_an_old_one(void **state) {
  (void)state;
  static const char data[100000];
  const int64_t shape[] = {sizeof data};
  char kept[8], expected[128];
  struct rlimit before, tiny;
  Error error;
  snprintf(expected, sizeof expected, "%s: cannot write: File too large", path);
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  for (rlim_t limit = 0; limit < 100000; limit = limit * 3 + 50) {
    for (int old = 0; old <= 1; old++) {
      if (old) write_file("old", 3);
      tiny = (struct rlimit){limit, before.rlim_max};
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
      const bool ok = npy_write(path, NPY_B1, 1, shape, data, &error);
      assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
      assert_false(ok);
      assert_int_equal(error.code, EXIT_DEVICE);
      assert_string_equal(error.text, expected);
      if (old) {
        assert_int_equal(read_file(kept, sizeof kept), 3);
        assert_memory_equal(kept, "old", 3);
        unlink(path);
      }
      assert_int_equal(rmdir(directory), 0); /* nothing else was left */
      assert_int_equal(mkdir(directory, 0700), 0);
    }
  }
}

static void paths_that_cannot_be_written_are_named(void **state) {
  (void)state;
  const uint16_t data[] = {1};
  const int64_t huge[] = {INT64_MAX, 2};
  Error error;
  assert_false(npy_write("/dev/full", NPY_U2, 0, NULL, data, &error));
  assert_string_equal(error.text, "/dev/full: cannot write: expected a regular file");
  assert_int_equal(error.code, EXIT_DEVICE);
  assert_false(npy_write("/no/such/a.npy", NPY_U2, 0, NULL, data, &error));
  assert_string_equal(error.text, "/no/such/a.npy: cannot write: No such file or directory");
  assert_false(npy_write("a.npy", NPY_U2, 2, huge, data, &error));
  assert_string_equal(error.text, "a.npy: cannot write: the shape is too big");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_types_and_ranks_survive_a_round_trip),
      cmocka_unit_test(written_bytes_are_those_of_numpy),
      cmocka_unit_test(empty_arrays_are_arrays),
      cmocka_unit_test(headers_of_other_writers_are_read),
      cmocka_unit_test(files_that_cannot_be_opened_are_named),
      cmocka_unit_test(files_of_another_kind_are_refused),
      cmocka_unit_test(other_types_and_orders_are_refused),
      cmocka_unit_test(malformed_headers_are_refused),
      cmocka_unit_test(headers_that_lie_about_the_size_are_refused),
      cmocka_unit_test(bools_other_than_0_and_1_are_refused),
      cmocka_unit_test(every_truncation_is_refused),
      cmocka_unit_test(mutated_files_never_crash),
      cmocka_unit_test(a_full_disk_leaves_no_file_and_keeps_an_old_one),
      cmocka_unit_test(paths_that_cannot_be_written_are_named),
  };
  return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
