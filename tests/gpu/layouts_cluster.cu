/**
 * @file
 * Prints what the instructions of the backward passes and of clusters leave in shared memory, in
 * accumulators and in device memory, for known inputs: a multicast, a copy between blocks,
 * st.async, loads of another block's shared memory, stmatrix, wgmma with both operands transposed,
 * and a bulk reduction. One line "NAME RANK INDEX VALUES" each; VALUES are 16-bit integers in
 * hexadecimal.
 *
 * tests/data/layouts_cluster_h200.txt holds what a GPU printed. The CPU backend must print the
 * same.
 */
#include <stdio.h>

#include "attention.h"
#include "device/backward_hopper.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/wgmma_tile.cuh"

using T = __half;
constexpr int RANKS = 2, ROWS = 64, COLUMNS = 64, VALUES = ROWS * COLUMNS;
constexpr int SENT = VALUES / 2;  // elements that a block sends to the other one

/** An integer from -8 to 8 that looks random, for element i of a tensor. */
__host__ __device__ static int element(int tensor, int i) {
  uint32_t x = (uint32_t)(1000003 * tensor + i);
  x = (x ^ x >> 16) * 0x7feb352d;
  x = (x ^ x >> 15) * 0x846ca68b;
  return (int)((x ^ x >> 16) % 17) - 8;
}

/** What a block writes down. */
struct Results {
  T tile[VALUES];                                  /**< by multicast, half from each block */
  T ds[1][VALUES];                                 /**< by stmatrix */
  T sent[SENT];                                    /**< of the other block's ds, by bulk copy */
  float stored[WARPGROUP_THREADS][4];              /**< by st.async from the other block */
  int loaded[WARPGROUP_THREADS];                   /**< from the other block's shared memory */
  float dq[WARPGROUP_THREADS][COLUMNS / MMA_N][4]; /**< accumulators */
};

struct BlockMemory {
  alignas(1024) T tile[VALUES];
  alignas(1024) T ds[1][VALUES];
  alignas(128) T sent[SENT];
  alignas(128) float stored[WARPGROUP_THREADS][4];
  alignas(128) float sums[VALUES];
  int own[WARPGROUP_THREADS];
  uint64_t tile_full, ds_full, sent_full, stored_full, arrived;
};

/** `sums`, in device memory, gets the accumulators of both blocks added. */
__global__ void __cluster_dims__(RANKS, 1, 1) __launch_bounds__(WARPGROUP_THREADS, 1)
    cluster_kernel(const __grid_constant__ CUtensorMap map, Results *all, float *sums) {
  extern __shared__ __align__(1024) unsigned char smem[];
  BlockMemory &shared = *(BlockMemory *)smem;
  const int thread = threadIdx.x, warp = thread / WARP_SIZE;
  const int rank = cluster_rank(), other = cluster_size() - 1 - rank;
  Results &results = all[rank];
  if (thread == 0) {
    mbarrier_init(&shared.tile_full, 1);
    mbarrier_init(&shared.ds_full, WARPGROUP_THREADS / WARP_SIZE);
    mbarrier_init(&shared.sent_full, 1);
    mbarrier_init(&shared.stored_full, 1);
    mbarrier_init(&shared.arrived, WARPGROUP_THREADS);
    fence_mbarrier_init();
    mbarrier_arrive_expect(&shared.tile_full, sizeof shared.tile);
    mbarrier_arrive_expect(&shared.sent_full, sizeof shared.sent);
    mbarrier_arrive_expect(&shared.stored_full, sizeof shared.stored);
  }
  shared.own[thread] = element(4 + rank, thread);
  cluster_sync();  // the barriers of both blocks are there, and the values in `own`

  if (thread == 0) {  // each block asks for half of the rows, for both
    const int row = rank * ROWS / RANKS;
    tma_multicast(shared.tile + row * COLUMNS, map, &shared.tile_full, 0, row, 0, 0, 3);
  }
  const int at = 4 * thread;
  const float4 four = make_float4(element(6 + rank, at), element(6 + rank, at + 1),
                                  element(6 + rank, at + 2), element(6 + rank, at + 3));
  store_async(shared.stored[thread], four, &shared.stored_full, other);
  results.loaded[thread] = *cluster_map(&shared.own[thread], other);

  uint32_t fragments[COLUMNS / 16][4];
  for (int k = 0; k < COLUMNS / 16; k++) {
    for (int r = 0; r < 4; r++) {
      const int first = ((thread * COLUMNS / 16 + k) * 4 + r) * 2;
      fragments[k][r] = pack<T>(element(2 + rank, first), element(2 + rank, first + 1));
    }
  }
  write_ds(shared.ds, fragments, 16 * warp, &shared.ds_full);
  mbarrier_wait(&shared.ds_full, 0);
  if (thread == 0) bulk_send(shared.sent, shared.ds, sizeof shared.sent, &shared.sent_full, other);
  mbarrier_wait_cluster(&shared.tile_full, 0);
  mbarrier_wait_cluster(&shared.sent_full, 0);
  mbarrier_wait_cluster(&shared.stored_full, 0);
  mbarrier_arrive_at(&shared.arrived, other);
  mbarrier_wait_cluster(&shared.arrived, 0);  // the other block has all that this one sent

  float dq[COLUMNS / MMA_N][4];
  wgmma_fence();
  start_dq<T, COLUMNS, ROWS>(dq, shared.ds[0], shared.tile);
  wgmma_wait<0>(dq);
  for (int i = 0; i < COLUMNS / 2; i++) {
    results.dq[thread][i / 4][i % 4] = dq[i / 4][i % 4];
    shared.sums[thread * COLUMNS / 2 + i] = dq[i / 4][i % 4];
  }
  for (int i = thread; i < VALUES; i += WARPGROUP_THREADS) {
    results.tile[i] = shared.tile[i], results.ds[0][i] = shared.ds[0][i];
    if (i < SENT) results.sent[i] = shared.sent[i];
  }
  for (int i = 0; i < 4; i++) results.stored[thread][i] = shared.stored[thread][i];
  fence_proxy_async();
  __syncthreads();  // the sums of all threads are in shared memory
  if (thread == 0) {
    bulk_reduce_add(sums, shared.sums, sizeof shared.sums);
    tma_store_commit();
    tma_store_wait<0>();
  }
  cluster_sync();  // nobody exits while the other block may use its shared memory
}

