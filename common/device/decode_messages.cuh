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

constexpr int MESSAGE_COLUMNS = 16; /**< of a row: 64 bytes of a part, and 16 of its m and l */

/** Some columns of a part of a row. No word is 0 when it is there. */
struct Message {
  float4 o[MESSAGE_COLUMNS / 4]; /**< O, times l */
  float4 m_and_l;                /**< as in Part, and two ones: 16 bytes are stored at a time */
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

/** Stores four columns, numbered from the first of message 0, and with the first of each m, l. */
__device__ __forceinline__ void store(Message *to, int column, const float4 &o,
                                      const float4 &m_and_l) {
  to += column / MESSAGE_COLUMNS;
  store_relaxed(&to->o[column / 4 % 4], o);
  if (column % MESSAGE_COLUMNS == 0) store_relaxed(&to->m_and_l, m_and_l);
}

/** Sends four columns of a row. */
__device__ __forceinline__ void send(Message *row, int column, const ColumnSum &part) {
  const float4 o = make_float4(never_zero(part.o.x), never_zero(part.o.y), never_zero(part.o.z),
                               never_zero(part.o.w));
  store(row, column, o, make_float4(never_zero(part.m), never_zero(part.l), 1, 1));
}

constexpr int AT_ONCE = 4; /**< parts that a lane asks for before it looks at the first */

/** Receives parts slot, slot + slots, .. of four columns of a message, and leaves zeros for the
 * next pass. Four neighbouring lanes have a message; message(i) is that of part i. Lanes that have
 * none come along, not `valid`, since all lanes of a warp meet here. */
template <typename PartMessage>
__device__ __forceinline__ ColumnSum receive(int slot, int slots, int parts, bool valid,
                                             PartMessage message) {
  ColumnSum sum;
  for (int first = 0; first < parts; first += AT_ONCE * slots) {
    const auto part = [&](int i) { return first + slot + i * slots; };
    float4 o[AT_ONCE] = {}, m_and_l[AT_ONCE] = {};
    bool missing[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) missing[i] = valid && part(i) < parts;
    for (bool waits = true; __any_sync(FULL_WARP, waits);) {
      waits = false;
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        load_relaxed_if(missing[i], o[i], &message(part(i))->o[threadIdx.x % 4]);
        load_relaxed_if(missing[i], m_and_l[i], &message(part(i))->m_and_l);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        waits |= missing[i] &= !(is_there(o[i]) && is_there(m_and_l[i]));
      }
    }
    ColumnSum received[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      if (!valid || part(i) >= parts) continue;
      received[i] = {o[i], m_and_l[i].x, m_and_l[i].y};
      // Zeros again: all lanes of the warp have what they wait for.
      store(message(part(i)), threadIdx.x % 4 * 4, {}, {});
    }
    add_parts(sum, received);
  }
  return sum;
}

/** Merges lanes that are 4, 8, .. apart, of `slots` times four lanes; each gets the result. */
__device__ __forceinline__ void merge_lanes(ColumnSum &sum, int slots) {
  const float own = sum.m;
#pragma unroll
  for (int n = 1; n < WARP_SIZE / 4; n *= 2) {
    if (n < slots) sum.m = fmaxf(sum.m, __shfl_xor_sync(FULL_WARP, sum.m, 4 * n));
  }
  const float factor = exp2_approx(own - sum.m);
  sum.l *= factor;
  sum.o.x *= factor, sum.o.y *= factor, sum.o.z *= factor, sum.o.w *= factor;
#pragma unroll
  for (int n = 1; n < WARP_SIZE / 4; n *= 2) {
    if (n >= slots) break;
    const auto add = [&](float &x) { x += __shfl_xor_sync(FULL_WARP, x, 4 * n); };
    add(sum.o.x), add(sum.o.y), add(sum.o.z), add(sum.o.w), add(sum.l);
  }
}

/** What the lanes of all warps have received. */
struct LaneSums {
  float4 o[MMA_THREADS];       /**< as in ColumnSum */
  float2 m_and_l[MMA_THREADS]; /**< likewise */
};

/** Merges this block's columns of the last row group of its share: of n blocks, each has every n-th
 * message. Neighbouring lanes have other columns of a part, by fours. If there are more parts than
 * a lane asks for at once, all lanes of a warp have some of them, or even those of all warps. */
template <typename T, int HEAD_DIM, typename Place>
__device__ __forceinline__ void merge_messages(const Problem &problem, const DecodeTensors &t,
                                               const Share &share, Place place, LaneSums &sums) {
  constexpr int MOST = WARP_SIZE / 4, FOURS = MMA_THREADS / 4;
  const int blocks = share.parts - share.goes_on, warp = threadIdx.x / WARP_SIZE;
  const int messages = (share.last.end - share.last.first) * HEAD_DIM / MESSAGE_COLUMNS;
  // Fours of lanes for each message.
  const int slots = share.parts <= AT_ONCE ? 1 : share.parts <= MOST * AT_ONCE ? MOST : FOURS;
  // By shifts: nothing can be asked for before, and a division takes long.
  const int bits = __ffs(slots) - 1, slot = threadIdx.x / 4 & (slots - 1);
  const int number = threadIdx.x / 4 >> bits, number_of_warp = warp * MOST >> bits;
  for (int first = (int)blockIdx.x - share.begin; first + number_of_warp * blocks < messages;
       first += (FOURS >> bits) * blocks) {
    const int message = first + number * blocks;
    const int column = message * MESSAGE_COLUMNS + threadIdx.x % 4 * 4;
    const ResultRow<T> row = result_row<T>(problem, t, share.last, column / HEAD_DIM);
    ColumnSum sum = receive(slot, slots, share.parts, message < messages, [&](int part) {
      return place(share.begin + part, part == 0) + message;
    });
    if (slots > MOST) {
      __syncthreads();  // shared memory of the warps, or the sums before, are not needed any more
      sums.o[threadIdx.x] = sum.o, sums.m_and_l[threadIdx.x] = make_float2(sum.m, sum.l);
      __syncthreads();  // the sums are there
      if (threadIdx.x >= WARP_SIZE) continue;
      ColumnSum warps[MMA_WARPS];
#pragma unroll
      for (int i = 0; i < MMA_WARPS; i++) {
        const int thread = threadIdx.x + i * WARP_SIZE;
        const float2 m_and_l = sums.m_and_l[thread];
        warps[i] = {sums.o[thread], m_and_l.x, m_and_l.y};
      }
      sum = {};
      add_parts(sum, warps);
    }
    if (slots > 1) merge_lanes(sum, MOST);
    if (slot == 0 && message < messages) store_sum(row, column % HEAD_DIM, sum);
  }
}

/** Step::decode: launches blocks that wait for each other. `extra` are the kernel's last
 * parameters. */
template <const auto &CONFIGS, typename... Extra>
static cudaError_t decode_together(const Problem *problem, const DecodeTensors *t,
                                   cudaStream_t stream, const Extra &...extra) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const auto *c = find_decode<CONFIGS>(problem);
  const cudaError_t error =
      cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(c));
  if (error) return error;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = share_count(c, problem);
  config.blockDim = c->threads;
  config.dynamicSmemBytes = shared_bytes(c);
  config.stream = stream;
  config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, c->kernel, *problem, *t, extra...);
}

#endif
