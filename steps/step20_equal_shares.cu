/**
 * @file
 * Step 20: equal shares of all keys, whatever the lengths are.
 *
 * The idea: sequences of a batch have different lengths. If each is split into as many parts, the
 * parts of a long one take longer than those of a short one, and in the end most of the GPU waits
 * for the longest. So all tiles of keys of all row groups are put in one line, and the line is cut
 * into equal shares, one for each thread block. A share may begin and end in the middle of a row
 * group, and have several short row groups in between. (This is known as stream-K.)
 *
 * What changed since step 19: a schedule. Where a share begins depends on all lengths, so one small
 * kernel computes that for all blocks; a model needs it once for each token and uses it in all its
 * layers. A block loops over the row groups of its share. What it finishes alone, it stores. What
 * it does not, it leaves as a part, in a place of its own, and the second kernel merges the parts.
 * There are no atomics and each part has its place, so the result has the same bits every time.
 *
 * What it costs: a block has at most two parts, of its first and of its last row group. One row
 * group may be in all blocks, and then one block of the second kernel merges all parts.
 *
 * What to look at: share_of_block(). The same two lines say where block i begins and which block
 * has tile x.
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_part_places.cuh"
#include "device/decode_rows.cuh"
#include "device/decode_shares_launch.cuh"

// [share]
/** What a thread block has: `tiles` tiles from tile `first` of a row group on, where the tiles of
 * the row groups follow each other. */
struct alignas(16) Share {
  RowGroup rows;             /**< the row group of the first tile */
  int length;                /**< of its sequence */
  int first, tiles;          /**< tiles: 0 for a block that has nothing to do */
  RowGroup last;             /**< the row group of the last tile */
  int begin, parts, goes_on; /**< of that one: the block in which it begins, how many blocks have
                                tiles of it, and whether the last of them has others after it */
  int stride, unused;        /**< from a sequence to the one whose row group comes next; 16 bytes
                                can be loaded at a time */
};

/** The row group after `rows`: the same rows of the sequence `stride` further. After the last one
 * it is the next rows of the first sequence; a share goes on to them only if the stride is 1. */
template <int ROWS>
__device__ __forceinline__ RowGroup next_rows(const Problem &problem, RowGroup rows, int stride) {
  rows.batch += stride;
  if (rows.batch < problem.batch) return rows;
  const int all = problem.q_heads / problem.kv_heads * problem.q_len;
  rows = {0, rows.kv_head + (rows.end == all), rows.end == all ? 0 : rows.end, 0};
  rows.end = min(rows.first + ROWS, all);
  return rows;
}

/** The tiles of a sequence, counted from key 0; each of its row groups has as many. One without a
 * key has a tile, too, so that some block stores its O and LSE. */
struct SequenceTiles {
  int first, count; /**< the first with a key, and how many */
};

/** Those of a sequence of this length. The keys of a tile are a power of two. */
__device__ __forceinline__ SequenceTiles tiles_of_sequence(const Problem &problem, int length,
                                                           int tile) {
  const int first = keys_of_query(problem, length, 0).begin >> (__ffs(tile) - 1);
  const int end = keys_of_query(problem, length, problem.q_len - 1).end;
  return {first, max(((end + tile - 1) >> (__ffs(tile) - 1)) - first, 1)};
}
// [share]

// [share_of_block]
/** The row groups of a key/value head. */
__host__ __device__ inline int row_groups(const Problem &problem, int rows) {
  return (problem.q_heads / problem.kv_heads * problem.q_len + rows - 1) / rows;
}

/** Where a time is, if each tile takes 1. */
struct Place {
  int group, tile, count; /**< a row group of the line, which of its tiles, and how many it has;
                             tile is `count` after the last of them */
  int64_t begin, tiles;   /**< the time of the first one, and the tiles of the line before `tile` */
};

/** Each row group begins `more` later than if the end of one took no time. In the line, row groups
 * of `count` sequences follow each other, again and again. Looks for time x, from the beginning of
 * a row group on. */
__device__ __forceinline__ Place find_time(const Problem &problem, const int *lengths, int count,
                                           int tile, int more, int64_t x, Place place) {
  for (int sequence = place.group % count;; sequence = sequence + 1 < count ? sequence + 1 : 0) {
    place.count = tiles_of_sequence(problem, lengths[sequence], tile).count;
    if (x < place.begin + place.count + more) break;
    place.begin += place.count + more, place.group++;
  }
  place.tile = (int)min(x - place.begin, (int64_t)place.count);
  place.tiles = place.begin - (int64_t)more * place.group + place.tile;
  return place;
}

/** Block i of `blocks` begins at time i * time / blocks, rounded down, so that the
 * block with the tile at x is number ((x + 1) * blocks - 1) / time. */
