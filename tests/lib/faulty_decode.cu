/**
 * @file
 * A decode step that takes any cache and any pages, to test what the host does with them, and that
 * is wrong on purpose, to test what a program says then. The environment variable FAULT chooses the
 * mistake; without it the answer is right.
 *
 * One thread computes one row of O, straight from the formula. The schedule holds the lengths.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "device/convert.cuh"
#include "float8.h"

enum Fault {
  NO_FAULT,
  LOST_KEY,
  LOST_FIRST,
  PAST_LENGTH,
  OTHER_LENGTH,
  LOST_PAGE,
  WRONG_PAGE,
  PAST_TABLE,
  NO_SCALE,
  DIRTY_START,
  DIRTY_END,
  WRONG_WINDOW,
  FAULTS
};

constexpr int THREADS = 32;
constexpr size_t ZERO_BYTES = 8, WORKSPACE_BYTES = 64;

/** Element `at` of a tensor. */
__device__ float number(const void *data, Dtype dtype, int64_t at) {
  if (dtype == DTYPE_E4M3) return e4m3_bits_to_float(((const uint8_t *)data)[at]);
  return dtype == DTYPE_FP16 ? to_float(((const __half *)data)[at])
                             : to_float(((const __nv_bfloat16 *)data)[at]);
}

/** Offset of a key of K or V. */
__device__ int64_t offset_of(const Problem &p, const DecodeTensors &t, const Strides &s, int batch,
                             int kv_head, int key, Fault fault) {
  if (t.page_table == NULL) return batch * s.batch + kv_head * s.head + key * s.row;
  int page = key / p.page_size;
  if (fault == WRONG_PAGE && page == 1) page = 0;
  if (fault == PAST_TABLE && page == 1) page = 2;
  const int64_t number = t.page_table[batch * t.page_table_stride + page];
  return number * s.batch + kv_head * s.head + key % p.page_size * s.row;
}

__global__ void faulty_decode_kernel(Problem p, DecodeTensors t, Fault fault) {
  const int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= p.batch * p.q_heads * p.q_len) return;
  const int q = row % p.q_len, head = row / p.q_len % p.q_heads, batch = row / p.q_len / p.q_heads;
  const int kv_head = head / (p.q_heads / p.kv_heads), pair = batch * p.kv_heads + kv_head;
  const int length = ((const int *)t.schedule)[fault == OTHER_LENGTH ? 0 : batch];
  int end = length - (p.mask == MASK_CAUSAL ? p.q_len - 1 - q : 0), begin = 0;
  if (p.window > 0) begin = max(end - p.window - (fault == WRONG_WINDOW), 0);
  end += (fault == PAST_LENGTH) - (fault == LOST_KEY);
  begin += fault == LOST_FIRST;
  const Dtype dtype = p.kv_dtype == DTYPE_E4M3 ? DTYPE_E4M3 : p.dtype;
  const float k_scale = t.k_scales != NULL && fault != NO_SCALE ? t.k_scales[pair] : 1.0f;
  const float v_scale = t.v_scales != NULL ? t.v_scales[pair] : 1.0f;
  const int64_t q_offset =
      batch * p.q_strides.batch + head * p.q_strides.head + q * p.q_strides.row;
  float m = -INFINITY, l = 0.0f, o[MAX_HEAD_DIM];
  for (int d = 0; d < p.head_dim; d++) o[d] = 0.0f;
  for (int key = begin; key < end; key++) {
    if (fault == LOST_PAGE && p.page_size > 0 && key / p.page_size == 1) continue;
    const int64_t k = offset_of(p, t, p.k_strides, batch, kv_head, key, fault);
    const int64_t v = offset_of(p, t, p.v_strides, batch, kv_head, key, fault);
    float s = 0.0f;
    for (int d = 0; d < p.head_dim; d++) {
      s += number(t.q, p.dtype, q_offset + d) * number(t.k, dtype, k + d);
    }
    s *= p.scale * k_scale;
    const float new_m = fmaxf(m, s), rescale = expf(m - new_m), factor = expf(s - new_m);
    m = new_m;
    l = l * rescale + factor;
    for (int d = 0; d < p.head_dim; d++) {
      o[d] = o[d] * rescale + factor * v_scale * number(t.v, dtype, v + d);
    }
  }
  t.lse[row] = l == 0.0f ? -INFINITY : m + logf(l);
  const int64_t o_offset =
      batch * p.o_strides.batch + head * p.o_strides.head + q * p.o_strides.row;
  for (int d = 0; d < p.head_dim; d++) {
    const float x = l == 0.0f ? 0.0f : o[d] / l;
    if (p.dtype == DTYPE_FP16) ((__half *)t.o)[o_offset + d] = from_float<__half>(x);
    if (p.dtype == DTYPE_BF16) ((__nv_bfloat16 *)t.o)[o_offset + d] = from_float<__nv_bfloat16>(x);
  }
  if (row == 0 && fault == DIRTY_START) ((int *)t.workspace)[1] = 0x10001;
  if (row == 0 && fault == DIRTY_END) ((int *)t.workspace)[2] = 0x10001;
}

__global__ void schedule_kernel(const int *lengths, int batch, int *schedule) {
  for (int b = threadIdx.x; b < batch; b += THREADS) schedule[b] = lengths[b];
}

static Fault chosen_fault() {
  static const char *const NAMES[FAULTS] = {
      "none",       "lost key",   "lost first", "past length", "other length", "lost page",
      "wrong page", "past table", "no scale",   "dirty start", "dirty end",    "wrong window"};
  const char *name = getenv("FAULT");
  for (int i = 0; name != NULL && i < FAULTS; i++) {
    if (strcmp(name, NAMES[i]) == 0) return (Fault)i;
  }
  return NO_FAULT;
}

static unsigned block_count(const Problem *p) {
  return (unsigned)((p->batch * p->q_heads * p->q_len + THREADS - 1) / THREADS);
}

static void describe(const Problem *p, int, Description *description) {
  *description = {.block_m = 1, .block_n = 64};
  description->launch_count = 1;
  description->launches[0] = {"faulty_decode", (const void *)faulty_decode_kernel,
                              dim3(block_count(p)), dim3(THREADS)};
}

static cudaError_t decode(const Problem *p, const DecodeTensors *t, cudaStream_t stream) {
  faulty_decode_kernel<<<block_count(p), THREADS, 0, stream>>>(*p, *t, chosen_fault());
  return cudaGetLastError();
}

static cudaError_t schedule(const Problem *p, const DecodeTensors *t, cudaStream_t stream) {
  schedule_kernel<<<1, THREADS, 0, stream>>>(t->lengths, p->batch, (int *)t->schedule);
  return cudaGetLastError();
}

const Step step = {
    .name = "step98",
    .title = "Decode, wrong on purpose",
    .idea = "Every row has the mistake that FAULT names.",
    .head_dims = "D = 32, 64, 128 or 256",
    .workspace_bytes = [](const Problem *) { return WORKSPACE_BYTES; },
    .workspace_zero = true,
    .zero_bytes = [](const Problem *) { return ZERO_BYTES; },
    .describe = describe,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_E4M3 | CACHE_PAGES,
    .schedule_bytes = [](const Problem *p) { return sizeof(int) * (size_t)p->batch; },
    .schedule = schedule,
};
