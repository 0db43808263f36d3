/**
 * @file
 * What does a wait for wgmma cover that one warp has passed: its own part, or what all four warps
 * of the warpgroup read from shared memory? PTX says that a wait is for "the executing threads".
 *
 * A warpgroup multiplies, 16 wgmma in one group. One warp overwrites the operands with NaN as soon
 * as its wait has returned, those first that are read last, while another warp is late: before it
 * issues the wgmma, or before its own wait, or because other warps keep its tensor core busy with
 * mma.sync. All numbers are small integers, so a result is exact or something was read too late.
 * Each thread block is a trial with another delay, for every pair of a late and an overwriting
 * warp.
 *
 * Prints for each case how many trials changed results. The first two cases show that the method
 * works: nothing changes if nothing is overwritten, and nearly everything if the warp does not wait
 * at all. On the CPU backend SIMT_WGMMA chooses the answer.
 */
#include <stdio.h>

#include "device/ptx.cuh"
#include "device/ptx_hopper.cuh"
#include "device/warp.cuh"

constexpr int ROWS = 64, COLUMNS = 256;                                   // of D
constexpr int DEPTH = 16;                                                 // of one wgmma
constexpr int INSTRUCTIONS = 16;                                          // of the group
constexpr int A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2;  // of one wgmma
constexpr int THREADS = 3 * WARPGROUP_THREADS;
constexpr int SHARED_BYTES = INSTRUCTIONS * (A_BYTES + B_BYTES);
#ifdef __CUDACC__
constexpr int TRIALS = 2048, BUSY = 256;
#else
constexpr int TRIALS = 2, BUSY = 1;
#endif
constexpr int DELAYS = 512, DELAY_STEP = 16;  // clocks

/** What is different from a plain product. */
enum Case { PLAIN, NO_WAIT, LATE_ISSUE, LATE_WAIT, BUSY_TENSOR_CORE };

static const char *const CASE_NAMES[] = {"nothing is overwritten", "overwritten without a wait",
                                         "the late warp issues late", "the late warp waits late",
                                         "the tensor core of the late warp is busy"};

/** Warps of the first warpgroup. */
struct Roles {
  int late, overwriting;
};

struct Counts {
  int changed_late;  /**< trials that changed results of the late warp */
  int changed_other; /**< of the two warps that are neither late nor overwrite */
  int early;         /**< trials in which the wait returned before the late warp had issued */
};

/** Element (row, k) of A, and (k, column) of B, of instruction i. */
__host__ __device__ static int a_element(int i, int row, int k) {
  return (i + 3 * row + 5 * k) % 7 - 3;
}
__host__ __device__ static int b_element(int i, int k, int column) {
  return (2 * i + 5 * column + 3 * k) % 5 - 2;
}

/** Without a swizzle an operand is matrices of 8 rows of 16 bytes: those of its two halves of k
 * follow each other, then those of the next 8 rows. */
__device__ static int place(int row, int k) {
  return row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2;
}
__device__ static uint64_t descriptor(const void *start) {
  return (shared_address(start) & 0x3ffff) >> 4 | (uint64_t)(128 >> 4) << 16 |
         (uint64_t)(256 >> 4) << 32;
}

__device__ static void spin(int clocks) {
  const long long end = clock64() + clocks;
  while (clock64() < end) continue;
}

/** Keeps the tensor core busy for longer than the wgmma take. */
__device__ static float multiply_long() {
  float c[4][4] = {};
  const uint32_t a[4] = {threadIdx.x, 1, 2, 3};
#pragma unroll 1
  for (int i = 0; i < BUSY; i++) {
#pragma unroll
    for (int j = 0; j < 16; j++) mma_m16n8k16<__half>(c[j % 4], a, 4, 5);
  }
  return c[0][0] + c[1][1] + c[2][2] + c[3][3];
}

