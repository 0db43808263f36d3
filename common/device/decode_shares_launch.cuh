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
/** Of K and V: on an H100, a block of a cluster reads so much as fast as two blocks read half of
 * it. */
constexpr double MOST_BYTES_OF_BLOCK = 2.2e6;

/** Both kernels for a type, a head dimension and a number of rows; `Extra` as in DecodeConfig. */
template <typename... Extra>
struct SharesConfigWith : DecodeConfig<Extra...> {
  void (*merge)(Problem, DecodeTensors);    /**< the second kernel, or NULL */
  int per_sm;                               /**< thread blocks that an SM has room for */
  int part_bytes;                           /**< of a part in the workspace */
  int shared_bytes;                         /**< of a thread block; 0: those of MmaParts */
  void (*clusters)(Problem, DecodeTensors); /**< the kernel if the blocks of a row group are a
                                               cluster, or NULL */
};
using SharesConfig = SharesConfigWith<>; /**< of kernels without more parameters */

/** If row groups are equally long: the most blocks that have whole row groups each, or a row group
 * each has whole blocks; if that leaves a tenth of the blocks without work, all of them. */
__host__ __device__ inline int without_seams(int blocks, int groups) {
  const int most =
      groups <= blocks ? blocks / groups * groups : groups / ((groups + blocks - 1) / blocks);
  const bool fits = groups <= blocks || groups % most == 0;
  return fits && 10 * most >= 9 * blocks ? most : blocks;
}

/** Thread blocks: as many as the GPU has room for at a time, if their parts are not too large.
 * Blocks that would have no share if row groups are equally long are not launched, because the GPU
 * leaves as many SMs of each half without work then. */
template <typename Config>
static int most_shares(const Config *c, const Problem *problem) {
  const int room = device_attribute(cudaDevAttrMultiProcessorCount) * c->per_sm;
  return without_seams(min(room, MOST_BYTES / (2 * c->part_bytes + SHARE_BYTES)),
                       row_blocks(c, problem));
}

/** Blocks of a cluster, those of a row group; 1: no clusters. Two find room on two neighbouring
 * SMs. Clusters of 4 or 8 do not fit on all SMs of a GPU, but on half of them. So each block reads
 * twice as much, which takes no longer if it is little and not in pages. */
template <typename Config>
static int cluster_blocks(const Config *c, const Problem *problem) {
  const int groups = row_blocks(c, problem), sms = device_attribute(cudaDevAttrMultiProcessorCount);
  if (c->clusters == NULL) return 1;
  if (most_shares(c, problem) == 2 * groups) return 2;
  if (problem->page_size > 0) return 1;
  const bool window = problem->window > 0 && problem->window < problem->kv_len;
  const int most = window ? problem->window + problem->q_len : problem->kv_len;
  const double bytes = 4.0 * groups * min(problem->kv_len, most) * c->head_dim;
  for (int size = 8; size >= 4; size /= 2) {
    const int blocks = size * groups;
    const bool fits = 2 * blocks <= sms, suffices = 20 * blocks >= 9 * sms;
    if (fits && suffices && bytes <= MOST_BYTES_OF_BLOCK * blocks) return size;
  }
  return 1;
}

/** Thread blocks of the decode kernel. */
template <typename Config>
static int share_count(const Config *c, const Problem *problem) {
  const int size = cluster_blocks(c, problem);
  return size > 1 ? size * row_blocks(c, problem) : most_shares(c, problem);
}

/** Step::describe */
template <const auto &CONFIGS>
static void describe_shares(const Problem *problem, int, Description *description) {
  const auto *c = find_decode<CONFIGS>(problem);
  describe_decode<CONFIGS>(problem, 1, description);
  if (cluster_blocks(c, problem) > 1) description->launches[0].kernel = (const void *)c->clusters;
  description->launches[0].grid = dim3(share_count(c, problem));
  description->launch_count = 2;
  description->launches[1] = {"merge", (const void *)c->merge, dim3(share_count(c, problem)),
                              dim3(c->threads)};
}

/** Step::workspace_bytes */
template <const auto &CONFIGS>
static size_t parts_bytes(const Problem *problem) {
  const auto *c = find_decode<CONFIGS>(problem);
  return (size_t)2 * share_count(c, problem) * c->part_bytes;
}

/** Step::schedule_bytes */
template <const auto &CONFIGS, typename Share>
static size_t shares_bytes(const Problem *problem) {
  static_assert(sizeof(Share) == SHARE_BYTES, "share_count() counts them");
  return sizeof(Share) * share_count(find_decode<CONFIGS>(problem), problem);
}

/** Step::schedule: KERNEL has a thread for each block of the decode kernel. */
template <const auto &CONFIGS, typename Share,
          void (*KERNEL)(Problem, const int *, Share *, int, int, int, int)>
static cudaError_t schedule_shares(const Problem *problem, const DecodeTensors *t,
                                   cudaStream_t stream) {
  const auto *c = find_decode<CONFIGS>(problem);
  const int blocks = share_count(c, problem);
  cudaLaunchConfig_t config = {};
  config.gridDim = (blocks + THREADS - 1) / THREADS;
  config.blockDim = THREADS;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, KERNEL, *problem, t->lengths, (Share *)t->schedule, c->rows,
                            c->keys, (LEAST_KEYS + c->keys - 1) / c->keys, blocks);
}

#endif
