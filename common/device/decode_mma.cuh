/**
 * @file
 * What decode steps on tensor cores share beside their operands: the tiles of a warp, rows of Q,
 * the mask, the online softmax, and how the parts of the warps get to shared memory.
 */
#ifndef DEVICE_DECODE_MMA_CUH
#define DEVICE_DECODE_MMA_CUH

#include <cuda_runtime.h>
#include <float.h>

#include "decode.h"
#include "device/decode_pages.cuh"
#include "device/decode_rows.cuh"
#include "device/decode_shares.cuh"
#include "device/fragments.cuh"

constexpr int MMA_WARPS = 8;                       /**< of a thread block */
constexpr int MMA_THREADS = MMA_WARPS * WARP_SIZE; /**< of a thread block */

/** The tiles of a warp: every MMA_WARPS-th one of each row group of the share. */
struct Walk {
  RowGroup rows;       /**< the row group of the next tile */
  int number;          /**< of row groups of the share before this one */
  int tile, end;       /**< the next tile, and the tile after the last that the share has of it */
  int left;            /**< tiles of the share in later row groups */
  int stride;          /**< as in Share */
  int first_key, last; /**< the first key of its tile 0, and the last key of the sequence */
  Pages pages;         /**< of the sequence */
};

/** Goes to a row group, of which the share has the tiles from number `begin` on. */
template <int TILE>
__device__ __forceinline__ void enter_rows(Walk &walk, const Problem &problem,
                                           const DecodeTensors &t, const RowGroup &rows, int length,
                                           int begin) {
  const SequenceTiles tiles = tiles_of_sequence(problem, length, TILE);
  const int count = min(tiles.count - begin, walk.left);
  walk.rows = rows;
  walk.tile = begin + threadIdx.x / WARP_SIZE, walk.end = begin + count;
  walk.left -= count;
  walk.first_key = tiles.first * TILE, walk.last = length - 1;
  walk.pages = pages_of_sequence(problem, t, rows.batch);
}

/** Skips row groups that have no more tiles for this warp. */
template <int TILE, int ROWS>
__device__ __forceinline__ void skip_rows(Walk &walk, const Problem &problem,
                                          const DecodeTensors &t) {
  while (walk.tile >= walk.end && walk.left > 0) {
    walk.number++;
    const RowGroup rows = next_rows<ROWS>(problem, walk.rows, walk.stride);
    enter_rows<TILE>(walk, problem, t, rows, t.lengths[rows.batch], 0);
  }
}

/** The first tile of a warp. */
template <int TILE, int ROWS>
__device__ __forceinline__ Walk first_tile(const Problem &problem, const DecodeTensors &t,
                                           const Share &share) {
  Walk walk;
  walk.number = 0, walk.left = share.tiles, walk.stride = share.stride;
  enter_rows<TILE>(walk, problem, t, share.rows, share.length, share.first);
  skip_rows<TILE, ROWS>(walk, problem, t);
  return walk;
}

/** The row of Q, of eight, that is row lane / 4 of an mma. So the lanes of a quarter of O^T, whose
 * columns are rows 2 j and 2 j + 1 of the mma, have rows j and j + 4 of Q, with j = lane % 4. */
__device__ __forceinline__ int row_of_lane(int lane) {
  return lane / 8 + lane / 4 % 2 * 4;
}

/** What a lane has of the rows of Q: fragments of Q and of O^T, and the softmax of rows
 * 8 n + row_of_lane(), l of its own keys alone. */
template <int HEAD_DIM, int ROWS>
struct MmaRows {
  uint32_t q[HEAD_DIM / 16][4];        /**< operand A of S = Q K^T */
  float o[ROWS / 8][HEAD_DIM / 16][4]; /**< accumulators of O^T, with rows of Q in columns */
  float m[ROWS / 8];                   /**< as in Part */
  float l[ROWS / 8];                   /**< likewise */
};

/** The first elements of O or Q of a row. query_row() would divide. */
__device__ __forceinline__ QueryRow row_of_group(const Problem &problem, const RowGroup &rows,
                                                 int row) {
  if (problem.q_len > 1) return query_row(problem, rows, row);
  return {rows.batch * problem.q_heads + problem.q_heads / problem.kv_heads * rows.kv_head + row,
          0};
}

/** Loads the rows of Q. A row has four lanes; each has EIGHTS times 8 neighbouring columns, and
 * then those that are 4 * EIGHTS * 8 further. Four of them are the columns 2 j, 2 j + 1, 2 j + 8
 * and 2 j + 9 of an mma, with j = lane % 4. Past the last row a lane has the last again. */
