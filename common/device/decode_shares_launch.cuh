/**
 * @file
 * From a decode problem to the kernels of step 20 and later: how many blocks have shares, and what
 * they need. Readers of the kernels can skip this file.
 */
#ifndef DEVICE_DECODE_SHARES_LAUNCH_CUH
#define DEVICE_DECODE_SHARES_LAUNCH_CUH

#include "device/decode_launch.cuh"
#include "device/decode_rows.cuh"

constexpr int LEAST_KEYS = 128;     /**< of a share */
constexpr int END_TILES = 6;        /**< the end of a row group takes as long as these */
constexpr int MOST_BYTES = 4000000; /**< of all parts and shares */
constexpr int SHARE_BYTES = 64;     /**< sizeof(Share) */

/** Both kernels for a type, a head dimension and a number of rows. */
struct SharesConfig : DecodeConfig<> {
  void (*merge)(Problem, DecodeTensors); /**< the second kernel, or NULL */
  int per_sm;                            /**< thread blocks that an SM has room for */
  int part_bytes;                        /**< of a part in the workspace */
  int shared_bytes;                      /**< of a thread block; 0: those of MmaParts */
  bool large_parts;                      /**< the workspace need not have two for each block */
};

/** If row groups are equally long: the most blocks that have whole row groups each, or a row group
 * each has whole blocks; if that leaves a tenth of the blocks without work, all of them. */
__device__ __forceinline__ int without_seams(int blocks, int groups) {
  const int most =
      groups <= blocks ? blocks / groups * groups : groups / ((groups + blocks - 1) / blocks);
  const bool fits = groups <= blocks || groups % most == 0;
  return fits && 10 * most >= 9 * blocks ? most : blocks;
}

/** Parts of so many bytes that the workspace has room for: it has 4 MB, or 1 % of the cache. */
__host__ __device__ inline int places_for_parts(const Problem &problem, int blocks, int bytes) {
  const int64_t cache = (int64_t)4 * problem.batch * problem.kv_heads * problem.kv_len *
                        problem.head_dim;  // bytes, if the elements have 16 bits
  const int64_t most =
      (cache / 100 > MOST_BYTES ? cache / 100 : MOST_BYTES) - (int64_t)blocks * SHARE_BYTES;
  return most / bytes < 2 * blocks ? (int)(most / bytes) : 2 * blocks;
}

/** The place of a block's part of a row group, of `rows` rows, as blocks_with_shares() has it. */
__device__ __forceinline__ int place_of_part(const Problem &problem, int rows, int places,
                                             int block, bool begins, const RowGroup &group) {
  const int of_head = (problem.q_heads / problem.kv_heads * problem.q_len + rows - 1) / rows;
  if (problem.batch * problem.kv_heads * of_head > places / 2) return 2 * block + begins;
  // From one part to the next, the block or the row group is the next one.
  return block + (group.batch * problem.kv_heads + group.kv_head) * of_head + group.first / rows;
}

/** The blocks that have shares, of `blocks` that run at the same time. The workspace has `places`
 * for parts: two for each block, or one for each and one more for each row group. Without seams,
 * blocks with whole row groups need none. */
__device__ __forceinline__ int blocks_with_shares(int blocks, int groups, bool equal, int places) {
  const int few = min(blocks, groups > places / 2 ? places / 2 : places - groups);
  if (!equal) return few;
  const int whole = groups / ((groups + blocks - 1) / blocks);
  return max(without_seams(few, groups), groups % whole == 0 ? whole : 0);
}

/** Thread blocks: as many as the GPU has room for at a time, if their parts are not too large. */
static int block_count(const SharesConfig *c) {
  const int room = device_attribute(cudaDevAttrMultiProcessorCount) * c->per_sm;
  return c->large_parts ? room : min(room, MOST_BYTES / (2 * c->part_bytes + SHARE_BYTES));
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

/** Places for parts: two for each block, or as many as there is room for. */
static int place_count(const SharesConfig *c, const Problem *problem) {
  const int blocks = block_count(c);
  return c->large_parts ? places_for_parts(*problem, blocks, c->part_bytes) : 2 * blocks;
}

/** Step::workspace_bytes */
template <const auto &CONFIGS>
static size_t parts_bytes(const Problem *problem) {
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  return (size_t)place_count(c, problem) * c->part_bytes;
}

/** Step::schedule_bytes */
template <const auto &CONFIGS, typename Share>
static size_t shares_bytes(const Problem *problem) {
  static_assert(sizeof(Share) == SHARE_BYTES, "block_count() counts them");
  return sizeof(Share) * block_count(find_decode<CONFIGS>(problem));
}

/** Step::schedule: KERNEL has a thread for each block of the decode kernel. */
template <const auto &CONFIGS, typename Share,
          void (*KERNEL)(Problem, const int *, Share *, int, int, int, int, int)>
static cudaError_t schedule_shares(const Problem *problem, const DecodeTensors *t,
                                   cudaStream_t stream) {
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  const int blocks = block_count(c);
  cudaLaunchConfig_t config = {};
  config.gridDim = (blocks + THREADS - 1) / THREADS;
  config.blockDim = THREADS;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, KERNEL, *problem, t->lengths, (Share *)t->schedule, c->rows,
                            c->keys, (LEAST_KEYS + c->keys - 1) / c->keys, blocks,
                            place_count(c, problem));
}

#endif
