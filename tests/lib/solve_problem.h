/**
 * @file
 * Calls the step for step_under_test.c, with tensors that place_tensors.h has placed, and takes the
 * bits of its answer.
 */
#ifndef SOLVE_PROBLEM_H
#define SOLVE_PROBLEM_H

#include <math.h>

#include "backward.h"
#include "block_mask.h"
#include "host/base/error.h"
#include "host/masks/host_block_mask.h"
#include "host/masks/mask.h"
#include "place_tensors.h"

/** Until something is wrong. */
static bool all_right = true;

typedef struct Answer {
  uint16_t *o; /* [batch][q_heads][q_len][head_dim]; or dQ, then dK, then dV, likewise */
  float *lse;
} Answer;

static void free_answer(Answer *answer) {
  free(answer->o);
  free(answer->lse);
}

static void wrong(const char *what) {
  printf("WRONG: %s\n", what);
  all_right = false;
}

static void require_mask(bool done, const Error *error) {
  if (done) return;
  fprintf(stderr, "%s: %s\n", step.name, error->text);
  exit(EXIT_DEVICE);
}

/**
 * A block mask, for a step that takes one: the problem's mask. For every second causal problem it
 * is a window instead, whose rows have several partial blocks. `spread` puts gaps into its tensors.
 * Without blocks, it has spans of keys.
 */
static DeviceMask mask_in_blocks(const Problem *p, bool spread) {
  DeviceMask on_device = {0};
  HostBlockMask blocks;
  Mask mask;
  Error error;
  if (step.block_masks == NULL) return on_device;
  const char *text = p->mask == MASK_FULL       ? "full"
                     : p->o_dtype == DTYPE_FP16 ? "causal"
                                                : "window:20";
  const int rows = p->q_block_size, columns = p->kv_block_size;
  require_mask(mask_open(text, p, rows, columns, 0, &mask, &error), &error);
  require_mask(rows == 0 ? row_spans_build(&mask, &blocks, &error)
                         : block_mask_build(&mask, rows, columns, &blocks, &error),
               &error);
  if (spread && rows > 0) spread_mask(&blocks);
  require_mask(device_mask_create(p, &step, &blocks, &on_device, &error), &error);
  block_mask_free(&blocks);
  mask_free(&mask);
  return on_device;
}

/** The scales of an input in e4m3, another for each key/value head; NULL for other types. */
static float *scales_of(const Problem *p, int tensor) {
  if (p->dtype != DTYPE_E4M3) return NULL;
  const int count = p->batch * p->kv_heads;
  const size_t bytes = sizeof(float) * (size_t)count;
  float *scales = host_memory(bytes), *on_device = device_memory(bytes);
  for (int i = 0; i < count; i++) scales[i] = 1 + (float)(3 * i + tensor) / 16;
  require(cudaMemcpy(on_device, scales, bytes, cudaMemcpyHostToDevice), "copy of scales");
  free(scales);
  return on_device;
}

/** The number of values in Answer::o. */
static size_t value_count(const Problem *p) {
  int64_t rows = row_count(p, O);
  if (step.backward != NULL) rows = row_count(p, Q) + row_count(p, K) + row_count(p, V);
  return (size_t)(rows * p->head_dim);
}

/** LSE on the device: some number, or -inf where no key is attended. */
static float *lse_of(const Problem *p) {
  const size_t bytes = sizeof(float) * (size_t)row_count(p, O);
  float *lse = host_memory(bytes), *on_device = device_memory(bytes);
  for (int64_t row = 0; row < row_count(p, O); row++) {
    const bool empty = p->mask == MASK_CAUSAL && row % p->q_len < p->q_len - p->kv_len;
    lse[row] = empty ? -INFINITY : 3 + (float)(row % 5) / 4;
  }
  require(cudaMemcpy(on_device, lse, bytes, cudaMemcpyHostToDevice), "copy of LSE");
  free(lse);
  return on_device;
}

/** Memory for a tensor that lies as the one in `place` does. */
static Place place_like(Problem *p, int tensor, const Place *place) {
  return place_in_one(p, tensor, (place->base - place->allocation) / element_bytes(p, tensor));
}

/** How often solve_backward() repeats the pass. */
static int repetitions = 0;

/** Repeats a pass whose gradients are there, and compares all bytes of the new ones with them. */
static void repeat(const Problem *p, const BackwardTensors *t, int heads,
                   const Place gradients[O]) {
  char *expected[O];
  for (int tensor = Q; tensor <= V; tensor++) {
    const size_t bytes = gradients[tensor].bytes;
    expected[tensor] = host_memory(bytes);
    require(cudaMemcpy(expected[tensor], gradients[tensor].allocation, bytes, cudaMemcpyDefault),
            "copy of gradients");
  }
  for (int i = 0; i < repetitions; i++) {
    for (int tensor = Q; tensor <= V; tensor++) {
      const Place *to = &gradients[tensor];
      require(cudaMemset(to->allocation, NAN_BYTE, to->bytes), "memset");
    }
    require(step.backward(p, t, heads, 0), "launch");
    bool same = true;
    for (int tensor = Q; tensor <= V; tensor++) {
      const size_t bytes = gradients[tensor].bytes;
      char *found = host_memory(bytes);
      require(cudaMemcpy(found, gradients[tensor].allocation, bytes, cudaMemcpyDefault), "kernel");
      same = same && memcmp(found, expected[tensor], bytes) == 0;
      free(found);
    }
    printf("again, D=%d, %s mask: ", p->head_dim, p->mask == MASK_FULL ? "full" : "causal");
    if (same) {
      printf("same bits\n");
    } else {
      wrong("other bits than before");
    }
  }
  for (int tensor = Q; tensor <= V; tensor++) free(expected[tensor]);
}