template <int EIGHTS = 1, typename T, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void start_rows(MmaRows<HEAD_DIM, ROWS> &rows, const Problem &problem,
                                           const T *q, const RowGroup &group) {
  const int lane = threadIdx.x % WARP_SIZE;
  q += group.batch * problem.q_strides.batch + lane % 4 * EIGHTS * 8;
#pragma unroll
  for (int n = 0; n < 2; n++) {
    const QueryRow of =
        row_of_group(problem, group, min(group.first + 8 * n + row_of_lane(lane), group.end - 1));
    const T *const source = q + (of.head - group.batch * problem.q_heads) * problem.q_strides.head +
                            of.query * problem.q_strides.row;
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 32; c++) {
      const uint4 x = 8 * n < ROWS
                          ? load_cached_16(source + c / EIGHTS * EIGHTS * 32 + c % EIGHTS * 8)
                          : make_uint4(0, 0, 0, 0);
      rows.q[2 * c][n] = x.x, rows.q[2 * c][2 + n] = x.y;
      rows.q[2 * c + 1][n] = x.z, rows.q[2 * c + 1][2 + n] = x.w;
    }
  }
#pragma unroll
  for (int n = 0; n < ROWS / 8; n++) {
    rows.m[n] = -FLT_MAX, rows.l[n] = 0.0f;
#pragma unroll
    for (auto &fragment : rows.o[n]) {
      for (float &x : fragment) x = 0.0f;
    }
  }
}

/** Whether a tile from key `key` on has keys that some of the new queries do not attend to. */
template <int TILE>
__device__ __forceinline__ bool needs_mask(const Problem &problem, int length, int key) {
  return key < keys_of_query(problem, length, problem.q_len - 1).begin ||
         key + TILE > keys_of_query(problem, length, 0).end;
}

/** Sets scores of keys that their query does not attend to to -inf; `key` is the first key, and
 * `row` the first row of this lane. */
template <int ROWS, int TILE>
__device__ __forceinline__ void mask_scores(float (&s)[TILE / 8][4], const Problem &problem,
                                            const RowGroup &group, int row, int length, int key) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < ROWS / 8; half++) {
    const int query = row_of_group(problem, group, group.first + 8 * half + row).query;
    const KeyRange keys = keys_of_query(problem, length, query);
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int own = key + 8 * n + lane % 4 * 2 + c;
        if (own < keys.begin || own >= keys.end) s[n][2 * half + c] = -INFINITY;
      }
    }
  }
}

/** The online softmax: raises m, rescales l and O, and makes P of S, as operand B of O^T = V^T P^T:
 * of each 16 keys, keys 2 j, 2 j + 1, 2 j + 8 and 2 j + 9 of row lane / 4, with j = lane % 4. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ void add_scores(uint32_t (&probs)[ROWS / 8][TILE / 8],
                                           MmaRows<HEAD_DIM, ROWS> &rows,
                                           const float (&s)[TILE / 8][4],
                                           const float (&scales_log2)[2]) {
  const int lane = threadIdx.x % WARP_SIZE;
  float m[ROWS / 8];
  bool rises = false;
#pragma unroll
  for (int half = 0; half < ROWS / 8; half++) {
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
      most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    m[half] = fmaxf(rows.m[half], lanes_reduce_max<4>(most) * scales_log2[half]);
    rises |= m[half] > rows.m[half];
  }
  // One branch for both halves: what comes before and behind it then overlaps.
  if (__any_sync(FULL_WARP, rises)) {
#pragma unroll
    for (int half = 0; half < ROWS / 8; half++) {
      const float rescale = exp2_approx(rows.m[half] - m[half]);
      rows.m[half] = m[half], rows.l[half] *= rescale;
      // O^T has rows of Q in its columns: a lane has those of 2 j and the next.
      const float even = __shfl_sync(FULL_WARP, rescale, lane % 4 * 8);
      const float odd = __shfl_sync(FULL_WARP, rescale, lane % 4 * 8 + 4);
#pragma unroll
      for (auto &o : rows.o[half]) o[0] *= even, o[1] *= odd, o[2] *= even, o[3] *= odd;
    }
  }
#pragma unroll
  for (int half = 0; half < ROWS / 8; half++) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
      const float p0 = exp2_approx(fmaf(s[n][2 * half], scales_log2[half], -rows.m[half]));
      const float p1 = exp2_approx(fmaf(s[n][2 * half + 1], scales_log2[half], -rows.m[half]));
      rows.l[half] += p0 + p1;
      probs[half][n] = pack<T>(p0, p1);
    }
  }
}

/** The columns of V that are rows of the fragments of O^T: of fragments 4 c to 4 c + 3, a lane has
 * eight neighbouring columns, from 64 c + lane / 4 * 8 on. */
