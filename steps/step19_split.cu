/**
 * @file
 * Step 19: the keys are split over thread blocks, and a second kernel merges the parts.
 *
 * The idea: one sequence with 8 key/value heads has 8 row groups, and a GPU has over a hundred SMs.
 * The softmax of a row can be computed in parts, so the keys of each row group are divided among
 * several blocks. Each leaves O of its keys and their LSE in device memory, and a second kernel
 * merges them: with O_p and LSE_p of part p, O is the sum of e^(LSE_p - LSE) O_p. That is attention
 * once more: each part is a key whose score is LSE_p and whose row of V is O_p.
 *
 * What changed since step 18b: `parts` blocks for each row group, and merge_kernel(). How many
 * parts? If an SM has room for four blocks, 132 of them have room for 528. 512 blocks fill the GPU
 * once, in one wave; 529 are two waves, and in the second most of it is empty. The more parts, the
 * shorter is each, but each has a start and an end. part_count() estimates the time of each number
 * of parts, in keys, and takes the best.
 *
 * What it costs: the parts are written and read again, four bytes for each column. The second
 * kernel takes its launch.
 *
 * What to look at: merge_kernel() has the same functions as the loop over keys. The lengths are in
 * device memory, so part_count() knows the longest only: a short sequence has short parts.
 */
#include <limits.h>

#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_rows.cuh"

// [part_count]
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
// [part_count]

// [parts]
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
// [parts]

// [decode_kernel]
/** One thread block for a part of the keys of up to ROWS rows of Q. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(THREADS, blocks_per_sm(ROWS))
    decode_kernel(Problem problem, DecodeTensors t, int parts) {
  __shared__ WarpParts<HEAD_DIM> warps[ROWS];
  const RowGroup group = row_group(problem, ROWS, blockIdx.x / parts);
  const int part = blockIdx.x % parts, length = t.lengths[group.batch];
  const GroupKeys keys = keys_of_group(problem, group, length);
  attend_keys<T>(warps, problem, t, group,
                 keys_of_part<TILE_KEYS<HEAD_DIM>>(keys.some, parts, part), keys.all, length);
  merge_block(warps, group, [&](int row, int column, const RowResult &result) {
    const QueryRow of = query_row(problem, group, row);
    if (parts == 1) {
      store_result<T>(problem, t, of, column, result);
      return;
    }
    const RowParts to = parts_of_row(problem, t.workspace, parts, of);
    *(float4 *)&to.o[part * HEAD_DIM + column] = result.o;
    if (column == 0) to.lse_log2[part] = result.lse_log2;
  });
}
// [decode_kernel]

// [merge_slice]
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
// [merge_slice]

// [merge_kernel]
/** One thread block for each row of O. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS)
    merge_kernel(Problem problem, DecodeTensors t, int parts) {
  constexpr int LANES = HEAD_DIM / COLUMNS;
  __shared__ WarpParts<HEAD_DIM> warps;
  const QueryRow of = {(int)blockIdx.x / problem.q_len, (int)blockIdx.x % problem.q_len};
  Part sum = EMPTY_PART;
  merge_slice<HEAD_DIM>(sum, parts_of_row(problem, t.workspace, parts, of), parts,
                        threadIdx.x / LANES, THREADS / LANES, threadIdx.x % LANES * COLUMNS);
  merge_lanes<LANES>(sum);
  store_part(warps, sum);
  __syncthreads();  // the parts of all warps are there
  const int column = 4 * threadIdx.x;
  if (column < HEAD_DIM) store_result<T>(problem, t, of, column, merge_warps(warps, column));
}
// [merge_kernel]

/** Both kernels for a type, a head dimension and a number of rows. */
struct Config : DecodeConfig<int> {
  void (*merge)(Problem, DecodeTensors, int);
};

template <typename T, int D, int ROWS>
constexpr Config CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, THREADS, TILE_KEYS<D>),
    merge_kernel<T, D>};

#define CONFIGS_OF(T, D) CONFIG<T, D, 1>, CONFIG<T, D, 2>, CONFIG<T, D, 4>
static constexpr Config CONFIGS[] = {
    CONFIGS_OF(__half, 64),        CONFIGS_OF(__half, 128),        CONFIGS_OF(__half, 256),
    CONFIGS_OF(__nv_bfloat16, 64), CONFIGS_OF(__nv_bfloat16, 128), CONFIGS_OF(__nv_bfloat16, 256)};

static int parts_of(const Config *c, const Problem *problem) {
  return part_count(c, problem, MOST_PARTS, 0);
}

static void describe(const Problem *problem, int, Description *description) {
  const Config *c = find_decode<CONFIGS>(problem);
  const int parts = parts_of(c, problem);
  describe_decode<CONFIGS>(problem, parts, description);
  if (parts == 1) return;
  description->launches[description->launch_count++] = {"merge", (const void *)c->merge,
                                                        dim3(row_count(*problem)), dim3(THREADS)};
}

static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const Config *c = find_decode<CONFIGS>(problem);
  const int parts = parts_of(c, problem);
  c->kernel<<<row_blocks(c, problem) * parts, THREADS, 0, stream>>>(*problem, *t, parts);
  if (parts > 1) c->merge<<<row_count(*problem), THREADS, 0, stream>>>(*problem, *t, parts);
  return cudaGetLastError();
}

const Step step = {
    .name = "step19",
    .after = "step18b",
    .title = "Keys split over thread blocks",
    .idea = "Blocks compute parts of a softmax, and a second kernel merges them by their LSE.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_decode<CONFIGS>,
    .workspace_bytes =
        [](const Problem *problem) {
          return part_bytes(problem, parts_of(find_decode<CONFIGS>(problem), problem));
        },
    .describe = describe,
    .decode = decode,
    .caches = CACHE_16_BIT,
};
