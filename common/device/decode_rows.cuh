/**
 * @file
 * What step 18b introduces: a thread block for several rows of Q that have the same K and V.
 */
#ifndef DEVICE_DECODE_ROWS_CUH
#define DEVICE_DECODE_ROWS_CUH

#include "decode.h"
#include "device/decode_part.cuh"

// As in steps/step18b_group.cu:

/** Blocks for so many rows that an SM has room for: nvcc limits the registers of a thread to that.
 */
constexpr int blocks_per_sm(int rows) {
  return rows == 1 ? 6 : rows == 2 ? 5 : 4;
}

/** The rows of Q of a thread block: rows first .. end - 1 of those that have the same K and V. */
struct RowGroup {
  int batch, kv_head, first, end; /**< rows `first` to `end` - 1 of a key/value head */
};

/** Row group number `block`, of `rows` rows. */
__device__ __forceinline__ RowGroup row_group(const Problem &problem, int rows, int block) {
  const int all = problem.q_heads / problem.kv_heads * problem.q_len;
  const int blocks = (all + rows - 1) / rows, kv_head = block / blocks;
  const int first = block % blocks * rows;
  return {kv_head / problem.kv_heads, kv_head % problem.kv_heads, first, min(first + rows, all)};
}

/** Which row of Q is number `row` of those of its key/value head. */
__device__ __forceinline__ QueryRow query_row(const Problem &problem, const RowGroup &group,
                                              int row) {
  const int heads = problem.q_heads / problem.kv_heads;
  return {group.batch * problem.q_heads + group.kv_head * heads + row / problem.q_len,
          row % problem.q_len};
}

/** The keys of a thread block: those that some of its rows attend to, and those that all do. */
struct GroupKeys {
  KeyRange some, all; /**< to which some rows attend, and all */
};

/** Later queries have later keys, so the first and the last query have the limits. */
__device__ __forceinline__ GroupKeys keys_of_group(const Problem &problem, const RowGroup &group,
                                                   int length) {
  const bool one_head = group.first / problem.q_len == (group.end - 1) / problem.q_len;
  const int first = one_head ? group.first % problem.q_len : 0;
  const int last = one_head ? (group.end - 1) % problem.q_len : problem.q_len - 1;
  const KeyRange early = keys_of_query(problem, length, first);
  const KeyRange late = keys_of_query(problem, length, last);
  return {{early.begin, late.end}, {late.begin, early.end}};
}

/** What a lane has of the rows of its block: the columns of q, times the scale, and the part of the
 * softmax of its keys. */
template <int ROWS>
struct LaneRows {
  float q[ROWS][COLUMNS]; /**< times the scale, in units of log2 */
  Part part[ROWS];        /**< of the keys so far */
};

/** Loads the columns of this lane of all rows of Q; those that are not there are 0. */
template <typename T, int ROWS>
__device__ __forceinline__ void load_rows(LaneRows<ROWS> &rows, const Problem &problem, const T *q,
                                          const RowGroup &group, int column) {
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const QueryRow row = query_row(problem, group, min(group.first + r, group.end - 1));
    const int64_t offset = head_offsets(problem, row.head).q + row.query * problem.q_strides.row;
    to_floats<T>(rows.q[r], load_columns(q + offset + column, group.first + r < group.end));
    for (float &x : rows.q[r]) x *= problem.scale * LOG2_E;
    rows.part[r] = EMPTY_PART;
  }
}

/** Adds the keys of a tile to all rows. Keys outside `keys` have the score -inf, and so have those
 * to which a row does not attend; without `masked` there are none of either. */
template <typename T, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void attend_tile(LaneRows<ROWS> &rows, const Problem &problem,
                                            const RowGroup &group, const TileColumns &tile, int key,
                                            KeyRange keys, int length, bool masked) {
  constexpr int LANES = HEAD_DIM / COLUMNS, GROUPS = WARP_SIZE / LANES;
  float s[ROWS][KEYS], x[COLUMNS];
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    to_floats<T>(x, tile.k[i]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      s[r][i] = 0.0f;
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) s[r][i] += rows.q[r][c] * x[c];
      s[r][i] = lanes_reduce_sum<LANES>(s[r][i]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (masked) {
      const int query = query_row(problem, group, group.first + r).query;
      const KeyRange own = keys_of_query(problem, length, query);
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        const int of_score = key + i * GROUPS;
        if (of_score < own.begin || of_score >= min(own.end, keys.end)) s[r][i] = -INFINITY;
      }
    }
    add_scores(rows.part[r], s[r]);
  }
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    to_floats<T>(x, tile.v[i]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) rows.part[r].o[c] += s[r][i] * x[c];
    }
  }
}

/** The softmax of all rows of a block over the keys `keys`, of which `unmasked` need no mask.
 * Leaves the parts of all warps in `parts`. */
template <typename T, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void attend_keys(WarpParts<HEAD_DIM> (&parts)[ROWS],
                                            const Problem &problem, const DecodeTensors &t,
                                            const RowGroup &group, KeyRange keys, KeyRange unmasked,
                                            int length) {
  constexpr int LANES = HEAD_DIM / COLUMNS, GROUPS = WARP_SIZE / LANES;
  constexpr int WARP_KEYS = KEYS * GROUPS;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int column = lane % LANES * COLUMNS;
  const T *const k = (const T *)t.k + group.batch * problem.k_strides.batch +
                     group.kv_head * problem.k_strides.head + column;
  const T *const v = (const T *)t.v + group.batch * problem.v_strides.batch +
                     group.kv_head * problem.v_strides.head + column;
  LaneRows<ROWS> rows;
  load_rows(rows, problem, (const T *)t.q, group, column);
  for (int first = keys.begin + warp * WARP_KEYS; first < keys.end; first += TILE_KEYS<HEAD_DIM>) {
    const int key = first + lane / LANES;
    const bool masked = first < unmasked.begin || first + WARP_KEYS > min(unmasked.end, keys.end);
    TileColumns tile;
    load_tile<GROUPS>(tile, problem, k, v, key, keys.end);
    attend_tile<T, HEAD_DIM>(rows, problem, group, tile, key, keys, length, masked);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    merge_lanes<LANES>(rows.part[r]);
    store_part(parts[r], rows.part[r]);
  }
  __syncthreads();  // the parts of all warps are there
}

/** Merges the parts of all warps, for each row of the block. store() gets the result four columns
 * at a time, with the number of the row and of the first column. */
template <int HEAD_DIM, int ROWS, typename Store>
__device__ __forceinline__ void merge_block(const WarpParts<HEAD_DIM> (&parts)[ROWS],
                                            const RowGroup &group, Store store) {
  for (int i = threadIdx.x; i < (group.end - group.first) * HEAD_DIM / 4; i += THREADS) {
    const int row = i / (HEAD_DIM / 4), column = i % (HEAD_DIM / 4) * 4;
    store(group.first + row, column, merge_warps(parts[row], column));
  }
}

#endif
