/**
 * @file
 * Step 20h: messages from block to block, in a cluster.
 *
 * The idea: a message of step 20e goes to L2, and the block that waits for it asks L2 again and
 * again. But if all blocks that have tiles of a row group are a cluster, one can store a message
 * into the shared memory of the other. st.async does that without a wait, and an mbarrier of the
 * receiver counts the bytes. So nobody polls, no word has to say that it has arrived, and no place
 * has to be cleared, as long as messages go this way.
 *
 * What changed since step 20e: another kernel is launched, in clusters, if there is room for a
 * cluster for each row group. Which way a message takes is decided on the GPU, since the host does
 * not know the lengths: by st.async if the blocks of a row group are exactly the cluster.
 *
 * What it costs: clusters of 4 or 8 blocks do not fit on all SMs, so with 8 or 16 row groups only
 * half of them are used. These can read as much while a pass is short.
 *
 * What to look at: Meeting::here. Why do all blocks of a cluster have the same?
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_messages.cuh"
#include "device/decode_ring.cuh"
#include "device/decode_ring_share.cuh"
#include "device/decode_shares.cuh"
#include "device/ptx_cluster.cuh"

// [received]
constexpr int MOST_BLOCKS = 8; /**< of a cluster */

/** Messages of a row group that a block receives: those of each block of its cluster, itself too,
 * one block after the other. */
template <int HEAD_DIM, int ROWS>
struct Received {
  static constexpr int MOST = ROWS * HEAD_DIM / MESSAGE_COLUMNS + MOST_BLOCKS; /**< messages */
  float4 o[MOST][MESSAGE_COLUMNS / 4];                                         /**< as in Message */
  float4 m_and_l[MOST];                                                        /**< likewise */
  uint64_t arrived; /**< mbarrier: all of them have */
};

/** Shared memory of a thread block. */
template <typename Tile, int HEAD_DIM, int ROWS>
struct ClusterShared : RingShared<Tile, HEAD_DIM, ROWS> {
  Received<HEAD_DIM, ROWS> received; /**< from the cluster */
};
// [received]

// [meeting]
/** How the blocks of a cluster merge the last row group of their shares: of n blocks, each has
 * every n-th message. */
template <typename T>
struct Meeting {
  bool here; /**< they have all of its tiles, and no other block has */
  /** This block's number in the cluster, n, log2 of n, and messages: that a block merges at most,
   * and that this one does. */
  int rank, n, bits, most, own;
  ResultRow<T> row; /**< where this thread stores its four columns; found before the loop */
  int column;       /**< the first of them */
};

/** If it is `here` for one block, it is for all of them, since all have the same last row group. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ Meeting<T> find_meeting(const Problem &problem, const DecodeTensors &t,
                                                   const Share &share) {
  const int n = cluster_size(), rank = cluster_rank(), bits = __ffs(n) - 1;
  const int messages = (share.last.end - share.last.first) * HEAD_DIM / MESSAGE_COLUMNS;
  // It begins with the first block of a cluster, and the last one does not go on to another.
  const bool here = share.parts == n && (share.begin & (n - 1)) == 0 && !share.goes_on;
  const int message = ((int)threadIdx.x / 4 << bits) + rank;
  const int column = message * MESSAGE_COLUMNS + threadIdx.x % 4 * 4;
  const ResultRow<T> row = result_row<T>(problem, t, share.last, column / HEAD_DIM);
  const int most = (messages + n - 1) >> bits, own = (messages - rank + n - 1) >> bits;
  return {here, rank, n, bits, most, own, row, column % HEAD_DIM};
}
// [meeting]

// [send_there]
/** Sends four columns of a row group, counted over its rows, to the block that merges them. */
template <typename T, typename SomeReceived>
__device__ __forceinline__ void send_there(SomeReceived &received, const Meeting<T> &meeting,
                                           int column, const ColumnSum &part) {
  const int message = column / MESSAGE_COLUMNS, to = message & (meeting.n - 1);
  const int place = meeting.rank * meeting.most + (message >> meeting.bits);
  store_async(&received.o[place][column / 4 % 4].x, part.o, &received.arrived, to);
  if (column % MESSAGE_COLUMNS > 0) return;
  store_async(&received.m_and_l[place].x, make_float4(part.m, part.l, 1, 1), &received.arrived, to);
}
// [send_there]

// [merge_received]
/** Merges this block's columns, of which a thread has four. */
template <typename T, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void merge_received(const Meeting<T> &meeting,
                                               Received<HEAD_DIM, ROWS> &received) {
  static_assert(ROWS * HEAD_DIM / 4 <= 2 * MMA_THREADS, "each of two blocks has enough threads");
  const int number = threadIdx.x / 4;
  if (number >= meeting.own) return;    // the threads that wait keep the memory of this block
  mbarrier_wait(&received.arrived, 0);  // the messages of all blocks are there
  ColumnSum sum, parts[MOST_BLOCKS];
#pragma unroll
  for (int i = 0; i < MOST_BLOCKS; i++) {
    if (i >= meeting.n) break;
    const int place = i * meeting.most + number;
    const float4 m_and_l = received.m_and_l[place];
    parts[i] = {received.o[place][threadIdx.x % 4], m_and_l.x, m_and_l.y};
  }
  add_parts(sum, parts);
  store_sum(meeting.row, meeting.column, sum);
}
// [merge_received]

