/** @file Tests of host/device/ceiling_cache.c: what is kept comes back as it was, or not at all. */
#define _POSIX_C_SOURCE 200809L

#include "host/device/ceiling_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "host/device/gpu_state.h"

/* --- Stand-ins for the GPU
 * ------------------------------------------------------------------------ */

static int measured;
static const char *gpu_limits;

bool ceilings_measure(Ceilings *ceilings, Error *error) {
  (void)error;
  measured++;
  *ceilings = (Ceilings){
      .mma_tflops = measured, .ffma_tflops = 65, .exp_g_per_s = 4180, .copy_gb_per_s = 4150};
  return true;
}

bool gpu_query(const char *fields, char *line, size_t size) {
  assert_non_null(strstr(fields, "driver_version"));
  snprintf(line, size, "%s", gpu_limits);
  return true;
}

void gpu_uuid(char uuid[33]) {
  memcpy(uuid, "0123456789abcdef0123456789abcdef", 33);
}

/* --- A directory of its own
 * ----------------------------------------------------------------------- */

static char directory[32], path[256];
static const Ceilings SOME = {.mma_tflops = 646.1 / 3,
                              .ffma_tflops = 65.2,
                              .exp_g_per_s = 4181.7,
                              .copy_gb_per_s = 4150,
                              .date = "2026-11-21T14:21:10Z"};
static const Device DEVICE = {.name = "NVIDIA H200", .runtime = 13000};
static const char KEY[] = "NVIDIA H200 0123; driver and limits 580.1, 1980, 3201, 700.00";

static int open_directory(void **state) {
  (void)state;
  strcpy(directory, "/tmp/test_ceilings.XXXXXX");
  if (!mkdtemp(directory)) return -1;
  setenv("XDG_CACHE_HOME", directory, 1);
  ceilings_path("0123456789abcdef0123456789abcdef", path, sizeof path);
  return 0;
}

static int remove_directory(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  return system(command);
}

static size_t load(char *text, size_t size) {
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  const size_t length = fread(text, 1, size - 1, file);
  fclose(file);
  text[length] = '\0';
  return length;
}

static void save(const char *bytes, size_t length) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, length, file), length);
  fclose(file);
}

/* --- The file
 * ------------------------------------------------------------------------------------- */

static void what_is_kept_comes_back(void **state) {
  (void)state;
  Ceilings read;
  assert_false(ceilings_read(path, KEY, &read));
  assert_true(ceilings_write(path, KEY, &SOME)); /* creates the directory */
  assert_true(ceilings_read(path, KEY, &read));
  assert_true(read.mma_tflops == SOME.mma_tflops && read.ffma_tflops == SOME.ffma_tflops &&
              read.exp_g_per_s == SOME.exp_g_per_s && read.copy_gb_per_s == SOME.copy_gb_per_s);
  assert_string_equal(read.date, SOME.date);
}

static void another_key_finds_nothing(void **state) {
  (void)state;
  Ceilings read;
  char key[sizeof KEY];
  assert_true(ceilings_write(path, KEY, &SOME));
  for (size_t i = 0; i < strlen(KEY); i++) {
    strcpy(key, KEY);
    key[i] ^= 1;
    assert_false(ceilings_read(path, key, &read));
  }
}

static void a_damaged_file_is_not_believed(void **state) {
  (void)state;
  Ceilings read;
  char text[2048], damaged[2048];
  assert_true(ceilings_write(path, KEY, &SOME));
  const size_t length = load(text, sizeof text);
  for (size_t i = 0; i < length; i++) {
    save(text, i); /* cut off */
    assert_false(ceilings_read(path, KEY, &read));
    memcpy(damaged, text, length);
    damaged[i] ^= 1; /* of a digit, another digit */
    save(damaged, length);
    assert_false(ceilings_read(path, KEY, &read));
  }
  memcpy(damaged, text, length);
  damaged[length] = '\n';
  save(damaged, length + 1);
  assert_false(ceilings_read(path, KEY, &read));
  save(text, length);
  assert_true(ceilings_read(path, KEY, &read));
}