/** The same as solve() for a backward step. */
static Answer solve_backward(Problem *p, Place places[TENSORS], int heads, bool spread) {
  const size_t lse_bytes = sizeof(float) * (size_t)row_count(p, O);
  const size_t work_bytes = step.workspace_bytes ? (size_t)heads * step.workspace_bytes(p) : 0;
  Place d_o = place_like(p, O, &places[O]), gradients[O];
  fill(p, O, O, places[O].base);
  fill(p, O, TENSORS, d_o.base);
  for (int tensor = Q; tensor <= V; tensor++) {
    fill(p, tensor, tensor, places[tensor].base);
    gradients[tensor] = place_like(p, tensor, &places[tensor]);
  }
  float *lse = lse_of(p);
  DeviceMask mask = mask_in_blocks(p, spread);
  const BackwardTensors t = {.q = places[Q].base,
                             .k = places[K].base,
                             .v = places[V].base,
                             .o = places[O].base,
                             .lse = lse,
                             .d_o = d_o.base,
                             .d_q = gradients[Q].base,
                             .d_k = gradients[K].base,
                             .d_v = gradients[V].base,
                             .workspace = work_bytes > 0 ? device_memory(work_bytes) : NULL,
                             .block_mask = &mask.mask,
                             .prepared = mask.prepared};
  if (step.workspace_zero) require(cudaMemset(t.workspace, 0, work_bytes), "workspace");
  require(step.backward(p, &t, heads, 0), "launch");
  if (step.workspace_zero) require(step.backward(p, &t, heads, 0), "second launch");
  require(cudaDeviceSynchronize(), "kernel");
  if (repetitions > 0) repeat(p, &t, heads, gradients);

  Answer answer = {host_memory(sizeof(uint16_t) * value_count(p)), host_memory(lse_bytes)};
  memset(answer.lse, 0, lse_bytes);
  uint16_t *values = answer.o;
  for (int tensor = Q; tensor <= V; tensor++) {
    if (!collect(p, tensor, &gradients[tensor], values)) wrong("written to outside the rows");
    values += row_count(p, tensor) * p->head_dim;
    require(cudaFree(gradients[tensor].allocation), "free");
  }
  for (int tensor = Q; tensor <= O; tensor++) require(cudaFree(places[tensor].allocation), "free");
  require(cudaFree(d_o.allocation), "free");
  require(cudaFree(lse), "free");
  require(cudaFree(t.workspace), "free");
  device_mask_free(&mask);
  return answer;
}

/** Runs the step on the tensors in `places` and frees them; `spread` is for the mask. */
static Answer solve(Problem *p, Place places[TENSORS], bool spread) {
  const size_t lse_bytes = sizeof(float) * (size_t)row_count(p, O);
  size_t free_bytes = 0, total_bytes = 0;
  require(cudaMemGetInfo(&free_bytes, &total_bytes), "memory");
  const int heads = heads_at_a_time(p, free_bytes);
  if (step.backward != NULL) return solve_backward(p, places, heads, spread);
  for (int tensor = Q; tensor <= V; tensor++) fill(p, tensor, tensor, places[tensor].base);

  DeviceMask mask = mask_in_blocks(p, spread);
  float *const scales[] = {scales_of(p, Q), scales_of(p, K), scales_of(p, V)};
  Tensors t = {.q = places[Q].base,
               .k = places[K].base,
               .v = places[V].base,
               .q_scales = scales[Q],
               .k_scales = scales[K],
               .v_scales = scales[V],
               .o = places[O].base,
               .block_mask = &mask.mask,
               .prepared = mask.prepared};
  t.lse = device_memory(lse_bytes);
  const size_t work_bytes = step.workspace_bytes ? (size_t)heads * step.workspace_bytes(p) : 0;
  t.workspace = work_bytes > 0 ? device_memory(work_bytes) : NULL;
  if (step.workspace_zero) require(cudaMemset(t.workspace, 0, work_bytes), "workspace");
  require(step.forward(p, &t, heads, 0), "launch");
  if (step.workspace_zero) { /* is the workspace as the next pass needs it? */
    require(cudaMemset(t.lse, 0xff, lse_bytes), "LSE");
    require(step.forward(p, &t, heads, 0), "second launch");
  }
  require(cudaDeviceSynchronize(), "kernel");

  Answer answer = {host_memory(sizeof(uint16_t) * value_count(p)), host_memory(lse_bytes)};
  require(cudaMemcpy(answer.lse, t.lse, lse_bytes, cudaMemcpyDeviceToHost), "copy of LSE");
  for (int64_t row = 0; step.workspace_zero && row < row_count(p, O); row++) {
    if (memcmp(&answer.lse[row], "\xff\xff\xff\xff", 4) == 0) wrong("a second pass left rows out");
  }
  if (!collect(p, O, &places[O], answer.o)) wrong("O was written to outside its rows");
  for (int tensor = Q; tensor <= O; tensor++) {
    require(cudaFree(places[tensor].allocation), "free");
    require(cudaFree(places[tensor].second_allocation), "free");
  }
  for (int tensor = Q; tensor <= V; tensor++) require(cudaFree(scales[tensor]), "free");
  require(cudaFree(t.lse), "free");
  require(cudaFree(t.workspace), "free");
  device_mask_free(&mask);
  return answer;
}

#endif