/** The whole decode pass; each block has a share of all tiles. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(MMA_THREADS, 1) decode_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(128) unsigned char smem[];
  const auto place = [&](int block, bool begins) {
    return (Message *)t.workspace + (2 * block + begins) * ROWS * HEAD_DIM / MESSAGE_COLUMNS;
  };
  const Share share = load_share(t);
  using Tile = LaneTile<T, HEAD_DIM, RING_KEYS<HEAD_DIM>>;
  attend_ring<T, Tile, HEAD_DIM, ROWS>(problem, t, share, *(RingShared<Tile, HEAD_DIM, ROWS> *)smem,
                                       place);
  if (share.parts < 2) return;
  merge_messages<T, HEAD_DIM>(problem, t, share, place, *(LaneSums *)smem);
}

// [cluster_kernel]
/** The same in clusters: the blocks of each row group are one if all sequences are equally long. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(MMA_THREADS, 1) cluster_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(128) unsigned char smem[];
  using Tile = LaneTile<T, HEAD_DIM, RING_KEYS<HEAD_DIM>>;
  auto &shared = *(ClusterShared<Tile, HEAD_DIM, ROWS> *)smem;
  auto &received = shared.received;
  if (threadIdx.x == 0) {
    mbarrier_init(&received.arrived, 1);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();  // this block has started, and its mbarrier can be used
  const auto place = [&](int block, bool begins) {
    return (Message *)t.workspace + (2 * block + begins) * ROWS * HEAD_DIM / MESSAGE_COLUMNS;
  };
  const Share share = load_share(t);
  Meeting<T> meeting = {};
  attend_ring<T, Tile, HEAD_DIM, ROWS>(
      problem, t, share, shared,
      [&](const RowGroup &group, bool whole, bool begins, bool goes_on) {
        if (!meeting.here || goes_on) {
          return send_parts<T, HEAD_DIM>(problem, t, shared.parts, group, whole, begins, place);
        }
        merge_parts<T>(problem, t, shared.parts, group, false, begins,
                       [&](bool, int row, int column, const ColumnSum &part) {
                         send_there(received, meeting, row * HEAD_DIM + column, part);
                       });
      },
      [&] {
        meeting = find_meeting<T, HEAD_DIM>(problem, t, share);
        if (!meeting.here) return touch_places<HEAD_DIM>(share, place);
        if (threadIdx.x == 0) {
          mbarrier_arrive_expect(&received.arrived, meeting.own * meeting.n * (int)sizeof(Message));
        }
        cluster_wait();  // all blocks have started
      });
  if (meeting.here) {
    merge_received(meeting, received);
  } else if (share.parts > 1) {
    merge_messages<T, HEAD_DIM>(problem, t, share, place, *(LaneSums *)smem);
  }
}
// [cluster_kernel]

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, MMA_THREADS, RING_KEYS<D>),
    NULL,
    1,
    (int)sizeof(Message) * ROWS *D / MESSAGE_COLUMNS,
    (int)sizeof(ClusterShared<LaneTile<T, D, RING_KEYS<D>>, D, ROWS>),
    cluster_kernel<T, D, ROWS>};

static constexpr SharesConfig CONFIGS[] = {
    CONFIG<__half, 64, 8>,         CONFIG<__half, 64, 16>,        CONFIG<__half, 128, 8>,
    CONFIG<__half, 128, 16>,       CONFIG<__half, 256, 8>,        CONFIG<__nv_bfloat16, 64, 8>,
    CONFIG<__nv_bfloat16, 64, 16>, CONFIG<__nv_bfloat16, 128, 8>, CONFIG<__nv_bfloat16, 128, 16>,
    CONFIG<__nv_bfloat16, 256, 8>};

// [launch]
/** Step::decode: launches blocks that wait for each other, in clusters if there is room for them.
 */
static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  const int blocks = cluster_blocks(c, problem);
  if (blocks == 1) return decode_together<CONFIGS>(problem, t, stream);
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const cudaError_t error = cudaFuncSetAttribute(
      c->clusters, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(c));
  if (error) return error;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = blocks;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = share_count(c, problem);
  config.blockDim = c->threads;
  config.dynamicSmemBytes = shared_bytes(c);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, c->clusters, *problem, *t);
}
// [launch]

const Step step = {
    .name = "step20h",
    .after = "step20e",
    .title = "Messages in a cluster",
    .idea =
        "Blocks that share a row group are a cluster, and store messages into each other's memory.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_ring<CONFIGS, false>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .workspace_zero = true,
    .describe = describe_ring<CONFIGS>,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
