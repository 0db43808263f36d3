/*
 * Atomics on device memory, which other OS threads may change at the same time, and on shared
 * memory. Every operation is a compare-and-swap loop: simple, not fast.
 */
#include <string.h>

#include "runtime.h"

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

/** A thread may spin until another thread writes, so every atomic lets other threads run. */
static void end_atomic(SimtAccess access, bool writes, SimtOrder order) {
  if (simt_observer != NULL) simt_observer->atomic_done(access, writes, order);
  simt_worker->access_call_site = NULL;
  simt_worker->counters.atomics++;
  simt_yield();
}

#define DEFINE_ATOMICS(bits, Unsigned)                                                             \
  Unsigned simt_atomic_##bits(SimtAtomic operation, void *address, Unsigned operand,               \
                              SimtOrder order) {                                                   \
    const SimtAccess access = operation == SIMT_ATOMIC_EXCHANGE ? SIMT_EXCHANGES : SIMT_UPDATES;   \
    begin_atomic(address, sizeof operand, access, order, __builtin_return_address(0));             \
    _Atomic Unsigned *target = address;                                                            \
    Unsigned old = atomic_load(target);                                                            \
    while (                                                                                        \
        !atomic_compare_exchange_weak(target, &old, simt_apply_##bits(operation, old, operand))) { \
    }                                                                                              \
    end_atomic(access, true, order);                                                               \
    return old;                                                                                    \
  }                                                                                                \
  Unsigned simt_compare_and_swap_##bits(void *address, Unsigned expected, Unsigned desired) {      \
    begin_atomic(address, sizeof desired, SIMT_UPDATES, SIMT_RELAXED,                              \
                 __builtin_return_address(0));                                                     \
    _Atomic Unsigned *target = address;                                                            \
    const bool swapped = atomic_compare_exchange_strong(target, &expected, desired);               \
    end_atomic(SIMT_UPDATES, swapped, SIMT_RELAXED);                                               \
    return expected;                                                                               \
  }

DEFINE_ATOMICS(32, uint32_t)
DEFINE_ATOMICS(64, uint64_t)

uint32_t simt_load_acquire_32(const void *address) {
  begin_atomic(address, sizeof(uint32_t), SIMT_LOADS, SIMT_ACQUIRE, __builtin_return_address(0));
  const uint32_t value = atomic_load((const _Atomic uint32_t *)address);
  end_atomic(SIMT_LOADS, false, SIMT_ACQUIRE);
  return value;
}

void simt_store_release_32(void *address, uint32_t value) {
  begin_atomic(address, sizeof(uint32_t), SIMT_STORES, SIMT_RELEASE, __builtin_return_address(0));
  atomic_store((_Atomic uint32_t *)address, value);
  end_atomic(SIMT_STORES, true, SIMT_RELEASE);
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
