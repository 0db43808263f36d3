/**
 * @file
 * Prints what every lane holds in every register after each form of ldmatrix and after
 * mma.m16n8k16, for known inputs: one line "INSTRUCTION INPUT LANE REGISTER VALUE" each, with VALUE
 * in hexadecimal.
 *
 * tests/data/layouts_h200.txt holds what an H200 printed. The CPU backend must print the same bits,
 * except for mma on random numbers, where the order of the sums differs.
 */
#include <math.h>
#include <stdio.h>

#include "device/ptx.cuh"

constexpr int LANES = 32;

/** Element c of row r of matrix i is 64 i + 8 r + c; the rows are scattered over shared memory. */
template <int MATRICES, bool TRANSPOSED>
__global__ void ldmatrix_kernel(uint32_t *registers /* [LANES][MATRICES] */) {
  __shared__ __align__(16) uint16_t rows[LANES][8];
  const int lane = threadIdx.x;
  uint16_t *own_row = rows[5 * lane % LANES];
  for (int c = 0; c < 8; c++) own_row[c] = (uint16_t)(8 * lane + c);
  __syncwarp();  // every row is written
  uint32_t r[4];
  if constexpr (MATRICES == 1) {
    TRANSPOSED ? ldmatrix_x1_trans(r[0], own_row) : ldmatrix_x1(r[0], own_row);
  } else if constexpr (MATRICES == 2) {
    uint32_t pair[2];
    TRANSPOSED ? ldmatrix_x2_trans(pair, own_row) : ldmatrix_x2(pair, own_row);
    r[0] = pair[0], r[1] = pair[1];
  } else {
    TRANSPOSED ? ldmatrix_x4_trans(r, own_row) : ldmatrix_x4(r, own_row);
  }
  for (int i = 0; i < MATRICES; i++) registers[lane * MATRICES + i] = r[i];
}

/** A, B and C in the registers of one lane. */
struct MmaInput {
  uint32_t a[4], b[2];
  float c[4];
};

template <typename T>
__global__ void mma_kernel(const MmaInput *inputs /* [LANES] */, float *results /* [LANES][4] */) {
  const MmaInput own = inputs[threadIdx.x];
  float d[4] = {own.c[0], own.c[1], own.c[2], own.c[3]};
  mma_m16n8k16<T>(d, own.a, own.b[0], own.b[1]);
  for (int i = 0; i < 4; i++) results[threadIdx.x * 4 + i] = d[i];
}

/** A pseudo-random number from a counter; the same on every machine. */
static uint32_t scramble(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352d;
  x = (x ^ x >> 15) * 0x846ca68b;
  return x ^ x >> 16;
}

/** An integer from -8 to 8, which both types hold exactly; or a number with all 24 bits and an
 * exponent from -4 to 4, so that sums of products do not fit fp32. */
static float input_value(bool integers, uint32_t counter) {
  const uint32_t random = scramble(counter);
  if (integers) return (float)(int)(random % 17) - 8.0f;
  const float significand = 1.0f + (float)(random >> 9) * 0x1p-23f;
  const float power = exp2f((float)(int)(random % 9) - 4.0f);
  return (scramble(random) & 1) != 0 ? -significand * power : significand * power;
}

template <typename T>
static uint32_t input_pair(bool integers, uint32_t counter) {
  T pair[2] = {T(input_value(integers, counter)), T(input_value(integers, counter + 1))};
  return *reinterpret_cast<const uint32_t *>(pair);
}

template <typename T>
static void fill(MmaInput *inputs, bool integers) {
  for (int lane = 0; lane < LANES; lane++) {
    uint32_t counter = 100 * lane;
    for (int i = 0; i < 4; i++) inputs[lane].a[i] = input_pair<T>(integers, counter += 2);
    for (int i = 0; i < 2; i++) inputs[lane].b[i] = input_pair<T>(integers, counter += 2);
    for (int i = 0; i < 4; i++) inputs[lane].c[i] = input_value(integers, counter += 1);
  }
}

static bool download(void *target, const void *source, size_t bytes) {
  const cudaError_t error = cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) fprintf(stderr, "layouts: %s\n", cudaGetErrorString(error));
  return error == cudaSuccess;
}

template <int MATRICES, bool TRANSPOSED>
static bool dump_ldmatrix(uint32_t *buffer) {
  uint32_t registers[LANES * MATRICES];
  ldmatrix_kernel<MATRICES, TRANSPOSED><<<1, LANES>>>(buffer);
  if (!download(registers, buffer, sizeof registers)) return false;
  for (int i = 0; i < LANES * MATRICES; i++) {
    printf("ldmatrix.x%d%s counting %d %d %08x\n", MATRICES, TRANSPOSED ? ".trans" : "",
           i / MATRICES, i % MATRICES, registers[i]);
  }
  return true;
}

template <typename T>
static bool dump_mma(const char *type, bool integers, uint32_t *buffer) {
  MmaInput inputs[LANES];
  uint32_t results[LANES * 4];
  fill<T>(inputs, integers);
  float *results_device = (float *)((MmaInput *)buffer + LANES);
  if (cudaMemcpy(buffer, inputs, sizeof inputs, cudaMemcpyHostToDevice) != cudaSuccess)
    return false;
  mma_kernel<T><<<1, LANES>>>((const MmaInput *)buffer, results_device);
  if (!download(results, results_device, sizeof results)) return false;
  const char *input = integers ? "integers" : "random";
  for (int lane = 0; lane < LANES; lane++) {
    for (int i = 0; i < 4; i++)
      printf("a.%s %s %d %d %08x\n", type, input, lane, i, inputs[lane].a[i]);
    for (int i = 0; i < 2; i++)
      printf("b.%s %s %d %d %08x\n", type, input, lane, i, inputs[lane].b[i]);
    for (int i = 0; i < 4; i++) {
      printf("c.%s %s %d %d %08x\n", type, input, lane, i, *(const uint32_t *)&inputs[lane].c[i]);
      printf("d.%s %s %d %d %08x\n", type, input, lane, i, results[4 * lane + i]);
    }
  }
  return true;
}

int main() {
  uint32_t *buffer;
  if (cudaMalloc(&buffer, 1 << 16) != cudaSuccess) {
    fprintf(stderr, "layouts: no device\n");
    return 3;
  }
  const bool done = dump_ldmatrix<1, false>(buffer) && dump_ldmatrix<1, true>(buffer) &&
                    dump_ldmatrix<2, false>(buffer) && dump_ldmatrix<2, true>(buffer) &&
                    dump_ldmatrix<4, false>(buffer) && dump_ldmatrix<4, true>(buffer) &&
                    dump_mma<__half>("fp16", true, buffer) &&
                    dump_mma<__half>("fp16", false, buffer) &&
                    dump_mma<__nv_bfloat16>("bf16", true, buffer) &&
                    dump_mma<__nv_bfloat16>("bf16", false, buffer);
  cudaFree(buffer);
  return done ? 0 : 3;
}
