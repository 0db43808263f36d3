/**
 * @file
 * Tensor maps, made on the host: they tell TMA where a tensor lies, what its box is and
 * how the box is swizzled in shared memory. Readers of the kernels need the comments only.
 */
#ifndef DEVICE_TENSOR_MAP_CUH
#define DEVICE_TENSOR_MAP_CUH

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "attention.h"
#include "tensor_map_limits.h"

/** Columns of a box: a row of it has 128 bytes, or 64 bytes where 128 do not divide a row of the
 * tensor, whose elements have so many bytes. */
template <int HEAD_DIM, int ELEMENT_BYTES = 2>
constexpr int PANEL = (HEAD_DIM * ELEMENT_BYTES % 128 == 0 ? 128 : 64) / ELEMENT_BYTES;

/** cuTensorMapEncodeTiled of the driver, looked up at run time, so that nothing links libcuda; NULL
 * if the driver has none. */
static PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  void *function = NULL;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return NULL;
  return (PFN_cuTensorMapEncodeTiled_v12000)function;
}

/** Makes the map of a tensor of four dimensions, innermost first, for boxes of this size. A GPU's
 * driver only says "invalid argument", so this names the argument; the CPU backend does so itself.
 */
static inline cudaError_t encode_tensor_map(CUtensorMap *map, CUtensorMapDataType type,
                                            int element_bytes, const void *tensor,
                                            const cuuint64_t (&sizes)[4],
                                            const cuuint64_t (&strides)[3],
                                            const cuuint32_t (&box)[4], CUtensorMapSwizzle swizzle,
                                            CUtensorMapL2promotion promotion) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = NULL;
  if (encode == NULL) encode = tensor_map_encoder();
  if (encode == NULL) return cudaErrorNotSupported;
  const cuuint32_t every_element[] = {1, 1, 1, 1};
  if (encode(map, type, 4, (void *)tensor, sizes, strides, box, every_element,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS) {
    return cudaSuccess;
  }
#ifdef __CUDACC__
  char why[128];
  const TensorMapRequest request = {map, (unsigned)element_bytes, 4, (void *)tensor, sizes, strides,
                                    box, every_element,           0, (int)swizzle};
  if (tensor_map_refusal(&request, why, sizeof why)) {
    fprintf(stderr, "cuTensorMapEncodeTiled: %s\n", why);
  }
#else
  (void)element_bytes;
#endif
  return cudaErrorInvalidValue;
}

/** The tensor maps of the inputs. */
struct TensorMaps {
  CUtensorMap q, k, v; /**< coordinates: column, row, head, batch */
};

/**
 * The map of a tensor [batch, heads, rows, head_dim] with these strides, for boxes of `box_rows`
 * rows and as many columns as fit 128 bytes, or 64 if that does not divide a row: PANEL columns of
 * 16-bit elements. Rows past the end become 0 in shared memory, as each head is a range of
 * its own. The 16-byte chunks of a row change places with the row: chunk c of a 128-byte row r is
 * at c ^ (r % 8), of a 64-byte row at c ^ (r / 2 % 4).
 */
static inline cudaError_t make_tensor_map(CUtensorMap *map, const void *tensor,
                                          const Problem *problem, const Strides &strides, int rows,
                                          int heads, int box_rows, Dtype dtype) {
  const int element = dtype == DTYPE_E4M3 ? 1 : 2,
            panel = problem->head_dim * element % 128 == 0 ? 128 : 64;
  const cuuint64_t sizes[] = {(cuuint64_t)problem->head_dim, (cuuint64_t)rows, (cuuint64_t)heads,
                              (cuuint64_t)problem->batch};
  cuuint64_t bytes[] = {(cuuint64_t)(strides.row * element), (cuuint64_t)(strides.head * element),
                        (cuuint64_t)(strides.batch * element)};
  for (int i = 0; i < 3; i++) {
    if (sizes[i + 1] == 1) bytes[i] = 16;  // not used, but must be valid
  }
  const cuuint32_t box[] = {(cuuint32_t)(panel / element), (cuuint32_t)box_rows, 1, 1};
  return encode_tensor_map(map,
                           dtype == DTYPE_E4M3   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                           : dtype == DTYPE_FP16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                           element, tensor, sizes, bytes, box,
                           panel == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

/** The map of a table of 32-bit words, for boxes of so many words of a row. */
static inline cudaError_t make_words_map(CUtensorMap *map, const void *table, int row_words,
                                         int64_t rows, int box_words) {
  const cuuint64_t sizes[] = {(cuuint64_t)row_words, (cuuint64_t)rows, 1, 1};
  const cuuint64_t bytes[] = {(cuuint64_t)row_words * 4, 16, 16};
  const cuuint32_t box[] = {(cuuint32_t)box_words, 1, 1, 1};
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, table, sizes, bytes, box,
                           CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

/** The maps of the inputs: boxes of `q_rows` rows of Q, and of `kv_rows` of K and V. */
static inline cudaError_t make_tensor_maps(TensorMaps *maps, const Problem *problem,
                                           const Tensors *t, int q_rows, int kv_rows) {
  cudaError_t error = make_tensor_map(&maps->q, t->q, problem, problem->q_strides, problem->q_len,
                                      problem->q_heads, q_rows, problem->dtype);
  if (error == cudaSuccess) {
    error = make_tensor_map(&maps->k, t->k, problem, problem->k_strides, problem->kv_len,
                            problem->kv_heads, kv_rows, problem->dtype);
  }
  if (error == cudaSuccess) {
    error = make_tensor_map(&maps->v, t->v, problem, problem->v_strides, problem->kv_len,
                            problem->kv_heads, kv_rows, problem->dtype);
  }
  return error;
}

#endif
