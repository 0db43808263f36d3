/**
 * @file
 * f05b: the running sums of n numbers, reading and writing each number once (Merrill and Garland
 * 2016, "Single-pass parallel prefix scan with decoupled look-back").
 *
 * A block scans a tile of 4096 numbers in registers and publishes their sum. The sum of all tiles
 * before it comes from the predecessors, while the launch goes on: one that knows the sum up to its
 * end has published that, others only their own. So the block looks back and adds up, until it
 * meets a sum from the beginning. It rarely looks far.
 */
#include <stdlib.h>

#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cub/cub.cuh>)
#include <cub/cub.cuh>
#define HAS_CUB
#endif

constexpr int THREADS = 256, WARP = 32, WARPS = THREADS / WARP;
constexpr int ROUNDS = 4, TILE = THREADS * 4 * ROUNDS;  // numbers of a block: 4 a thread and round

/** Hillis and Steele within a warp, from register to register. */
__device__ uint32_t warp_scan(uint32_t x) {
  const int lane = threadIdx.x % WARP;
  for (int distance = 1; distance < WARP; distance *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffff, x, distance);
    if (lane >= distance) x += before;
  }
  return x;
}

/** The sum of a warp's numbers, in all lanes. */
__device__ uint32_t warp_total(uint32_t x) {
  return __shfl_sync(0xffffffff, warp_scan(x), WARP - 1);
}

// [states]
/** What a block has published in the upper half of a word; the lower half is the sum. */
enum State : uint32_t { NOTHING, OWN_SUM, SUM_TO_HERE };

/** The sum of all tiles before `tile`. The first warp looks at 32 predecessors at a time, until one
 * knows the sum to its end. An atomic operation that changes nothing reads what others publish. */
__device__ uint32_t look_back(unsigned long long *states, int tile) {
  const int lane = threadIdx.x % WARP;
  uint32_t sum = 0;
  for (int last = tile - 1; last >= 0; last -= WARP) {
    const int at = last - lane;                                        // lane 0 has the nearest
    unsigned long long state = (unsigned long long)SUM_TO_HERE << 32;  // before the first: 0
    do {
      if (at >= 0) state = atomicOr(&states[at], 0);
    } while (__any_sync(0xffffffff, state >> 32 == NOTHING));
    const unsigned ends = __ballot_sync(0xffffffff, state >> 32 == SUM_TO_HERE);
    const int first = ends == 0 ? WARP : __ffs(ends) - 1;  // what is farther is in its sum
    sum += warp_total(lane <= first ? (uint32_t)state : 0);
    if (ends != 0) break;
  }
  return sum;
}
// [states]

/** Four neighbours in an access of 16 bytes, or those that exist one by one. */
__device__ void load_four(const uint32_t *in, int i, int n, uint32_t (&x)[4]) {
  if (i + 3 < n) {
    *reinterpret_cast<uint4 *>(x) = *reinterpret_cast<const uint4 *>(&in[i]);
  } else {
    for (int j = 0; j < 4; j++) x[j] = i + j < n ? in[i + j] : 0;
  }
}
__device__ void store_four(uint32_t *out, int i, int n, const uint32_t (&x)[4]) {
  if (i + 3 < n) {
    *reinterpret_cast<uint4 *>(&out[i]) = *reinterpret_cast<const uint4 *>(x);
  } else {
    for (int j = 0; j < 4 && i + j < n; j++) out[i + j] = x[j];
  }
}

