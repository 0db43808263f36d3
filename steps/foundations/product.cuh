/**
 * @file
 * What the programs that multiply matrices share, f07 to f08c: their numbers, and cuBLAS where it
 * is installed.
 */
#ifndef PRODUCT_CUH
#define PRODUCT_CUH

#include <cuda_fp16.h>
#include <stdlib.h>

#include "foundation.h"

/**
 * Puts small integers into the first n rows and columns of a side x side matrix on the device, and
 * the same numbers into `host`. The others are 0, so that they change no product.
 */
template <typename T>
void product_fill(T *matrix, float *host, int side, int n, uint64_t seed) {
  const size_t elements = (size_t)side * side;
  T *copy = (T *)foundation_allocate(sizeof(T) * elements);
  for (size_t i = 0; i < elements; i++) {
    const bool is_inside = i / side < (size_t)n && i % side < (size_t)n;
    host[i] = is_inside ? foundation_bits(seed, i) % 5 - 2.0f : 0;
    copy[i] = T(host[i]);
  }
  CHECK(cudaMemcpy(matrix, copy, sizeof(T) * elements, cudaMemcpyHostToDevice));
  free(copy);
}

#if defined __CUDACC__ && __has_include(<cublas_v2.h>)
#define HAS_CUBLAS
#include <cublas_v2.h>

/** C = A B. The first call makes a handle, which the others use. */
template <typename T>
void product_by_cublas(const T *a, const T *b, float *c, int n) {
  static cublasHandle_t cublas = NULL;
  if (cublas == NULL) cublasCreate(&cublas);
  const bool is_half = sizeof(T) == sizeof(__half);
  const float one = 1, zero = 0;
  const cudaDataType_t type = is_half ? CUDA_R_16F : CUDA_R_32F;
  // cuBLAS stores columns: its B A is the A B of rows.
  cublasGemmEx(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b, type, n, a, type, n, &zero, c,
               CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
#endif

#endif
