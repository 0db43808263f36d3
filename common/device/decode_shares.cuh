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
  RowGroup rows;    /**< the row group of the first tile */
  int length;       /**< of its sequence */
  int first, tiles; /**< tiles: 0 for a block that has nothing to do */
  RowGroup last;    /**< the row group of the last tile */
  int begin, parts; /**< of that one: the block in which it begins, and how many blocks have tiles
                       of it */
  int unused[3];    /**< so that 16 bytes can be loaded at a time */
};

/** The row group after `rows`. */
template <int ROWS>
__device__ __forceinline__ RowGroup next_rows(const Problem &problem, RowGroup rows) {
  const int all = problem.q_heads / problem.kv_heads * problem.q_len;
  rows.first = rows.end == all ? 0 : rows.end;
  rows.end = min(rows.first + ROWS, all);
  if (rows.first > 0) return rows;
  if (++rows.kv_head == problem.kv_heads) rows.kv_head = 0, rows.batch++;
  return rows;
}

/** The tiles of a sequence, counted from key 0; each of its row groups has as many. One without a
 * key has a tile, too, so that some block stores its O and LSE. */
struct Tiles {
  int first, count; /**< the first with a key, and how many */
};

/** Those of a sequence of this length. */
__device__ __forceinline__ Tiles tiles_of_sequence(const Problem &problem, int length, int tile) {
  const int first = keys_of_query(problem, length, 0).begin / tile;
  const int end = keys_of_query(problem, length, problem.q_len - 1).end;
  return {first, max((end + tile - 1) / tile - first, 1)};
}

/** The row groups of a key/value head. */
__host__ __device__ inline int row_groups(const Problem &problem, int rows) {
  return (problem.q_heads / problem.kv_heads * problem.q_len + rows - 1) / rows;
}

/** Where tile number x of all is. */
struct Place {
  int group, tile;    /**< its row group, and which of the tiles of this it is */
  int64_t begin, end; /**< the numbers of the first tile of the row group, and after the last */
};

/** `groups` row groups of each sequence come one after the other. */
__device__ __forceinline__ Place find_tile(const Problem &problem, const int *lengths, int groups,
                                           int tile, int64_t x) {
  int64_t before = 0;  // tiles of the sequences before this one
  for (int batch = 0;; batch++) {
    const int count = tiles_of_sequence(problem, lengths[batch], tile).count;
    if (x < before + (int64_t)count * groups) {
      const int group = (int)((x - before) / count);
      const int64_t begin = before + (int64_t)group * count;
      return {batch * groups + group, (int)(x - begin), begin, begin + count};
    }
    before += (int64_t)count * groups;
  }
}

/** If row groups are equally long: the most blocks that have whole row groups each, or a row group
 * each has whole blocks; if that leaves a tenth of the blocks without work, all of them. */
__device__ __forceinline__ int without_seams(int blocks, int groups) {
  const int most =
      groups <= blocks ? blocks / groups * groups : groups / ((groups + blocks - 1) / blocks);
  const bool fits = groups <= blocks || groups % most == 0;
  return fits && 10 * most >= 9 * blocks ? most : blocks;
}

/** Block i of `blocks` has the tiles from i * tiles / blocks on, rounded down, so that the block
 * with tile x is number ((x + 1) * blocks - 1) / tiles. */
__device__ __forceinline__ Share share_of_block(const Problem &problem, const int *lengths,
                                                int rows, int tile, int least_tiles, int blocks,
                                                int block) {
  const int groups = problem.kv_heads * row_groups(problem, rows);
  const int longest = tiles_of_sequence(problem, lengths[0], tile).count;
  int64_t tiles = 0;
  bool equal = true;  // all sequences are as long
  for (int batch = 0; batch < problem.batch; batch++) {
    const int count = tiles_of_sequence(problem, lengths[batch], tile).count;
    tiles += (int64_t)count * groups;
    equal = equal && count == longest;
  }
  blocks = (int)min((int64_t)blocks, max(tiles / least_tiles, (int64_t)1));  // the others have none
  if (equal) blocks = without_seams(blocks, problem.batch * groups);
  if (block >= blocks) return {};
  const int64_t begin = block * tiles / blocks, end = (block + 1) * tiles / blocks;
  const auto block_with = [&](int64_t x) { return (int)(((x + 1) * blocks - 1) / tiles); };
  const Place first = find_tile(problem, lengths, groups, tile, begin);
  const Place last = find_tile(problem, lengths, groups, tile, end - 1);
  Share share = {};
  share.rows = row_group(problem, rows, first.group);
  share.length = lengths[share.rows.batch];
  share.first = first.tile, share.tiles = (int)(end - begin);
  share.last = row_group(problem, rows, last.group);
  share.begin = block_with(last.begin);
  share.parts = block_with(last.end - 1) - share.begin + 1;
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
