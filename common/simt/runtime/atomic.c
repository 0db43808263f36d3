/*
 * Atomics on device memory, which other OS threads may change at the same time, and on shared
 * memory. Every operation is a compare-and-swap loop: simple, not fast.
 */
#include <sched.h>
#include <string.h>

#include "hopper.h"
#include "program.h"

/** The value that an atomic stores in place of `a`. Both widths share this code, but not the
 * types. */
#define DEFINE_APPLY(name, Unsigned, Signed, Float)             \
  Unsigned name(SimtAtomic operation, Unsigned a, Unsigned b) { \
    Float x, y;                                                 \
    memcpy(&x, &a, sizeof x);                                   \
    memcpy(&y, &b, sizeof y);                                   \
    switch (operation) {                                        \
      case SIMT_ATOMIC_ADD:                                     \
        return a + b;                                           \
      case SIMT_ATOMIC_ADD_FLOAT:                               \
        x += y;                                                 \
        memcpy(&a, &x, sizeof a);                               \
        return a;                                               \
      case SIMT_ATOMIC_MAX_SIGNED:                              \
        return (Signed)a > (Signed)b ? a : b;                   \
      case SIMT_ATOMIC_MAX_UNSIGNED:                            \
        return a > b ? a : b;                                   \
      case SIMT_ATOMIC_MIN_SIGNED:                              \
        return (Signed)a < (Signed)b ? a : b;                   \
      case SIMT_ATOMIC_MIN_UNSIGNED:                            \
        return a < b ? a : b;                                   \
      case SIMT_ATOMIC_AND:                                     \
        return a & b;                                           \
      case SIMT_ATOMIC_OR:                                      \
        return a | b;                                           \
      case SIMT_ATOMIC_XOR:                                     \
        return a ^ b;                                           \
      case SIMT_ATOMIC_EXCHANGE:                                \
        return b;                                               \
      case SIMT_ATOMIC_COUNT:                                   \
        return a >= b ? 0 : a + 1;                              \
      case SIMT_ATOMIC_COUNT_DOWN:                              \
        return a == 0 || a > b ? b : a - 1;                     \
    }                                                           \
    return a;                                                   \
  }

DEFINE_APPLY(simt_apply_32, uint32_t, int32_t, float)
static DEFINE_APPLY(simt_apply_64, uint64_t, int64_t, double)

    /** A fault before end_atomic() is reported as a write at the caller's line. */
    static void begin_atomic(const void *address, unsigned size, SimtAccess access, SimtOrder order,
                             const void *call_site) {
  simt_require_aligned(address, size, "address of an atomic", call_site);
  if (simt_observer != NULL) {
    simt_observer->atomic((void *)(uintptr_t)address, size, access, order, call_site);
  }
  simt_worker->access_is_write = access != SIMT_LOADS;
  simt_worker->access_call_site = call_site;
}

/* --- Threads that wait for each other ----------------------------------------------------------
 */

static Change *kept_change(Worker *w, const void *address) {
  return &w->kept_changes[(uintptr_t)address / 4 % KEPT_CHANGES];
}

static uint64_t all_changes(const Launch *launch) {
  uint64_t sum = 0;
  for (int i = 0; i < MAX_WORKERS; i++) {
    if (launch->workers[i] != NULL) sum += atomic_load(&launch->workers[i]->changes);
  }
  return sum;
}

/** Did the latest action of every thread that could go on only read a value, with an atomic? Those
 * that did then count as waiting for another value. */
static bool all_wait_for_values(Worker *w) {
  for (int i = 0; i < w->thread_count; i++) {
    const bool can_go_on = w->warps[i / WARP_SIZE].ready >> i % WARP_SIZE & 1;
    if (can_go_on && w->waits[i].awaited != ANOTHER_VALUE) return false;
  }
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    w->warps[warp].parked |= w->warps[warp].ready;
    w->warps[warp].ready = 0;
  }
  return true;
}

/** Ends the block if no block goes on: none has changed a value since the last time. */
static void note_atomic_in_vain(Worker *w) {
  Launch *launch = (Launch *)(uintptr_t)w->launch;
  if (++w->idle_atomics % SIMT_BRIEF_PATIENCE == 0) {
    w->land_next(w);                            /* a block of its cluster may wait for that */
    if (!simt_let_others_run(w)) sched_yield(); /* to the one it waits for */
  }
  if (w->idle_atomics % SIMT_PATIENCE != 0) return;
  if (w->idle_atomics == SIMT_PATIENCE) launch->stuck++;
  const uint64_t changes = all_changes(launch);
  if (launch->stuck >= launch->running && w->idle_atomics > SIMT_PATIENCE &&
      changes == w->changes_seen && all_wait_for_values(w)) {
    simt_end_block(DEADLOCK, &w->waits[w->running]);
  }
  w->changes_seen = changes;
}

static void note_change(Worker *w, const void *address, const void *call_site) {
  Launch *launch = (Launch *)(uintptr_t)w->launch;
  if (w->idle_atomics >= SIMT_PATIENCE) launch->stuck--;
  w->idle_atomics = 0;
  w->changes++;
  *kept_change(w, address) = (Change){address, w->block.index, w->running, call_site};
}

