/**
 * @file
 * Which rows of a row group a block merges, and which messages the others are.
 */
#ifndef DEVICE_DECODE_OWN_ROWS_CUH
#define DEVICE_DECODE_OWN_ROWS_CUH

#include "device/decode_shares.cuh"

/** The rows of its last row group that a block merges. */
struct OwnRows {
  int begin, end; /**< the first, and the one after the last */
};

/** Those of block number `number` of a row group: none for one that goes on to others. */
__device__ __forceinline__ OwnRows own_rows(const Share &share, int number) {
  const int rows = share.last.end - share.last.first, blocks = share.parts - share.goes_on;
  const int most = (rows + blocks - 1) / blocks;  // of a block
  return {min(number * most, rows), min((number + 1) * most, rows)};
}

/** Which message is that of a row that a block sends. Those of the rows before its own end at
 * `place`, and those of the rows behind begin there. From one block to the next, `place` is as many
 * messages further as a row group has rows at most. */
__device__ __forceinline__ int message_of_row(int place, const OwnRows &own, int row) {
  return place + row - (row < own.begin ? own.begin : own.end);
}

#endif
