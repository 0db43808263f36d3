/**
 * @file
 * From a decode problem to the kernels of step 20 and later: how many blocks have shares, and what
 * they need. Readers of the kernels can skip this file.
 */
#ifndef DEVICE_DECODE_SHARES_LAUNCH_CUH
#define DEVICE_DECODE_SHARES_LAUNCH_CUH

#include "device/decode_launch.cuh"

constexpr int LEAST_KEYS = 128;     /**< of a share */
constexpr int MOST_BYTES = 4000000; /**< of all parts */

/** Both kernels for a type, a head dimension and a number of rows. */
struct SharesConfig : DecodeConfig<> {
  void (*merge)(Problem, DecodeTensors); /**< the second kernel, or NULL */
  int per_sm;                            /**< thread blocks that an SM has room for */
  int part_bytes;                        /**< of a part in the workspace */
};

/** Thread blocks: as many as the GPU has room for at a time, if their parts are not too large. */
static int block_count(const SharesConfig *c) {
  const int room = device_attribute(cudaDevAttrMultiProcessorCount) * c->per_sm;
  return min(room, MOST_BYTES / (2 * c->part_bytes));
}

/** Step::describe */
template <const auto &CONFIGS>
static void describe_shares(const Problem *problem, int, Description *description) {
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  describe_decode<CONFIGS>(problem, 1, description);
  description->launches[0].grid = dim3(block_count(c));
  description->launch_count = 2;
  description->launches[1] = {"merge", (const void *)c->merge, dim3(block_count(c)),
                              dim3(c->threads)};
}

/** Step::workspace_bytes: two parts for each block. */
template <const auto &CONFIGS>
static size_t parts_bytes(const Problem *problem) {
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  return (size_t)2 * block_count(c) * c->part_bytes;
}

/** Step::schedule_bytes */
template <const auto &CONFIGS, typename Share>
static size_t shares_bytes(const Problem *problem) {
  return sizeof(Share) * block_count(find_decode<CONFIGS>(problem));
}

#endif
