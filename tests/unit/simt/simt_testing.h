/** @file What the tests of the CPU backend share. */
#ifndef SIMT_TESTING_H
#define SIMT_TESTING_H

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <initializer_list>

#include "../testing.h"

/** Memory of the device, filled with zeros. */
template <typename T>
T *device_zeros(int count) {
  T *pointer = nullptr;
  assert_int_equal(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  assert_int_equal(cudaMemset(pointer, 0, count * sizeof(T)), cudaSuccess);
  return pointer;
}

/** The first N elements, after the kernels before it have succeeded. */
template <int N, typename T>
std::array<T, N> fetch(const T *source) {
  std::array<T, N> target;
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_int_equal(cudaMemcpy(target.data(), source, sizeof target, cudaMemcpyDeviceToHost),
                   cudaSuccess);
  return target;
}

/** Sets an environment variable, or removes it, and makes the backend read it. */
inline void set_variable(const char *name, const char *value) {
  if (value != nullptr) {
    setenv(name, value, 1);
  } else {
    unsetenv(name);
  }
  simt_reread_environment();
}

/** Every test starts with a reset device. */
inline int reset_device(void **) {
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
  simt_reset_counters();
  return 0;
}

/** Collects what is written to stderr between begin_capture() and end_capture(). */
struct Capture {
  int saved_stderr;
  FILE *file;
  char text[8192];
};

inline void begin_capture(Capture *capture) {
  capture->file = tmpfile();
  assert_non_null(capture->file);
  capture->saved_stderr = dup(STDERR_FILENO);
  dup2(fileno(capture->file), STDERR_FILENO);
}

inline void end_capture(Capture *capture) {
  dup2(capture->saved_stderr, STDERR_FILENO);
  close(capture->saved_stderr);
  rewind(capture->file);
  const size_t length = fread(capture->text, 1, sizeof capture->text - 1, capture->file);
  capture->text[length] = '\0';
  fclose(capture->file);
}

inline void assert_contains(const char *text, const char *part) {
  if (strstr(text, part) == nullptr) fail_msg("\"%s\" is not in:\n%s", part, text);
}

/** Checks that the text contains "file:line" of this test, unless addr2line is missing. */
inline void assert_names_line(const char *text, int line, const char *file = __builtin_FILE()) {
  char place[128];
  if (system("command -v addr2line >/dev/null") != 0) return;
  snprintf(place, sizeof place, "%s:%d", file, line);
  assert_contains(text, place);
}

/** Runs the tests in each order and with each number of OS threads; the fixtures are those of each
 * test. */
inline int run_in_all_settings(const char *group, CMFixtureFunction begin, CMFixtureFunction end) {
  static const char *const settings[][2] = {
      {"forward", "1"}, {"forward", "5"}, {"reverse", "2"}, {"random:1", "5"}, {"random:2", "1"}};
  int failures = 0;
  use_fixtures(begin, end);
  for (const auto &[order, threads] : settings) {
    char name[64];
    snprintf(name, sizeof name, "%s, SIMT_ORDER=%s SIMT_THREADS=%s", group, order, threads);
    set_variable("SIMT_ORDER", order);
    set_variable("SIMT_THREADS", threads);
    failures += _cmocka_run_group_tests(name, the_tests, test_count, nullptr, nullptr);
  }
  return failures;
}

#define RUN_IN_ALL_SETTINGS(group, begin, end)     \
  int main() {                                     \
    return run_in_all_settings(group, begin, end); \
  }

#endif
