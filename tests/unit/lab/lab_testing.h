/** @file What the tests of the lab share. */
#ifndef LAB_TESTING_H
#define LAB_TESTING_H

#include <string>

#include "../tests/unit/simt/simt_testing.h"
#include "simt/lab/lab.h"

/** Every test starts with a reset device and all checks. */
inline int start_lab(void **state) {
  reset_device(state);
  lab_start(LAB_EVERYTHING);
  return 0;
}

inline int stop_lab(void **state) {
  lab_start(0);
  return reset_device(state);
}

/** Named memory of the device that nothing has been written to. */
template <typename T>
T *named(const char *name, int count) {
  T *pointer = nullptr;
  assert_int_equal(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  assert_int_equal(simt_name_allocation(pointer, name), cudaSuccess);
  return pointer;
}

/** The same, filled with zeros. */
template <typename T>
T *named_zeros(const char *name, int count) {
  T *pointer = named<T>(name, count);
  assert_int_equal(cudaMemset(pointer, 0, count * sizeof(T)), cudaSuccess);
  return pointer;
}

/** What the lab prints about the launches since start_lab(); valid until the next call. */
inline const char *findings_text() {
  static char text[8192];
  LabResults results;
  FILE *file = tmpfile();
  assert_non_null(file);
  lab_take_results(&results);
  lab_print_findings(&results, file);
  lab_free_results(&results);
  rewind(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  return text;
}

/** The only finding that a test expects. Lines are lines of the test's file; 0: none. */
struct Expected {
  LabKind kind;
  int line, other_line;
  const char *kernel, *rest;
  int call = 0, other_call = 0; /* lines of the calls that led to these; 0: none */
};

/** "file:line", and the line of the call. */
inline std::string place_text(const char *file, int line, int call) {
  const std::string name(file);
  return name + ":" + std::to_string(line) +
         (call != 0 ? ", called at " + name + ":" + std::to_string(call) : "");
}

/** Then the lab starts anew, with all checks. */
inline void assert_finds(const Expected &expected, const char *file = __builtin_FILE()) {
  const bool apart = expected.kind == LAB_BARRIER_APART || expected.kind == LAB_WARP_APART;
  const char *relation = lab_is_between_blocks(expected.kind) ? "and at"
                         : apart                              ? "others at"
                                                              : "after";
  const std::string margin(11, ' ');
  std::string wanted = std::string("finding    ") + lab_kind_text(expected.kind) + "\n" + margin +
                       "at " + place_text(file, expected.line, expected.call) + " in " +
                       expected.kernel + "\n";
  if (expected.other_line != 0) {
    wanted +=
        margin + relation + " " + place_text(file, expected.other_line, expected.other_call) + "\n";
  }
  wanted += margin + expected.rest + "\n";
  assert_string_equal(findings_text(), wanted.c_str());
  lab_start(LAB_EVERYTHING);
}

/** The only finding: its kind, its lines (0: none), and a part of what is said of it. */
inline void expect_finding(LabKind kind, int line, int other_line, const std::string &part,
                           const char *file = __builtin_FILE()) {
  const char *text = findings_text();
  const std::string margin(11, ' '), other = place_text(file, other_line, 0);
  const std::string start = std::string("finding    ") + lab_kind_text(kind) + "\n" + margin +
                            "at " + place_text(file, line, 0) + " in ";
  if (strstr(text, start.c_str()) != text) fail_msg("%s does not begin:\n%s", start.c_str(), text);
  if (strstr(text, "\nfinding") != nullptr) fail_msg("more than one finding:\n%s", text);
  if (other_line != 0) assert_contains(text, ("\n" + margin + "after " + other + "\n").c_str());
  assert_contains(text, part.c_str());
  lab_start(LAB_EVERYTHING);
}

/** The findings hold these words and name these lines of the file. Then the lab starts anew. */
inline void assert_tells(std::initializer_list<const char *> words,
                         std::initializer_list<int> lines, const char *file = __builtin_FILE()) {
  const char *text = findings_text();
  for (const char *part : words) assert_contains(text, part);
  for (int line : lines) assert_names_line(text, line, file);
  lab_start(LAB_EVERYTHING);
}

/** The same, and they name no other lines. */
inline void assert_tells_only(std::initializer_list<const char *> words, int line, int other_line,
                              const char *file = __builtin_FILE()) {
  const std::string text = findings_text(), start = std::string(file) + ":";
  for (size_t at = 0; (at = text.find(start, at)) != std::string::npos; at++) {
    const int named_line = atoi(&text[at + start.size()]);
    if (named_line != line && named_line != other_line) fail_msg("another line:\n%s", text.c_str());
  }
  assert_tells(words, {line, other_line}, file);
}

inline void assert_finds_nothing() {
  assert_string_equal(findings_text(), "");
}

/** The counts of the only kernel that was launched since lab_start(). */
inline LabCounts counts_of_kernel() {
  LabResults results;
  lab_take_results(&results);
  assert_int_equal(results.kernel_count, 1);
  const LabCounts counts = results.kernels[0].counts;
  lab_free_results(&results);
  lab_start(LAB_EVERYTHING);
  return counts;
}

inline void assert_sectors(const LabTraffic &t, uint64_t requests, uint64_t sectors, uint64_t bytes,
                           uint64_t used_bytes, uint32_t most) {
  assert_int_equal(t.requests, requests);
  assert_int_equal(t.sectors, sectors);
  assert_int_equal(t.bytes, bytes);
  assert_int_equal(t.used_bytes, used_bytes);
  assert_int_equal(t.most_sectors, most);
}

inline void assert_waves(const LabTraffic &t, uint64_t requests, uint64_t waves, uint64_t ideal,
                         uint32_t ways) {
  assert_int_equal(t.requests, requests);
  assert_int_equal(t.wavefronts, waves);
  assert_int_equal(t.ideal_wavefronts, ideal);
  assert_int_equal(t.most_ways, ways);
}

#endif
