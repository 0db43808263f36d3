/**
 * @file
 * What step 20 introduces: a schedule that gives each thread block an equal share of all keys,
 * places for the parts of row groups that end in another share, and the kernel that merges them.
 */
#ifndef DEVICE_DECODE_SHARES_CUH
#define DEVICE_DECODE_SHARES_CUH

#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_rows.cuh"
#include "device/decode_shares_launch.cuh"

// As in steps/step20_equal_shares.cu:

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

/** One thread for each block of the decode kernel. */
__global__ void __launch_bounds__(THREADS)
    schedule_kernel(Problem problem, const int *lengths, Share *shares, int rows, int tile,
                    int least_tiles, int blocks) {
  const int block = blockIdx.x * THREADS + threadIdx.x;
  if (block >= blocks) return;
  shares[block] = share_of_block(problem, lengths, rows, tile, least_tiles, blocks, block);
}

#endif
