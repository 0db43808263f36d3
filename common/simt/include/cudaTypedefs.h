/**
 * @file
 * Stands in for the CUDA toolkit's header of the same name: types of the driver's functions.
 */
#ifndef CUDA_TYPEDEFS_H
#define CUDA_TYPEDEFS_H

#include <cuda.h>

/** Returns CUDA_ERROR_INVALID_VALUE for a map that the hardware would not take. */
typedef CUresult (*PFN_cuTensorMapEncodeTiled_v12000)(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
    const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

#endif