template <Case CASE>
__global__ void __launch_bounds__(THREADS, 1)
    waits_kernel(Roles roles, const float *product, Counts *counts, float *sink) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __shared__ volatile int has_issued;
  __shared__ int changed[4];
  unsigned char *a = smem, *b = smem + INSTRUCTIONS * A_BYTES;
  const int lane = threadIdx.x % WARP_SIZE;
  const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE, 0);
  if (threadIdx.x == 0) has_issued = 0;
  if (threadIdx.x < 4) changed[threadIdx.x] = 0;
  for (int i = 0; i < INSTRUCTIONS; i++) {
    for (int j = threadIdx.x; j < ROWS * DEPTH; j += blockDim.x) {
      *(__half *)(a + i * A_BYTES + place(j / DEPTH, j % DEPTH)) =
          __float2half((float)a_element(i, j / DEPTH, j % DEPTH));
    }
    for (int j = threadIdx.x; j < COLUMNS * DEPTH; j += blockDim.x) {
      *(__half *)(b + i * B_BYTES + place(j / DEPTH, j % DEPTH)) =
          __float2half((float)b_element(i, j % DEPTH, j / DEPTH));
    }
  }
  fence_proxy_async();
  __syncthreads();

  const auto overwrite = [&] {
    const bool early = CASE == LATE_ISSUE && !has_issued;
    // Rows of A that belong to the late warp, and all of B, of the last instruction first.
    const uint4 nan = {~0u, ~0u, ~0u, ~0u};
#pragma unroll 1
    for (int i = INSTRUCTIONS - 1; i >= 0; i--) {
      *(uint4 *)(a + i * A_BYTES + roles.late * (A_BYTES / 4) + lane * 16) = nan;
#pragma unroll
      for (int j = 0; j < B_BYTES; j += 16 * WARP_SIZE) {
        *(uint4 *)(b + i * B_BYTES + j + lane * 16) = nan;
      }
    }
    fence_proxy_async();
    if (early && lane == 0) atomicAdd(&counts->early, 1);
  };

  if (warp >= 4) {
    if (CASE == NO_WAIT && warp == 4) {
      named_barrier_sync<5 * WARP_SIZE>(2);  // all have issued
      overwrite();
      named_barrier_sync<5 * WARP_SIZE>(3);
    }
    // The tensor core of a warp is that of every fourth warp after it.
    if (CASE == BUSY_TENSOR_CORE && warp % 4 == roles.late) {
      sink[blockIdx.x * blockDim.x + threadIdx.x] = multiply_long();
    }
    return;
  }

  const bool late = warp == roles.late, overwrites = warp == roles.overwriting;
  const int delay = blockIdx.x % DELAYS * DELAY_STEP;
  float d[COLUMNS / 8][4];
  if (CASE == LATE_ISSUE && late) spin(delay);
  if (late) has_issued = 1;
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < INSTRUCTIONS; i++) {
    wgmma<__half, false>(d, descriptor(a + i * A_BYTES), descriptor(b + i * B_BYTES), i > 0);
  }
  wgmma_commit();
  if (CASE == NO_WAIT) {
    named_barrier_sync<5 * WARP_SIZE>(2);
    named_barrier_sync<5 * WARP_SIZE>(3);  // warp 4 has overwritten
  }
  if (CASE == LATE_WAIT && late) spin(delay);
  wgmma_wait<0>(d);
  if (CASE != NO_WAIT && CASE != PLAIN && overwrites) overwrite();

  bool exact = true;
#pragma unroll
  for (int tile = 0; tile < COLUMNS / 8; tile++) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int row = 16 * warp + lane / 4 + c / 2 * 8, column = 8 * tile + lane % 4 * 2 + c % 2;
      exact = exact && d[tile][c] == product[row * COLUMNS + column];
    }
  }
  if (!exact) changed[warp] = 1;
  named_barrier_sync<WARPGROUP_THREADS>(1);
  if (threadIdx.x != 0) return;
  int others = 0;
  for (int i = 0; i < 4; i++) {
    if (i != roles.late && i != roles.overwriting) others |= changed[i];
  }
  atomicAdd(&counts->changed_late, changed[roles.late]);
  atomicAdd(&counts->changed_other, others);
}

static bool failed(cudaError_t error) {
  if (error != cudaSuccess) fprintf(stderr, "wgmma_waits: %s\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}

/** Device memory. */
struct Memory {
  float *product; /**< what D must be */
  Counts *counts;
  float *sink; /**< for results that nobody needs */
};

template <Case CASE>
static bool run(const Memory &memory) {
  if (failed(cudaFuncSetAttribute(waits_kernel<CASE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  SHARED_BYTES))) {
    return false;
  }
  if (failed(cudaMemset(memory.counts, 0, sizeof *memory.counts))) return false;
  for (int late = 0; late < 4; late++) {
    for (int overwriting = 0; overwriting < 4; overwriting++) {
      if (late == overwriting) continue;
      waits_kernel<CASE><<<TRIALS, THREADS, SHARED_BYTES>>>(
          Roles{late, overwriting}, memory.product, memory.counts, memory.sink);
      if (failed(cudaGetLastError())) return false;
    }
  }
  Counts c;
  if (failed(cudaMemcpy(&c, memory.counts, sizeof c, cudaMemcpyDeviceToHost))) return false;
  printf(
      "%s: of %d trials\n"
      "  %6d changed the result of the late warp\n"
      "  %6d changed that of a warp that is neither late nor overwrites\n",
      CASE_NAMES[CASE], 12 * TRIALS, c.changed_late, c.changed_other);
  if (CASE == LATE_ISSUE)
    printf("  %6d had a wait that returned before the late warp issued\n", c.early);
  return true;
}

/** The product, exactly. */
static void multiply(float *product) {
  for (int row = 0; row < ROWS; row++) {
    for (int column = 0; column < COLUMNS; column++) {
      int sum = 0;
      for (int i = 0; i < INSTRUCTIONS; i++) {
        for (int k = 0; k < DEPTH; k++) sum += a_element(i, row, k) * b_element(i, k, column);
      }
      product[row * COLUMNS + column] = (float)sum;
    }
  }
}

int main() {
  static float product[ROWS * COLUMNS];
  multiply(product);
  Memory memory = {};
  const bool ran =
      !failed(cudaMalloc(&memory.product, sizeof product)) &&
      !failed(cudaMemcpy(memory.product, product, sizeof product, cudaMemcpyHostToDevice)) &&
      !failed(cudaMalloc(&memory.counts, sizeof *memory.counts)) &&
      !failed(cudaMalloc(&memory.sink, sizeof(float) * TRIALS * THREADS)) && run<PLAIN>(memory) &&
      run<NO_WAIT>(memory) && run<LATE_ISSUE>(memory) && run<LATE_WAIT>(memory) &&
      run<BUSY_TENSOR_CORE>(memory);
  return ran ? 0 : 3;
}
