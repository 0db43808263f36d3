/**
 * @file
 * Step 21: a cache of fp8 numbers.
 *
 * The idea: half of the bytes, at best half the time. K and V are e4m3, with a scale for each
 * key/value head. There is no need for products of fp8: memory is the limit, and the tensor cores
 * have time. So a lane converts what it has loaded to fp16 or bf16, which hold each e4m3 exactly,
 * and multiplies as before. The scale of K is in the factor of the scores, and that of V in the
 * last factor of O.
 *
 * What changed since step 20e: an item has half as many bytes, so a warp has twice as many slots.
 * 16 bytes are 16 columns, which give a lane its operands of four mma instead of two. Of V it takes
 * bytes of two keys at a time, interleaves them, and converts the pairs. ldmatrix could not do
 * this: it transposes elements of 16 bits alone. Eight rows of Q fill both halves of an mma, each
 * half with other columns.
 *
 * What it costs: conversions, one for each two numbers in fp16, and three more in bf16, to which
 * there is no way from e4m3 but through fp32.
 *
 * What to look at: multiply_pv(). Which bytes do the four digits of a selector name?
 */
#include <float.h>
#include <type_traits>

#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_messages.cuh"
#include "device/decode_mma.cuh"
#include "device/decode_ring.cuh"
#include "device/decode_shares.cuh"
#include "device/ptx_hopper.cuh"

// [byte_tile]
/** Fragments 4 c to 4 c + 3 of O^T have these eight columns of a lane. */
template <int HEAD_DIM>
struct ByteColumns {
  static constexpr int PADDING = HEAD_DIM < 128 ? 16 : 8;  // as in Columns64
  __device__ static __forceinline__ int first(int c, int lane) {
    return HEAD_DIM < 128 ? lane / 4 * 8 : c / 2 * 128 + lane / 4 * 16 + c % 2 * 8;
  }
};

/** What a lane has of K and V of TILE keys, with i = lane / 4 and j = lane % 4. */
template <typename T, int HEAD_DIM, int TILE>
struct ByteTile {
  using Cache = uint8_t;
  using Prob = T;
  using Columns = ByteColumns<HEAD_DIM>;
  static constexpr int KEYS_OF_TILE = TILE;
  uint4 k[TILE / 8][HEAD_DIM / 64];  // of key i of each 8: columns 16 j on of each 64
  // Of keys 2 j, 2 j + 1, 2 j + 8 and 2 j + 9 of each 16: columns 16 i on of 128 (D = 64: 8 i).
  uint32_t v[TILE / 16][4][HEAD_DIM / 32];
};
// [byte_tile]

// [read_bytes]
/** Loads K of a tile from its item, as in step 20e. */
template <typename T, int HEAD_DIM, int TILE>
__device__ __forceinline__ void read_k(ByteTile<T, HEAD_DIM, TILE> &tile, const uint4 *item) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 64; c++) {
      tile.k[n][c] = item[Ring<uint8_t, HEAD_DIM>::place(8 * n + lane / 4, 4 * c + lane % 4)];
    }
  }
}

/** The same for V. */
template <typename T, int HEAD_DIM, int TILE>
__device__ __forceinline__ void read_v(ByteTile<T, HEAD_DIM, TILE> &tile, const uint4 *item) {
  using Bytes = std::conditional_t<(HEAD_DIM < 128), uint2, uint4>;
  const int lane = threadIdx.x % WARP_SIZE, byte = lane / 4 * (int)sizeof(Bytes);
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int key = 16 * n + lane % 4 * 2 + r % 2 + r / 2 * 8;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / 8 / (int)sizeof(Bytes); c++) {
        const uint4 *const chunk = &item[Ring<uint8_t, HEAD_DIM>::place(key, 8 * c + byte / 16)];
        const Bytes x = ((const Bytes *)chunk)[byte % 16 / sizeof x];
        memcpy(&tile.v[n][r][4 * c], &x, sizeof x);
      }
    }
  }
}
// [read_bytes]

