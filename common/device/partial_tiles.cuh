/**
 * @file
 * The tiles of a block mask. A mask block holds several of the kernel's tiles, and each tile is
 * classified on its own: in a CAUSAL block, a tile on one side of the diagonal is unmasked or
 * skipped; in a PARTIAL block, a tile whose entries are all 1 or all 0 is. The other PARTIAL tiles
 * become bits.
 */
#ifndef DEVICE_PARTIAL_TILES_CUH
#define DEVICE_PARTIAL_TILES_CUH

#include "attention.h"
#include "block_mask.h"
#include "device/heads.cuh"

/** How a tile is masked. A value from 0 on is the number of a PARTIAL tile: its bits apply. Keys
 * past the last one are masked in every tile but an ALL_ATTENDED one, which has none. */
enum TileMask : int { ALL_ATTENDED = -1, PAST_THE_END = -2, CAUSAL_RULE = -3, NONE_ATTENDED = -4 };

/** The tiles of the PARTIAL blocks of a mask as bits, in device memory. */
struct PartialTiles {
  int block_m, block_n;  /**< of the kernel's tiles */
  int64_t partial_tiles; /**< of block_m x block_n, cut from the tiles of the mask's blocks */
  uint32_t *bits;        /**< [partial_tiles][block_m][block_n / 32] */
};

/** Number of the kernel's tiles in all PARTIAL blocks. */
static inline int64_t count_partial_tiles(const BlockMask &m, int block_m, int block_n) {
  return (int64_t)m.tile_count * (m.q_block_size / block_m) * (m.kv_block_size / block_n);
}

/** Bytes of the bits of all PARTIAL tiles. */
static inline size_t bytes_of_bits(const PartialTiles &tiles) {
  return (size_t)tiles.partial_tiles * tiles.block_m * (tiles.block_n / 8);
}

/** The bits of a PARTIAL tile. All tiles together may have more than 2^31 words. */
__device__ __forceinline__ uint32_t *bits_of_tile(const PartialTiles &tiles, int64_t tile) {
  return tiles.bits + tile * tiles.block_m * (tiles.block_n / 32);
}

/**
 * Packs the entries of PARTIAL blocks, one byte each, into bits; the first of 32 keys becomes the
 * lowest bit. One thread block per tile of the kernel.
 */
static __global__ void pack_bits_kernel(BlockMask m, PartialTiles tiles) {
  const int tiles_per_block = m.kv_block_size / tiles.block_n, words = tiles.block_n / 32;
  const int64_t first_row = (int64_t)(blockIdx.x / tiles_per_block) * tiles.block_m;
  const int first_key = blockIdx.x % tiles_per_block * tiles.block_n;
  for (int i = threadIdx.x; i < tiles.block_m * words; i += blockDim.x) {
    const uint8_t *bytes = m.partial_block_masks + (first_row + i / words) * m.kv_block_size +
                           first_key + i % words * 32;
    uint32_t word = 0;
    for (int j = 0; j < 32; j++) word |= (uint32_t)(bytes[j] != 0) << j;
    bits_of_tile(tiles, blockIdx.x)[i] = word;
  }
}

/** The TileMask of one tile inside a mask block; its queries are first_q to last_q. */
static __device__ int classify_tile(const Problem &problem, const PartialTiles &tiles, int type,
                                    int64_t partial, int first_q, int last_q, int first_key) {
  if (first_key >= problem.kv_len) return NONE_ATTENDED;
  if (type == BLOCK_CAUSAL) {
    if (first_key >= causal_keys(problem, last_q)) return NONE_ATTENDED;
    return first_key + tiles.block_n <= causal_keys(problem, first_q) ? ALL_ATTENDED : CAUSAL_RULE;
  }
  const bool ends_here = first_key + tiles.block_n > problem.kv_len;
  if (type == BLOCK_FULL) return ends_here ? PAST_THE_END : ALL_ATTENDED;
  const uint32_t *row = bits_of_tile(tiles, partial);
  uint32_t any = 0, all = ~0u;
  for (int q = 0; q < tiles.block_m; q++) {
    if (first_q + q > last_q) break;
    for (int word = 0; word < tiles.block_n / 32; word++) {
      const uint32_t bits = *row++;
      any |= bits;
      all &= bits;
    }
  }
  if (any == 0) return NONE_ATTENDED;
  return all == ~0u && !ends_here ? ALL_ATTENDED : (int)partial;
}

#endif
