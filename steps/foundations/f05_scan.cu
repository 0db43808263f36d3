/**
 * @file
 * f05: the running sums of n numbers: out[i] = in[0] + in[1] + ... + in[i] (an inclusive scan).
 *
 * One thread would add one number after the other. Here blocks scan 256 numbers each, then scan the
 * blocks' sums in the same way, and add to each block the sum of the blocks before it. They differ
 * in how a block is scanned. All read and write the numbers twice; f05b does so once.
 *
 * The numbers are unsigned, and their sums are taken modulo 2^32, so every order gives the same
 * bits.
 */
#include <stdlib.h>

#include "foundation.h"
#if defined __CUDACC__ && __has_include(<cub/cub.cuh>)
#include <cub/cub.cuh>
#define HAS_CUB
#endif

constexpr int THREADS = 256, WARP = 32, WARPS = THREADS / WARP;

// [hillis_steele]
/** Hillis and Steele: in each round every sum gets that of twice as many numbers: 8 rounds, each
 * with nearly 256 additions. Two copies, so that a round does not read what it writes. */
struct HillisSteele {
  static __device__ uint32_t scan(uint32_t x) {
    __shared__ uint32_t sums[2][THREADS];
    const int thread = threadIdx.x;
    int from = 0;
    sums[from][thread] = x;
    for (int distance = 1; distance < THREADS; distance *= 2) {
      __syncthreads();  // the sums of the round before are there, and nobody reads the other copy
      if (thread >= distance) x += sums[from][thread - distance];
      from ^= 1;
      sums[from][thread] = x;
    }
    return x;
  }
};
// [hillis_steele]
// [work_efficient]
/** Blelloch: sums of 2, 4, 8, ... numbers go up a tree, sums of what is before them come down:
 * 16 rounds, but all together only about 2 * 256 additions. */
struct WorkEfficient {
  static __device__ uint32_t scan(uint32_t x) {
    __shared__ uint32_t sums[THREADS];
    const int thread = threadIdx.x;
    sums[thread] = x;
    for (int distance = 1; distance < THREADS; distance *= 2) {
      const int right = (thread + 1) * 2 * distance - 1;
      __syncthreads();  // the lower level is complete
      if (right < THREADS) sums[right] += sums[right - distance];
    }
    if (thread == 0) sums[THREADS - 1] = 0;  // nothing is before all; its own sum, until here
    for (int distance = THREADS / 2; distance > 0; distance /= 2) {
      const int right = (thread + 1) * 2 * distance - 1;
      __syncthreads();  // the upper level is complete
      if (right < THREADS) {
        const uint32_t left_sum = sums[right - distance];
        sums[right - distance] = sums[right];
        sums[right] += left_sum;
      }
    }
    __syncthreads();  // the sums before each number are there
    return sums[thread] + x;
  }
};
// [work_efficient]
// [warps]
/** Hillis and Steele within a warp, from register to register. */
__device__ uint32_t warp_scan(uint32_t x) {
  const int lane = threadIdx.x % WARP;
  for (int distance = 1; distance < WARP; distance *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffff, x, distance);
    if (lane >= distance) x += before;
  }
  return x;
}

/** Each warp scans its 32 numbers, and each lane adds the sums of the warps before its own. */
struct ByWarps {
  static __device__ uint32_t scan(uint32_t x) {
    __shared__ uint32_t warp_sums[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    x = warp_scan(x);
    if (lane == WARP - 1) warp_sums[warp] = x;
    __syncthreads();  // the sums of all warps are there
    for (int before = 0; before < warp; before++) x += warp_sums[before];
    return x;
  }
};
// [warps]
// [blocks]
/** Scans the blocks; sums[b] is the sum of block b. */
template <typename Block>
__global__ void __launch_bounds__(THREADS)
    blocks_kernel(const uint32_t *in, uint32_t *out, uint32_t *sums, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t x = Block::scan(i < n ? in[i] : 0);
  if (i < n) out[i] = x;
  if (threadIdx.x == THREADS - 1) sums[blockIdx.x] = x;
}

/** Adds to each block the sum of all before it; sums is scanned. The first block needs nothing. */
__global__ void __launch_bounds__(THREADS) add_kernel(uint32_t *out, const uint32_t *sums, int n) {
  const int i = (blockIdx.x + 1) * THREADS + threadIdx.x;
  if (i < n) out[i] += sums[blockIdx.x];
}
// [blocks]

static int n;
static uint32_t *right;
static uint32_t *in, *out, *sums;  // sums: of the blocks, then of 256 blocks, and so on

// [launches]
static void scan(void (*kernel)(const uint32_t *, uint32_t *, uint32_t *, int),
                 const uint32_t *from, uint32_t *to, uint32_t *block_sums, int count) {
  const int blocks = (count + THREADS - 1) / THREADS;
  kernel<<<blocks, THREADS>>>(from, to, block_sums, count);
  if (blocks == 1) return;
  scan(kernel, block_sums, block_sums, block_sums + blocks, blocks);
  add_kernel<<<blocks - 1, THREADS>>>(to, block_sums, count);
}
// [launches]
static void run_hillis_steele(void) {
  scan(blocks_kernel<HillisSteele>, in, out, sums, n);
}
static void run_work_efficient(void) {
  scan(blocks_kernel<WorkEfficient>, in, out, sums, n);
}
static void run_warps(void) {
  scan(blocks_kernel<ByWarps>, in, out, sums, n);
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
  const Program program = {"f05", "Scans N numbers.", 1000000000, 20000, 100000000};
  const Run run = foundation_begin(argc, argv, &program);
  n = run.n;
  const size_t bytes = sizeof(uint32_t) * n;
  uint32_t *in_host = (uint32_t *)foundation_allocate(bytes), sum = 0;
  right = (uint32_t *)foundation_allocate(bytes);
  for (int i = 0; i < n; i++) {
    in_host[i] = foundation_bits(run.seed, i);
    right[i] = sum += in_host[i];
  }
  CHECK(cudaMalloc(&in, bytes));
  CHECK(cudaMalloc(&out, bytes));
  CHECK(cudaMalloc(&sums, sizeof(uint32_t) * (n / (THREADS - 1) + 8)));
  CHECK(cudaMemcpy(in, in_host, bytes, cudaMemcpyHostToDevice));

  foundation_work(2.0 * bytes, 0);
  foundation_stage("hillis-steele", run_hillis_steele, is_right);
  foundation_stage("work-efficient", run_work_efficient, is_right);
  foundation_stage("warps", run_warps, is_right);
#ifdef HAS_CUB
  CHECK(cub::DeviceScan::InclusiveSum(nullptr, cub_bytes, in, out, n));
  CHECK(cudaMalloc(&cub_memory, cub_bytes));
  foundation_library("CUB", run_cub, is_right);
#endif
  const int code = foundation_end();

  CHECK(cudaFree(in)), CHECK(cudaFree(out)), CHECK(cudaFree(sums));
  free(in_host), free(right);
  return code;
}
