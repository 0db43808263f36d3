/**
 * @file
 * FRAGMENTS: which element of a matrix each register of each lane holds, after ldmatrix and in
 * mma.m16n8k16. The instructions are executed on matrices whose elements are their own numbers.
 */
#include <stdio.h>
#include <string.h>

#include "device/ptx.cuh"
#include "explorer_data.h"

/** What a lane gets when each lane passes the address of its own row to ldmatrix. */
template <int MATRICES, bool TRANSPOSED>
__device__ __forceinline__ void load_fragment(uint32_t (&r)[MATRICES], uint16_t (*rows)[8],
                                              const uint16_t *rows_global) {
  const int lane = threadIdx.x;
  for (int c = 0; c < 8; c++) rows[lane][c] = rows_global[8 * lane + c];
  __syncwarp();  // every row is written
  if constexpr (MATRICES == 1) {
    TRANSPOSED ? ldmatrix_x1_trans(r[0], rows[lane]) : ldmatrix_x1(r[0], rows[lane]);
  } else if constexpr (MATRICES == 2) {
    TRANSPOSED ? ldmatrix_x2_trans(r, rows[lane]) : ldmatrix_x2(r, rows[lane]);
  } else {
    TRANSPOSED ? ldmatrix_x4_trans(r, rows[lane]) : ldmatrix_x4(r, rows[lane]);
  }
}

template <int MATRICES, bool TRANSPOSED>
__global__ void load_kernel(const uint16_t *rows_global /* [LANES][8] */,
                            uint32_t *registers /* [LANES][MATRICES] */) {
  __shared__ __align__(16) uint16_t rows[LANES][8];
  uint32_t r[MATRICES];
  load_fragment<MATRICES, TRANSPOSED>(r, rows, rows_global);
  for (int i = 0; i < MATRICES; i++) registers[threadIdx.x * MATRICES + i] = r[i];
}

__global__ void mma_kernel(const uint16_t *a_global /* [LANES][8] */,
                           const uint16_t *b_global /* [LANES][8] */,
                           float *c_global /* [LANES][4] */) {
  __shared__ __align__(16) uint16_t a_rows[LANES][8], b_rows[LANES][8];
  uint32_t a[4], b[2];
  load_fragment<4, false>(a, a_rows, a_global);
  load_fragment<2, false>(b, b_rows, b_global);
  float c[4];
  for (int i = 0; i < 4; i++) c[i] = c_global[threadIdx.x * 4 + i];
  mma_m16n8k16<__half>(c, a, b[0], b[1]);
  for (int i = 0; i < 4; i++) c_global[threadIdx.x * 4 + i] = c[i];
}

/** The number of column c of the row whose address a lane passes: of A, as in multiply_qk(). */
static int element_of_a(int lane, int c) {
  return lane % 16 * 16 + lane / 16 * 8 + c;
}

/** The same for B = K^T, whose columns are rows of K. ldmatrix.x2 uses lanes 0 to 15 only. */
static int element_of_b(int lane, int c) {
  return (lane / 8 % 2 * 8 + c) * 8 + lane % 8;
}

/** Column c of row lane % 8 of matrix lane / 8. */
static int element_of_matrices(int lane, int c) {
  return 8 * lane + c;
}

/** Prints the element in each half of each register, lane by lane. */
template <int MATRICES, bool TRANSPOSED>
static void print_loaded(const char *name, int (*element)(int lane, int c)) {
  uint16_t rows[LANES * 8], halves[LANES * MATRICES * 2];
  int elements[LANES * MATRICES * 2];
  for (int i = 0; i < LANES * 8; i++) rows[i] = (uint16_t)element(i / 8, i % 8);
  const uint16_t *rows_global = (const uint16_t *)device_memory(sizeof rows, rows);
  uint32_t *registers = (uint32_t *)device_memory(sizeof halves, NULL);
  load_kernel<MATRICES, TRANSPOSED><<<1, LANES>>>(rows_global, registers);
  check(cudaGetLastError());
  check(cudaMemcpy(halves, registers, sizeof halves, cudaMemcpyDeviceToHost));
  for (int i = 0; i < LANES * MATRICES * 2; i++) elements[i] = halves[i];
  printf("  {\"name\": \"%s\", ", name);
  print_integers("elements", elements, LANES * MATRICES * 2);
  printf("},\n");
}

/** C += A B for small integers A [16][16] and B [16][8]; C is as the lanes hold it. */
static void multiply(const int *a, const int *b, float (&c)[LANES * 4]) {
  uint16_t a_rows[LANES * 8], b_rows[LANES * 8];
  for (int i = 0; i < LANES * 8; i++) {
    const __half from_a = __half((float)a[element_of_a(i / 8, i % 8)]);
    const __half from_b = __half((float)b[element_of_b(i / 8, i % 8)]);
    memcpy(&a_rows[i], &from_a, 2);
    memcpy(&b_rows[i], &from_b, 2);
  }
  float *c_global = (float *)device_memory(sizeof c, c);
  mma_kernel<<<1, LANES>>>((const uint16_t *)device_memory(sizeof a_rows, a_rows),
                           (const uint16_t *)device_memory(sizeof b_rows, b_rows), c_global);
  check(cudaGetLastError());
  check(cudaMemcpy(c, c_global, sizeof c, cudaMemcpyDeviceToHost));
}

/** Prints the element of C and D in each register: A B has the number 8 i + j in row i, column j.
 * Then checks A, B, C and D with other numbers. */
static void print_accumulators() {
  int a[16 * 16] = {}, b[16 * 8] = {}, elements[LANES * 4];
  float c[LANES * 4] = {};
  for (int i = 0; i < 16; i++) a[16 * i] = 8 * i, a[16 * i + 1] = 1;
  for (int j = 0; j < 8; j++) b[j] = 1, b[8 + j] = j;
  multiply(a, b, c);
  for (int i = 0; i < LANES * 4; i++) elements[i] = (int)c[i];
  for (int i = 0; i < 16 * 16; i++) a[i] = i * 7 % 13 - 6;
  for (int i = 0; i < 16 * 8; i++) b[i] = i * 5 % 11 - 5;
  for (int i = 0; i < LANES * 4; i++) c[i] = 1000.0f * (float)elements[i];
  multiply(a, b, c);
  for (int i = 0; i < LANES * 4; i++) {
    const int row = elements[i] / 8, column = elements[i] % 8;
    int sum = 1000 * elements[i];
    for (int k = 0; k < 16; k++) sum += a[16 * row + k] * b[8 * k + column];
    if (c[i] != (float)sum) fail("lane %d: d[%d] is not D[%d][%d]", i / 4, i % 4, row, column);
  }
  printf("  {\"name\": \"mma.cd\", ");
  print_integers("elements", elements, LANES * 4);
  printf("}\n");
}

void print_fragments() {
  printf("const FRAGMENTS = [\n");
  print_loaded<4, false>("mma.a", element_of_a);
  print_loaded<2, false>("mma.b", element_of_b);
  print_loaded<1, false>("ldmatrix.x1", element_of_matrices);
  print_loaded<2, false>("ldmatrix.x2", element_of_matrices);
  print_loaded<4, false>("ldmatrix.x4", element_of_matrices);
  print_loaded<1, true>("ldmatrix.x1.trans", element_of_matrices);
  print_loaded<2, true>("ldmatrix.x2.trans", element_of_matrices);
  print_loaded<4, true>("ldmatrix.x4.trans", element_of_matrices);
  print_wgmma_fragments();
  print_accumulators();
  printf("];\n");
}
