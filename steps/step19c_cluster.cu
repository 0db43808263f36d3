/**
 * @file
 * Step 19c: the parts are merged in a cluster of thread blocks, through its shared memory.
 *
 * The idea: the blocks that have the parts of a row group can be a cluster. They run at the same
 * time, so no block has to find out whether it is the last; they meet at a barrier. And they reach
 * each other's shared memory, so the parts need not go through device memory. All of them merge:
 * each has a share of the rows and columns, and gets what the others have computed of it.
 *
 * What changed since step 19b: a part stores each share of its O into the shared memory of the
 * block that merges this share. No workspace, no atomics, and the launch has an attribute.
 *
 * What it costs: a cluster has eight blocks at most, so there are at most eight parts. That is too
 * few for one sequence with few key/value heads. All blocks of a cluster must fit at once, and each
 * waits for the slowest.
 *
 * What to look at: which of the three rules of docs/clusters.md each barrier is for.
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_rows.cuh"
#include "device/decode_split.cuh"
#include "device/ptx_cluster.cuh"

constexpr int MOST_BLOCKS = 8;  // of a cluster

// [received]
/** What a block merges, stored by all blocks of the cluster: its share of the rows and columns,
 * four columns at a time, and LSE of all rows. */
template <int HEAD_DIM, int ROWS>
struct Received {
  float4 o[ROWS * HEAD_DIM / 4 + MOST_BLOCKS];  // [part][share]
  float lse_log2[MOST_BLOCKS][ROWS];            // [part][row]
};
// [received]

// [merge_share]
/** Merges the parts of four columns of a row. */
template <int HEAD_DIM, int ROWS>
__device__ __forceinline__ RowResult merge_received(const Received<HEAD_DIM, ROWS> &received,
                                                    int parts, int share, int four, int row) {
  float m = -FLT_MAX, l = 0.0f;
  float4 o = make_float4(0, 0, 0, 0);
  for (int part = 0; part < parts; part++) m = fmaxf(m, received.lse_log2[part][row]);
  for (int part = 0; part < parts; part++) {
    const float factor = exp2_approx(received.lse_log2[part][row] - m);
    const float4 x = received.o[part * share + four];
    l += factor;
    o.x += factor * x.x, o.y += factor * x.y, o.z += factor * x.z, o.w += factor * x.w;
  }
  const float factor = l == 0.0f ? 0.0f : 1.0f / l;
  return {make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor), m + log2_approx(l)};
}
// [merge_share]

// [decode_kernel]
/** One cluster for up to ROWS rows of Q; each of its blocks has a part of the keys. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(THREADS, blocks_per_sm(ROWS))
    decode_kernel(Problem problem, DecodeTensors t) {
  constexpr int ROW_FOURS = HEAD_DIM / 4;
  __shared__ WarpParts<HEAD_DIM> warps[ROWS];
  __shared__ Received<HEAD_DIM, ROWS> received;
  cluster_arrive_relaxed();  // this block has started; it has written nothing yet
  const int parts = cluster_size(), part = cluster_rank();
  const RowGroup group = row_group(problem, ROWS, blockIdx.x / parts);
  const int length = t.lengths[group.batch];
  const GroupKeys keys = keys_of_group(problem, group, length);
  attend_keys<T>(warps, problem, t, group,
                 keys_of_part<TILE_KEYS<HEAD_DIM>>(keys.some, parts, part), keys.all, length);
  cluster_wait();  // all blocks have started: their shared memory may be used
  const int fours = (group.end - group.first) * ROW_FOURS, share = (fours + parts - 1) / parts;
  merge_block(warps, group, [&](int row, int column, const RowResult &result) {
    const int r = row - group.first, four = r * ROW_FOURS + column / 4;
    *cluster_map(&received.o[part * share + four % share], four / share) = result.o;
    if (column / 4 < parts) {
      *cluster_map(&received.lse_log2[part][r], column / 4) = result.lse_log2;
    }
  });
  cluster_sync();  // all parts are here, and nobody uses the memory of another block any more
  for (int i = threadIdx.x; i < min(share, fours - part * share); i += THREADS) {
    const int r = (part * share + i) / ROW_FOURS, column = (part * share + i) % ROW_FOURS * 4;
    store_result<T>(problem, t, query_row(problem, group, group.first + r), column,
                    merge_received(received, parts, share, i, r));
  }
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr DecodeConfig<> CONFIG = make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, THREADS,
                                                                 TILE_KEYS<D>);

#define CONFIGS_OF(T, D) CONFIG<T, D, 1>, CONFIG<T, D, 2>, CONFIG<T, D, 4>
static constexpr DecodeConfig<> CONFIGS[] = {
    CONFIGS_OF(__half, 64),        CONFIGS_OF(__half, 128),        CONFIGS_OF(__half, 256),
    CONFIGS_OF(__nv_bfloat16, 64), CONFIGS_OF(__nv_bfloat16, 128), CONFIGS_OF(__nv_bfloat16, 256)};

static int parts_of(const DecodeConfig<> *c, const Problem *problem) {
  return part_count(c, problem, MOST_BLOCKS, 0);
}

// [launch]
static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const DecodeConfig<> *c = find_decode<CONFIGS>(problem);
  const int parts = parts_of(c, problem);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = parts;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = row_blocks(c, problem) * parts;
  config.blockDim = THREADS;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, c->kernel, *problem, *t);
}
// [launch]

static bool supports(const Problem *problem, char *why, size_t why_size) {
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
  if (major >= 9) return supports_decode<CONFIGS>(problem, why, why_size);
  snprintf(why, why_size, "this GPU has compute capability %d.%d: %s needs 9.0 for clusters", major,
           device_attribute(cudaDevAttrComputeCapabilityMinor), step.name);
  return false;
}

const Step step = {
    .name = "step19c",
    .after = "step19b",
    .title = "Parts merged in a cluster",
    .idea = "Blocks of a cluster store their parts into each other's shared memory; all merge.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports,
    .describe =
        [](const Problem *problem, int, Description *description) {
          const int parts = parts_of(find_decode<CONFIGS>(problem), problem);
          describe_decode<CONFIGS>(problem, parts, description);
          description->compute_capability = 90;
        },
    .decode = decode,
    .caches = CACHE_16_BIT,
};
