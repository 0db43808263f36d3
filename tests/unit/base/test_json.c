/** @file Tests of host/base/json.c: the text of each kind of value; lines are written whole or not
 * at all. */
#include "host/base/json.h"

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>

#include "../directory.h" /* last */

static void expect_file(const char *expected) {
  char text[256] = "";
  FILE *file = fopen(test_file, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  assert_string_equal(text, expected);
}

TEST(objects_are_one_line_in_the_order_of_the_calls) {
  JsonObject row;
  json_begin(&row);
  assert_string_equal(json_end(&row), "{}");
  json_free(&row);

  json_begin(&row);
  json_string(&row, "step", "stepNN");
  json_integer(&row, "heads", INT64_MIN);
  json_number(&row, "ms", 1.25);
  json_bool(&row, "right", true);
  json_bool(&row, "cold", false);
  json_known(&row, "gpu", false, 1);
  json_strings(&row, "masks", (const char *const[]){"full", "\"causal\""}, 2);
  json_integers(&row, "head_dims", (const int[]){64, -128}, 2);
  json_integers(&row, "none", NULL, 0);
  assert_string_equal(
      json_end(&row),
      "{\"step\": \"stepNN\", \"heads\": -9223372036854775808, \"ms\": 1.25, \"right\": true, "
      "\"cold\": false, \"gpu\": null, \"masks\": [\"full\", \"\\\"causal\\\"\"], "
      "\"head_dims\": [64, -128], \"none\": []}");
  json_free(&row);
  json_free(&row);
}

static void expect_escaped(const char *value, const char *escaped) {
  char expected[256];
  JsonObject row;
  snprintf(expected, sizeof expected, "{\"%s\": \"%s\"}", escaped, escaped);
  json_begin(&row);
  json_string(&row, value, value);
  assert_string_equal(json_end(&row), expected);
  json_free(&row);
}

TEST(strings_are_escaped) {
  expect_escaped("", "");
  expect_escaped("a/b c~", "a/b c~");
  expect_escaped("say \"no\" \\ yes", "say \\\"no\\\" \\\\ yes");
  expect_escaped("\x01\b\t\n\r\x1f\x7f", "\\u0001\\u0008\\u0009\\u000a\\u000d\\u001f\x7f");
}

TEST(bytes_that_are_not_utf8_are_replaced) {
  expect_escaped("\u00b5s \u20ac \U0001f600", "\u00b5s \u20ac \U0001f600");
  expect_escaped("a\x80z", "a\\ufffdz");
  expect_escaped("\xe2\x82", "\\ufffd\\ufffd");                       /* cut short */
  expect_escaped("\xe0\x9f\xbf", "\\ufffd\\ufffd\\ufffd");            /* overlong */
  expect_escaped("\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd");            /* surrogate */
  expect_escaped("\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"); /* beyond U+10FFFF */
}

static void expect_number(double value, const char *text) {
  char expected[64];
  JsonObject row;
  snprintf(expected, sizeof expected, "{\"x\": %s}", text);
  json_begin(&row);
  json_number(&row, "x", value);
  assert_string_equal(json_end(&row), expected);
  json_free(&row);
}

TEST(numbers_are_short_and_read_back) {
  expect_number(0, "0");
  expect_number(-0.5, "-0.5");
  expect_number(0.1, "0.1");
  expect_number(1.0 / 3, "0.3333333333333333");
  expect_number(0.1 + 0.2, "0.30000000000000004");
  expect_number(123456789, "123456789");
  expect_number(1e300, "1e+300");
  expect_number(DBL_MAX, "1.7976931348623157e+308");
  expect_number(DBL_MIN, "2.2250738585072014e-308");
  expect_number((double)NAN, "null");
  expect_number(INFINITY, "null");
  expect_number(-INFINITY, "null");
}

TEST(a_dash_is_standard_output_in_the_order_of_printing) {
  Error error;
  fflush(stdout);
  const int kept = dup(STDOUT_FILENO);
  FILE *file = fopen(test_file, "w");
  assert_non_null(file);
  dup2(fileno(file), STDOUT_FILENO);
  printf("before\n");
  const bool ok = json_append_line("-", "{}", &error);
  printf("after\n");
  fflush(stdout);
  dup2(kept, STDOUT_FILENO);
  close(kept);
  fclose(file);
  assert_true(ok);
  expect_file("before\n{}\nafter\n");
  unlink(test_file);
}

/** The line that writer `which` appends: long, and made of one letter. */
static const char *line_of(int which) {
  static char line[3001];
  memset(line, 'a' + which, sizeof line - 1);
  return line;
}

TEST(lines_of_concurrent_programs_do_not_mix) {
  enum { WRITERS = 4, LINES = 100 };
  Error error;
  for (int which = 0; which < WRITERS; which++) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      bool ok = true;
      for (int i = 0; i < LINES; i++)
        ok = json_append_line(test_file, line_of(which), &error) && ok;
      _exit(!ok);
    }
  }
  for (int which = 0; which < WRITERS; which++) {
    int status;
    assert_true(wait(&status) > 0);
    assert_int_equal(status, 0);
  }
  FILE *file = fopen(test_file, "r");
  assert_non_null(file);
  char line[4000];
  int counts[WRITERS] = {0};
  while (fgets(line, sizeof line, file)) {
    const int which = line[0] - 'a';
    assert_in_range(which, 0, WRITERS - 1);
    line[strcspn(line, "\n")] = '\0';
    assert_string_equal(line, line_of(which));
    counts[which]++;
  }
  fclose(file);
  unlink(test_file);
  for (int which = 0; which < WRITERS; which++) assert_int_equal(counts[which], LINES);
}

TEST(a_full_disk_leaves_the_file_as_it_was) {
  Error error;
  char expected[128];
  snprintf(expected, sizeof expected, "%s: cannot write: No space left on device", test_file);
  assert_true(json_append_line(test_file, "{}", &error));
  limit_files(5);
  const bool ok = json_append_line(test_file, "{\"a\": 1}", &error);
  limit_files(RLIM_INFINITY);
  assert_false(ok);
  assert_int_equal(error.code, EXIT_DEVICE);
  assert_string_equal(error.text, expected);
  expect_file("{}\n");
  unlink(test_file);
}

TEST(failures_name_the_file) {
  Error error;
  assert_false(json_append_line("/dev/full", "{}", &error));
  assert_string_equal(error.text, "/dev/full: cannot write: No space left on device");
  assert_int_equal(error.code, EXIT_DEVICE);
  assert_false(json_append_line("/no/such/file", "{}", &error));
  assert_string_equal(error.text, "/no/such/file: cannot write: No such file or directory");
}

RUN_TESTS(create_test_directory, remove_test_directory)
