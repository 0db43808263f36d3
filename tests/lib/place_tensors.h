/**
 * @file
 * Tensors for step_under_test.c, at the places that its trials need: strides with gaps, offsets,
 * heads in separate allocations. Memory between the elements holds NaN; in a mask's tensors it
 * holds invalid types, counts and indices.
 */
#ifndef PLACE_TENSORS_H
#define PLACE_TENSORS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block_mask.h"
#include "decode.h"
#include "float16.h"
#include "float8.h"
#include "host/base/error.h"
#include "host/io/random.h"
#include "host/masks/host_block_mask.h"

enum { Q, K, V, O, TENSORS };
enum { NO_STRIDE = -1, BATCH_STRIDE, HEAD_STRIDE, ROW_STRIDE };

/** NaN in every type. Memory that nothing was written to holds these bits. */
enum { NAN_BYTE = 0xff };

/** Where one tensor lies. K and V may have a second allocation, a stride away from `base`. */
typedef struct Place {
  char *allocation, *second_allocation; /* on the device */
  size_t bytes;                         /* of each */
  char *base;                           /* element 0 of the tensor */
} Place;

/* --- The device ----------------------------------------------------------------------------- */

static void require(cudaError_t status, const char *what) {
  if (status == cudaSuccess) return;
  fprintf(stderr, "%s: %s: %s (%s)\n", step.name, what, cudaGetErrorString(status),
          cudaGetErrorName(status));
  exit(EXIT_DEVICE);
}

/** Device memory full of NaN. */
static void *device_memory(size_t bytes) {
  void *memory = NULL;
  require(cudaMalloc(&memory, bytes), "allocation");
  if (bytes > 0) require(cudaMemset(memory, 0xff, bytes), "memset");
  return memory;
}

static void *host_memory(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL) exit(EXIT_DEVICE);
  return memory;
}

/* --- Tensors -------------------------------------------------------------------------------- */

static Strides *strides_of(Problem *p, int tensor) {
  Strides *const all[] = {&p->q_strides, &p->k_strides, &p->v_strides, &p->o_strides};
  return all[tensor];
}

static int heads_of(const Problem *p, int tensor) {
  return tensor == Q || tensor == O ? p->q_heads : p->kv_heads;
}

static int rows_of(const Problem *p, int tensor) {
  return tensor == Q || tensor == O ? p->q_len : p->kv_len;
}

static Dtype dtype_of(const Problem *p, int tensor) {
  return tensor == O ? p->o_dtype : tensor == K || tensor == V ? cache_dtype(p) : p->dtype;
}

static int element_bytes(const Problem *p, int tensor) {
  return dtype_of(p, tensor) == DTYPE_E4M3 ? 1 : 2;
}

static int64_t row_count(const Problem *p, int tensor) {
  return (int64_t)p->batch * heads_of(p, tensor) * rows_of(p, tensor);
}

/** Bytes from the base to row `index`; rows are counted through heads and batch. */
static int64_t row_offset(Problem *p, int tensor, int64_t index) {
  const Strides *s = strides_of(p, tensor);
  const int64_t rows = rows_of(p, tensor), heads = heads_of(p, tensor);
  return element_bytes(p, tensor) *
         (index / rows / heads * s->batch + index / rows % heads * s->head + index % rows * s->row);
}

