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

#endif