/** Each lane holds 4 neighbours in each round, so that a warp reads 512 bytes at a time. */
__global__ void __launch_bounds__(THREADS)
    look_back_kernel(const uint32_t *in, uint32_t *out, int n, unsigned long long *states,
                     int *next) {
  __shared__ uint32_t warp_sums[WARPS], before_shared;
  __shared__ int tile_shared;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  // [number]
  // Tiles are numbered as blocks begin: the predecessors of a running tile have begun before it, so
  // waiting for them ends.
  if (threadIdx.x == 0) tile_shared = atomicAdd(next, 1);
  __syncthreads();  // the number is there
  // [number]
  const int tile = tile_shared, first = tile * TILE + warp * ROUNDS * 4 * WARP + 4 * lane;
  alignas(16) uint32_t x[ROUNDS][4];
  uint32_t warp_sum = 0;
  // [tile]
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) load_four(in, first + r * 4 * WARP, n, x[r]);
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    for (int j = 1; j < 4; j++) x[r][j] += x[r][j - 1];
    const uint32_t to_here = warp_scan(x[r][3]);
    const uint32_t before = warp_sum + to_here - x[r][3];
    for (int j = 0; j < 4; j++) x[r][j] += before;
    warp_sum += __shfl_sync(0xffffffff, to_here, WARP - 1);
  }
  if (lane == 0) warp_sums[warp] = warp_sum;
  __syncthreads();  // the sums of all warps are there
  // [tile]
  // [publish]
  if (warp == 0) {
    const uint32_t sum = warp_total(lane < WARPS ? warp_sums[lane] : 0);
    const unsigned long long state = (unsigned long long)(tile == 0 ? SUM_TO_HERE : OWN_SUM) << 32;
    if (lane == 0) atomicExch(&states[tile], state | sum);
    const uint32_t before = look_back(states, tile);
    if (lane == 0) {
      if (tile > 0)
        atomicExch(&states[tile], (unsigned long long)SUM_TO_HERE << 32 | (before + sum));
      before_shared = before;
    }
  }
  __syncthreads();  // the sum before the tile is there
  // [publish]
  uint32_t before = before_shared;
  for (int w = 0; w < warp; w++) before += warp_sums[w];
#pragma unroll
  for (int r = 0; r < ROUNDS; r++) {
    for (int j = 0; j < 4; j++) x[r][j] += before;
    store_four(out, first + r * 4 * WARP, n, x[r]);
  }
}

static int n, tiles;
static uint32_t *in, *out, *right;
static unsigned long long *states;  // of the tiles, and behind them the number of the next tile

static void run_look_back(void) {
  CHECK(cudaMemsetAsync(states, 0, sizeof *states * (tiles + 1)));
  look_back_kernel<<<tiles, THREADS>>>(in, out, n, states, (int *)&states[tiles]);
}

#ifdef HAS_CUB
static void *cub_memory;
static size_t cub_bytes;
static void run_cub(void) {
  CHECK(cub::DeviceScan::InclusiveSum(cub_memory, cub_bytes, in, out, n));
}
#endif

static bool is_right(char note[200]) {
  return foundation_equal(out, right, n, note);
}

int main(int argc, char **argv) {
  const Program program = {"f05b", "Scans N numbers in one pass.", 1000000000, 20000, 100000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  tiles = (n + TILE - 1) / TILE;
  const size_t bytes = sizeof(uint32_t) * n;
  uint32_t *in_host = (uint32_t *)foundation_allocate(bytes), sum = 0;
  right = (uint32_t *)foundation_allocate(bytes);
  for (int i = 0; i < n; i++) {
    in_host[i] = foundation_bits(run.seed, i);
    right[i] = sum += in_host[i];
  }
  CHECK(cudaMalloc(&in, bytes));
  CHECK(cudaMalloc(&out, bytes));
  CHECK(cudaMalloc(&states, sizeof *states * (tiles + 1)));
  CHECK(cudaMemcpy(in, in_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(2.0 * bytes, 0);
  foundation_stage("look-back", run_look_back, is_right);
#ifdef HAS_CUB
  CHECK(cub::DeviceScan::InclusiveSum(nullptr, cub_bytes, in, out, n));
  CHECK(cudaMalloc(&cub_memory, cub_bytes));
  foundation_library("CUB", run_cub, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(in)), CHECK(cudaFree(out)), CHECK(cudaFree(states));
  free(in_host), free(right);
  return code;
}
