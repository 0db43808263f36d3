/**
 * @file
 * The dot product of two rows in device memory, such as D of the backward pass.
 */
#ifndef DEVICE_ROW_DOT_CUH
#define DEVICE_ROW_DOT_CUH

#include "device/convert.cuh"
#include "device/warp.cuh"

/** The dot product of two rows, by one warp; every lane gets it. */
template <typename T>
__device__ __forceinline__ float row_dot(const T *a, const T *b, int columns, int lane) {
  float sum = 0.0f;
  for (int d = lane; d < columns; d += WARP_SIZE) sum += to_float(a[d]) * to_float(b[d]);
  return lanes_reduce_sum<WARP_SIZE>(sum);
}

#endif
