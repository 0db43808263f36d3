/**
 * @file
 * f06b: sorts n keys of 32 bits by their digits, the lowest first.
 *
 * A radix sort compares nothing. In a pass it sorts by one digit and keeps the order of equal
 * digits, so after the last pass all keys are sorted. A block ranks the keys of a tile by their
 * digit, looks back, as in f05b, to learn how many keys of each digit are in the tiles before it,
 * and moves its keys to their places: a pass reads and writes each key once (Adinets and Merrill
 * 2022, "Onesweep").
 */
#include <stdlib.h>

#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cub/cub.cuh>)
#include <cub/cub.cuh>
#define HAS_CUB
#endif

constexpr int THREADS = 256, WARP = 32, WARPS = THREADS / WARP;

constexpr int KEYS = 16, TILE = THREADS * KEYS;               // of a thread; of a block
enum State : uint32_t { NOTHING, OWN_COUNT, COUNT_TO_HERE };  // upper half of a word, as in f05b

template <int BITS>
__device__ int digit_of(uint32_t key, int shift) {
  return key >> shift & ((1 << BITS) - 1);
}

/** The sum of x over the threads before this one. */
__device__ uint32_t sum_before(uint32_t x) {
  __shared__ uint32_t warp_sums[WARPS];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  uint32_t sum = x;
  for (int distance = 1; distance < WARP; distance *= 2) {
    const uint32_t left = __shfl_up_sync(0xffffffff, sum, distance);
    if (lane >= distance) sum += left;
  }
  if (lane == WARP - 1) warp_sums[warp] = sum;
  __syncthreads();  // the sums of all warps are there
  for (int before = 0; before < warp; before++) sum += warp_sums[before];
  return sum - x;
}

// [count]
/** Counts the digits of all passes: counts[pass][digit], 0 before. */
template <int BITS>
__global__ void __launch_bounds__(THREADS)
    count_kernel(const uint32_t *keys, int n, uint32_t *counts) {
  constexpr int DIGITS = 1 << BITS, ALL = 32 / BITS * DIGITS;
  __shared__ uint32_t block_counts[ALL];
  for (int i = threadIdx.x; i < ALL; i += THREADS) block_counts[i] = 0;
  __syncthreads();  // all are 0
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
    const uint32_t key = keys[i];
    for (int pass = 0; pass < 32 / BITS; pass++) {
      atomicAdd(&block_counts[pass * DIGITS + digit_of<BITS>(key, pass * BITS)], 1);
    }
  }
  __syncthreads();  // all keys are counted
  for (int i = threadIdx.x; i < ALL; i += THREADS) atomicAdd(&counts[i], block_counts[i]);
}
// [count]

/** Where the keys of each digit begin: one block for each pass. */
template <int BITS>
__global__ void __launch_bounds__(THREADS) starts_kernel(uint32_t *counts) {
  const bool is_digit = threadIdx.x < 1 << BITS;
  uint32_t *const mine = &counts[(blockIdx.x << BITS) + threadIdx.x];
  const uint32_t before = sum_before(is_digit ? *mine : 0);
  if (is_digit) *mine = before;
}

/** How many keys of this thread's digit are in all tiles before `tile`. */
__device__ uint32_t look_back(unsigned long long *states, int tile, int digits) {
  uint32_t sum = 0;
  for (int at = tile - 1; at >= 0; at--) {
    unsigned long long state;
    do {
      state = atomicOr(&states[(int64_t)at * digits + threadIdx.x], 0);
    } while (state >> 32 == NOTHING);
    sum += (uint32_t)state;
    if (state >> 32 == COUNT_TO_HERE) break;
  }
  return sum;
}

