/**
 * @file
 * What cuTensorMapEncodeTiled takes, by the manual of the driver, which refuses the rest without
 * saying why. Packed types of 4 and 6 bits are left out.
 */
#ifndef TENSOR_MAP_LIMITS_H
#define TENSOR_MAP_LIMITS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/** Arguments of cuTensorMapEncodeTiled, by the driver's names. */
typedef struct TensorMapRequest {
  CUtensorMap *tensorMap;
  unsigned element_bytes; /**< of tensorDataType */
  cuuint32_t tensorRank;
  void *globalAddress;
  const cuuint64_t *globalDim, *globalStrides;
  const cuuint32_t *boxDim, *elementStrides;
  int interleave, swizzle; /**< by the numbers of the enumerators */
} TensorMapRequest;

/** Names the first argument that is out of its limits; false: none is. */
static inline bool tensor_map_refusal(const TensorMapRequest *r, char *why, size_t why_size) {
  const unsigned least_rank = r->interleave != 0 ? 3 : 1, unit = r->interleave == 2 ? 32 : 16;
  why[0] = '\0';
  if ((uintptr_t)r->tensorMap % 64 != 0) {
    snprintf(why, why_size, "tensorMap must be at a multiple of 64 bytes");
  } else if (r->tensorRank < least_rank || r->tensorRank > 5) {
    snprintf(why, why_size, "tensorRank is %u: must be %u to 5", r->tensorRank, least_rank);
  } else if ((uintptr_t)r->globalAddress % unit != 0) {
    snprintf(why, why_size, "globalAddress is %u bytes past a multiple of %u, at which it must be",
             (unsigned)((uintptr_t)r->globalAddress % unit), unit);
  } else if (r->interleave == 2 && r->swizzle != 1) {
    snprintf(why, why_size, "interleave of 32 bytes: takes CU_TENSOR_MAP_SWIZZLE_32B only");
  }
  for (unsigned i = 0; why[0] == '\0' && i < r->tensorRank; i++) {
    if (r->globalDim[i] < 1 || r->globalDim[i] > (uint64_t)1 << 32) {
      snprintf(why, why_size, "globalDim[%u] is %llu: must be 1 to 2^32", i,
               (unsigned long long)r->globalDim[i]);
    } else if (i > 0 && (r->globalStrides[i - 1] % unit != 0 || r->globalStrides[i - 1] >> 40)) {
      snprintf(why, why_size,
               "globalStrides[%u] is %llu bytes: must be a multiple of %u below 2^40", i - 1,
               (unsigned long long)r->globalStrides[i - 1], unit);
    } else if (r->boxDim[i] < 1 || r->boxDim[i] > 256) {
      snprintf(why, why_size, "boxDim[%u] is %u: must be 1 to 256", i, r->boxDim[i]);
    } else if ((i > 0 || r->interleave != 0) &&
               (r->elementStrides[i] < 1 || r->elementStrides[i] > 8)) {
      snprintf(why, why_size, "elementStrides[%u] is %u: must be 1 to 8", i, r->elementStrides[i]);
    }
  }
  if (why[0] != '\0' || r->interleave != 0) return why[0] != '\0';
  const unsigned row_bytes = r->boxDim[0] * r->element_bytes;
  const unsigned span = r->swizzle == 0 ? 0 : r->swizzle < 3 ? 16u << r->swizzle : 128;
  if (row_bytes % 16 != 0) {
    snprintf(why, why_size, "boxDim[0] is %u elements of %u bytes: must be a multiple of 16 bytes",
             r->boxDim[0], r->element_bytes);
  } else if (span != 0 && row_bytes > span) {
    snprintf(why, why_size,
             "boxDim[0] is %u elements of %u bytes, %u in all: at most %u with this swizzle",
             r->boxDim[0], r->element_bytes, row_bytes, span);
  }
  return why[0] != '\0';
}

#endif