/** Prints `count` numbers, 64 in a line, as integers of 16 bits; false if one is none. */
template <typename Number>
static bool print_numbers(const char *name, int rank, const Number *values, int count) {
  for (int i = 0; i < count; i++) {
    const float value = (float)values[i];
    if (i % 64 == 0) printf("%s %d %d ", name, rank, i / 64);
    printf("%04x%s", (unsigned)(uint16_t)(int16_t)value, i % 64 == 63 ? "\n" : "");
    if ((float)(int16_t)value != value) return false;
  }
  return true;
}

static bool dump() {
  static T host[VALUES];
  static float sums[VALUES];
  static Results results[RANKS];
  for (int i = 0; i < VALUES; i++) host[i] = T((float)element(0, i)), sums[i] = element(1, i);
  T *tensor;
  float *device_sums;
  Results *device_results;
  if (cudaMalloc(&tensor, sizeof host) != cudaSuccess ||
      cudaMalloc(&device_sums, sizeof sums) != cudaSuccess ||
      cudaMalloc(&device_results, sizeof results) != cudaSuccess ||
      cudaMemcpy(tensor, host, sizeof host, cudaMemcpyHostToDevice) != cudaSuccess ||
      cudaMemcpy(device_sums, sums, sizeof sums, cudaMemcpyHostToDevice) != cudaSuccess) {
    return false;
  }
  Problem problem = {};
  problem.batch = 1, problem.head_dim = COLUMNS, problem.dtype = problem.o_dtype = DTYPE_FP16;
  CUtensorMap map;
  if (make_tensor_map(&map, tensor, &problem, Strides{0, VALUES, COLUMNS}, ROWS, 1, ROWS / RANKS,
                      problem.dtype) != cudaSuccess) {
    return false;
  }
  cudaFuncSetAttribute(cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       sizeof(BlockMemory));
  cluster_kernel<<<RANKS, WARPGROUP_THREADS, sizeof(BlockMemory)>>>(map, device_results,
                                                                    device_sums);
  if (cudaGetLastError() != cudaSuccess ||
      cudaMemcpy(results, device_results, sizeof results, cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaMemcpy(sums, device_sums, sizeof sums, cudaMemcpyDeviceToHost) != cudaSuccess) {
    return false;
  }
  bool integers = true;
  for (int rank = 0; rank < RANKS; rank++) {
    const Results &r = results[rank];
    integers &= print_numbers("tile", rank, r.tile, VALUES);
    integers &= print_numbers("ds", rank, r.ds[0], VALUES);
    integers &= print_numbers("sent", rank, r.sent, SENT);
    integers &= print_numbers("stored", rank, r.stored[0], WARPGROUP_THREADS * 4);
    integers &= print_numbers("loaded", rank, r.loaded, WARPGROUP_THREADS);
    integers &= print_numbers("dq", rank, r.dq[0][0], VALUES);
  }
  return print_numbers("sums", 0, sums, VALUES) && integers;
}

int main() {
  const bool done = dump();
  if (!done) fprintf(stderr, "layouts_cluster: %s\n", cudaGetErrorString(cudaGetLastError()));
  return done ? 0 : 3;
}