struct Columns64 {
  static constexpr int PADDING = 16; /**< floats after a row of MmaParts */
  /** The first of the columns of a lane. */
  __device__ static __forceinline__ int first(int c, int lane) { return 64 * c + lane / 4 * 8; }
};

/** For parts whose rows need so many floats more, but whose columns are where they are. */
template <int FLOATS>
struct Padded {
  static constexpr int PADDING = FLOATS; /**< floats after a row of MmaParts */
};

/** The parts of all warps, in shared memory. Rows are longer than they need be, so that the lanes
 * that store_rows() serves together reach all banks. */
template <int HEAD_DIM, int ROWS, typename Columns, int PARTS = MMA_WARPS>
struct MmaParts {
  static constexpr int COLUMNS_OF_ROW = HEAD_DIM; /**< without those that nobody uses */
  static constexpr int MOST_ROWS = ROWS;          /**< of a row group */
  /** O of each part, not divided by l. */
  alignas(16) float o[PARTS][ROWS][HEAD_DIM + Columns::PADDING];
  float m[PARTS][ROWS]; /**< as in Part */
  float l[PARTS][ROWS]; /**< likewise */
};

/** Leaves the parts of this warp for the block, O times `factor`. A lane has the same eight columns
 * of rows lane % 4 and the fourth after it. Lanes that would reach the same banks begin with the
 * other four columns. */
template <typename Columns, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void store_rows(MmaParts<HEAD_DIM, ROWS, Columns> &parts,
                                           const MmaRows<HEAD_DIM, ROWS> &rows, int count,
                                           float factor) {
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const bool swaps = lane % 4 >= 2;
#pragma unroll
  for (int half = 0; half < ROWS / 8; half++) {
    const float l = lanes_reduce_sum<4>(rows.l[half]);
    if (lane % 4 == 0) {
      parts.m[warp][8 * half + row_of_lane(lane)] = rows.m[half];
      parts.l[warp][8 * half + row_of_lane(lane)] = l;
    }
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      const int row = 8 * half + lane % 4 + 4 * odd;
      if (row >= count) continue;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / 64; c++) {
        const auto *const o = &rows.o[half][4 * c];
        const float4 low = make_float4(o[0][odd] * factor, o[0][2 + odd] * factor,
                                       o[1][odd] * factor, o[1][2 + odd] * factor);
        const float4 high = make_float4(o[2][odd] * factor, o[2][2 + odd] * factor,
                                        o[3][odd] * factor, o[3][2 + odd] * factor);
        float4 *const to = (float4 *)&parts.o[warp][row][Columns::first(c, lane)];
        to[swaps] = swaps ? high : low;
        to[!swaps] = swaps ? low : high;
      }
    }
  }
}

/** Four columns of a part, or of several; at first without a key. */
struct ColumnSum {
  float4 o = {};      /**< O of these columns, times l */
  float m = -FLT_MAX; /**< as in Part */
  float l = 0.0f;     /**< likewise */
};

/** Adds parts. The largest m comes first, so that no exponential waits for another. */
template <int COUNT>
__device__ __forceinline__ void add_parts(ColumnSum &sum, const ColumnSum (&parts)[COUNT]) {
  float m = sum.m;
#pragma unroll
  for (const ColumnSum &part : parts) m = fmaxf(m, part.m);
  const float rescale = exp2_approx(sum.m - m);
  sum.m = m, sum.l *= rescale;
  sum.o.x *= rescale, sum.o.y *= rescale, sum.o.z *= rescale, sum.o.w *= rescale;
#pragma unroll
  for (const ColumnSum &part : parts) {
    const float factor = exp2_approx(part.m - m);
    sum.l += factor * part.l;
    sum.o.x += factor * part.o.x, sum.o.y += factor * part.o.y;
    sum.o.z += factor * part.o.z, sum.o.w += factor * part.o.w;
  }
}

/** What a softmax gives of which nothing is missing. */
__device__ __forceinline__ RowResult result_of(const ColumnSum &sum) {
  const float factor = sum.l == 0.0f ? 0.0f : 1.0f / sum.l;
  return {make_float4(sum.o.x * factor, sum.o.y * factor, sum.o.z * factor, sum.o.w * factor),
          sum.m + log2_approx(sum.l)};
}

