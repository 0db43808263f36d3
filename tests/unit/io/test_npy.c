/**
 * @file
 * Tests of host/io/npy.c: what is written is read back, and nothing half-written is ever left.
 */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "npy_testing.h"

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
      assert_true(npy_read(path, ANY_TYPE, &array, &error));
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
  assert_true(npy_read(path, ANY_TYPE, &array, &error));
  assert_int_equal(array.bytes, 0);
  assert_int_equal(array.shape[0], 4);
  npy_free(&array);
  unlink(path);
}

static void files_that_cannot_be_opened_are_named(void **state) {
  (void)state;
  NpyArray array;
  Error error;
  expect_refusal("cannot open: No such file or directory");
  assert_false(npy_read(directory, ANY_TYPE, &array, &error));
  assert_non_null(strstr(error.text, ": expected a regular file"));
  assert_int_equal(mkfifo(path, 0600), 0);
  expect_refusal("expected a regular file");
  unlink(path);
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

static void a_draft_is_seen_when_it_is_published(void **state) {
  (void)state;
  const uint16_t data[] = {7};
  const int64_t shape[] = {1};
  unsigned char file[256];
  NpyDraft draft;
  Error error;
  for (int publish = 0; publish <= 1; publish++) {
    write_file("old", 3);
    assert_true(npy_draft(path, NPY_U2, 1, shape, data, &draft, &error));
    assert_int_equal(read_file(file, sizeof file), 3);
    if (publish) assert_true(npy_publish(&draft, &error));
    npy_discard(&draft);
    npy_discard(&draft);
    assert_int_equal(read_file(file, sizeof file), publish ? 130 : 3);
    unlink(path); /* and nothing else is left, or removing the directory fails */
  }
}

static void a_draft_that_cannot_be_published_is_removed(void **state) {
  (void)state;
  const uint16_t data[] = {7};
  NpyDraft draft;
  Error error;
  char expected[128];
  assert_true(npy_draft(path, NPY_U2, 0, NULL, data, &draft, &error));
  assert_int_equal(mkdir(path, 0700), 0);
  assert_false(npy_publish(&draft, &error));
  snprintf(expected, sizeof expected, "%s: cannot write: Is a directory", path);
  assert_string_equal(error.text, expected);
  assert_int_equal(rmdir(path), 0);
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
      cmocka_unit_test(files_that_cannot_be_opened_are_named),
      cmocka_unit_test(a_full_disk_leaves_no_file_and_keeps_an_old_one),
      cmocka_unit_test(a_draft_is_seen_when_it_is_published),
      cmocka_unit_test(a_draft_that_cannot_be_published_is_removed),
      cmocka_unit_test(paths_that_cannot_be_written_are_named),
  };
  return cmocka_run_group_tests(tests, create_directory, remove_directory);
}
