/*
 * The function that kernels compiled with -fsanitize=bounds call for an index out of the bounds of
 * an array of known length. This also checks arrays in registers, which have no addresses. The
 * library of that sanitizer is not linked.
 */
#include "internal.h"

/** A type and a place, in the compiler's layout. */
typedef struct Type {
  uint16_t kind, details;
  char name[];
} Type;

typedef struct BadIndex {
  const char *file;
  uint32_t line, column;
  const Type *array, *index;
} BadIndex;

void __ubsan_handle_out_of_bounds(const BadIndex *bad, uintptr_t index);
void __ubsan_handle_out_of_bounds(const BadIndex *bad, uintptr_t index) {
  LabWorker *lab = lab_worker;
  if (lab == NULL || !(lab->checks & LAB_BOUNDS)) return;
  const uint32_t pc = lab_pc(__builtin_return_address(0));
  RawFinding *finding = lab_count_finding(lab, LAB_INDEX_OUTSIDE, pc, 0, 0);
  if (finding == NULL) return;
  const bool is_signed = bad->index->details & 1;
  const long long value = is_signed ? (long long)(intptr_t)index : (long long)index;
  snprintf(finding->where, sizeof finding->where, "index %lld of %s", value, bad->array->name);
}
