/**
 * @file
 * The tensor maps of a backward pass with TMA, made on the host; readers of the kernels can skip
 * this file.
 */
#ifndef DEVICE_BACKWARD_MAPS_CUH
#define DEVICE_BACKWARD_MAPS_CUH

#include "backward.h"
#include "device/backward_launch.cuh"
#include "device/tensor_map.cuh"

/** The tensor maps of a pass. */
struct BackwardMaps {
  CUtensorMap q, d_o, k, v; /**< coordinates: column, row, head, batch */
  CUtensorMap d_k, d_v;     /**< boxes of 16 rows, those of a warp */
  CUtensorMap numbers;      /**< RowNumbers: query, 2 head for LSE and 2 head + 1 for D */
};

/** The maps for boxes of `q_rows` queries and `kv_rows` keys, in passes of `heads` query heads. */
static inline cudaError_t make_backward_maps(BackwardMaps *maps, const Problem *problem,
                                             const BackwardTensors *t, int heads, int q_rows,
                                             int kv_rows) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const Tensors inputs = {t->q, t->k, t->v};
  TensorMaps in;
  cudaError_t error = make_tensor_maps(&in, problem, &inputs, q_rows, kv_rows);
  if (error != cudaSuccess) return error;
  *maps = {in.q, {}, in.k, in.v, {}, {}, {}};
  error = make_tensor_map(&maps->d_o, t->d_o, problem, problem->o_strides, problem->q_len,
                          problem->q_heads, q_rows, problem->dtype);
  if (error != cudaSuccess) return error;
  error = make_tensor_map(&maps->d_k, t->d_k, problem, problem->k_strides, problem->kv_len,
                          problem->kv_heads, 16, problem->dtype);
  if (error != cudaSuccess) return error;
  error = make_tensor_map(&maps->d_v, t->d_v, problem, problem->v_strides, problem->kv_len,
                          problem->kv_heads, 16, problem->dtype);
  if (error != cudaSuccess) return error;
  return make_words_map(&maps->numbers, t->workspace, padded_rows(*problem), 2 * heads, q_rows);
}

#endif