/** Where a row of O and its LSE are. */
template <typename T>
struct ResultRow {
  T *o;       /**< its first column */
  float *lse; /**< of the row */
};

/** Those of a row of a row group. This divides, so it comes before what others wait for. */
template <typename T>
__device__ __forceinline__ ResultRow<T> result_row(const Problem &problem, const DecodeTensors &t,
                                                   const RowGroup &group, int row) {
  const QueryRow of = row_of_group(problem, group, group.first + row);
  const int head = of.head - group.batch * problem.q_heads;
  return {(T *)t.o + group.batch * problem.o_strides.batch + head * problem.o_strides.head +
              of.query * problem.o_strides.row,
          t.lse + (int64_t)of.head * problem.q_len + of.query};
}

/** Stores four columns of a row, and with the first of them LSE. */
template <typename T>
__device__ __forceinline__ void store_sum(const ResultRow<T> &row, int column,
                                          const ColumnSum &sum) {
  const RowResult result = result_of(sum);
  store_four(row.o + column, result.o);
  if (column == 0) *row.lse = result.lse_log2 * LN_2;
}

/** Merges the parts of all warps, in four columns of a row. */
template <int HEAD_DIM, int ROWS, typename Columns, int PARTS>
__device__ __forceinline__ ColumnSum
merge_row(const MmaParts<HEAD_DIM, ROWS, Columns, PARTS> &parts, int row, int column) {
  ColumnSum sum, warps[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    warps[i] = {*(const float4 *)&parts.o[i][row][column], parts.m[i][row], parts.l[i][row]};
  }
  add_parts(sum, warps);
  return sum;
}

/** Merges the parts of a row group. What the block does not have `whole` goes to keep_part(), as in
 * attend_share(). */
template <typename T, typename Parts, typename KeepPart>
__device__ __forceinline__ void merge_parts(const Problem &problem, const DecodeTensors &t,
                                            const Parts &parts, const RowGroup &group, bool whole,
                                            bool begins, KeepPart keep_part) {
  constexpr int FOURS = Parts::COLUMNS_OF_ROW / 4;
  for (int i = threadIdx.x; i < (group.end - group.first) * FOURS; i += MMA_THREADS) {
    const int row = i / FOURS, column = i % FOURS * 4;
    const ColumnSum sum = merge_row(parts, row, column);
    if (whole) {
      store_sum(result_row<T>(problem, t, group, row), column, sum);
    } else {
      keep_part(begins, row, column, sum);
    }
    if (Parts::MOST_ROWS * FOURS <= MMA_THREADS) break;  // so nvcc knows that there is no loop
  }
}

/** Looks up the page of each 16 keys of the next tile. A page has at least as many. */
template <int TILE>
__device__ __forceinline__ void find_pages(int (&found)[TILE / 16], const Walk &walk) {
  if (walk.tile >= walk.end || walk.last < 0) return;
  const int key = walk.first_key + walk.tile * TILE;
#pragma unroll
  for (int n = 0; n < TILE / 16; n++)
    found[n] = find_page(walk.pages, min(key + 16 * n, walk.last));
}

/** Of 16 keys: row 0 in K or V, and the last row that has a key. Instead of rows after it, a lane
 * loads this one again. Keys past the last have those of the last 16. */
template <typename T>
struct SixteenKeys {
  const T *row; /**< the first of them */
  int last;     /**< which of the 16 is the last one of the sequence */
};

/** Those from key `key` on; all are in one page. */
template <typename T>
__device__ __forceinline__ SixteenKeys<T> find_keys(const T *cache, const Strides &strides,
                                                    const Walk &walk, int page, int key) {
  key = min(key, walk.last & ~15);
  return {cache + walk.rows.kv_head * strides.head + row_offset(strides, walk.pages, page, key),
          walk.last - key};
}

/** What scores and O of a row group must be multiplied by. */
struct Scales {
  float scores_log2[2]; /**< of the scores of rows lane / 4 and lane / 4 + 8, in units of log2 */
  float o;              /**< of O */
};

/** Computes a share of all tiles. What the block does not finish alone goes to keep_part(): whether
 * the row group begins in this share, the row in it, a column, and the part in four columns.
 *
 * `Tile` is what a lane has of K and V of KEYS_OF_TILE keys. It comes with begin_rows(), load_k(),
 * load_v(), multiply_qk() and multiply_pv(). The next K is asked for as soon as S is computed, the
 * next V when O is, also across the end of a row group. */
