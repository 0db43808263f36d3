/** @file What the tests of the instructions of compute capability 9.0 share. */
#ifndef HOPPER_TESTING_H
#define HOPPER_TESTING_H

#include "../tests/unit/simt/simt_testing.h"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"

/** What cuTensorMapEncodeTiled is asked for; innermost dimension first. */
struct MapRequest {
  void *address;
  cuuint32_t rank;
  cuuint64_t sizes[5], strides[4]; /**< strides in bytes, of all dimensions but the first */
  cuuint32_t box[5];
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
};

inline CUresult encode(CUtensorMap *map, const MapRequest &r) {
  return tensor_map_encoder()(map, r.type, r.rank, r.address, r.sizes, r.strides, r.box, r.steps,
                              r.interleave, r.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

inline CUtensorMap make_map(const MapRequest &request) {
  CUtensorMap map;
  assert_int_equal(encode(&map, request), CUDA_SUCCESS);
  return map;
}

/** The map of a matrix of 64 columns of 2 bytes, for boxes of so many rows. */
inline CUtensorMap matrix_map(void *matrix, int rows, int box_rows, CUtensorMapSwizzle swizzle) {
  return make_map({matrix,
                   4,
                   {64, (cuuint64_t)rows, 1, 1},
                   {128, 16, 16},
                   {64, (cuuint32_t)box_rows, 1, 1},
                   swizzle});
}

/** Describes a matrix of 16 columns without swizzle, as 8 x 8 elements one after the other. */
__host__ __device__ inline uint64_t small_descriptor(int start) {
  return (uint64_t)start >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

#endif
