/**
 * @file
 * Step 20d: parts as messages, and one launch.
 *
 * The idea: in a short pass, what comes after the last key takes as long as the keys. A second
 * kernel starts only when all blocks of the first have ended, and a counter (step 19b) needs a
 * fence, an atomic and a load, one after the other, each of which goes to L2 and back. But all
 * blocks run at the same time anyway. So each tells the others directly what it has computed: it
 * stores eight columns of a part and their LSE, a message, and the block that merges these columns
 * loads the message again and again until it is there. No word of a message is 0, and places of
 * messages are 0 before and after each pass. So each word says itself that it has arrived, and
 * nothing has to be ordered.
 *
 * What changed since step 20c: the blocks whose shares end with a row group merge it, each some of
 * its columns. Neighbouring lanes have the parts of the same eight columns, which they load at the
 * same time; shuffles merge them, always in the same order. The launch is cooperative: it says that
 * blocks wait for each other, so that they all run at the same time or not at all.
 *
 * What it costs: a block that waits uses an SM, and messages are half as large again as the parts.
 *
 * What to look at: receive(). Why may the words of a message arrive in any order?
 */
#include "decode.h"
#include "device/decode_lane_tile.cuh"
#include "device/decode_launch.cuh"
#include "device/decode_mma.cuh"
#include "device/decode_shares.cuh"

// [message]
/** Eight columns of a part of a row, and its LSE in the last four words. */
struct Message {
  float4 o[2], lse_log2; /**< no word is 0 when it is there */
};

/** The same number, but not with all bits 0. */
__device__ __forceinline__ float never_zero(float x) {
  return x == 0.0f ? -0.0f : x;
}

/** Whether these words of a message have arrived. */
__device__ __forceinline__ bool is_there(const float4 &words) {
  return __float_as_uint(words.x) != 0 && __float_as_uint(words.y) != 0 &&
         __float_as_uint(words.z) != 0 && __float_as_uint(words.w) != 0;
}

/** Sends four columns, and with the first of eight LSE. */
__device__ __forceinline__ void send(Message *row, int column, const RowResult &part) {
  Message &to = row[column / COLUMNS];
  store_relaxed(&to.o[column / 4 % 2], make_float4(never_zero(part.o.x), never_zero(part.o.y),
                                                   never_zero(part.o.z), never_zero(part.o.w)));
  if (column % COLUMNS > 0) return;
  store_relaxed(&to.lse_log2, make_float4(never_zero(part.lse_log2), 1, 1, 1));
}

/** Loads a message, which may not be there yet. */
__device__ __forceinline__ void load_message(Message &message, const Message *from) {
  message.o[0] = load_relaxed(&from->o[0]);
  message.o[1] = load_relaxed(&from->o[1]);
  message.lse_log2 = load_relaxed(&from->lse_log2);
}

/** Waits for a message that has been loaded once, and leaves its place 0 for the next pass. */
__device__ __forceinline__ void receive(Message &message, Message *from) {
  while (!is_there(message.o[0]) || !is_there(message.o[1]) || !is_there(message.lse_log2)) {
    load_message(message, from);
  }
  const float4 zero = make_float4(0, 0, 0, 0);
  store_relaxed(&from->o[0], zero);
  store_relaxed(&from->o[1], zero);
  store_relaxed(&from->lse_log2, zero);
}
// [message]

// [merge_neighbours]
/** Merges `width` neighbouring lanes; each gets the result. */
__device__ __forceinline__ void merge_neighbours(Part &part, int width) {
  float m = part.m;
  for (int distance = 1; distance < width; distance *= 2) {
    m = fmaxf(m, __shfl_xor_sync(FULL_WARP, m, distance));
  }
  const float rescale = exp2_approx(part.m - m);
  part.m = m;
  part.l *= rescale;
#pragma unroll
  for (float &o : part.o) o *= rescale;
  for (int distance = 1; distance < width; distance *= 2) {
    part.l += __shfl_xor_sync(FULL_WARP, part.l, distance);
#pragma unroll
    for (float &o : part.o) o += __shfl_xor_sync(FULL_WARP, o, distance);
  }
}

/** Divides by l and stores eight columns of a row. */
template <typename T>
__device__ __forceinline__ void store_part(const Problem &problem, const DecodeTensors &t,
                                           QueryRow of, int column, const Part &part) {
  const float factor = part.l == 0.0f ? 0.0f : 1.0f / part.l;
  const float lse_log2 = part.m + log2_approx(part.l);
  for (int c = 0; c < COLUMNS; c += 4) {
    const float4 o = make_float4(part.o[c] * factor, part.o[c + 1] * factor, part.o[c + 2] * factor,
                                 part.o[c + 3] * factor);
    store_result<T>(problem, t, of, column + c, {o, lse_log2});
  }
}
// [merge_neighbours]

// [merge_messages]
/** Merges this block's columns of the last row group of its share. place() says where the messages
 * of a block's part are. */
