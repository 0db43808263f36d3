/**
 * @file
 * Tests of what host/io/npy.c makes of files by others: which headers it reads, and above all what
 * it refuses, and how.
 */
#define _POSIX_C_SOURCE 200809L

#include "npy_testing.h"

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
      if (!npy_read(path, ANY_TYPE, &array, &error))
        fail_msg("%s: %s", accepted[i].dictionary, error.text);
      assert_int_equal(array.rank, accepted[i].rank);
      assert_int_equal(array.bytes, accepted[i].bytes);
      npy_free(&array);
      unlink(path);
    }
  }
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

/** What a reader has no use for is no advice either. */
static void only_the_types_asked_for_are_read_and_named(void **state) {
  (void)state;
  const NpyTypes types = {1 << NPY_F2 | 1 << NPY_B1, "<f2 or |b1"};
  const char *const refused[] = {"<f4", "<i4", "<u2", ">i4", ">f4", "=b1", "|f2"};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
    char dictionary[128], expected[128];
    NpyArray array;
    Error error;
    snprintf(dictionary, sizeof dictionary, WITH_TYPE("'%s'"), refused[i]);
    const Bytes file = make_file(1, dictionary, 8);
    write_file(file.data, file.count);
    assert_false(npy_read(path, types, &array, &error));
    snprintf(expected, sizeof expected, "%s: element type \"%s\": expected <f2 or |b1", path,
             refused[i]);
    assert_string_equal(error.text, expected);
  }
  for (int big = 0; big <= 1; big++) {
    const Bytes file = make_file(1, big ? WITH_TYPE("'>b1'") : WITH_TYPE("'<f2'"), big ? 2 : 4);
    NpyArray array;
    Error error;
    write_file(file.data, file.count);
    assert_true(npy_read(path, types, &array, &error));
    npy_free(&array);
  }
  unlink(path);
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
  const bool ok = npy_read(path, ANY_TYPE, &array, &error);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(headers_of_other_writers_are_read),
      cmocka_unit_test(files_of_another_kind_are_refused),
      cmocka_unit_test(other_types_and_orders_are_refused),
      cmocka_unit_test(only_the_types_asked_for_are_read_and_named),
      cmocka_unit_test(malformed_headers_are_refused),
      cmocka_unit_test(headers_that_lie_about_the_size_are_refused),
      cmocka_unit_test(bools_other_than_0_and_1_are_refused),
      cmocka_unit_test(every_truncation_is_refused),
      cmocka_unit_test(mutated_files_never_crash),
  };
  return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
