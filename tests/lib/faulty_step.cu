/**
 * @file
 * A step that is wrong on purpose, to test what a program says about a wrong answer. The
 * environment variable FAULT chooses the mistake; without it the answer is right.
 *
 * fp16 only; one thread computes one row of O, straight from the formula.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "device/convert.cuh"
#include "device/heads.cuh"

enum Fault {
  NO_FAULT,
  LOST_KEY,
  UNWRITTEN_ROW,
  PAST_THE_END,
  NAN_ROW,
  WRONG_LSE,
  NO_LAUNCH,
  FAILED_LAUNCH,
  DEADLOCKED,
  LARGE_BLOCK,
  BANK_CONFLICT,
  UNSET_SUM,
  DIRTY_WORKSPACE,
  NO_TILES,
  FAULTS
};

constexpr int THREADS = 32;
constexpr int SHARED_BYTES = 2 * THREADS * sizeof(float);
constexpr int FAULTY_ROW = 5;  // of every head

__device__ float score(const Problem &p, const __half *q_row, const __half *k_row) {
  float s = 0.0f;
  for (int d = 0; d < p.head_dim; d++) s += to_float(q_row[d]) * to_float(k_row[d]);
  return p.scale * s;
}

/** Does not change the value: every lane reads back what it has written. */
__device__ float through_shared_memory(float x, int stride) {
  extern __shared__ __align__(16) unsigned char smem[];
  float *row_shared = (float *)smem;
  row_shared[stride * threadIdx.x] = x;
  return row_shared[stride * threadIdx.x];
}

__device__ float never_written() {
  extern __shared__ __align__(16) unsigned char smem[];
  return ((float *)smem)[THREADS + threadIdx.x];
}

__global__ void faulty_kernel(Problem p, Tensors t, Fault fault) {
  const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (row >= (int64_t)p.batch * p.q_heads * p.q_len) return;
  const int q = (int)(row % p.q_len);
  const HeadOffsets at = head_offsets(p, (int)(row / p.q_len));
  const __half *q_row = (const __half *)t.q + at.q + q * p.q_strides.row;
  const __half *k_global = (const __half *)t.k + at.k;
  const __half *v_global = (const __half *)t.v + at.v;
  __half *o_row = (__half *)t.o + at.o + q * p.o_strides.row;
  const bool hit = q == FAULTY_ROW;
  if (fault == DEADLOCKED && threadIdx.x == 0) __syncthreads();
  if (fault == DEADLOCKED) __syncwarp();  // one lane of the warp does not reach it
  const int keys = attended_keys(p, q) - (hit && fault == LOST_KEY);

  float row_max = -INFINITY, row_sum = 0.0f;
  for (int k = 0; k < keys; k++) {
    row_max = fmaxf(row_max, score(p, q_row, k_global + k * p.k_strides.row));
  }
  for (int k = 0; k < keys; k++) {
    row_sum += expf(score(p, q_row, k_global + k * p.k_strides.row) - row_max);
  }
  if (hit && fault == UNWRITTEN_ROW) return;
  row_sum = through_shared_memory(row_sum, fault == BANK_CONFLICT ? 2 : 1);
  if (hit && fault == UNSET_SUM) row_sum = never_written();
  t.lse[row] = row_max + logf(row_sum) + (hit && fault == WRONG_LSE ? 0.01f : 0.0f);
  for (int d = 0; d < p.head_dim; d++) {
    float o = hit && fault == NAN_ROW ? NAN : 0.0f;
    for (int k = 0; k < keys; k++) {
      const float s = score(p, q_row, k_global + k * p.k_strides.row);
      o += expf(s - row_max) / row_sum * to_float(v_global[k * p.v_strides.row + d]);
    }
    o_row[d] = from_float<__half>(o);
  }
  const int64_t end = (int64_t)p.batch * p.q_strides.batch;
  if (row == 0 && fault == DIRTY_WORKSPACE) ((unsigned *)t.workspace)[1] = 0x10001;
  if (row == 0 && fault == PAST_THE_END) ((__half *)t.o)[end] = from_float<__half>(1.0f);
}

static Fault chosen_fault() {
  static const char *const NAMES[FAULTS] = {
      "none",          "lost key",  "unwritten row",   "past the end", "NaN row",
      "wrong LSE",     "no launch", "failed launch",   "deadlock",     "large block",
      "bank conflict", "unset sum", "dirty workspace", "no tiles"};
  const char *name = getenv("FAULT");
  for (int i = 0; name != NULL && i < FAULTS; i++) {
    if (strcmp(name, NAMES[i]) == 0) return (Fault)i;
  }
  return NO_FAULT;
}

static unsigned block_count(const Problem *p) {
  const int64_t rows = (int64_t)p->batch * p->q_heads * p->q_len;
  return (unsigned)((rows + THREADS - 1) / THREADS);
}

static bool supports(const Problem *p, char *why, size_t why_size) {
  snprintf(why, why_size, "--dtype bf16: step99 takes fp16");
  return p->dtype == DTYPE_FP16;
}

static void describe(const Problem *p, int, Description *description) {
  *description = {};
  if (chosen_fault() != NO_TILES) description->block_m = description->block_n = THREADS;
  description->launch_count = 1;
  description->launches[0] = {"faulty", (const void *)faulty_kernel, dim3(block_count(p)),
                              dim3(THREADS), SHARED_BYTES};
}

static cudaError_t forward(const Problem *p, const Tensors *t, int, cudaStream_t stream) {
  const Fault fault = chosen_fault();
  if (fault == NO_LAUNCH) return cudaSuccess;
  if (fault == FAILED_LAUNCH) return cudaErrorLaunchFailure;
  const unsigned threads = fault == LARGE_BLOCK ? 64 * THREADS : THREADS;
  faulty_kernel<<<block_count(p), threads, SHARED_BYTES, stream>>>(*p, *t, fault);
  return cudaGetLastError();
}

const Step step = {
    .name = "step99",
    .title = "Wrong on purpose",
    .idea = "One row of every head has the mistake that FAULT names.",
    .head_dims = "any D",
    .supports = supports,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe,
    .forward = forward,
    .block_masks = NULL,
};