__device__ __forceinline__ Share share_of_block(const Problem &problem, const int *lengths,
                                                int rows, int tile, int least_tiles, int blocks,
                                                int block) {
  // Row groups of each sequence, and of all.
  const int each = problem.kv_heads * row_groups(problem, rows), groups = each * problem.batch;
  int64_t time = 0;
  bool equal = true;  // all sequences have as many tiles
#pragma unroll 4
  for (int batch = 0; batch < problem.batch; batch++) {
    const int count = tiles_of_sequence(problem, lengths[batch], tile).count;
    time += count;
    equal = equal && count == tiles_of_sequence(problem, lengths[0], tile).count;
  }
  time *= each;
  blocks = (int)min((int64_t)blocks, max(time / least_tiles, (int64_t)1));  // the others have none
  if (equal) blocks = without_seams(blocks, groups);
  if (block >= blocks) return {};
  const int more = equal ? 0 : END_TILES;
  time += (int64_t)more * groups;
  Share share = {};
  // If each block has as many whole row groups, they are of sequences far apart, so that what all
  // blocks read at a time is close together.
  const bool whole = equal && groups % blocks == 0 && blocks % each == 0;
  share.stride = whole ? blocks / each : 1;
  const int count = problem.batch / share.stride;
  const int64_t begin = block * time / blocks, of_same = time / (each * share.stride);
  Place first = {(int)(begin / of_same) * count, 0, 0, begin / of_same * of_same, 0};
  first = find_time(problem, lengths, count, tile, more, begin, first);
  const Place last =
      find_time(problem, lengths, count, tile, more, (block + 1) * time / blocks - 1, first);
  share.tiles = (int)(last.tiles - first.tiles) + (last.tile < last.count);
  if (share.tiles == 0) return {};
  const auto rows_of = [&](int number) {  // row group `number` of the line
    return row_group(problem, rows, number % count * share.stride * each + number / count);
  };
  share.rows = rows_of(first.group + first.tile / first.count);  // at its end, the next one
  share.length = lengths[share.rows.batch];
  share.first = first.tile % first.count;
  share.last = rows_of(last.group);
  share.begin = (int)(((last.begin + 1) * blocks - 1) / time);
  share.parts = (int)(((last.begin + last.count) * blocks - 1) / time) - share.begin + 1;
  share.goes_on = (share.begin + share.parts) * time / blocks > last.begin + last.count + more;
  return share;
}
// [share_of_block]

// [schedule_kernel]
/** One thread for each block of the decode kernel. */
__global__ void __launch_bounds__(THREADS)
    schedule_kernel(Problem problem, const int *lengths, Share *shares, int rows, int tile,
                    int least_tiles, int blocks) {
  const int block = blockIdx.x * THREADS + threadIdx.x;
  if (block >= blocks) return;
  shares[block] = share_of_block(problem, lengths, rows, tile, least_tiles, blocks, block);
}
// [schedule_kernel]

// [decode_kernel]
/** The decode pass but for merging; each block has a share of all tiles. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(THREADS, blocks_per_sm(ROWS))
    decode_kernel(Problem problem, DecodeTensors t) {
  constexpr int TILE = TILE_KEYS<HEAD_DIM>;
  __shared__ WarpParts<HEAD_DIM> warps[ROWS];
  const Share share = ((const Share *)t.schedule)[blockIdx.x];
  auto *const places = (PartPlace<HEAD_DIM, ROWS> *)t.workspace;
  RowGroup rows = share.rows;
  int first = share.first;
  for (int left = share.tiles; left > 0;
       rows = next_rows<ROWS>(problem, rows, share.stride), first = 0) {
    const int length = t.lengths[rows.batch];
    const GroupKeys keys = keys_of_group(problem, rows, length);
    const SequenceTiles tiles = tiles_of_sequence(problem, length, TILE);
    const int count = min(tiles.count - first, left), begin = (tiles.first + first) * TILE;
    const KeyRange own = {max(keys.some.begin, begin), min(keys.some.end, begin + count * TILE)};
    attend_keys<T>(warps, problem, t, rows, own, keys.all, length);
    merge_block(warps, rows, [&](int row, int column, const RowResult &result) {
      if (count == tiles.count) {  // the block has all keys
        store_result<T>(problem, t, query_row(problem, rows, row), column, result);
        return;
      }
      PartPlace<HEAD_DIM, ROWS> &place = places[2 * blockIdx.x + (first == 0)];
      *(float4 *)&place.o[row - rows.first][column] = result.o;
      if (column == 0) place.lse_log2[row - rows.first] = result.lse_log2;
    });
    __syncthreads();  // the parts of the warps have been read and can be overwritten
    left -= count;
  }
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, THREADS, TILE_KEYS<D>),
    merge_kernel<Share, T, D, ROWS>, blocks_per_sm(ROWS), sizeof(PartPlace<D, ROWS>)};

#define CONFIGS_OF(T, D) CONFIG<T, D, 1>, CONFIG<T, D, 2>, CONFIG<T, D, 4>
static constexpr SharesConfig CONFIGS[] = {
    CONFIGS_OF(__half, 64),        CONFIGS_OF(__half, 128),        CONFIGS_OF(__half, 256),
    CONFIGS_OF(__nv_bfloat16, 64), CONFIGS_OF(__nv_bfloat16, 128), CONFIGS_OF(__nv_bfloat16, 256)};

static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  c->kernel<<<share_count(c, problem), THREADS, 0, stream>>>(*problem, *t);
  c->merge<<<share_count(c, problem), THREADS, 0, stream>>>(*problem, *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step20",
    .after = "step19",
    .title = "Equal shares of all keys",
    .idea = "All tiles of keys are in one line, cut into a share for each block by a schedule.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_decode<CONFIGS>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .describe = describe_shares<CONFIGS>,
    .decode = decode,
    .caches = CACHE_16_BIT,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
