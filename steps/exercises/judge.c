/**
 * @file
 * Judges an answer that another program has written. It is linked like a step, so it takes the same
 * options and checks in the same way, but forward() reads O and LSE from files. The kernel that
 * computed them runs elsewhere and cannot change the verdict. Compiled with E4M3, it judges steps
 * whose Q, K and V are e4m3, with BACKWARD those that compute dQ, dK and dV, with SPANS, too, those
 * that do so with masks of spans, and with DECODE decode steps.
 *
 * The environment says what to judge:
 *   ANSWER        directory with o.npy and lse.npy, or dq.npy, dk.npy and dv.npy, as --output
 *                 writes them
 *   ANSWER_TILES  for the words of the diagnosis: BLOCK_MxBLOCK_N of the kernel
 *   ANSWER_RULE   alibi, softcap or sinks; otherwise plain attention
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "backward.h"
#include "block_mask.h"
#include "decode.h"
#include "host/check/reference.h"
#include "host/io/npy.h"

/* The variants; the task texts give the same formulas. */
enum { SOFTCAP = 20 };

static double alibi(const Problem *p, RowIndex row, int64_t key, double score) {
  const double slope = exp2(-8.0 * (row.head + 1) / p->q_heads);
  return score - slope * fabs((double)row.q + p->kv_len - p->q_len - (double)key);
}

static double softcap(const Problem *p, RowIndex row, int64_t key, double score) {
  (void)p, (void)row, (void)key;
  return SOFTCAP * tanh(score / SOFTCAP);
}

static double sink(const Problem *p, RowIndex row) {
  return 1 + (double)row.head / p->q_heads;
}

static ReferenceRule rule;

static void set_rule(const char *name) {
  if (strcmp(name, "alibi") == 0) rule.score = alibi;
  if (strcmp(name, "softcap") == 0) rule.score = softcap;
  if (strcmp(name, "sinks") == 0) rule.sink = sink;
}

static void describe(const Problem *p, int heads, Description *description) {
  const char *tiles = getenv("ANSWER_TILES");
  (void)p, (void)heads;
  *description = (Description){.block_m = 64, .block_n = 64, .multiplies_masked_keys = true};
  if (tiles != NULL) sscanf(tiles, "%dx%d", &description->block_m, &description->block_n);
}

/** Reads one file of the answer, with as many elements as the problem has. */
static bool read_answer(const char *name, size_t elements, NpyArray *array) {
  char path[4096];
  Error error = {0};
  const NpyTypes types = {1u << NPY_F2 | 1u << NPY_F4, "<f2 or <f4"};
  snprintf(path, sizeof path, "%s/%s", getenv("ANSWER"), name);
  if (!npy_read(path, types, array, &error)) {
    fprintf(stderr, "judge: %s\n", error.text);
    return false;
  }
  return array->bytes == elements * (array->type == NPY_F2 ? 2 : 4);
}

/** Reads an output of [batch, heads, length, head_dim], in the file, to a tensor with strides. */
static bool take(const Problem *p, const char *name, int heads, int64_t length,
                 const Strides *strides, Dtype dtype, void *tensor) {
  const size_t elements = (size_t)p->batch * (size_t)heads * (size_t)length * (size_t)p->head_dim;
  NpyArray array = {0};
  const bool ok = read_answer(name, elements, &array);
  for (size_t i = 0; ok && i < elements; i++) {
    const int64_t row = (int64_t)i / p->head_dim, head = row / length;
    uint16_t *target = (uint16_t *)tensor +
                       row_offset(strides, (int)(head / heads), (int)(head % heads), row % length);
    target[(int64_t)i % p->head_dim] = array.type == NPY_F2
                                           ? ((const uint16_t *)array.data)[i]
                                           : element_bits(dtype, ((const float *)array.data)[i]);
  }
  npy_free(&array);
  return ok;
}

#ifdef BACKWARD
static cudaError_t backward(const Problem *p, const BackwardTensors *t, int heads,
                            cudaStream_t stream) {
  (void)heads, (void)stream;
  const bool ok = take(p, "dq.npy", p->q_heads, p->q_len, &p->q_strides, p->dtype, t->d_q) &&
                  take(p, "dk.npy", p->kv_heads, p->kv_len, &p->k_strides, p->dtype, t->d_k) &&
                  take(p, "dv.npy", p->kv_heads, p->kv_len, &p->v_strides, p->dtype, t->d_v);
  return ok ? cudaSuccess : cudaErrorInvalidValue;
}
#else
static cudaError_t read_outputs(const Problem *p, void *o, float *o_lse) {
  NpyArray lse = {0};
  const bool ok =
      take(p, "o.npy", p->q_heads, p->q_len, &p->o_strides, p->o_dtype, o) &&
      read_answer("lse.npy", (size_t)p->batch * (size_t)p->q_heads * (size_t)p->q_len, &lse) &&
      lse.type == NPY_F4;
  if (ok) memcpy(o_lse, lse.data, lse.bytes);
  npy_free(&lse);
  return ok ? cudaSuccess : cudaErrorInvalidValue;
}

#ifdef DECODE
static cudaError_t decode(const Problem *p, const DecodeTensors *t, cudaStream_t stream) {
  (void)stream;
  return read_outputs(p, t->o, t->lse);
}
#else
static cudaError_t forward(const Problem *p, const Tensors *t, int heads, cudaStream_t stream) {
  (void)heads, (void)stream;
  return read_outputs(p, t->o, t->lse);
}
#endif
#endif

static bool supports(const Problem *p, char *why, size_t why_size) {
  const char *name = getenv("ANSWER_RULE");
  (void)p;
  set_rule(name != NULL ? name : "");
  if (getenv("ANSWER") != NULL) return true;
  snprintf(why, why_size, "the judge needs ANSWER=DIRECTORY in the environment");
  return false;
}

#if !(defined(BACKWARD) || defined(DECODE)) || defined(SPANS)
static size_t prepared_bytes(const Problem *p, const BlockMask *mask) {
  (void)p, (void)mask;
  return 1;
}

static cudaError_t prepare(const Problem *p, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  (void)p, (void)mask, (void)prepared, (void)stream;
  return cudaSuccess;
}

static const BlockMaskSupport MASKS = {.prepared_bytes = prepared_bytes,
                                       .prepare = prepare,
#ifdef SPANS
                                       .takes_spans = true
#endif
};
#endif

const Step step = {
    .name = "judge",
    .title = "Judge of the exercises",
    .idea = "Checks what another program wrote.",
#ifdef E4M3
    .fp8 = true,
#endif
    .supports = supports,
    .describe = describe,
#ifdef BACKWARD
    .backward = backward,
#elif defined(DECODE)
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_E4M3 | CACHE_PAGES,
#else
    .forward = forward,
    .rule = &rule,
#endif
#if !(defined(BACKWARD) || defined(DECODE)) || defined(SPANS)
    .block_masks = &MASKS,
#endif
};