template <typename T, int HEAD_DIM, typename Place>
__device__ __forceinline__ void merge_messages(const Problem &problem, const DecodeTensors &t,
                                               const Share &share, Place place) {
  const Share *const shares = (const Share *)t.schedule;
  const RowGroup &rows = share.last, &end = shares[share.begin + share.parts - 1].last;
  // Is the last block of the row group in other row groups when the others merge?
  const bool goes_on =
      end.first != rows.first || end.kv_head != rows.kv_head || end.batch != rows.batch;
  const int blocks = share.parts - goes_on, number = (int)blockIdx.x - share.begin;
  const int eights = (rows.end - rows.first) * HEAD_DIM / COLUMNS;  // columns, by eights
  const int own_begin = number * eights / blocks, own_end = (number + 1) * eights / blocks;
  int width = 2;  // lanes that have the same columns
  while (width < share.parts && width < WARP_SIZE) width *= 2;
  const int lane = threadIdx.x % width;
  for (int base = own_begin; base < own_end; base += MMA_THREADS / width) {
    const int eight = base + threadIdx.x / width;
    const int parts = eight < own_end ? share.parts : 0;
    Part sum = EMPTY_PART;
    for (int first = lane; first < parts; first += KEYS * width) {
      Message messages[KEYS];
      float s[KEYS];
      const auto from = [&](int i) {
        const int block = share.begin + first + i * width;
        return place(block, block == share.begin) + eight;
      };
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        if (first + i * width < parts) load_message(messages[i], from(i));
      }
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        const bool valid = first + i * width < parts;
        if (valid)
          receive(messages[i], from(i));
        else
          messages[i] = {};
        s[i] = valid ? messages[i].lse_log2.x : -INFINITY;
      }
      add_scores(sum, s);
#pragma unroll
      for (int i = 0; i < KEYS; i++) {
        const float4 *const o = messages[i].o;
        const float x[COLUMNS] = {o[0].x, o[0].y, o[0].z, o[0].w, o[1].x, o[1].y, o[1].z, o[1].w};
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum.o[c] += s[i] * x[c];
      }
    }
    merge_neighbours(sum, width);
    if (lane > 0 || eight >= own_end) continue;
    const int row = eight / (HEAD_DIM / COLUMNS), column = eight % (HEAD_DIM / COLUMNS) * COLUMNS;
    store_part<T>(problem, t, row_of_group(problem, rows, rows.first + row), column, sum);
  }
}
// [merge_messages]

// [decode_kernel]
/** The whole decode pass; each block has a share of all tiles. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(MMA_THREADS, 1) decode_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(16) unsigned char smem[];
  const auto place = [&](int block, bool begins) {
    return (Message *)t.workspace + (2 * block + begins) * ROWS * HEAD_DIM / COLUMNS;
  };
  attend_share<T, LaneTile<T, HEAD_DIM, WARP_KEYS<HEAD_DIM, ROWS>>>(
      problem, t, *(MmaParts<HEAD_DIM, ROWS, Columns64> *)smem,
      [&](bool begins, int row, int column, const RowResult &part) {
        send(place(blockIdx.x, begins) + row * HEAD_DIM / COLUMNS, column, part);
      });
  const Share &share = ((const Share *)t.schedule)[blockIdx.x];
  if (share.parts > 1) merge_messages<T, HEAD_DIM>(problem, t, share, place);
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, MMA_THREADS, WARP_KEYS<D, ROWS>),
    NULL, 1, (int)sizeof(Message) * ROWS *D / COLUMNS};

static constexpr SharesConfig CONFIGS[] = {
    CONFIG<__half, 64, 8>,         CONFIG<__half, 64, 16>,        CONFIG<__half, 128, 8>,
    CONFIG<__half, 128, 16>,       CONFIG<__half, 256, 8>,        CONFIG<__nv_bfloat16, 64, 8>,
    CONFIG<__nv_bfloat16, 64, 16>, CONFIG<__nv_bfloat16, 128, 8>, CONFIG<__nv_bfloat16, 128, 16>,
    CONFIG<__nv_bfloat16, 256, 8>};

static cudaError_t schedule(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  const int blocks = block_count(c);
  schedule_kernel<<<(blocks + THREADS - 1) / THREADS, THREADS, 0, stream>>>(
      *problem, t->lengths, (Share *)t->schedule, c->rows, c->keys,
      (LEAST_KEYS + c->keys - 1) / c->keys, blocks, 2 * blocks);
  return cudaGetLastError();
}

// [launch]
/** Launches blocks that wait for each other. */
static cudaError_t launch_together(const SharesConfig *c, int shared_bytes, const Problem *problem,
                                   const DecodeTensors *t, cudaStream_t stream) {
  const cudaError_t error =
      cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error) return error;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = block_count(c);
  config.blockDim = c->threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, c->kernel, *problem, *t);
}
// [launch]

static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  return launch_together(c, shared_bytes(c), problem, t, stream);
}

const Step step = {
    .name = "step20d",
    .after = "step20c",
    .title = "Parts as messages, in one launch",
    .idea =
        "Blocks that run at the same time send each other parts; each word says that it is there.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_decode<CONFIGS>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .workspace_zero = true,
    .describe = describe_mma<CONFIGS>,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule,
};
