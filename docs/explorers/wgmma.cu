/**
 * @file
 * FRAGMENTS of wgmma: which register holds which entry of D and of operand A, and where a tensor
 * copy puts the 16-byte chunks of a tile. Tensor copies, start_qk() and start_pv() are executed on
 * matrices whose entries are their own numbers.
 */
#include <stdio.h>
#include <string.h>

#include "device/wgmma_tile.cuh"
#include "explorer_data.h"

constexpr int GROUP_M = 64;
constexpr int CHUNK_ELEMENTS = 8;

/** Operands and results; the matrices are row by row, the registers thread by thread. */
template <int HEAD_DIM, int KEYS>
struct Products {
  __half q[GROUP_M][HEAD_DIM], k[KEYS][HEAD_DIM], v[KEYS][HEAD_DIM];
  uint32_t probs[WARPGROUP_THREADS][KEYS / 16][4];
  float s[WARPGROUP_THREADS][KEYS / 8][4], o[WARPGROUP_THREADS][HEAD_DIM / 8][4];
  __half k_shared[KEYS * HEAD_DIM];  // as it lies in shared memory
};

template <int HEAD_DIM, int KEYS>
__global__ void products_kernel(Products<HEAD_DIM, KEYS> *products,
                                const __grid_constant__ TensorMaps maps) {
  extern __shared__ __align__(1024) unsigned char smem[];
  __half *q = (__half *)smem, *k = q + GROUP_M * HEAD_DIM, *v = k + KEYS * HEAD_DIM;
  uint64_t *full = (uint64_t *)(v + KEYS * HEAD_DIM);
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect(full, 2 * HEAD_DIM * (GROUP_M + 2 * KEYS));
    load_rows<HEAD_DIM, GROUP_M>(q, maps.q, full, 0, 0, 0);
    load_rows<HEAD_DIM, KEYS>(k, maps.k, full, 0, 0, 0);
    load_rows<HEAD_DIM, KEYS>(v, maps.v, full, 0, 0, 0);
  }
  __syncthreads();  // all threads see the barrier
  mbarrier_wait(full, 0);
  const int thread = threadIdx.x;
  float s[KEYS / 8][4], o[HEAD_DIM / 8][4] = {};
  uint32_t probs[KEYS / 16][4];
  memcpy(probs, products->probs[thread], sizeof probs);
  wgmma_fence();
  start_qk<__half, HEAD_DIM, KEYS>(s, q, k);
  start_pv<__half, HEAD_DIM, KEYS>(o, probs, v);
  wgmma_wait<0>();
  memcpy(products->s[thread], s, sizeof s);
  memcpy(products->o[thread], o, sizeof o);
  for (int i = thread; i < KEYS * HEAD_DIM; i += WARPGROUP_THREADS) products->k_shared[i] = k[i];
}

/** S = Q K^T and O = P V of these operands. */
template <int HEAD_DIM, int KEYS>
static void multiply(Products<HEAD_DIM, KEYS> &products) {
  using P = Products<HEAD_DIM, KEYS>;
  P *device = (P *)device_memory(sizeof products, &products);
  const Strides q_strides = {GROUP_M * HEAD_DIM, GROUP_M * HEAD_DIM, HEAD_DIM};
  const Strides kv_strides = {KEYS * HEAD_DIM, KEYS * HEAD_DIM, HEAD_DIM};
  const Problem p = {.batch = 1,
                     .q_heads = 1,
                     .kv_heads = 1,
                     .q_len = GROUP_M,
                     .kv_len = KEYS,
                     .head_dim = HEAD_DIM,
                     .dtype = DTYPE_FP16,
                     .q_strides = q_strides,
                     .k_strides = kv_strides,
                     .v_strides = kv_strides};
  const Tensors t = {.q = device->q, .k = device->k, .v = device->v};
  TensorMaps maps;
  check(make_tensor_maps(&maps, &p, &t, GROUP_M, KEYS));
  const int shared_bytes = 2 * HEAD_DIM * (GROUP_M + 2 * KEYS) + 8;
  products_kernel<HEAD_DIM, KEYS><<<1, WARPGROUP_THREADS, shared_bytes>>>(device, maps);
  check(cudaGetLastError());
  check(cudaMemcpy(&products, device, sizeof products, cudaMemcpyDeviceToHost));
}

