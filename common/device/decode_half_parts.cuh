/**
 * @file
 * What step 20g introduces: rows of parts as messages in 16 bits.
 */
#ifndef DEVICE_DECODE_HALF_PARTS_CUH
#define DEVICE_DECODE_HALF_PARTS_CUH

#include "device/decode_messages.cuh"
#include "device/decode_own_rows.cuh"
#include "device/decode_wide.cuh"

// As in steps/step20g_half_parts.cu:

/** A row of a part. */
template <int HEAD_DIM>
struct RowMessage {
  float4 o[HEAD_DIM / COLUMNS]; /**< words of two fp16; none is 0 when it is there */
  float4 head;                  /**< m and l as in Part, the factor of O, and 1 */
};

/** Merges eight columns of a row. `odd` threads load the other four first, so that eight threads
 * that load together reach all banks. */
template <typename Parts>
__device__ __forceinline__ Part merge_eight(const Parts &parts, int row, int column, bool odd) {
  const ColumnSum a = merge_row(parts, row, column + 4 * odd);
  const ColumnSum b = merge_row(parts, row, column + 4 - 4 * odd);
  const float4 x = odd ? b.o : a.o, y = odd ? a.o : b.o;
  return {a.m, a.l, {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w}};
}

/** Stores eight columns of O. */
template <typename T>
__device__ __forceinline__ void store_eight(const ResultRow<T> &row, int column, const Part &x) {
  store_sum(row, column, {make_float4(x.o[0], x.o[1], x.o[2], x.o[3]), x.m, x.l});
  store_sum(row, column + 4, {make_float4(x.o[4], x.o[5], x.o[6], x.o[7]), x.m, x.l});
}

/** Merges the rows of both warpgroups, and sends what the block does not have `whole`, but for its
 * own rows. A row has four threads with every fourth eight columns each. */
template <typename T, int HEAD_DIM, typename SomeRing>
__device__ __forceinline__ void end_rows(WideShared<T, HEAD_DIM, SomeRing> &shared,
                                         const WideRows<HEAD_DIM> &rows, const Problem &problem,
                                         const DecodeTensors &t, const RowGroup &group, bool whole,
                                         const OwnRows &own) {
  const int row = threadIdx.x / 4, first = threadIdx.x % 4 * COLUMNS;
  const ResultRow<T> result = result_row<T>(problem, t, group, row);  // before others wait
  store_rows(shared, rows);
  Part eights[HEAD_DIM / 32];
  float most = 0.0f;
  for (int c = 0; c < HEAD_DIM / 32; c++) {
    eights[c] = merge_eight(shared.parts, row, 32 * c + first, row % 2);
    for (float x : eights[c].o) most = fmaxf(most, fabsf(x));
  }
  const uint32_t exponent = min(max(__float_as_uint(lanes_reduce_max<4>(most)) >> 23, 15u), 254u);
  if (row >= group.end - group.first || (row >= own.begin && row < own.end)) return;
  if (whole) {
    for (int c = 0; c < HEAD_DIM / 32; c++) store_eight(result, 32 * c + first, eights[c]);
    return;
  }
  const float factor = __uint_as_float((268 - exponent) << 23);  // the largest becomes 2^14 to 2^15
  auto &message =
      ((RowMessage<HEAD_DIM> *)t.workspace)[message_of_row(blockIdx.x * WIDE_ROWS, own, row)];
  for (int c = 0; c < HEAD_DIM / 32; c++) {
    const auto word = [&](int i) {
      const float x = eights[c].o[i] * factor, y = eights[c].o[i + 1] * factor;
      return never_zero(__uint_as_float(pack<__half>(x, y)));
    };
    store_relaxed(&message.o[4 * c + first / COLUMNS],
                  make_float4(word(0), word(2), word(4), word(6)));
  }
  const float back = __uint_as_float((exponent - 14) << 23);
  const float4 head = make_float4(never_zero(eights[0].m), never_zero(eights[0].l), back, 1);
  if (first == 0) store_relaxed(&message.head, head);
}

