#include <stdio.h>
#include <stdlib.h>

#include "host/base/memory.h"
#include "host/masks/host_block_mask.h"
#include "host/masks/mask.h"

bool row_spans_build(const Mask *mask, HostBlockMask *spans, Error *error) {
  const int batches = mask->batches, heads = mask->heads;
  const size_t rows = (size_t)batches * (size_t)heads * (size_t)mask->q_len;
  char what[512];
  snprintf(what, sizeof what, "--mask %.200s, --seqlen %d", mask->text, mask->q_len);
  *spans = (HostBlockMask){.mask = {.batches = batches, .heads = heads}};
  if (!memory_take(what, (double)(sizeof(KeySpan) * rows), error)) return false;
  KeySpan *row_spans = calloc(rows, sizeof *row_spans); /* 0, 0 stays if nothing is attended */
  if (row_spans == NULL) return fail(error, EXIT_DEVICE, "%s: out of host memory", what);
#pragma omp parallel for collapse(3)
  for (int b = 0; b < batches; b++) {
    for (int h = 0; h < heads; h++) {
      for (int q = 0; q < mask->q_len; q++) {
        mask_row(mask, b, h, q, row_spans + ((int64_t)b * heads + h) * mask->q_len + q);
      }
    }
  }
  spans->data[TENSOR_ROW_SPANS] = row_spans;
  spans->bytes[TENSOR_ROW_SPANS] = sizeof *row_spans * rows;
  block_mask_set_pointers(&spans->mask, spans->data);
  spans->mask.span_strides[0] = batches == 1 ? 0 : (int64_t)heads * mask->q_len;
  spans->mask.span_strides[1] = heads == 1 ? 0 : mask->q_len;
  return true;
}
