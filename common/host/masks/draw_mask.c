#include <stdlib.h>
#include <string.h>

#include "host/base/values.h"
#include "host/masks/mask.h"

enum { MOST_CHARACTERS = 64 };

/** Number of blocks for each character, so that `blocks` of them fit a line. */
static int64_t blocks_per_character(int64_t blocks) {
  return (blocks + MOST_CHARACTERS - 1) / MOST_CHARACTERS;
}

/** Adds the attended entries of one row to the cells of its line, `width` keys each. */
static void add_row(const KeySpan *spans, int count, int64_t width, int64_t *cells) {
  for (int i = 0; i < count; i++) {
    for (int64_t key = spans[i].first; key < spans[i].end;) {
      const int64_t cell_end = (key / width + 1) * width;
      const int64_t end = cell_end < spans[i].end ? cell_end : spans[i].end;
      cells[key / width] += end - key;
      key = end;
    }
  }
}

/** '#' if every entry of a cell is attended, '.' if none, '/' if some. */
static char character(int64_t attended, int64_t entries) {
  return attended == 0 ? '.' : attended == entries ? '#' : '/';
}

bool draw_mask(const Mask *mask, int q_block, int kv_block, FILE *out, Error *error) {
  const int64_t q_len = mask->q_len, kv_len = mask->kv_len;
  const int64_t q_step = q_block * blocks_per_character((q_len + q_block - 1) / q_block);
  const int64_t kv_step = kv_block * blocks_per_character((kv_len + kv_block - 1) / kv_block);
  KeySpan *spans = malloc(sizeof *spans * (size_t)mask_most_spans(mask));
  if (spans == NULL) return fail(error, EXIT_DEVICE, "out of host memory to draw the mask");

  fprintf(out, "mask %s, %d queries down, %d keys across, a character is %lld x %lld entries\n",
          mask->text, mask->q_len, mask->kv_len, (long long)q_step, (long long)kv_step);
  if (mask->batches > 1 || mask->heads > 1) {
    fprintf(out, "the first of %lld masks, that of batch entry 0 and head 0\n",
            (long long)mask->batches * mask->heads);
  }
  for (int64_t first_q = 0; first_q < q_len; first_q += q_step) {
    int64_t cells[MOST_CHARACTERS] = {0};
    const int64_t rows = min_int64(q_step, q_len - first_q);
    int count = 0;
    for (int64_t q = first_q; q < first_q + rows; q++) {
      if (q == first_q || mask_rows_alike(mask, (int)q) > 0) {
        count = mask_row(mask, 0, 0, (int)q, spans);
      }
      add_row(spans, count, kv_step, cells);
    }
    for (int64_t k = 0; k < kv_len; k += kv_step) {
      fputc(character(cells[k / kv_step], rows * min_int64(kv_step, kv_len - k)), out);
    }
    fputc('\n', out);
  }
  free(spans);
  const double entries = (double)mask->batches * mask->heads * (double)q_len * (double)kv_len;
  fprintf(out, "# all attended   / some   . none   unmasked: %.1f %% of the entries%s\n",
          100 * (double)mask->entries / entries,
          mask->batches > 1 || mask->heads > 1 ? " of all masks" : "");
  return true;
}