constexpr int AT_A_TIME = 8; /**< messages that a lane asks for before it looks at the first */

/** Adds messages first, first + every, .. of eight columns of a row, and leaves zeros for the next
 * pass. message(i) is message i of the row. */
template <int HEAD_DIM, typename MessageOf>
__device__ __forceinline__ void receive(Part &sum, int first, int every, int count,
                                        MessageOf message) {
  const int eight = threadIdx.x % (HEAD_DIM / COLUMNS);
  float4 o[AT_A_TIME] = {}, head[AT_A_TIME];
  for (float4 &words : head) words = make_float4(-FLT_MAX, 0, 0, 0);  // of a part without keys
  for (bool waits = true; waits;) {
    waits = false;
#pragma unroll
    for (int i = 0; i < AT_A_TIME; i++) {
      if (first + i * every >= count || (is_there(o[i]) && is_there(head[i]))) continue;
      o[i] = load_relaxed(&message(first + i * every)->o[eight]);
      head[i] = load_relaxed(&message(first + i * every)->head);
      waits = true;
    }
  }
  __syncwarp();  // all lanes have the heads
  const float before = sum.m;
  for (const float4 &words : head) sum.m = fmaxf(sum.m, words.x);
  const float rescale = exp2_approx(before - sum.m);
  sum.l *= rescale;
  for (float &x : sum.o) x *= rescale;
  for (int i = 0; i < AT_A_TIME; i++) {
    const float factor = exp2_approx(head[i].x - sum.m);
    float x[COLUMNS];
    to_floats<__half>(x, *reinterpret_cast<const uint4 *>(&o[i]));
    sum.l += factor * head[i].y;
    for (int c = 0; c < COLUMNS; c++) sum.o[c] += factor * head[i].z * x[c];
    if (first + i * every >= count) continue;
    store_relaxed(&message(first + i * every)->o[eight], {});
    if (eight == 0) store_relaxed(&message(first + i * every)->head, {});
  }
}

/** Merges this block's rows of the last row group of its share. HEAD_DIM / COLUMNS lanes are a team
 * that has all columns of a row; if there are many parts, all teams of a warp have the same row. */
template <typename T, int HEAD_DIM, typename SomeRing>
__device__ __forceinline__ void merge_rows(const WideShared<T, HEAD_DIM, SomeRing> &shared,
                                           const Problem &problem, const DecodeTensors &t,
                                           const Share &share) {
  constexpr int LANES = HEAD_DIM / COLUMNS, TEAMS = MMA_THREADS / LANES;
  const int number = (int)blockIdx.x - share.begin, column = threadIdx.x % LANES * COLUMNS;
  const int teams = share.parts - 1 > AT_A_TIME ? WARP_SIZE / LANES : 1;  // of a row
  const OwnRows own = own_rows(share, number);
  for (int first = own.begin; first < own.end; first += TEAMS / teams) {
    const int row = first + threadIdx.x / LANES / teams, team = threadIdx.x / LANES % teams;
    const bool exists = row < own.end, stores = exists && team == 0;
    const ResultRow<T> result = result_row<T>(problem, t, share.last, min(row, own.end - 1));
    Part sum = EMPTY_PART;  // and of one team what this block has itself
    if (stores) sum = merge_eight(shared.parts, row, column, threadIdx.x / 4 % 2);
    for (int n = 0; n < share.parts - 1; n += AT_A_TIME * teams) {
      receive<HEAD_DIM>(sum, n + team, teams, exists ? share.parts - 1 : 0, [&](int i) {
        const int from = i + (i >= number);  // all but this block
        return (RowMessage<HEAD_DIM> *)t.workspace +
               message_of_row((share.begin + from) * WIDE_ROWS, own_rows(share, from), row);
      });
    }
    if (teams > 1) merge_lanes<LANES>(sum);
    if (stores) store_eight(result, column, sum);
  }
}

#endif
