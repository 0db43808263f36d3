#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

/* The lower half of a slot is one page for the SimtThread, followed by inaccessible pages. The top
   FILLED_BYTES of the stack are filled with NaN; kernels use less. */
enum { STACK_BYTES = SIMT_SLOT_BYTES / 2, FILLED_BYTES = 8192 };

#if defined(__x86_64__)
enum { SAVED_WORDS = 6 };
#else
enum { SAVED_WORDS = 20, SAVED_X19 = 0, SAVED_LINK_REGISTER = 11 };
void simt_fiber_begin(void); /* calls the function in x19 */
#endif

static char *slot_of(const Worker *worker, int index) {
  return worker->slots + (size_t)index * SIMT_SLOT_BYTES;
}

/** Staggered: stacks at equal offsets in their slots would compete for a few cache sets. */
static char *stack_top(const Worker *worker, int index) {
  return slot_of(worker, index) + SIMT_SLOT_BYTES - (size_t)index % 64 * 64;
}

/** There are not enough mappings for the stacks of a large cooperative launch. */
static bool is_guarded(const Worker *worker) {
  return worker->number < GUARDED_WORKERS;
}

static bool reserve_slots(Worker *worker) {
  const size_t size = (MAX_THREADS + 1) * SIMT_SLOT_BYTES; /* one more, for alignment */
  char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return false;
  const uintptr_t misaligned = (uintptr_t)memory % SIMT_SLOT_BYTES;
  char *slots = memory + (misaligned == 0 ? 0 : SIMT_SLOT_BYTES - misaligned);
  if (slots > memory) munmap(memory, (size_t)(slots - memory));
  char *end = slots + MAX_THREADS * SIMT_SLOT_BYTES;
  munmap(end, (size_t)(memory + size - end));
  worker->slots = slots;
  if (!is_guarded(worker)) madvise(slots, MAX_THREADS * SIMT_SLOT_BYTES, MADV_NOHUGEPAGE);
  return true;
}

bool simt_fibers_create(Worker *worker, int count) {
  if (worker->slots == NULL && !reserve_slots(worker)) return false;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (; worker->fiber_count < count; worker->fiber_count++) {
    char *slot = slot_of(worker, worker->fiber_count);
    char *stack = slot + SIMT_SLOT_BYTES - STACK_BYTES;
    const size_t gap = (size_t)(stack - slot) - page;
    if (is_guarded(worker) && mprotect(slot + page, gap, PROT_NONE) != 0) return false;
    memset(stack_top(worker, worker->fiber_count) - FILLED_BYTES, 0xff, FILLED_BYTES);
  }
  return true;
}

void simt_fibers_destroy(Worker *worker) {
  if (worker->slots != NULL) munmap(worker->slots, MAX_THREADS * SIMT_SLOT_BYTES);
  worker->slots = NULL;
  worker->fiber_count = 0;
}

void simt_fibers_refill(Worker *worker, int count) {
  const char *clean = stack_top(worker, 0) - FILLED_BYTES;
  while (clean < stack_top(worker, 0) && *(const uint64_t *)clean == UINT64_MAX) clean += 8;
  const size_t used = (size_t)(stack_top(worker, 0) - clean);
  if (used > worker->stack_used) worker->stack_used = used;
  for (int i = 0; i < count; i++) {
    memset(stack_top(worker, i) - worker->stack_used, 0xff, worker->stack_used);
  }
}

void simt_fiber_start(Worker *worker, int index, void (*begin)(void)) {
  uintptr_t *top = (uintptr_t *)stack_top(worker, index);
  /* Debuggers and unwinders stop at a return address of zero. */
#if defined(__x86_64__)
  *--top = 0;
  *--top = (uintptr_t)begin;
  top -= SAVED_WORDS;
  memset(top, 0, SAVED_WORDS * sizeof *top);
#else
  top -= SAVED_WORDS;
  memset(top, 0, SAVED_WORDS * sizeof *top);
  top[SAVED_X19] = (uintptr_t)begin;
  top[SAVED_LINK_REGISTER] = (uintptr_t)simt_fiber_begin;
#endif
  worker->stacks[index] = top;
}

SimtThread *simt_fiber_thread(const Worker *worker, int index) {
  return (SimtThread *)slot_of(worker, index);
}

bool simt_in_fibers(const Worker *worker, uintptr_t address) {
  return address - (uintptr_t)worker->slots < MAX_THREADS * SIMT_SLOT_BYTES;
}

bool simt_in_stack_guard(const Worker *worker, uintptr_t address) {
  return simt_in_fibers(worker, address) &&
         address % SIMT_SLOT_BYTES < SIMT_SLOT_BYTES - STACK_BYTES;
}