void simt_describe_value(const Worker *worker, const void *address, char *text, size_t text_size) {
  char memory[128], where[512];
  simt_memory_describe((uintptr_t)address, memory, sizeof memory);
  int length = snprintf(text, text_size, "another value %s", memory);
  for (int i = 0; i < MAX_WORKERS; i++) {
    Worker *w = worker->launch->workers[i];
    const Change *change = w == NULL ? NULL : kept_change(w, address);
    if (change == NULL || change->address != address) continue;
    simt_source_line((uintptr_t)change->call_site - 1, where, sizeof where);
    snprintf(text + length, text_size - (size_t)length,
             ", last changed by thread %d of block (%u,%u,%u) at %s", change->thread,
             change->block.x, change->block.y, change->block.z, where);
  }
}

/* --- Atomics ---------------------------------------------------------------------------------- */

/** A thread may spin until another thread writes, so every atomic lets other threads run. */
static void end_atomic(const void *address, SimtAccess access, bool writes, bool changes,
                       SimtOrder order) {
  Worker *w = simt_worker;
  const void *call_site = w->access_call_site;
  if (simt_observer != NULL) simt_observer->atomic_done(access, writes, order);
  w->access_call_site = NULL;
  w->counters.atomics++;
  w->waits[w->running] = (Wait){.call_site = call_site,
                                .awaited = changes ? -1 : ANOTHER_VALUE,
                                .number = (unsigned)(uintptr_t)address,
                                .address = address};
  if (changes) {
    note_change(w, address, call_site);
  } else {
    note_atomic_in_vain(w);
  }
  simt_yield();
}

static SimtAccess access_of(SimtAtomic operation) {
  return operation == SIMT_ATOMIC_EXCHANGE    ? SIMT_EXCHANGES
         : operation == SIMT_ATOMIC_ADD_FLOAT ? SIMT_ADDS_FLOATS
                                              : SIMT_UPDATES;
}

#define DEFINE_ATOMICS(bits, Unsigned)                                                             \
  Unsigned simt_atomic_##bits(SimtAtomic operation, void *address, Unsigned operand,               \
                              SimtOrder order) {                                                   \
    const SimtAccess access = access_of(operation);                                                \
    begin_atomic(address, sizeof operand, access, order, __builtin_return_address(0));             \
    _Atomic Unsigned *target = address;                                                            \
    Unsigned old = atomic_load(target);                                                            \
    while (                                                                                        \
        !atomic_compare_exchange_weak(target, &old, simt_apply_##bits(operation, old, operand))) { \
    }                                                                                              \
    /* Nobody polls by adding a float, so adding 0 is progress, too. */                            \
    const bool changes =                                                                           \
        operation == SIMT_ATOMIC_ADD_FLOAT || simt_apply_##bits(operation, old, operand) != old;   \
    end_atomic(address, access, true, changes, order);                                             \
    return old;                                                                                    \
  }                                                                                                \
  Unsigned simt_compare_and_swap_##bits(void *address, Unsigned expected, Unsigned desired) {      \
    begin_atomic(address, sizeof desired, SIMT_UPDATES, SIMT_RELAXED,                              \
                 __builtin_return_address(0));                                                     \
    _Atomic Unsigned *target = address;                                                            \
    const bool swapped = atomic_compare_exchange_strong(target, &expected, desired);               \
    end_atomic(address, SIMT_UPDATES, swapped, swapped, SIMT_RELAXED);                             \
    return expected;                                                                               \
  }

DEFINE_ATOMICS(32, uint32_t)
DEFINE_ATOMICS(64, uint64_t)

uint32_t simt_load_acquire_32(const void *address) {
  begin_atomic(address, sizeof(uint32_t), SIMT_LOADS, SIMT_ACQUIRE, __builtin_return_address(0));
  const uint32_t value = atomic_load((const _Atomic uint32_t *)address);
  end_atomic(address, SIMT_LOADS, false, false, SIMT_ACQUIRE);
  return value;
}

/** One store of a GPU; others may see only some of its words. */
static void store_words(uint32_t *address, const uint32_t *words, unsigned count, SimtOrder order,
                        const void *call_site) {
  const unsigned bytes = count * sizeof *words;
  simt_require_aligned(address, bytes, "address of an atomic", call_site);
  if (simt_observer != NULL) simt_observer->words_stored(address, bytes, call_site);
  for (unsigned i = 0; i < count; i++) {
    begin_atomic(&address[i], sizeof *words, SIMT_STORES, order, call_site);
    atomic_store((_Atomic uint32_t *)&address[i], words[i]);
    end_atomic(&address[i], SIMT_STORES, true, true, order);
  }
}

void simt_store_release_32(void *address, uint32_t value) {
  store_words(address, &value, 1, SIMT_RELEASE, __builtin_return_address(0));
}

uint32_t simt_load_relaxed_32(const void *address) {
  begin_atomic(address, sizeof(uint32_t), SIMT_LOADS, SIMT_RELAXED, __builtin_return_address(0));
  const uint32_t value = atomic_load((const _Atomic uint32_t *)address);
  end_atomic(address, SIMT_LOADS, false, false, SIMT_RELAXED);
  return value;
}

void simt_store_relaxed_128(void *address, const uint32_t words[4]) {
  store_words(address, words, 4, SIMT_RELAXED, __builtin_return_address(0));
}

/** Loops that poll a flag often contain a fence, so it lets other threads run, as atomics do. */
void simt_block_fence(void) {
  atomic_thread_fence(memory_order_seq_cst);
  if (simt_worker != NULL) simt_yield();
}

void simt_thread_fence(void) {
  if (simt_worker != NULL && simt_observer != NULL) simt_observer->fence();
  simt_block_fence();
}
