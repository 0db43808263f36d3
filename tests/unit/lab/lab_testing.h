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

/** What the lab has found and counted since it was started. */
struct TakenResults : LabResults {
  TakenResults() { lab_take_results(this); }
  ~TakenResults() { lab_free_results(this); }
};

/** What the lab prints about the launches since it was started. */
inline std::string findings_text() {
  FILE *file = tmpfile();
  assert_non_null(file);
  const TakenResults results;
  lab_print_findings(&results, file);
  return text_of(file);
}

/** Checks that findings contain these parts and name these lines, and starts anew. */
inline void expect_findings(std::initializer_list<std::string> parts,
                            std::initializer_list<int> lines, const char *file = __builtin_FILE()) {
  const std::string text = findings_text();
  assert_contains(text, parts);
  for (const int line : lines) assert_names_line(text, line, file);
  lab_start(LAB_EVERYTHING);
}

/** The only finding, or note, that a test expects. Lines are lines of the test's file; 0: none. */
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

/** Starts anew after it. */
inline void assert_finds(const Expected &expected, const char *file = __builtin_FILE()) {
  const bool apart = expected.kind == LAB_BARRIER_APART || expected.kind == LAB_WARP_APART;
  const char *relation = lab_is_between_blocks(expected.kind) ? "and at"
                         : apart                              ? "others at"
                                                              : "after";
  const std::string margin(11, ' ');
  const std::string word = expected.kind == LAB_SUM_UNORDERED ? "note       " : "finding    ";
  std::string wanted = word + lab_kind_text(expected.kind) + "\n" + margin + "at " +
                       place_text(file, expected.line, expected.call) + " in " + expected.kernel +
                       "\n";
  if (expected.other_line != 0) {
    wanted +=
        margin + relation + " " + place_text(file, expected.other_line, expected.other_call) + "\n";
  }
  wanted += margin + expected.rest + "\n";
  assert_string_equal(findings_text().c_str(), wanted.c_str());
  lab_start(LAB_EVERYTHING);
}

/** The only finding: its kind, its lines (0: none), and a part of what is said of it. */
inline void expect_finding(LabKind kind, int line, int other_line, const std::string &part,
                           const char *file = __builtin_FILE()) {
  const std::string text = findings_text();
  const std::string margin(11, ' '), other = place_text(file, other_line, 0);
  const std::string start = std::string("finding    ") + lab_kind_text(kind) + "\n" + margin +
                            "at " + place_text(file, line, 0) + " in ";
  if (text.find(start) != 0) fail_msg("%s does not begin:\n%s", start.c_str(), text.c_str());
  if (text.find("\nfinding") != text.npos) fail_msg("more than one finding:\n%s", text.c_str());
  if (other_line != 0) assert_contains(text, "\n" + margin + "after " + other + "\n");
  assert_contains(text, part);
  lab_start(LAB_EVERYTHING);
}

/** The findings of a launch name these two lines of the test's file and no others, and contain
 * these parts. Starts anew. */
template <typename Launch>
void expect_race(Launch launch, int line, int other_line,
                 std::initializer_list<std::string> parts = {},
                 const char *file = __builtin_FILE()) {
  launch();
  const std::string text = findings_text(), start = std::string(file) + ":";
  assert_contains(text, parts);
  assert_names_line(text, line, file);
  assert_names_line(text, other_line, file);
  for (size_t at = 0; (at = text.find(start, at)) != text.npos; at++) {
    const int named_line = atoi(&text[at + start.size()]);
    if (named_line != line && named_line != other_line) fail_msg("another line:\n%s", text.c_str());
  }
  lab_start(LAB_EVERYTHING);
}

/** The only finding: accesses outside memory, so many, and where the first is, of block 0. */
inline void assert_finds_outside(LabKind kind, int line, const char *kernel, int times, int thread,
                                 const std::string &where, const char *file = __builtin_FILE()) {
  const std::string rest = std::to_string(times) + (times == 1 ? " time" : " times") +
                           ", first: block 0 thread " + std::to_string(thread) + ", " + where;
  assert_finds({kind, line, 0, kernel, rest.c_str()}, file);
}

/** "at file:line in kernel" and "after file:other_line", as in the text of a race. */
inline std::string race_text(const std::string &kernel, int line, int other_line,
                             const char *file = __builtin_FILE()) {
  return "at " + place_text(file, line, 0) + " in " + kernel + "\n           after " +
         place_text(file, other_line, 0) + "\n           ";
}

inline void assert_finds_nothing() {
  assert_string_equal(findings_text().c_str(), "");
}

template <typename Launch>
void assert_finds_nothing(Launch launch) {
  launch();
  assert_finds_nothing();
}

/** The counts of the only kernel that was launched since start_lab(). */
inline LabCounts counts_of_kernel() {
  const TakenResults results;
  assert_int_equal(results.kernel_count, 1);
  return results.kernels[0].counts;
}

/** Those of a launch, which is one of a kernel, with these checks. */
template <typename Launch>
LabCounts counts_of(Launch launch, unsigned checks = LAB_TRAFFIC | LAB_BANKS) {
  lab_start(checks);
  launch();
  return counts_of_kernel();
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
