/**
 * @file
 * Between the 16-bit element types and fp32.
 */
#ifndef DEVICE_CONVERT_CUH
#define DEVICE_CONVERT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/** The same number in fp32. */
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

/** The same number in fp32. */
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

/** Rounds to nearest even. Call as from_float<T>(x). */
template <typename T>
__device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/** The pair type of an element type: two elements in one 32-bit word. */
template <typename T>
struct PairOf;

template <>
struct PairOf<__half> {
  using type = __half2; /**< the pair */
};

template <>
struct PairOf<__nv_bfloat16> {
  using type = __nv_bfloat162; /**< the pair */
};

/** The same numbers in fp32; x is the first in memory. */
__device__ __forceinline__ float2 to_float2(__half2 x) {
  return __half22float2(x);
}

/** The same numbers in fp32; x is the first in memory. */
__device__ __forceinline__ float2 to_float2(__nv_bfloat162 x) {
  return __bfloat1622float2(x);
}

/** Rounds both to nearest even; `low` comes first in memory. Call as from_floats<T>(low, high). */
template <typename T>
__device__ __forceinline__ typename PairOf<T>::type from_floats(float low, float high);

template <>
__device__ __forceinline__ __half2 from_floats<__half>(float low, float high) {
  return __floats2half2_rn(low, high);
}

template <>
__device__ __forceinline__ __nv_bfloat162 from_floats<__nv_bfloat16>(float low, float high) {
  return __floats2bfloat162_rn(low, high);
}

/** Four elements as one 64-bit word, so that a load or store of them is one instruction. */
template <typename T>
struct alignas(8) Four {
  typename PairOf<T>::type low;  /**< elements 0 and 1 */
  typename PairOf<T>::type high; /**< elements 2 and 3 */
};

/** Loads four consecutive elements; `source` is aligned to 8 bytes. */
template <typename T>
__device__ __forceinline__ float4 load_four(const T *source) {
  const uint2 bits = *reinterpret_cast<const uint2 *>(source);
  const Four<T> four = *reinterpret_cast<const Four<T> *>(&bits);
  const float2 low = to_float2(four.low);
  const float2 high = to_float2(four.high);
  return make_float4(low.x, low.y, high.x, high.y);
}

/** Rounds and stores four consecutive elements; `target` is aligned to 8 bytes. */
template <typename T>
__device__ __forceinline__ void store_four(T *target, float4 x) {
  const Four<T> four = {from_floats<T>(x.x, x.y), from_floats<T>(x.z, x.w)};
  *reinterpret_cast<uint2 *>(target) = *reinterpret_cast<const uint2 *>(&four);
}

#endif
