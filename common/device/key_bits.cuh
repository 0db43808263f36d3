/**
 * @file
 * A mask as words of bits, one for each row of S and 32 keys. A bit costs one instruction to test
 * and one to select, whatever the form of the mask.
 */
#ifndef DEVICE_KEY_BITS_CUH
#define DEVICE_KEY_BITS_CUH

#include <math.h>

#include "attention.h"
#include "block_mask.h"
#include "device/warp.cuh"

// [bits]
/** Which of the 32 keys from `first_key` on lie in a span, the first in the lowest bit. */
__device__ __forceinline__ uint32_t bits_of_span(const KeySpan &span, int first_key) {
  const int begin = max(span.first - first_key, 0), end = min(span.end - first_key, 32);
  if (begin >= end) return 0;
  return ~0u >> (32 - (end - begin)) << begin;
}

/** Sets the scores of masked keys to -inf: bit j of word w of a row is key 32 w + j of the tile. */
template <int N_FRAGMENTS, int WORDS>
__device__ __forceinline__ void apply_bits(float (&s)[N_FRAGMENTS][4],
                                           const uint32_t (&words)[2][WORDS]) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
      const uint32_t own = words[half][n / 4] >> lane % 4 * 2;  // bit 0 is this lane's first key
#pragma unroll
      for (int c = 0; c < 2; c++) {
        if ((own & 1u << (n % 4 * 8 + c)) == 0) s[n][2 * half + c] = -INFINITY;
      }
    }
  }
}
// [bits]

#endif
