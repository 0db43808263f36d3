#include "host/mask.h"

#include <string.h>

bool mask_parse(const char *text, MaskKind *kind, Error *error) {
  static const MaskKind kinds[] = {MASK_FULL, MASK_CAUSAL};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    *kind = kinds[i];
    if (strcmp(text, mask_name(*kind)) == 0) return true;
  }
  return fail(error, EXIT_USAGE, "--mask %s: this step takes full or causal", text);
}

const char *mask_name(MaskKind kind) {
  return kind == MASK_CAUSAL ? "causal" : "full";
}

int64_t mask_row_count(const Problem *problem, int64_t q) {
  if (problem->mask == MASK_FULL) return problem->kv_len;
  /* The last query attends every key, each one before it one key less, down to none. */
  const int64_t count = q + 1 + problem->kv_len - problem->q_len;
  return count < 0 ? 0 : count < problem->kv_len ? count : problem->kv_len;
}

int64_t mask_entries(const Problem *problem) {
  const int64_t q_len = problem->q_len, kv_len = problem->kv_len;
  if (problem->mask == MASK_FULL) return q_len * kv_len;
  /* kv_len + (kv_len - 1) + ... over the rows that attend anything. */
  const int64_t rows = q_len < kv_len ? q_len : kv_len;
  return rows * kv_len - rows * (rows - 1) / 2;
}
