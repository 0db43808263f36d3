/**
 * @file
 * Prints what tensor copies write to shared memory, and what every thread of a warpgroup holds
 * after the two products of attention by wgmma, for known inputs: one line "NAME INDEX VALUES"
 * each. NAME is the tensor, type and head dimension, INDEX a thread or a row, VALUES the bits of
 * 16-bit numbers in hexadecimal: elements as they are, accumulators as integers, which they are.
 * With e4m3 the bits of the accumulators are printed, in fp32: they show where sums are cut off.
 *
 * tests/data/layouts_hopper_h200.txt holds what an H200 printed. The CPU backend must print the
 * same.
 */
#include <stdio.h>

#include "attention.h"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"
#include "device/wgmma_tile.cuh"

constexpr int Q_ROWS = 60, KV_ROWS = 29;  // of a head
constexpr int HEADS = 2, HEAD = 1;        // the head that is read
constexpr int FIRST_KEY = 4;              // of the tile: its last 7 rows lie outside
constexpr int BLOCK_M = 64, BLOCK_N = 32;
constexpr int STORED_ROWS = 16, FIRST_STORED = 50;  // of a tensor store; 6 rows lie outside

/** A number that looks random, for element i of a tensor. */
__host__ __device__ static uint32_t scrambled(int tensor, int i) {
  uint32_t x = (uint32_t)(1000003 * tensor + i);
  x = (x ^ x >> 16) * 0x7feb352d;
  return (x ^ x >> 15) * 0x846ca68b;
}

/** Element i of a tensor: an integer from -8 to 8. */
__host__ __device__ static float element(int tensor, int i) {
  const uint32_t x = scrambled(tensor, i);
  return (float)(int)((x ^ x >> 16) % 17) - 8.0f;
}

struct Maps {
  TensorMaps in;
  CUtensorMap o;
};

/** Results of the kernel. */
template <typename T, int HEAD_DIM>
struct Results {
  T k[BLOCK_N * HEAD_DIM], v[BLOCK_N * HEAD_DIM]; /**< shared memory */
  float s[WARPGROUP_THREADS][BLOCK_N / 2];        /**< accumulators of Q K^T */
  float o[WARPGROUP_THREADS][HEAD_DIM / 2];       /**< of P V */
};

/** Loads tiles of Q, K and V, multiplies them, and stores the first 16 rows of Q with map `o`. */
template <typename T, int HEAD_DIM>
__global__ void layouts_kernel(const __grid_constant__ Maps maps, Results<T, HEAD_DIM> *results) {
  extern __shared__ __align__(1024) unsigned char smem[];
  T *q = (T *)smem, *k = q + BLOCK_M * HEAD_DIM, *v = k + BLOCK_N * HEAD_DIM;
  uint64_t *full = (uint64_t *)(v + BLOCK_N * HEAD_DIM);
  const int thread = threadIdx.x;
  if (thread == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect(full, 2 * (BLOCK_M + 2 * BLOCK_N) * HEAD_DIM);
    load_rows<HEAD_DIM, BLOCK_M>(q, maps.in.q, full, 0, HEAD, 0);
    load_rows<HEAD_DIM, BLOCK_N>(k, maps.in.k, full, FIRST_KEY, HEAD, 0);
    load_rows<HEAD_DIM, BLOCK_N>(v, maps.in.v, full, FIRST_KEY, HEAD, 0);
  }
  __syncthreads();  // all threads see the barrier
  mbarrier_wait(full, 0);
  for (int i = thread; i < BLOCK_N * HEAD_DIM; i += WARPGROUP_THREADS) {
    results->k[i] = k[i], results->v[i] = v[i];
  }
  float s[BLOCK_N / 8][4], o[HEAD_DIM / 8][4] = {};
  uint32_t probs[BLOCK_N / 16][4];
  for (int i = 0; i < BLOCK_N / 16; i++) {
    for (int r = 0; r < 4; r++) {
      const int at = (thread * (BLOCK_N / 16) + i) * 8 + 2 * r;
      probs[i][r] = pack<T>(element(3, at), element(3, at + 1));
    }
  }
  wgmma_fence();
  start_qk<T, HEAD_DIM, BLOCK_N>(s, q, k);
  start_pv<T, HEAD_DIM, BLOCK_N>(o, probs, v);
  wgmma_wait<0>();
  for (int i = 0; i < BLOCK_N / 2; i++) results->s[thread][i] = s[i / 4][i % 4];
  for (int i = 0; i < HEAD_DIM / 2; i++) results->o[thread][i] = o[i / 4][i % 4];
  if (thread == 0) {
    for (int column = 0; column < HEAD_DIM; column += PANEL<HEAD_DIM>) {
      tma_store(maps.o, q + BLOCK_M * column, column, FIRST_STORED, HEAD, 0);
    }
    tma_store_commit();
    tma_store_wait<0>();
  }
}

