/** @file What the tests of the CPU backend share. */
#ifndef SIMT_TESTING_H
#define SIMT_TESTING_H

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "../testing.h"

extern __shared__ __align__(1024) unsigned char smem[];

/** Memory of the device, filled with zeros. */
template <typename T>
T *device_zeros(int count) {
  T *pointer = nullptr;
  assert_int_equal(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  assert_int_equal(cudaMemset(pointer, 0, count * sizeof(T)), cudaSuccess);
  return pointer;
}

/** Copies the first N elements to the host, after the kernels before it have succeeded. */
template <typename T, int N>
void fetch(T (&target)[N], const T *source) {
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  assert_int_equal(cudaMemcpy(target, source, sizeof target, cudaMemcpyDeviceToHost), cudaSuccess);
}

/** Memory of the device, filled from the host. */
template <typename T, int N>
T *device_copy(const T (&source)[N]) {
  T *pointer = device_zeros<T>(N);
  assert_int_equal(cudaMemcpy(pointer, source, sizeof source, cudaMemcpyHostToDevice), cudaSuccess);
  return pointer;
}

/** What a launch, which must succeed, leaves in memory of `count` zeros. */
template <typename T, typename Launch>
std::vector<T> results(int count, Launch launch) {
  T *device = device_zeros<T>(count);
  launch(device);
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<T> host(count);
  assert_int_equal(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost),
                   cudaSuccess);
  return host;
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

/** The settings of the tests that set no others; NULL: the default. */
static const char *usual_order, *usual_threads;

/** Every test starts with a reset device and the usual settings. */
inline int reset_device(void **) {
  for (const char *name : {"SIMT_MEMORY", "SIMT_SHARED", "SIMT_SMS", "SIMT_WGMMA"}) {
    set_variable(name, nullptr);
  }
  set_variable("SIMT_ORDER", usual_order);
  set_variable("SIMT_THREADS", usual_threads);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
  simt_reset_counters();
  return 0;
}

/** In many orders of blocks and threads, and with several numbers of OS threads. */
template <typename Function>
void in_many_orders(Function function) {
  for (const char *order : {"forward", "reverse", "random:1", "random:2", "random:3"}) {
    for (const char *threads : {"1", "2", "5"}) {
      set_variable("SIMT_ORDER", order);
      set_variable("SIMT_THREADS", threads);
      function();
    }
  }
}

/** The status of a process that runs a function, and then exits with 0. */
template <typename Function>
int status_of_child(Function function) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    function();
    _exit(0);
  }
  waitpid(child, &status, 0);
  return status;
}

/** The text of a temporary file, which is closed. */
inline std::string text_of(FILE *file) {
  char text[8192];
  rewind(file);
  const size_t length = fread(text, 1, sizeof text, file);
  fclose(file);
  return std::string(text, length);
}

/** What a function writes to stderr. */
template <typename Function>
std::string stderr_of(Function function) {
  FILE *file = tmpfile();
  assert_non_null(file);
  const int saved_stderr = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  function();
  dup2(saved_stderr, STDERR_FILENO);
  close(saved_stderr);
  return text_of(file);
}

inline void assert_contains(const std::string &text, const std::string &part) {
  if (text.find(part) == text.npos) fail_msg("\"%s\" is not in:\n%s", part.c_str(), text.c_str());
}

inline void assert_contains(const std::string &text, std::initializer_list<std::string> parts) {
  for (const std::string &part : parts) assert_contains(text, part);
}

/** Checks that the text contains "file:line" of this test, unless addr2line is missing. */
inline void assert_names_line(const std::string &text, int line,
                              const char *file = __builtin_FILE()) {
  if (system("command -v addr2line >/dev/null") != 0) return;
  assert_contains(text, std::string(file) + ":" + std::to_string(line));
}

/** Expects a launch to fail with a report that has this text and names this line, unless it is 0.
 * Resets the device and returns the report. */
template <typename Launch>
std::string expect_report(Launch launch, const std::string &what, int line,
                          cudaError_t error = cudaErrorLaunchFailure,
                          const char *file = __builtin_FILE()) {
  const std::string report = stderr_of(launch);
  assert_contains(report, what);
  if (line != 0) assert_names_line(report, line, file);
  assert_int_equal(cudaGetLastError(), error);
  assert_int_equal(cudaDeviceReset(), cudaSuccess);
  return report;
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
    usual_order = order;
    usual_threads = threads;
    failures += _cmocka_run_group_tests(name, the_tests, test_count, nullptr, nullptr);
  }
  return failures;
}

#define RUN_IN_ALL_SETTINGS(group, begin, end)     \
  int main() {                                     \
    return run_in_all_settings(group, begin, end); \
  }

#endif
