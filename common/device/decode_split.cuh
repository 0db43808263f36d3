/**
 * @file
 * What step 19 introduces: into how many parts the keys are split, where the parts are, and how
 * several of them are merged.
 */
#ifndef DEVICE_DECODE_SPLIT_CUH
#define DEVICE_DECODE_SPLIT_CUH

#include <limits.h>

#include "device/decode_launch.cuh"
#include "device/decode_rows.cuh"

// As in steps/step19_split.cu:

constexpr int START_KEYS = 64;  /**< the start and the end of a block take as long as these */
constexpr int MOST_PARTS = 256; /**< of a row group */

/** Rows of O, and so of each part. */
__host__ __device__ inline int64_t row_count(const Problem &problem) {
  return (int64_t)problem.batch * problem.q_heads * problem.q_len;
}

/** Parts of the keys of each row group, at most `most`: the number that takes the least time,
 * counted in keys. Merging a part takes as long as `merge_keys`. The workspace of the parts is at
 * most 4 MB, or 1 % of the cache. */
template <typename Config>
static int part_count(const Config *config, const Problem *problem, int most, int merge_keys) {
  const int keys = problem->window > 0 && problem->window < problem->kv_len
                       ? problem->window + problem->q_len - 1
                       : problem->kv_len;
  const int64_t head_bytes = (int64_t)4 * problem->head_dim * problem->kv_len;  // of K and V
  const int64_t most_bytes =
      max(problem->batch * problem->kv_heads * head_bytes / 100, (int64_t)4000000);
  const int64_t bytes_of_part = row_count(*problem) * (problem->head_dim + 1) * sizeof(float);
  const int row_groups = row_blocks(config, problem);
  const int tiles = (keys + config->keys - 1) / config->keys;
  const int room = device_attribute(cudaDevAttrMultiProcessorCount) * blocks_per_sm(config->rows);
  const int limit = (int)min((int64_t)min(most, tiles), most_bytes / bytes_of_part);
  int best = 1, least = INT_MAX;
  for (int parts = 1; parts == 1 || parts <= limit; parts++) {
    const int waves = (row_groups * parts + room - 1) / room;
    const int part_keys = (tiles + parts - 1) / parts * config->keys;
    const int time = waves * (part_keys + START_KEYS) + (parts > 1 ? parts * merge_keys : 0);
    if (time < least) best = parts, least = time;
  }
  return best;
}

/** The keys of part `part` of `parts`, whole tiles of TILE keys but for the last one. A part may
 * have none. */
template <int TILE>
__device__ __forceinline__ KeyRange keys_of_part(KeyRange keys, int parts, int part) {
  const int tiles = (max(keys.end - keys.begin, 0) + TILE - 1) / TILE;
  const int size = (tiles + parts - 1) / parts * TILE;
  return {keys.begin + part * size, min(keys.begin + (part + 1) * size, keys.end)};
}

/** The parts of a row in the workspace. */
struct RowParts {
  float *o;        /**< [parts][head_dim] */
  float *lse_log2; /**< [parts], in units of log2 */
};

/** Bytes of the parts of all rows. One part needs none: its result is O. */
static inline size_t part_bytes(const Problem *problem, int parts) {
  if (parts == 1) return 0;
  return sizeof(float) * row_count(*problem) * parts * (problem->head_dim + 1);
}

/** Those of a row of O. */
__device__ __forceinline__ RowParts parts_of_row(const Problem &problem, void *workspace, int parts,
                                                 const QueryRow &row) {
  const int64_t first = ((int64_t)row.head * problem.q_len + row.query) * parts;
  float *const o = (float *)workspace;
  return {o + first * problem.head_dim, o + row_count(problem) * parts * problem.head_dim + first};
}

/** Adds every `every`-th part from `first` on: O of a part is its row of V, and LSE its score. */
template <int HEAD_DIM>
__device__ __forceinline__ void merge_slice(Part &sum, const RowParts &row, int parts, int first,
                                            int every, int column) {
  for (; first < parts; first += KEYS * every) {
    float s[KEYS];
    float4 o[KEYS][2];
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      const int part = first + i * every;
      s[i] = part < parts ? row.lse_log2[part] : -INFINITY;
      const float4 *const source = (const float4 *)&row.o[min(part, parts - 1) * HEAD_DIM + column];
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
}

#endif