/** One pass. starts[digit] is where its keys begin; states are 0 before; *next is 0 before. */
template <int BITS>
__global__ void __launch_bounds__(THREADS)
    pass_kernel(const uint32_t *in, uint32_t *out, int n, int shift, const uint32_t *starts,
                unsigned long long *states, int *next) {
  constexpr int DIGITS = 1 << BITS;
  __shared__ uint32_t counts[WARPS][DIGITS], sorted[TILE], tile_starts[DIGITS], to_out[DIGITS];
  __shared__ int tile_shared;
  const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;
  if (thread == 0) tile_shared = atomicAdd(next, 1);
  for (int i = thread; i < WARPS * DIGITS; i += THREADS) counts[i / DIGITS][i % DIGITS] = 0;
  __syncthreads();  // the number of the tile is there, and all counts are 0
  const int tile = tile_shared, first = tile * TILE + warp * KEYS * WARP + lane;
  uint32_t keys[KEYS];
  // [rank]
  // What is behind the last key comes behind it in the last tile, too, and is not written.
#pragma unroll
  for (int k = 0; k < KEYS; k++) keys[k] = first + k * WARP < n ? in[first + k * WARP] : 0xffffffff;
  uint32_t ranks[KEYS];  // among the keys of the same digit in this warp, in the order of memory
#pragma unroll
  for (int k = 0; k < KEYS; k++) {
    uint32_t *const count = &counts[warp][digit_of<BITS>(keys[k], shift)];
    const unsigned equal = __match_any_sync(0xffffffff, digit_of<BITS>(keys[k], shift));
    const uint32_t before = *count, lower = __popc(equal & ((1u << lane) - 1));
    __syncwarp();  // all lanes have read the count
    if (lower == 0) *count = before + __popc(equal);
    __syncwarp();  // the count is updated
    ranks[k] = before + lower;
  }
  // [rank]
  __syncthreads();  // the counts of all warps are complete
  // [look_back]
  unsigned long long *const mine = &states[(int64_t)tile * DIGITS + thread];
  uint32_t in_tile = 0;
  if (thread < DIGITS) {  // a digit for each thread: warps get the counts of the warps before them
    for (int w = 0; w < WARPS; w++) {
      const uint32_t in_warp = counts[w][thread];
      counts[w][thread] = in_tile;
      in_tile += in_warp;
    }
    atomicExch(mine, (unsigned long long)OWN_COUNT << 32 | in_tile);
  }
  const uint32_t tile_start = sum_before(in_tile);
  if (thread < DIGITS) {
    const uint32_t before = look_back(states, tile, DIGITS);
    atomicExch(mine, (unsigned long long)COUNT_TO_HERE << 32 | (before + in_tile));
    tile_starts[thread] = tile_start;
    to_out[thread] = starts[thread] + before - tile_start;  // modulo 2^32
  }
  __syncthreads();  // the starts are there
  // [look_back]
  // [move]
#pragma unroll
  for (int k = 0; k < KEYS; k++) {
    const int digit = digit_of<BITS>(keys[k], shift);
    sorted[tile_starts[digit] + counts[warp][digit] + ranks[k]] = keys[k];
  }
  __syncthreads();  // the tile is sorted by digit: neighbours go to neighbours
  for (int i = thread; i < TILE && tile * TILE + i < n; i += THREADS) {
    out[to_out[digit_of<BITS>(sorted[i], shift)] + i] = sorted[i];
  }
  // [move]
}

static int n, tiles;
static uint32_t *in, *out, *other, *right, *counts;  // of each digit in each pass
static unsigned long long *states;  // of each digit in each tile, and the number of the next tile

template <int BITS>
static void run_radix(void) {
  constexpr int PASSES = 32 / BITS, DIGITS = 1 << BITS;
  const size_t words = (size_t)tiles * DIGITS + 1;
  CHECK(cudaMemsetAsync(counts, 0, sizeof *counts * PASSES * DIGITS));
  const int count_blocks = tiles < 1024 ? tiles : 1024;
  count_kernel<BITS><<<count_blocks, THREADS>>>(in, n, counts);
  starts_kernel<BITS><<<PASSES, THREADS>>>(counts);
  for (int pass = 0; pass < PASSES; pass++) {
    const uint32_t *from = pass == 0 ? in : pass % 2 == 1 ? other : out;
    CHECK(cudaMemsetAsync(states, 0, sizeof *states * words));
    pass_kernel<BITS><<<tiles, THREADS>>>(from, pass % 2 == 0 ? other : out, n, pass * BITS,
                                          &counts[pass * DIGITS], states,
                                          (int *)&states[words - 1]);
  }
}

#ifdef HAS_CUB
static void *cub_memory;
static size_t cub_bytes;
static void run_cub(void) {
  CHECK(cub::DeviceRadixSort::SortKeys(cub_memory, cub_bytes, in, out, n));
}
#endif

static bool is_right(char note[200]) {
  return foundation_equal(out, right, n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f06b", "Sorts N keys of 32 bits.", 500000000, 10000, 100000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  tiles = (n + TILE - 1) / TILE;
  const size_t bytes = sizeof(uint32_t) * n;
  uint32_t *in_host = (uint32_t *)foundation_allocate(bytes);
  right = (uint32_t *)foundation_allocate(bytes);
  for (int i = 0; i < n; i++) in_host[i] = foundation_bits(run.seed, i);
  foundation_sort(in_host, right, n);
  CHECK(cudaMalloc(&in, bytes));
  CHECK(cudaMalloc(&out, bytes));
  CHECK(cudaMalloc(&other, bytes));
  CHECK(cudaMalloc(&counts, sizeof(uint32_t) * 4 * 256));
  CHECK(cudaMalloc(&states, sizeof *states * ((size_t)tiles * 256 + 1)));
  CHECK(cudaMemcpy(in, in_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(2.0 * bytes, 0);
  foundation_stage("radix-4", run_radix<4>, is_right);
  foundation_stage("radix-8", run_radix<8>, is_right);
#ifdef HAS_CUB
  CHECK(cub::DeviceRadixSort::SortKeys(nullptr, cub_bytes, in, out, n));
  CHECK(cudaMalloc(&cub_memory, cub_bytes));
  foundation_library("CUB", run_cub, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(in)), CHECK(cudaFree(out)), CHECK(cudaFree(other)), CHECK(cudaFree(counts)),
      CHECK(cudaFree(states));
  free(in_host), free(right);
  return code;
}
