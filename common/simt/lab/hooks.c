/*
 * The functions that kernels compiled with -fsanitize=thread call at each load and store. The
 * library of that sanitizer is not linked.
 */
#include <string.h>

#include "internal.h"

/** Accesses to local memory of the threads, and accesses by the host, are ignored. */
static inline __attribute__((always_inline)) void access(void *address, unsigned size,
                                                         bool is_write, const void *caller) {
  LabWorker *lab = lab_worker;
  if (lab == NULL) return;
  if ((uintptr_t)address - lab->fibers < MAX_THREADS * SIMT_SLOT_BYTES) {
    if (lab->hopper != NULL) lab_use_local(lab, (uintptr_t)address, is_write, lab_pc(caller));
    return;
  }
  lab_access(lab, (uintptr_t)address, size, is_write, lab_pc(caller));
}

/**
 * Accesses to structures, and to values that are aligned to less than their size. A GPU splits them
 * into pieces: words if address and size allow.
 */
static void access_range(char *address, size_t size, bool is_write, const void *caller) {
  const unsigned piece = ((uintptr_t)address | size) % 4 == 0   ? 4
                         : ((uintptr_t)address | size) % 2 == 0 ? 2
                                                                : 1;
  for (size_t at = 0; at < size; at += piece) access(address + at, piece, is_write, caller);
}

#define HOOK(name, use, size, is_write)                        \
  void name(void *address);                                    \
  void name(void *address) {                                   \
    use(address, size, is_write, __builtin_return_address(0)); \
  }

#define HOOKS(size)                                            \
  HOOK(__tsan_read##size, access, size, false)                 \
  HOOK(__tsan_write##size, access, size, true)                 \
  HOOK(__tsan_unaligned_read##size, access_range, size, false) \
  HOOK(__tsan_unaligned_write##size, access_range, size, true)

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

#define RANGE_HOOK(name, is_write)                                      \
  void name(void *address, size_t size);                                \
  void name(void *address, size_t size) {                               \
    access_range(address, size, is_write, __builtin_return_address(0)); \
  }

RANGE_HOOK(__tsan_read_range, false)
RANGE_HOOK(__tsan_write_range, true)

/* In kernels, memcpy() and others have these names: cuda_runtime.h. */

void *__tsan_memmove(void *target, const void *source, size_t size);
void *__tsan_memmove(void *target, const void *source, size_t size) {
  access_range((char *)source, size, false, __builtin_return_address(0));
  access_range(target, size, true, __builtin_return_address(0));
  return memmove(target, source, size);
}

void *__tsan_memcpy(void *target, const void *source, size_t size)
    __attribute__((alias("__tsan_memmove")));

void *__tsan_memset(void *target, int value, size_t size);
void *__tsan_memset(void *target, int value, size_t size) {
  access_range(target, size, true, __builtin_return_address(0));
  return memset(target, value, size);
}

void __tsan_init(void);
void __tsan_init(void) {}

void __tsan_vptr_read(void *address);
void __tsan_vptr_read(void *address) {
  (void)address;
}

void __tsan_vptr_update(void *address, void *value);
void __tsan_vptr_update(void *address, void *value) {
  (void)address;
  (void)value;
}
