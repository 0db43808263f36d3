/**
 * @file
 * cp.async alone, so that its own wavefronts, sectors and requests can be counted. Copies go into
 * rows with and without padding, in order and scattered, with and without lanes that copy zeros.
 *
 * Usage: copies ROW PADDING ORDER ZEROS
 *
 * ROW and PADDING are bytes of a row of shared memory and after it, ORDER is the place that a lane
 * copies to, ZEROS are the lanes that copy zeros.
 *
 * counts.sh has Nsight Compute count it, and compare_counts.py compares the lab with that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/ptx.cuh"
#ifdef SIMT_CHECKING
#include "simt/lab/lab.h"
#endif

constexpr int THREADS = 128;
constexpr int PASSES = 256;          // copies of a thread
constexpr int CHUNKS = 4 * THREADS;  // places for 16 bytes in shared memory, without padding
constexpr int SHARED_BYTES = 1 << 15;
constexpr int WARP = 32;

enum Order { ROW, SWIZZLED, REVERSED, COLUMNS, SCATTERED };
enum Zeros { NONE, ALL, ODD_ROWS, ODD_LANES, QUARTER };

static const char *const ROWS[] = {"64", "128", "192", "256", "512"};
static const char *const PADDINGS[] = {"0", "16"};
static const char *const ORDERS[] = {"row", "swizzled", "reversed", "columns", "scattered"};
static const char *const ZEROS[] = {"none", "all", "odd-rows", "odd-lanes", "quarter"};

struct Pattern {
  int row_chunks, row_bytes; /* the second with padding */
  Order order;
  Zeros zeros;
};

/** The place in shared memory of chunk `i` of global memory, counted in rows without padding. */
__device__ int place_of(Pattern pattern, int i) {
  const int row = i / pattern.row_chunks, column = i % pattern.row_chunks;
  switch (pattern.order) {
    case SWIZZLED:
      return row * pattern.row_chunks + (column ^ (row & 3));
    case REVERSED:
      return i ^ (WARP - 1);
    case COLUMNS:
      return i % (CHUNKS / 8) * 8 + i / (CHUNKS / 8);
    case SCATTERED:
      return i * (i + 1) / 2 % CHUNKS;
    default:
      return i;
  }
}

__device__ bool is_zero(Pattern pattern, int place) {
  const int lane = threadIdx.x % WARP;
  switch (pattern.zeros) {
    case ALL:
      return true;
    case ODD_ROWS:
      return place / pattern.row_chunks % 2 != 0;
    case ODD_LANES:
      return lane % 2 != 0;
    case QUARTER:
      return lane >= 8 && lane < 16;
    default:
      return false;
  }
}

__global__ void copies_kernel(const uint4 *source /* [PASSES][THREADS] */, Pattern pattern) {
  extern __shared__ __align__(128) unsigned char smem[];
  const int thread = (int)threadIdx.x;
  for (int pass = 0; pass < PASSES; pass++) {
    const int place = place_of(pattern, (pass * THREADS + thread) % CHUNKS);
    const int row = place / pattern.row_chunks, column = place % pattern.row_chunks;
    cp_async_16(smem + row * pattern.row_bytes + column * 16, source + pass * THREADS + thread,
                !is_zero(pattern, place));
    cp_async_commit();
    cp_async_wait<0>();
  }
}

/** The index of `word` in a list, or -1. */
template <int COUNT>
static int find(const char *word, const char *const (&list)[COUNT]) {
  for (int i = 0; i < COUNT; i++) {
    if (strcmp(word, list[i]) == 0) return i;
  }
  return -1;
}

static int usage() {
  fputs(
      "usage: copies 64|128|192|256|512 0|16 row|swizzled|reversed|columns|scattered "
      "none|all|odd-rows|odd-lanes|quarter\n",
      stderr);
  return 2;
}

static bool run(Pattern pattern) {
  uint4 *source = nullptr;
  const size_t bytes = sizeof(uint4) * PASSES * THREADS;
  cudaError_t error = cudaMalloc(&source, bytes);
  if (error == cudaSuccess) error = cudaMemset(source, 0, bytes);
  if (error == cudaSuccess) {
    copies_kernel<<<1, THREADS, SHARED_BYTES>>>(source, pattern);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) fprintf(stderr, "copies: %s\n", cudaGetErrorString(error));
  cudaFree(source);
  return error == cudaSuccess;
}

int main(int argc, char **argv) {
  if (argc != 5) return usage();
  const int row = find(argv[1], ROWS), padding = find(argv[2], PADDINGS);
  const int order = find(argv[3], ORDERS), zeros = find(argv[4], ZEROS);
  if (row < 0 || padding < 0 || order < 0 || zeros < 0) return usage();
  const int row_bytes = atoi(ROWS[row]);
#ifdef SIMT_CHECKING
  lab_start(LAB_TRAFFIC | LAB_BANKS);
#endif
  if (!run({row_bytes / 16, row_bytes + atoi(PADDINGS[padding]), (Order)order, (Zeros)zeros}))
    return 3;
#ifdef SIMT_CHECKING
  LabResults results;
  lab_take_results(&results);
  lab_free_results(&results);
#endif
  return 0;
}
