/**
 * @file
 * Sums of dQ in device memory, from step 15 on: where they lie, and their conversion to dQ.
 */
#ifndef DEVICE_DQ_SUMS_CUH
#define DEVICE_DQ_SUMS_CUH

#include "device/backward_rows.cuh"

/** The sums of dQ of head `head` of a pass, of `heads`: they lie behind all RowNumbers. */
__host__ __device__ inline float *dq_sums(const Problem &problem, void *workspace, int heads,
                                          int head) {
  return row_numbers(problem, workspace, heads).lse_log2 + dq_floats(problem) * head;
}

/** Sets all sums of a pass to 0. */
static inline cudaError_t clear_dq_sums(const Problem &problem, void *workspace, int heads,
                                        cudaStream_t stream) {
  return cudaMemsetAsync(dq_sums(problem, workspace, heads, 0), 0,
                         sizeof(float) * dq_floats(problem) * heads, stream);
}

/** Step::workspace_bytes of a step with RowNumbers and these sums. */
static inline size_t dq_workspace_bytes(const Problem *problem) {
  return sizeof(float) * (2 * padded_rows(*problem) + dq_floats(*problem));
}

/** dQ = scale * its sums, rounded: a thread for each four of them. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(ROWS_THREADS)
    convert_dq_kernel(Problem problem, BackwardTensors t, PassHeads heads) {
  const int64_t i = (int64_t)blockIdx.x * ROWS_THREADS + threadIdx.x;
  if (4 * i >= dq_floats(problem)) return;
  const float4 sums = ((const float4 *)dq_sums(problem, t.workspace, heads.count, blockIdx.y))[i];
  const int lane = threadIdx.x % WARP_SIZE, fragment = i / WARP_SIZE;
  const int row = fragment / (HEAD_DIM / 8) * 16 + lane / 4;
  T *const dq = (T *)t.d_q + head_offsets(problem, heads.first + blockIdx.y).q +
                row * problem.q_strides.row + fragment % (HEAD_DIM / 8) * 8 + lane % 4 * 2;
  using Pair = typename PairOf<T>::type;
  const float scale = problem.scale;
  if (row < problem.q_len) *(Pair *)dq = from_floats<T>(scale * sums.x, scale * sums.y);
  if (row + 8 < problem.q_len) {
    *(Pair *)(dq + 8 * problem.q_strides.row) = from_floats<T>(scale * sums.z, scale * sums.w);
  }
}

#endif