static void what_cannot_be_written_leaves_nothing(void **state) {
  (void)state;
  char blocked[512];
  assert_true(ceilings_write(path, KEY, &SOME));
  snprintf(blocked, sizeof blocked, "%s/more/file", path); /* below a file */
  assert_false(ceilings_write(blocked, KEY, &SOME));
  char key[4096];
  memset(key, 'k', sizeof key);
  key[sizeof key - 1] = '\0';
  assert_false(ceilings_write(path, key, &SOME));
  Ceilings read;
  assert_true(ceilings_read(path, KEY, &read));
}

static void the_place_is_that_of_caches(void **state) {
  (void)state;
  char found[256];
  setenv("HOME", "/home/me", 1);
  setenv("XDG_CACHE_HOME", "relative", 1);
  ceilings_path("12", found, sizeof found);
  assert_string_equal(found, "/home/me/.cache/attention-steps/ceilings-12.txt");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  ceilings_path("12", found, sizeof found);
  assert_string_equal(found, "/cache/attention-steps/ceilings-12.txt");
  ceilings_path("", found, sizeof found);
  assert_string_equal(found, "");
  ceilings_path("12", found, 20);
  assert_string_equal(found, "");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  ceilings_path("12", found, sizeof found);
  assert_string_equal(found, "");
}

/* --- As a run uses it
 * ----------------------------------------------------------------------------- */

/** What a process of its own finds: a process remembers. Returns the number of its measurement. */
static int found_by_a_new_process(bool anew) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const int before = measured;
  if (fork() == 0) {
    Ceilings ceilings = {0};
    char kept[256];
    Error error;
    measured = before;
    const bool ok = anew ? ceilings_renew(&DEVICE, &ceilings, kept, sizeof kept, &error)
                         : ceilings_find(&DEVICE, &ceilings, &error) &&
                               ceilings_find(&DEVICE, &ceilings, &error);
    const int results[2] = {ok ? (int)ceilings.mma_tflops : -1, measured};
    _exit(write(ends[1], results, sizeof results) != sizeof results);
  }
  int results[2];
  assert_int_equal(read(ends[0], results, sizeof results), sizeof results);
  close(ends[0]);
  close(ends[1]);
  measured = results[1];
  return results[0];
}

static void runs_share_one_measurement(void **state) {
  (void)state;
  measured = 0;
  gpu_limits = "580.159.04, 1980, 3201, 700.00";
  assert_int_equal(found_by_a_new_process(false), 1);
  assert_int_equal(found_by_a_new_process(false), 1);
  assert_int_equal(found_by_a_new_process(true), 2); /* --ceilings measures whatever is kept */
  assert_int_equal(found_by_a_new_process(false), 2);
  gpu_limits = "580.159.04, 1980, 3201, 500.00"; /* another limit of power */
  assert_int_equal(found_by_a_new_process(false), 3);
  assert_int_equal(found_by_a_new_process(false), 3);
  save("ceilings\n", 9);
  assert_int_equal(found_by_a_new_process(false), 4);
  assert_int_equal(found_by_a_new_process(false), 4);
}

static void without_a_place_every_process_measures(void **state) {
  (void)state;
  measured = 0;
  gpu_limits = "";
  setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
  assert_int_equal(found_by_a_new_process(false), 1);
  assert_int_equal(found_by_a_new_process(false), 2);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_directory, remove_directory)
  const struct CMUnitTest tests[] = {
      TEST(what_is_kept_comes_back),
      TEST(another_key_finds_nothing),
      TEST(a_damaged_file_is_not_believed),
      TEST(what_cannot_be_written_leaves_nothing),
      TEST(the_place_is_that_of_caches),
      TEST(runs_share_one_measurement),
      TEST(without_a_place_every_process_measures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
