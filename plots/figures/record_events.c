/*
 * Records what the first thread block of a Hopper step does: barriers, tensor copies, products. A
 * step is linked with this file, and the linker replaces the functions below by those here
 * (--wrap). At its end the program writes the file that EVENTS names: a line for each event, of
 * each thread in its own order. recorded.py reads it. With SIMT_THREADS=1 blocks run one
 * after another.
 *
 *   THREAD init BARRIER ARRIVALS | arrive BARRIER | ask BARRIER | wait BARRIER PARITY
 *   THREAD load MAP TARGET ROW | store SOURCE ROW | stored | wait_stores PENDING
 *   THREAD qk Q K COUNT | pv V COUNT | wait_products PENDING
 *   THREAD sync BARRIER THREADS | pass BARRIER THREADS | lanes
 *
 * `ask` is an arrival that expects bytes, `stored` ends a group of stores, qk and pv are groups of
 * COUNT wgmma with the first Q, K or V that they read, `lanes` is an exchange between lanes. Places
 * are bytes of shared memory.
 */
#include <simt_hopper.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern _Thread_local unsigned char smem[];

enum { MOST_THREADS = 1024, LONGEST_LINE = 64 };

static struct {
  char *text;
  size_t length, capacity;
} logs[MOST_THREADS];

/** Products of a thread since its last commit. */
static struct {
  SimtWgmma first;
  unsigned count;
} products[MOST_THREADS];

static bool exchanged[MOST_THREADS]; /* its last event is `lanes` */

static unsigned place(const void *pointer) {
  return (unsigned)((const unsigned char *)pointer - smem);
}

static unsigned described(uint64_t descriptor) {
  return (unsigned)(descriptor & 0x3fff) << 4;
}

static bool recorded(void) {
  const uint3 block = simt_self()->block->index;
  return block.x == 0 && block.y == 0 && block.z == 0;
}

static void record(const char *format, ...) {
  if (!recorded()) return;
  const unsigned thread = simt_self()->index.x;
  if (logs[thread].capacity - logs[thread].length < LONGEST_LINE) {
    logs[thread].capacity = 2 * logs[thread].capacity + 4096;
    logs[thread].text = realloc(logs[thread].text, logs[thread].capacity);
    if (logs[thread].text == NULL) abort();
  }
  va_list arguments;
  va_start(arguments, format);
  logs[thread].length +=
      (size_t)vsnprintf(logs[thread].text + logs[thread].length, LONGEST_LINE, format, arguments);
  va_end(arguments);
  exchanged[thread] = false;
}

static void record_exchange(void) {
  if (!recorded() || exchanged[simt_self()->index.x]) return;
  record("lanes\n");
  exchanged[simt_self()->index.x] = true;
}

static __attribute__((destructor)) void write_events(void) {
  const char *name = getenv("EVENTS");
  FILE *file = name == NULL ? NULL : fopen(name, "w");
  if (file == NULL) return;
  for (int thread = 0; thread < MOST_THREADS; thread++) {
    const char *line = logs[thread].text;
    for (const char *end; line != NULL && (end = strchr(line, '\n')) != NULL; line = end + 1) {
      fprintf(file, "%d %.*s\n", thread, (int)(end - line), line);
    }
  }
  fclose(file);
}

/* --- Functions of the CPU backend ------------------------------------------------------------- */

#define WRAP(result, name, ...)      \
  result __real_##name(__VA_ARGS__); \
  result __wrap_##name(__VA_ARGS__); \
  result __wrap_##name(__VA_ARGS__)

WRAP(void, simt_mbarrier_init, void *barrier, unsigned arrivals) {
  record("init %u %u\n", place(barrier), arrivals);
  __real_simt_mbarrier_init(barrier, arrivals);
}

WRAP(void, simt_mbarrier_arrive, void *barrier, unsigned bytes) {
  record("%s %u\n", bytes > 0 ? "ask" : "arrive", place(barrier));
  __real_simt_mbarrier_arrive(barrier, bytes);
}

WRAP(void, simt_mbarrier_wait, void *barrier, unsigned parity) {
  record("wait %u %u\n", place(barrier), parity);
  __real_simt_mbarrier_wait(barrier, parity);
}

WRAP(void, simt_tensor_load, void *shared, const CUtensorMap *map, void *barrier,
     const int *coordinates) {
  record("load %llx %u %d\n", (unsigned long long)(uintptr_t)map, place(shared), coordinates[1]);
  __real_simt_tensor_load(shared, map, barrier, coordinates);
}

WRAP(void, simt_tensor_store, const CUtensorMap *map, const void *shared, const int *coordinates) {
  record("store %u %d\n", place(shared), coordinates[1]);
  __real_simt_tensor_store(map, shared, coordinates);
}

WRAP(void, simt_bulk_commit, void) {
  record("stored\n");
  __real_simt_bulk_commit();
}

WRAP(void, simt_bulk_wait, unsigned pending) {
  record("wait_stores %u\n", pending);
  __real_simt_bulk_wait(pending);
}

WRAP(void, simt_wgmma, const SimtWgmma *operands) {
  const unsigned thread = simt_self()->index.x;
  if (recorded() && products[thread].count++ == 0) products[thread].first = *operands;
  __real_simt_wgmma(operands);
}

WRAP(void, simt_wgmma_commit, void) {
  const unsigned thread = simt_self()->index.x, count = products[thread].count;
  const SimtWgmma *first = &products[thread].first;
  if (recorded() && count > 0) {
    products[thread].count = 0;
    if (first->a == NULL) {
      record("qk %u %u %u\n", described(first->a_descriptor), described(first->b_descriptor),
             count);
    } else {
      record("pv %u %u\n", described(first->b_descriptor), count);
    }
  }
  __real_simt_wgmma_commit();
}

WRAP(void, simt_wgmma_wait, unsigned pending) {
  record("wait_products %u\n", pending);
  __real_simt_wgmma_wait(pending);
}

WRAP(void, simt_named_barrier, unsigned id, unsigned threads, bool wait) {
  record("%s %u %u\n", wait ? "sync" : "pass", id, threads);
  __real_simt_named_barrier(id, threads, wait);
}

WRAP(uint64_t, simt_shuffle, const SimtWarpOperation *shuffle, unsigned mask, uint64_t bits,
     unsigned lane_argument, int width, const SimtExtremes *extremes) {
  record_exchange();
  return __real_simt_shuffle(shuffle, mask, bits, lane_argument, width, extremes);
}

WRAP(unsigned, simt_vote, const SimtWarpOperation *vote, unsigned mask, int predicate) {
  record_exchange();
  return __real_simt_vote(vote, mask, predicate);
}