/** Prints one line; `values` are `count` numbers of 16 bits. */
static void print_line(const char *what, const char *type, int head_dim, int index,
                       const uint16_t *values, int count) {
  printf("%s.%s.%d %d ", what, type, head_dim, index);
  for (int i = 0; i < count; i++) printf("%04x", values[i]);
  printf("\n");
}

/** The same for accumulators. */
static bool print_sums(const char *what, const char *type, int head_dim, int thread,
                       const float *sums, int count) {
  uint16_t integers[256];
  for (int i = 0; i < count; i++) {
    const int integer = (int)sums[i];
    integers[i] = (uint16_t)integer;
    if ((float)integer != sums[i]) return false;
  }
  print_line(what, type, head_dim, thread, integers, count);
  return true;
}

/** Runs the kernel and prints its results; false after an error. */
template <typename T, int HEAD_DIM>
static bool dump(const char *type) {
  constexpr int TENSOR = HEADS * BLOCK_M * HEAD_DIM;  // elements that each tensor has at most
  static T host[4][TENSOR];                           // Q, K, V; what the store writes to
  static Results<T, HEAD_DIM> results;
  for (int tensor = 0; tensor < 4; tensor++) {
    for (int i = 0; i < TENSOR; i++) host[tensor][i] = T(tensor < 3 ? element(tensor, i) : 99.0f);
  }
  T(*tensors)[TENSOR];
  Results<T, HEAD_DIM> *on_device;
  if (cudaMalloc(&tensors, sizeof host) != cudaSuccess ||
      cudaMalloc(&on_device, sizeof results) != cudaSuccess ||
      cudaMemcpy(tensors, host, sizeof host, cudaMemcpyHostToDevice) != cudaSuccess) {
    return false;
  }
  Problem p = {};
  p.batch = 1, p.head_dim = HEAD_DIM, p.dtype = p.o_dtype = IS_FP16<T> ? DTYPE_FP16 : DTYPE_BF16;
  const auto strides = [](int rows) { return Strides{0, (int64_t)rows * HEAD_DIM, HEAD_DIM}; };
  Maps maps;
  const auto map = [&](CUtensorMap *m, int tensor, int rows, int box) {
    return make_tensor_map(m, tensors[tensor], &p, strides(rows), rows, HEADS, box, p.dtype) ==
           cudaSuccess;
  };
  if (!map(&maps.in.q, 0, Q_ROWS, BLOCK_M) || !map(&maps.in.k, 1, KV_ROWS, BLOCK_N) ||
      !map(&maps.in.v, 2, KV_ROWS, BLOCK_N) || !map(&maps.o, 3, Q_ROWS, STORED_ROWS)) {
    return false;
  }
  constexpr int SHARED_BYTES = 2 * (BLOCK_M + 2 * BLOCK_N) * HEAD_DIM + 8;
  const auto kernel = layouts_kernel<T, HEAD_DIM>;
  kernel<<<1, WARPGROUP_THREADS, SHARED_BYTES>>>(maps, on_device);
  if (cudaGetLastError() != cudaSuccess ||
      cudaMemcpy(&results, on_device, sizeof results, cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaMemcpy(host, tensors, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) {
    return false;
  }
  const auto bits = [](const T *values) { return (const uint16_t *)values; };
  for (int row = 0; row < BLOCK_N; row++) {
    print_line("k", type, HEAD_DIM, row, bits(results.k + row * HEAD_DIM), HEAD_DIM);
    print_line("v", type, HEAD_DIM, row, bits(results.v + row * HEAD_DIM), HEAD_DIM);
  }
  bool integers = true;
  for (int thread = 0; thread < WARPGROUP_THREADS; thread++) {
    integers &= print_sums("s", type, HEAD_DIM, thread, results.s[thread], BLOCK_N / 2);
    integers &= print_sums("o", type, HEAD_DIM, thread, results.o[thread], HEAD_DIM / 2);
  }
  for (int row = FIRST_STORED - 1; row < Q_ROWS + 1; row++) {  // and a row before and after
    const T *stored = host[3] + (HEAD * Q_ROWS + row) * HEAD_DIM;
    print_line("stored", type, HEAD_DIM, row, bits(stored), HEAD_DIM);
  }
  cudaFree(tensors);
  cudaFree(on_device);
  return integers;
}

constexpr int E4M3_ROWS = 32, E4M3_COLUMNS = 128;  // of B; A has 64 rows

/** Byte i of A (0) or B (1): an e4m3 number of any size, but no NaN; in the lower half of A a
 * subnormal one. */
__device__ static uint8_t any_e4m3(int tensor, int i) {
  const bool subnormal = tensor == 0 && i >= 32 * E4M3_COLUMNS;
  const uint8_t byte = scrambled(tensor, i) >> 20 & (subnormal ? 0x87 : 0xff);
  return (byte & 0x7f) == 0x7f ? 0 : byte;
}

/** A B^T. */
__global__ void e4m3_kernel(float (*sums)[E4M3_ROWS / 2]) {
  extern __shared__ __align__(1024) unsigned char smem[];
  unsigned char *a = smem, *b = smem + 64 * E4M3_COLUMNS;
  const int thread = threadIdx.x;
  const auto swizzled = [](int row, int column) {
    return row * E4M3_COLUMNS + (column / 16 ^ row % 8) * 16 + column % 16;
  };
  for (int i = thread; i < (64 + E4M3_ROWS) * E4M3_COLUMNS; i += WARPGROUP_THREADS) {
    const int row = i / E4M3_COLUMNS % 64, tensor = i / E4M3_COLUMNS / 64;
    smem[tensor * 64 * E4M3_COLUMNS + swizzled(row, i % E4M3_COLUMNS)] =
        any_e4m3(tensor, i % (64 * E4M3_COLUMNS));
  }
  fence_proxy_async();
  __syncthreads();
  float d[E4M3_ROWS / 8][4];
  wgmma_fence();
  for (int column = 0; column < E4M3_COLUMNS; column += 32) {
    wgmma_e4m3(d, descriptor_of_rows<E4M3_COLUMNS>(a, 0) + units(column),
               descriptor_of_rows<E4M3_COLUMNS>(b, 0) + units(column), column > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  for (int i = 0; i < E4M3_ROWS / 2; i++) sums[thread][i] = d[i / 4][i % 4];
}

static bool dump_e4m3() {
  static float sums[WARPGROUP_THREADS][E4M3_ROWS / 2];
  float(*device)[E4M3_ROWS / 2];
  if (cudaMalloc(&device, sizeof sums) != cudaSuccess) return false;
  e4m3_kernel<<<1, WARPGROUP_THREADS, (64 + E4M3_ROWS) * E4M3_COLUMNS>>>(device);
  if (cudaGetLastError() != cudaSuccess ||
      cudaMemcpy(sums, device, sizeof sums, cudaMemcpyDeviceToHost) != cudaSuccess) {
    return false;
  }
  for (int i = 0; i < WARPGROUP_THREADS; i++) {
    print_line("sums", "e4m3", E4M3_COLUMNS, i, (const uint16_t *)sums[i], E4M3_ROWS);
  }
  cudaFree(device);
  return true;
}

int main() {
  // Both swizzles, one panel and several.
  const bool done = dump<__nv_bfloat16, 32>("bf16") && dump<__nv_bfloat16, 64>("bf16") &&
                    dump<__half, 96>("fp16") && dump<__half, 128>("fp16") && dump_e4m3();
  if (!done) fprintf(stderr, "layouts_hopper: %s\n", cudaGetErrorString(cudaGetLastError()));
  return done ? 0 : 3;
}
