/**
 * @file
 * What step 18 introduces: which keys a query attends to, and parts of a softmax that lanes and
 * warps compute and merge.
 */
#ifndef DEVICE_DECODE_PART_CUH
#define DEVICE_DECODE_PART_CUH

#include <float.h>

#include "decode.h"
#include "device/convert.cuh"
#include "device/heads.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/warp.cuh"

// As in steps/step18_decode.cu:

constexpr int WARPS = 4;                   /**< of a thread block */
constexpr int THREADS = WARPS * WARP_SIZE; /**< likewise */
constexpr int COLUMNS = 8;                 /**< of a row that a lane has: 16 bytes */
constexpr int KEYS = 4;                    /**< that a lane loads before it uses the first */

/** Keys that a block has in flight: a row of K or V has HEAD_DIM / COLUMNS lanes. */
template <int HEAD_DIM>
constexpr int TILE_KEYS = THREADS / (HEAD_DIM / COLUMNS) * KEYS;

/** The keys that a query attends to: begin .. end - 1. */
struct KeyRange {
  int begin, end; /**< the first, and the one after the last */
};

/** Those of query `query` of a sequence with `length` keys, the new ones included. */
__device__ __forceinline__ KeyRange keys_of_query(const Problem &problem, int length, int query) {
  if (problem.mask != MASK_CAUSAL) return {0, length};
  const int end = max(length - problem.q_len + query + 1, 0);
  return {problem.window > 0 ? max(end - problem.window, 0) : 0, end};
}

/** Eight neighbouring elements, in one load; zeros if not `valid`. */
template <typename T>
__device__ __forceinline__ uint4 load_columns(const T *columns, bool valid) {
  return valid ? *reinterpret_cast<const uint4 *>(columns) : make_uint4(0, 0, 0, 0);
}

/** The same in fp32. */
template <typename T>
__device__ __forceinline__ void to_floats(float (&x)[COLUMNS], const uint4 &columns) {
  const uint32_t words[4] = {columns.x, columns.y, columns.z, columns.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 pair = to_float2(*reinterpret_cast<const typename PairOf<T>::type *>(&words[i]));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}

/** The columns of this lane of KEYS keys. */
struct TileColumns {
  uint4 k[KEYS], v[KEYS]; /**< of KEYS keys */
};

/** Loads them: key `key` and every GROUPS-th after it. `k` and `v` are the columns of this lane of
 * key 0. Keys from `end` on are not read. */
template <int GROUPS, typename T>
__device__ __forceinline__ void load_tile(TileColumns &tile, const Problem &problem, const T *k,
                                          const T *v, int key, int end) {
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    const int64_t row = key + i * GROUPS;
    tile.k[i] = load_columns(k + row * problem.k_strides.row, row < end);
    tile.v[i] = load_columns(v + row * problem.v_strides.row, row < end);
  }
}

/** An online softmax of some keys: their maximum in units of log2, the sum of the powers of two
 * below it, and this lane's columns of the sum of V times these. Without a key m is -FLT_MAX. */
struct Part {
  float m, l, o[COLUMNS]; /**< the largest score, the sum of all P, and O times l */
};
constexpr Part EMPTY_PART = {-FLT_MAX, 0.0f, {}}; /**< without a key */

/** Adds keys with these scores to m and l, and makes O relative to the new m. The scores become the
 * factors of their rows of V. */
__device__ __forceinline__ void add_scores(Part &part, float (&s)[KEYS]) {
  float m = part.m;
#pragma unroll
  for (int i = 0; i < KEYS; i++) m = fmaxf(m, s[i]);
  const float rescale = exp2_approx(part.m - m);
  part.m = m;
  part.l *= rescale;
#pragma unroll
  for (float &o : part.o) o *= rescale;
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    s[i] = exp2_approx(s[i] - m);
    part.l += s[i];
  }
}

/** Merges the parts of the groups of LANES lanes of a warp; each lane gets the result. */
template <int LANES>
__device__ __forceinline__ void merge_lanes(Part &part) {
#pragma unroll
  for (int distance = LANES; distance < WARP_SIZE; distance *= 2) {
    const float m = fmaxf(part.m, __shfl_xor_sync(FULL_WARP, part.m, distance));
    const float rescale = exp2_approx(part.m - m);
    part.m = m;
    part.l *= rescale;
    part.l += __shfl_xor_sync(FULL_WARP, part.l, distance);
#pragma unroll
    for (float &o : part.o) {
      o *= rescale;
      o += __shfl_xor_sync(FULL_WARP, o, distance);
    }
  }
}

/** The parts of all warps of a row, in shared memory. */
template <int HEAD_DIM>
struct WarpParts {
  float m[WARPS], l[WARPS];                            /**< as in Part */
  alignas(16) float o[WARPS][HEAD_DIM + HEAD_DIM / 8]; /**< at padded(column) */
};

/** Four floats of padding after 32: eight lanes that store 16 of 32 bytes reach all banks. */
__device__ __forceinline__ int padded(int column) {
  return column + column / 32 * 4;
}

/** Leaves the part of a warp there. */
template <int HEAD_DIM>
__device__ __forceinline__ void store_part(WarpParts<HEAD_DIM> &parts, const Part &part) {
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  if (lane >= HEAD_DIM / COLUMNS) return;  // other groups of lanes have the same
  if (lane == 0) parts.m[warp] = part.m, parts.l[warp] = part.l;
  float *const o = &parts.o[warp][padded(lane * COLUMNS)];
  *(float4 *)o = make_float4(part.o[0], part.o[1], part.o[2], part.o[3]);
  *(float4 *)(o + 4) = make_float4(part.o[4], part.o[5], part.o[6], part.o[7]);
}

/** A row of Q and O. */
struct QueryRow {
  int head, query; /**< the head counted through the whole batch */
};

/** What the softmax of a row gives. */
struct RowResult {
  float4 o;       /**< four columns */
  float lse_log2; /**< log2 of the sum of 2^score; -inf without a key */
};

/** Merges the parts of all warps, in four columns. */
template <int HEAD_DIM>
__device__ __forceinline__ RowResult merge_warps(const WarpParts<HEAD_DIM> &parts, int column) {
  float m = -FLT_MAX, l = 0.0f;
  float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) m = fmaxf(m, parts.m[warp]);
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) {
    const float rescale = exp2_approx(parts.m[warp] - m);
    const float4 part = *(const float4 *)&parts.o[warp][padded(column)];
    l += rescale * parts.l[warp];
    o.x += rescale * part.x, o.y += rescale * part.y;
    o.z += rescale * part.z, o.w += rescale * part.w;
  }
  const float factor = l == 0.0f ? 0.0f : 1.0f / l;
  return {make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor), m + log2_approx(l)};
}

/** Stores four columns of a row of O, and with the first of them LSE. */
template <typename T>
__device__ __forceinline__ void store_result(const Problem &problem, const DecodeTensors &t,
                                             QueryRow row, int column, const RowResult &result) {
  const HeadOffsets offset = head_offsets(problem, row.head);
  store_four((T *)t.o + offset.o + row.query * problem.o_strides.row + column, result.o);
  if (column == 0) t.lse[offset.lse + row.query] = result.lse_log2 * LN_2;
}

#endif
