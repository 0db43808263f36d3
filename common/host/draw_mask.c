#include "host/draw_mask.h"

#include "host/mask.h"

enum { MOST_CHARACTERS = 64 };

/** Blocks that one character stands for, so that `blocks` of them fit a line. */
static int64_t blocks_per_character(int64_t blocks) {
  return (blocks + MOST_CHARACTERS - 1) / MOST_CHARACTERS;
}

/** '#' if every entry of the rectangle is attended, '.' if none, '/' if some. */
static char classify(const Problem *p, int64_t first_q, int64_t last_q, int64_t first_k,
                     int64_t last_k) {
  /* Row counts only grow with q, so the first and the last row decide. */
  if (mask_row_count(p, first_q) > last_k) return '#';
  return mask_row_count(p, last_q) > first_k ? '/' : '.';
}

void draw_mask(const Problem *p, int q_block, int kv_block, FILE *out) {
  const int64_t q_blocks = (p->q_len + (int64_t)q_block - 1) / q_block;
  const int64_t kv_blocks = (p->kv_len + (int64_t)kv_block - 1) / kv_block;
  const int64_t q_step = q_block * blocks_per_character(q_blocks);
  const int64_t kv_step = kv_block * blocks_per_character(kv_blocks);

  fprintf(out, "mask %s, %d queries down, %d keys across, a character is %lld x %lld entries\n",
          mask_name(p->mask), p->q_len, p->kv_len, (long long)q_step, (long long)kv_step);
  for (int64_t q = 0; q < p->q_len; q += q_step) {
    const int64_t last_q = q + q_step < p->q_len ? q + q_step - 1 : p->q_len - 1;
    for (int64_t k = 0; k < p->kv_len; k += kv_step) {
      const int64_t last_k = k + kv_step < p->kv_len ? k + kv_step - 1 : p->kv_len - 1;
      fputc(classify(p, q, last_q, k, last_k), out);
    }
    fputc('\n', out);
  }
  const double entries = (double)p->q_len * p->kv_len;
  fprintf(out, "# all attended   / some   . none   unmasked: %.1f %% of the entries\n",
          100 * (double)mask_entries(p) / entries);
}
