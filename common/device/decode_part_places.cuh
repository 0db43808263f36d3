/**
 * @file
 * Places for the parts of row groups that several blocks have, and the kernel that merges them, as
 * that of step 19 does: what steps 20 to 20c share.
 */
#ifndef DEVICE_DECODE_PART_PLACES_CUH
#define DEVICE_DECODE_PART_PLACES_CUH

#include "decode.h"
#include "device/decode_rows.cuh"

/** The place of a block's part in the workspace: it has one for the row group that begins in an
 * earlier share, and one for the row group that begins in its own. */
template <int HEAD_DIM, int ROWS>
struct PartPlace {
  alignas(128) float o[ROWS][HEAD_DIM]; /**< O of the part */
  float lse_log2[ROWS];                 /**< LSE of the part, in units of log2 */
};

/** The place of the part of `block`, of a row group that begins in the share of block `begin`. */
__device__ __forceinline__ int part_place(int block, int begin) {
  return 2 * block + (block == begin);
}

/** A block for each share: it merges the parts of the row group that begins there and ends in a
 * later one, a row in each warp. O of a part is like a row of V, and LSE like its score. */
template <typename Share, typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(THREADS) merge_kernel(Problem problem, DecodeTensors t) {
  constexpr int LANES = HEAD_DIM / COLUMNS, GROUPS = WARP_SIZE / LANES;
  const Share share = ((const Share *)t.schedule)[blockIdx.x];
  if (share.parts < 2 || share.begin != (int)blockIdx.x) return;
  const auto *const places = (const PartPlace<HEAD_DIM, ROWS> *)t.workspace;
  const RowGroup rows = share.last;
  const int lane = threadIdx.x % WARP_SIZE, column = lane % LANES * COLUMNS;
  for (int row = threadIdx.x / WARP_SIZE; row < rows.end - rows.first; row += WARPS) {
    Part sum = EMPTY_PART;
    for (int first = lane / LANES; first < share.parts; first += KEYS * GROUPS) {
      float s[KEYS];
      float4 o[KEYS][2];
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        const int part = first + i * GROUPS;
        const auto &place =
            places[part_place(share.begin + min(part, share.parts - 1), share.begin)];
        s[i] = part < share.parts ? place.lse_log2[row] : -INFINITY;
        const float4 *const source = (const float4 *)&place.o[row][column];
        o[i][0] = source[0], o[i][1] = source[1];
      }
      add_scores(sum, s);
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        const float x[COLUMNS] = {o[i][0].x, o[i][0].y, o[i][0].z, o[i][0].w,
                                  o[i][1].x, o[i][1].y, o[i][1].z, o[i][1].w};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum.o[c] += s[i] * x[c];
      }
    }
    merge_lanes<LANES>(sum);
    if (lane >= LANES) continue;  // other groups of lanes have the same
    const QueryRow of = query_row(problem, rows, rows.first + row);
    const float factor = sum.l == 0.0f ? 0.0f : 1.0f / sum.l;
    const float lse_log2 = sum.m + log2_approx(sum.l);
    for (float &o : sum.o) o *= factor;
    for (int c = 0; c < COLUMNS; c += 4) {
      const float4 o = make_float4(sum.o[c], sum.o[c + 1], sum.o[c + 2], sum.o[c + 3]);
      store_result<T>(problem, t, of, column + c, {o, lse_log2});
    }
  }
}

#endif