// [byte_rows]
/** Loads rows of Q, in the same columns as K. Eight rows fill half of an mma, so its other half has
 * other columns of them: a fragment is 16 bytes as the lane has loaded them, and half of rows.q is
 * enough. The scale of K is a factor of the scores, that of V a factor of O. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ Scales begin_rows(const ByteTile<T, HEAD_DIM, TILE> &, const T *q,
                                             MmaRows<HEAD_DIM, ROWS> &rows, const Problem &problem,
                                             const DecodeTensors &t, const RowGroup &group) {
  start_rows<2>(rows, problem, q, group);
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 8 && ROWS == 8; i++)
    rows.q[i / 4][i % 4] = rows.q[i / 2][i % 2 * 2];
  const int head = group.batch * problem.kv_heads + group.kv_head;
  const float scale = problem.scale * LOG2_E * t.k_scales[head];
  return {{scale, scale}, t.v_scales[head]};
}

/** Makes the first eight rows, or the next, fp16, times powers of two so that they are in its
 * range, and returns the reciprocal of that of row lane / 4 of the eight. */
template <typename T, int HEAD_DIM, int ROWS>
__device__ __forceinline__ float to_halves(MmaRows<HEAD_DIM, ROWS> &rows, int next) {
  const auto floats = [](uint32_t pair) {
    return to_float2(*reinterpret_cast<const typename PairOf<T>::type *>(&pair));
  };
  float most = 0.0f;
#pragma unroll
  for (int i = next; i < HEAD_DIM * ROWS / 64; i += ROWS / 8) {  // of 16 rows, words alternate
    const float2 x = floats(rows.q[i / 4][i % 4]);
    most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
  }
  most = lanes_reduce_max<4>(most);
  const uint32_t exponent = min(max(__float_as_uint(most) >> 23, 15u), 254u);
  const float factor = __uint_as_float((268 - exponent) << 23);  // the largest becomes 2^14 to 2^15
#pragma unroll
  for (int i = next; i < HEAD_DIM * ROWS / 64; i += ROWS / 8) {
    const float2 x = floats(rows.q[i / 4][i % 4]);
    rows.q[i / 4][i % 4] = pack<__half>(x.x * factor, x.y * factor);
  }
  return __uint_as_float((exponent - 14) << 23);
}

/** Makes them fp16 when they are there, so that copies of K and V do not wait for it. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ void finish_rows(const ByteTile<T, HEAD_DIM, TILE> &,
                                            MmaRows<HEAD_DIM, ROWS> &rows, Scales &scales) {
#pragma unroll
  for (int half = 0; half < ROWS / 8; half++) {
    float &own = scales.scores_log2[half];
    if (DTYPE_OF<T> == DTYPE_BF16) own *= to_halves<T>(rows, half);
    own = fminf(fmaxf(own, FLT_MIN), FLT_MAX);  // 0 and infinity times a score may be NaN
  }
}
// [byte_rows]

// [to_operand]
/** Two e4m3 of the lower or the upper half of a word as T, exactly. */
template <typename T, bool UPPER>
__device__ __forceinline__ uint32_t to_operand(uint32_t word) {
  const uint32_t halves = e4m3_to_half2<UPPER>(word);
  if (DTYPE_OF<T> == DTYPE_FP16) return halves;
  const float2 two = __half22float2(*reinterpret_cast<const __half2 *>(&halves));
  // The lower halves of these floats are 0.
  return select_bytes(__float_as_uint(two.x), __float_as_uint(two.y), 0x7632);
}
// [to_operand]