template <typename T, typename Tile, int HEAD_DIM, int ROWS, typename KeepPart>
__device__ __forceinline__ void attend_share(
    const Problem &problem, const DecodeTensors &t,
    MmaParts<HEAD_DIM, ROWS, typename Tile::Columns> &warps, KeepPart keep_part) {
  constexpr int TILE = Tile::KEYS_OF_TILE;
  const auto *const k = (const typename Tile::Cache *)t.k, *const v =
                                                               (const typename Tile::Cache *)t.v;
  const Share share = ((const Share *)t.schedule)[blockIdx.x];
  if (share.tiles == 0) return;

  Walk walk = first_tile<TILE, ROWS>(problem, t, share);
  int found[TILE / 16] = {};
  Tile tile = {};
  MmaRows<HEAD_DIM, ROWS> rows;  // Q first: the first S needs it, and what is asked for last
  Scales scales = begin_rows(tile, (const T *)t.q, rows, problem, t, share.rows);
  find_pages<TILE>(found, walk);
  load_k(tile, problem, k, walk, found);
  load_v(tile, problem, v, walk, found);

  RowGroup group = share.rows;
  int length = share.length, first = share.first;
  for (int left = share.tiles, number = 0; left > 0; number++, first = 0) {
    const int all = tiles_of_sequence(problem, length, TILE).count, count = min(all - first, left);
    if (number > 0) scales = begin_rows(tile, (const T *)t.q, rows, problem, t, group);
    while (walk.number == number && walk.tile < walk.end) {
      const int key = walk.first_key + walk.tile * TILE;
      float s[TILE / 8][4] = {};
      multiply_qk(s, rows, tile);
      walk.tile += MMA_WARPS;
      skip_rows<TILE, ROWS>(walk, problem, t);
      find_pages<TILE>(found, walk);
      load_k(tile, problem, k, walk, found);
      if (needs_mask<TILE>(problem, length, key)) {
        mask_scores<ROWS, TILE>(s, problem, group, row_of_lane(threadIdx.x % WARP_SIZE), length,
                                key);
      }
      uint32_t probs[ROWS / 8][TILE / 8];
      add_scores<typename Tile::Prob, HEAD_DIM, ROWS, TILE>(probs, rows, s, scales.scores_log2);
      multiply_pv(rows, probs, tile);
      load_v(tile, problem, v, walk, found);
    }
    store_rows(warps, rows, group.end - group.first, scales.o);
    __syncthreads();  // the parts of all warps are there
    merge_parts<T>(problem, t, warps, group, count == all, first == 0, keep_part);
    left -= count;
    if (left == 0) break;
    __syncthreads();  // they have been read and can be overwritten
    group = next_rows<ROWS>(problem, group, share.stride);
    length = t.lengths[group.batch];
  }
}

/** Bytes of shared memory of a thread block: at least the parts of its warps. */
template <typename Config>
static int shared_bytes(const Config *c) {
  if (c->shared_bytes > 0) return c->shared_bytes;
  return c->rows * MMA_WARPS * (int)sizeof(float) * (c->head_dim + 16 + 2);
}

/** Step::supports: whether this GPU has the instructions and the shared memory, too. */
template <const auto &CONFIGS>
static bool supports_mma(const Problem *problem, char *why, size_t why_size) {
  if (!supports_decode<CONFIGS>(problem, why, why_size)) return false;
  const int minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  const int capability = 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + minor;
  const bool bf16 = problem->dtype == DTYPE_BF16;
  const int least = bf16 ? 80 : 75, bytes = shared_bytes(find_decode<CONFIGS>(problem));
  const int limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (capability < least) {
    snprintf(why, why_size, "this GPU has compute capability %d.%d: %s needs %d.%d%s",
             capability / 10, minor, step.name, least / 10, least % 10, bf16 ? " for bf16" : "");
  } else if (bytes > limit) {
    snprintf(why, why_size, "--head-dim %d: %s needs %d bytes of shared memory, this GPU has %d",
             problem->head_dim, step.name, bytes, limit);
  }
  return capability >= least && bytes <= limit;
}

/** Step::describe */
template <const auto &CONFIGS>
static void describe_mma(const Problem *problem, int heads, Description *description) {
  describe_shares<CONFIGS>(problem, heads, description);
  const auto *c = find_decode<CONFIGS>(problem);
  description->compute_capability = 75;
  description->launches[0].dynamic_shared_bytes = shared_bytes(c);
  description->launches[1].block = dim3(THREADS);
  description->launch_count = c->merge == NULL ? 1 : 2;
}

#endif
