/**
 * @file
 * cp.async alone, so that what it costs in wavefronts, sectors and requests stands by itself: into
 * rows with and without padding, in order and scattered, with and without lanes that copy zeros.
 *
 * Usage: copies ROW PADDING ORDER ZEROS
 *   ROW, PADDING  bytes of a row of shared memory, and behind it; multiples of 16
 *   ORDER         the place a lane copies to: row, swizzled, reversed, columns, scattered
 *   ZEROS         lanes that copy zeros: none, all, odd-rows, odd-lanes, quarter
 *
 * counts.sh has Nsight Compute count it, and compare_counts.py holds the lab against that.
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

static const char *const ORDERS[] = {"row", "swizzled", "reversed", "columns", "scattered"};
static const char *const ZEROS[] = {"none", "all", "odd-rows", "odd-lanes", "quarter"};

struct Pattern {
  int row_chunks, row_bytes; /* the second with padding */
  Order order;
  Zeros zeros;
};

/** Where the chunk that is `i`-th in global memory goes to, in the order of rows without padding.
 */
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

/** The number of `word` in a list of five, or -1. */
static int find(const char *word, const char *const *list) {
  for (int i = 0; i < 5; i++) {
    if (strcmp(word, list[i]) == 0) return i;
  }
  return -1;
}

static int usage() {
  fputs(
      "usage: copies ROW PADDING row|swizzled|reversed|columns|scattered "
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
    error = cudaDeviceSynchronize();
  }
  if (error != cudaSuccess) fprintf(stderr, "copies: %s\n", cudaGetErrorString(error));
  cudaFree(source);
  return error == cudaSuccess;
}

int main(int argc, char **argv) {
  if (argc != 5) return usage();
  const int row = atoi(argv[1]), padding = atoi(argv[2]);
  const int order = find(argv[3], ORDERS), zeros = find(argv[4], ZEROS);
  const bool rows_fit = row >= 64 && row % 16 == 0 && padding >= 0 && padding % 16 == 0 &&
                        CHUNKS * 16 / row * (row + padding) <= SHARED_BYTES - (row + padding);
  if (!rows_fit || order < 0 || zeros < 0) return usage();
#ifdef SIMT_CHECKING
  lab_start(LAB_TRAFFIC | LAB_BANKS);
#endif
  if (!run({row / 16, row + padding, (Order)order, (Zeros)zeros})) return 3;
#ifdef SIMT_CHECKING
  LabResults results;
  lab_take_results(&results);
  lab_free_results(&results);
#endif
  return 0;
}