constexpr int WGMMA_K = 16;                              // columns of A
constexpr int A_SLOTS = WARPGROUP_THREADS * 8;           // halves of registers
static int elements_of_a[A_SLOTS], elements_of_d[1024];  // of 64 x 16 matrices, row by row

/** D: Q K^T has the number 16 r + n in row r, column n. A: P has the numbers of its slots, V is the
 * identity, so that O says where each of them is. */
static void find_registers() {
  static Products<64, WGMMA_K> products;
  for (int r = 0; r < GROUP_M; r++) products.q[r][0] = (float)(WGMMA_K * r), products.q[r][1] = 1;
  for (int n = 0; n < WGMMA_K; n++) products.k[n][0] = 1, products.k[n][1] = (float)n;
  for (int n = 0; n < WGMMA_K; n++) products.v[n][n] = 1;
  __half slots[A_SLOTS];
  for (int i = 0; i < A_SLOTS; i++) slots[i] = (float)i;
  memcpy(products.probs, slots, sizeof slots);
  multiply(products);
  const float(*s)[8] = (const float(*)[8])products.s;
  for (int i = 0; i < 1024; i++) elements_of_d[i] = (int)s[i / 8][i % 8];
  // Columns 0 to 15 of O are in the first registers of a thread, as all of S.
  for (int i = 0; i < 1024; i++) {
    elements_of_a[(int)products.o[i / 8][i % 8 / 4][i % 4]] = elements_of_d[i];
  }
}

/** What S or O has in row r, column c; `tiles` of 8 columns. */
static float entry(const float *registers, int tiles, int r, int c) {
  int slot = 0;  // of a 64 x 16 matrix
  while (elements_of_d[slot] != WGMMA_K * r + c % WGMMA_K) slot++;
  return registers[slot / 8 * 4 * tiles + c / WGMMA_K * 8 + slot % 8];
}

/** Prints which chunk of a tile, counted row by row, is at each place of shared memory. The
 * products read the same: with the identity as Q and P, S is K^T and O is V. */
template <int HEAD_DIM>
static void print_tile(const char *name) {
  constexpr int KEYS = 32, CHUNKS = KEYS * HEAD_DIM / CHUNK_ELEMENTS;
  static Products<HEAD_DIM, KEYS> products;
  for (int i = 0; i < KEYS * HEAD_DIM; i++) {
    products.k[i / HEAD_DIM][i % HEAD_DIM] = products.v[i / HEAD_DIM][i % HEAD_DIM] = (float)i;
  }
  for (int i = 0; i < HEAD_DIM; i++) products.q[i][i] = 1;
  const __half one = 1.0f;
  for (int slot = 0; slot < A_SLOTS; slot++) {
    const int r = elements_of_a[slot] / WGMMA_K, c = elements_of_a[slot] % WGMMA_K;
    if (r >= KEYS || r % WGMMA_K != c) continue;  // P has a one in row r, column r
    memcpy((__half *)products.probs[slot / 8][r / WGMMA_K] + slot % 8, &one, sizeof one);
  }
  multiply(products);
  for (int i = 0; i < KEYS * HEAD_DIM; i++) {
    const int key = i / HEAD_DIM, column = i % HEAD_DIM;
    if (entry(&products.s[0][0][0], KEYS / 8, column, key) != (float)i) fail("S is not K^T");
    if (entry(&products.o[0][0][0], HEAD_DIM / 8, key, column) != (float)i) fail("O is not V");
  }
  int chunks[CHUNKS];
  for (int place = 0; place < CHUNKS; place++) {
    const int first = (int)(float)products.k_shared[CHUNK_ELEMENTS * place];
    chunks[place] = first / CHUNK_ELEMENTS;
    for (int i = 0; i < CHUNK_ELEMENTS; i++) {
      if ((int)(float)products.k_shared[CHUNK_ELEMENTS * place + i] != first + i) fail("no chunk");
    }
  }
  printf("  {\"name\": \"%s\", ", name);
  print_integers("elements", chunks, CHUNKS);
  printf("},\n");
}

void print_wgmma_fragments() {
  find_registers();
  printf("  {\"name\": \"wgmma.d\", ");
  print_integers("elements", elements_of_d, 1024);
  printf("},\n  {\"name\": \"wgmma.a\", ");
  print_integers("elements", elements_of_a, A_SLOTS);
  printf("},\n");
  print_tile<64>("tile.128");
  print_tile<32>("tile.64");
}
