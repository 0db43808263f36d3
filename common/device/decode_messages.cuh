/**
 * @file
 * What step 20d introduces: blocks that run at the same time send each other the parts of a row
 * group, and merge them together.
 */
#ifndef DEVICE_DECODE_MESSAGES_CUH
#define DEVICE_DECODE_MESSAGES_CUH

#include "device/decode_mma.cuh"
#include "device/decode_shares.cuh"

// As in steps/step20d_messages.cu:

constexpr int MESSAGE_COLUMNS = 16; /**< of a row: 64 bytes of a part, and 16 of its LSE */

/** Some columns of a part of a row, and its LSE in the last four words. */
struct Message {
  /** No word is 0 when it is there. */
  float4 o[MESSAGE_COLUMNS / 4], lse_log2; /**< likewise */
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

/** Stores four columns, numbered from the first of message 0, and with the first of each LSE. */
__device__ __forceinline__ void store(Message *to, int column, const float4 &o, const float4 &lse) {
  to += column / MESSAGE_COLUMNS;
  store_relaxed(&to->o[column / 4 % 4], o);
  if (column % MESSAGE_COLUMNS == 0) store_relaxed(&to->lse_log2, lse);
}

/** Sends four columns of a row. */
__device__ __forceinline__ void send(Message *row, int column, const RowResult &part) {
  const float4 o = make_float4(never_zero(part.o.x), never_zero(part.o.y), never_zero(part.o.z),
                               never_zero(part.o.w));
  store(row, column, o, make_float4(never_zero(part.lse_log2), 1, 1, 1));
}

/** Stores zeros, which are there already, where this block will send the part of its last row
 * group. So the places are in L2 when others read them. place() says where the messages of a part
 * are. */
template <int HEAD_DIM, typename Place>
__device__ __forceinline__ void touch_places(const Share &share, Place place) {
  Message *const messages = place(blockIdx.x, (int)blockIdx.x == share.begin);
  const int columns = (share.last.end - share.last.first) * HEAD_DIM;
  for (int i = 4 * threadIdx.x; i < columns; i += 4 * MMA_THREADS) store(messages, i, {}, {});
}

/** Parts of four columns that are merged, O times l. */
struct ColumnSum {
  float4 o;   /**< of the four columns */
  float m, l; /**< as in Part */
};

/** Adds O of another part with this maximum; its l is `l`, and O times l is `o`. */
__device__ __forceinline__ void add_part(ColumnSum &sum, const float4 &o, float m, float l) {
  const float most = fmaxf(sum.m, m);
  const float rescale = exp2_approx(sum.m - most), factor = exp2_approx(m - most);
  sum.m = most, sum.l = rescale * sum.l + factor * l;
  sum.o.x = rescale * sum.o.x + factor * o.x, sum.o.y = rescale * sum.o.y + factor * o.y;
  sum.o.z = rescale * sum.o.z + factor * o.z, sum.o.w = rescale * sum.o.w + factor * o.w;
}

/** Merges lanes that are `distance`, 2 * `distance`, .. apart; each gets the result. */
__device__ __forceinline__ void merge_lanes(ColumnSum &sum, int distance) {
  for (; distance < WARP_SIZE; distance *= 2) {
    const auto other = [&](float x) { return __shfl_xor_sync(FULL_WARP, x, distance); };
    const float4 o = make_float4(other(sum.o.x), other(sum.o.y), other(sum.o.z), other(sum.o.w));
    add_part(sum, o, other(sum.m), other(sum.l));
  }
}

/** Receives parts slot, slot + every, .. of four columns of a message, if `valid`, and leaves zeros
 * for the next pass. Four neighbouring lanes have a message; message(i) is that of part i. */
template <typename PartMessage>
__device__ __forceinline__ ColumnSum receive(int slot, int every, int parts, bool valid,
                                             PartMessage message) {
  constexpr int AT_ONCE = 3;
  const int four = threadIdx.x % 4;
  ColumnSum sum = {make_float4(0, 0, 0, 0), -FLT_MAX, 0.0f};
  for (int first = 0; first < parts; first += AT_ONCE * every) {
    float4 o[AT_ONCE] = {}, lse_log2[AT_ONCE] = {};
    const auto part = [&](int i) { return first + slot + i * every; };
    for (bool waits = true; waits;) {
      waits = false;
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        if (!valid || part(i) >= parts || (is_there(o[i]) && is_there(lse_log2[i]))) continue;
        o[i] = load_relaxed(&message(part(i))->o[four]);
        lse_log2[i] = load_relaxed(&message(part(i))->lse_log2);
        waits = true;
      }
    }
    __syncwarp();  // all four lanes have LSE
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      if (!valid || part(i) >= parts) continue;
      add_part(sum, o[i], lse_log2[i].x, 1.0f);
      store(message(part(i)), 4 * four, {}, {});
    }
  }
  return sum;
}

/** Merges this block's columns of the last row group of its share. Neighbouring lanes have the
 * neighbouring columns of a part, by fours. */
template <typename T, int HEAD_DIM, typename Place>
__device__ __forceinline__ void merge_messages(const Problem &problem, const DecodeTensors &t,
                                               const Share &share, Place place,
                                               float (&sums)[6][MMA_THREADS]) {
  const int blocks = share.parts - share.goes_on, number = (int)blockIdx.x - share.begin;
  const int messages = (share.last.end - share.last.first) * HEAD_DIM / MESSAGE_COLUMNS;
  const int begin = number * messages / blocks, end = (number + 1) * messages / blocks;
  int width = 4;  // threads that have different columns
  while (width < 4 * (end - begin) && width < MMA_THREADS) width *= 2;
  const int lane = threadIdx.x % width, slot = threadIdx.x / width;
  for (int first = begin; first < end; first += width / 4) {
    const int message = first + lane / 4;
    ColumnSum sum = receive(slot, MMA_THREADS / width, share.parts, message < end, [&](int part) {
      return place(share.begin + part, part == 0) + message;
    });
    merge_lanes(sum, width);
    __syncthreads();  // shared memory of the warps, or the sums before, are not needed any more
    for (int i = 0; i < 6; i++) sums[i][threadIdx.x] = ((const float *)&sum)[i];
    __syncthreads();  // the sums are there
    if (slot > 0 || message >= end) continue;
    for (int i = lane + max(width, WARP_SIZE); i < MMA_THREADS; i += max(width, WARP_SIZE)) {
      const float4 o = make_float4(sums[0][i], sums[1][i], sums[2][i], sums[3][i]);
      add_part(sum, o, sums[4][i], sums[5][i]);
    }
    const float factor = sum.l == 0.0f ? 0.0f : 1.0f / sum.l;
    const float4 o =
        make_float4(sum.o.x * factor, sum.o.y * factor, sum.o.z * factor, sum.o.w * factor);
    const int column = message * MESSAGE_COLUMNS + lane % 4 * 4;
    const QueryRow of = row_of_group(problem, share.last, share.last.first + column / HEAD_DIM);
    store_result<T>(problem, t, of, column % HEAD_DIM, {o, sum.m + log2_approx(sum.l)});
  }
}

/** Step::decode: launches blocks that wait for each other. */
template <const auto &CONFIGS>
static cudaError_t decode_together(const Problem *problem, const DecodeTensors *t,
                                   cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  const cudaError_t error =
      cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(c));
  if (error) return error;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = block_count(c);
  config.blockDim = c->threads;
  config.dynamicSmemBytes = shared_bytes(c);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, c->kernel, *problem, *t);
}

#endif