// [multiply_qk]
/** S = Q K^T in fp16. With 16 rows, the four bytes of a word are columns 2 j, 2 j + 1, 2 j + 8 and
 * 2 j + 9 of an mma. With eight, the lower halves of two words are these columns of an mma of which
 * rows i count, and the upper halves those of another one, of which rows i + 8 count. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ void multiply_qk(float (&s)[TILE / 8][4],
                                            const MmaRows<HEAD_DIM, ROWS> &rows,
                                            const ByteTile<T, HEAD_DIM, TILE> &tile) {
  float upper[TILE / 8][4] = {};  // with eight rows: sums over the upper halves
#pragma unroll
  for (int c = 0; c < HEAD_DIM / 32; c++) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
      const uint32_t *const words = &tile.k[n][c / 2].x + c % 2 * 2;
      const uint32_t b[4] = {e4m3_to_half2<false>(words[0]), e4m3_to_half2<true>(words[0]),
                             e4m3_to_half2<false>(words[1]), e4m3_to_half2<true>(words[1])};
      mma_m16n8k16<__half>(s[n], rows.q[ROWS / 8 * c], b[0], ROWS == 8 ? b[2] : b[1]);
      mma_m16n8k16<__half>(ROWS == 8 ? upper[n] : s[n], rows.q[ROWS / 8 * (c + 1) - 1],
                           ROWS == 8 ? b[1] : b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < TILE / 8 && ROWS == 8; n++) s[n][0] += upper[n][2], s[n][1] += upper[n][3];
}
// [multiply_qk]

// [multiply_pv]
/** O^T += V^T P^T. Of a word of two keys, two selections make pairs of keys in four columns, the
 * rows i and i + 8 of two mma. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ void multiply_pv(MmaRows<HEAD_DIM, ROWS> &rows,
                                            const uint32_t (&probs)[ROWS / 8][TILE / 8],
                                            const ByteTile<T, HEAD_DIM, TILE> &tile) {
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
    for (int w = 0; w < HEAD_DIM / 32; w++) {
      const auto &v = tile.v[n];
#pragma unroll
      for (int half_word = 0; half_word < 2; half_word++) {
        const uint32_t selector = half_word == 0 ? 0x5140 : 0x7362;
        const uint32_t low = select_bytes(v[0][w], v[1][w], selector);   // keys 2 j, 2 j + 1
        const uint32_t high = select_bytes(v[2][w], v[3][w], selector);  // keys 2 j + 8, 2 j + 9
        const uint32_t a[4] = {to_operand<T, false>(low), to_operand<T, true>(low),
                               to_operand<T, false>(high), to_operand<T, true>(high)};
#pragma unroll
        for (int half = 0; half < ROWS / 8; half++) {
          mma_m16n8k16<T>(rows.o[half][2 * w + half_word], a, probs[half][2 * n],
                          probs[half][2 * n + 1]);
        }
      }
    }
  }
}
// [multiply_pv]

// [decode_kernel]
/** The whole decode pass; each block has a share of all tiles. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(MMA_THREADS, 1) decode_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(128) unsigned char smem[];
  const auto place = [&](int block, bool begins) {
    return (Message *)t.workspace + (2 * block + begins) * ROWS * HEAD_DIM / MESSAGE_COLUMNS;
  };
  const Share share = load_share(t);
  using Tile = ByteTile<T, HEAD_DIM, RING_KEYS<HEAD_DIM>>;
  attend_ring<T, Tile, HEAD_DIM, ROWS>(problem, t, share, *(RingShared<Tile, HEAD_DIM, ROWS> *)smem,
                                       place);
  if (share.parts < 2) return;
  merge_messages<T, HEAD_DIM>(problem, t, share, place, *(LaneSums *)smem);
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, MMA_THREADS, RING_KEYS<D>), NULL, 1,
    (int)sizeof(Message) * ROWS *D / MESSAGE_COLUMNS,
    (int)sizeof(RingShared<ByteTile<T, D, RING_KEYS<D>>, D, ROWS>)};

static constexpr SharesConfig CONFIGS[] = {
    CONFIG<__half, 64, 8>,         CONFIG<__half, 64, 16>,        CONFIG<__half, 128, 8>,
    CONFIG<__half, 128, 16>,       CONFIG<__half, 256, 8>,        CONFIG<__nv_bfloat16, 64, 8>,
    CONFIG<__nv_bfloat16, 64, 16>, CONFIG<__nv_bfloat16, 128, 8>, CONFIG<__nv_bfloat16, 128, 16>,
    CONFIG<__nv_bfloat16, 256, 8>};

const Step step = {
    .name = "step21",
    .after = "step20e",
    .title = "A cache of fp8 numbers",
    .idea = "Half of the bytes to read: a lane converts in registers what it has loaded.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_ring<CONFIGS, false>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .workspace_zero = true,
    .describe = describe_ring<CONFIGS>,
    .decode = decode_together<CONFIGS>,
    .caches = CACHE_E4M3 | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
