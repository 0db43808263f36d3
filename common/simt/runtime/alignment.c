/*
 * Kernels compiled with -fsanitize=alignment call this if a pointer is not aligned for its type. A
 * GPU rejects such an access; most CPUs do not.
 */
#include <stdlib.h>

#include "runtime.h"

/* The layout that g++ uses for its sanitizer library, which is not linked. */
typedef struct TypeDescriptor {
  uint16_t kind, info;
  char name[]; /* in quotes */
} TypeDescriptor;

typedef struct TypeMismatch {
  const char *file;
  uint32_t line, column;
  const TypeDescriptor *type;
  unsigned char log_alignment, check_kind;
} TypeMismatch;

void __ubsan_handle_type_mismatch_v1(const TypeMismatch *mismatch, uintptr_t address);

void __ubsan_handle_type_mismatch_v1(const TypeMismatch *mismatch, uintptr_t address) {
  const unsigned alignment = 1u << mismatch->log_alignment;
  if (simt_worker == NULL) {
    fflush(stdout);
    const unsigned past = (unsigned)(address % alignment);
    fprintf(stderr, "%s:%u: misaligned access as %s: %u %s past a multiple of %u\n", mismatch->file,
            mismatch->line, mismatch->type->name, past, simt_bytes(past), alignment);
    abort();
  }
  simt_worker->misalignment =
      (Misalignment){"access as ", mismatch->type->name, address, alignment};
  simt_end_block(MISALIGNED, &(Wait){.call_site = __builtin_return_address(0)});
}