static int64_t round_up(int64_t count, int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

/** Strides with extra elements of 16 bits, rows and heads; `odd` names the one that must be odd. */
static Strides strides_with_gaps(const Problem *p, int tensor, int elements, int rows, int heads,
                                 int odd) {
  const int bytes = element_bytes(p, tensor), chunk = 16 / bytes;
  Strides s;
  s.row = p->head_dim + elements * 2 / bytes + (odd == ROW_STRIDE);
  s.head = round_up(s.row * (rows_of(p, tensor) + rows), chunk) + (odd == HEAD_STRIDE);
  s.batch = round_up(s.head * (heads_of(p, tensor) + heads), chunk) + (odd == BATCH_STRIDE);
  return s;
}

/** Memory for the whole tensor with its strides, and for `offset` elements before it. */
static Place place_in_one(Problem *p, int tensor, int64_t offset) {
  const int bytes = element_bytes(p, tensor);
  Place place = {.bytes = (size_t)(bytes * (offset + p->batch * strides_of(p, tensor)->batch))};
  place.allocation = device_memory(place.bytes);
  place.base = place.allocation + bytes * offset;
  return place;
}

static uint16_t value_of(Dtype dtype, int stream, int64_t index) {
  const double x = random_normal(1, (uint32_t)stream, (uint64_t)index);
  return dtype == DTYPE_E4M3   ? double_to_e4m3_bits(x)
         : dtype == DTYPE_FP16 ? double_to_half_bits(x)
                               : double_to_bf16_bits(x);
}

/** Writes the numbers of a tensor; a number depends on the stream and the element's index alone. */
static void fill(Problem *p, int tensor, int stream, char *base) {
  const int bytes = element_bytes(p, tensor);
  const size_t row_bytes = (size_t)(bytes * p->head_dim);
  char *row = host_memory(row_bytes);
  for (int64_t i = 0; i < row_count(p, tensor); i++) {
    for (int d = 0; d < p->head_dim; d++) { /* the lower byte comes first */
      const uint16_t bits = value_of(dtype_of(p, tensor), stream, i * p->head_dim + d);
      memcpy(row + d * bytes, &bits, (size_t)bytes);
    }
    require(cudaMemcpy(base + row_offset(p, tensor, i), row, row_bytes, cudaMemcpyHostToDevice),
            "copy of inputs");
  }
  free(row);
}

/** Copies the rows of O, or of the gradient of a tensor, out of its memory. False if anything
 * outside the rows was written to. */
static bool collect(Problem *p, int tensor, const Place *place, uint16_t *values) {
  const size_t row_bytes = sizeof(uint16_t) * (size_t)p->head_dim;
  char *all = host_memory(place->bytes);
  require(cudaMemcpy(all, place->allocation, place->bytes, cudaMemcpyDeviceToHost),
          "copy of outputs");
  for (int64_t i = 0; i < row_count(p, tensor); i++) {
    char *row = all + (place->base - place->allocation) + row_offset(p, tensor, i);
    memcpy(values + i * p->head_dim, row, row_bytes);
    memset(row, 0xff, row_bytes);
  }
  bool untouched = true;
  for (size_t i = 0; i < place->bytes; i++) untouched = untouched && (uint8_t)all[i] == NAN_BYTE;
  free(all);
  return untouched;
}

/** Two allocations, each for one head of K or V. */
static inline void place_heads_apart(Problem *p, Place places[TENSORS]) {
  const int element = element_bytes(p, K);
  const size_t bytes = (size_t)(p->kv_len * p->head_dim * element);
  for (int head = 0; head < 2; head++) {
    for (int tensor = K; tensor <= V; tensor++) {
      char *memory = device_memory(bytes);
      if (head == 0) {
        places[tensor] = (Place){.allocation = memory, .bytes = bytes, .base = memory};
      } else {
        places[tensor].second_allocation = memory;
        strides_of(p, tensor)->head = ((intptr_t)memory - (intptr_t)places[tensor].base) / element;
      }
    }
  }
}

/** Gives each tensor of rows and slots its own strides, also between slots. */
static inline void spread_mask(HostBlockMask *blocks) {
  BlockMask *m = &blocks->mask;
  int64_t *const strides[] = {m->num_strides, m->index_strides, m->type_strides,
                              m->partial_strides};
  for (int tensor = TENSOR_COUNTS; tensor <= TENSOR_TILE_INDICES; tensor++) {
    const int apart = 2 + tensor;
    const size_t count = blocks->bytes[tensor] / sizeof(int32_t);
    const int32_t *compact = blocks->data[tensor];
    int32_t *spread = host_memory(blocks->bytes[tensor] * (size_t)apart);
    for (size_t i = 0; i < count * (size_t)apart; i++) spread[i] = INT32_MIN + 7;
    for (size_t i = 0; i < count; i++) spread[i * (size_t)apart] = compact[i];
    free(blocks->data[tensor]);
    blocks->data[tensor] = spread;
    blocks->bytes[tensor] *= (size_t)apart;
    for (int d = 0; d < (tensor == TENSOR_COUNTS ? 3 : 4); d++) strides[tensor][d] *= apart;
  }
  block_mask_set_pointers(m, blocks->data);
}

#endif
