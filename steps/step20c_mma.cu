/**
 * @file
 * Step 20c: tensor cores, with K and V from memory straight to registers.
 *
 * The idea: with eight rows of Q, the CUDA cores take about as long as the memory. The rows of a
 * group are rows of an mma, so a tensor core does what 128 lanes did. An mma wants its operands in
 * certain places, for which the forward pass copies tiles to shared memory. Here that is not
 * needed, because the columns of an mma may be any columns: a lane loads 16 neighbouring bytes of a
 * row of K, and these eight columns are called 2j, 2j + 1, 2j + 8 and 2j + 9 of two mma. Q is
 * loaded in the same way, so the columns match, and S does not depend on their order. A lane of an
 * mma for O^T = V^T P^T needs pairs of keys: it loads two rows of V and interleaves them.
 *
 * What changed since step 20b: what a warp does with a tile of keys. No lane waits for another
 * warp: there is no barrier before the end of a row group, and the next K is asked for as soon as S
 * is computed, the next V when O is. These loads do not stop at the end of a row group.
 *
 * What it costs: a warp has 32 keys of K and V in flight in 128 registers of each lane, so an SM
 * has room for eight warps.
 *
 * What to look at: load_v() and multiply_pv(). Which keys and columns does lane 5 load?
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_mma.cuh"
#include "device/decode_pages.cuh"
#include "device/decode_part_places.cuh"
#include "device/decode_shares.cuh"
#include "device/ptx_hopper.cuh"

// [lane_tile]
/** The keys that a warp has in registers: as many as there is room for beside O and Q. */
template <int HEAD_DIM, int ROWS>
constexpr int WARP_KEYS = HEAD_DIM *ROWS <= 512    ? 64
                          : HEAD_DIM *ROWS <= 1024 ? 32
                                                   : 16;

/** What a lane has of K and V of TILE keys, with i = lane / 4 and j = lane % 4. */
template <typename T, int HEAD_DIM, int TILE>
struct LaneTile {
  using Cache = T;                          /**< elements of K and V */
  using Prob = T;                           /**< of P */
  using Columns = Columns64;                /**< of V, in the fragments of O^T */
  static constexpr int KEYS_OF_TILE = TILE; /**< TILE */
  uint4 k[TILE / 8][HEAD_DIM / 32]; /**< of key i of each 8: columns 8 j to 8 j + 7 of each 32 */
  /** Of keys 2 j, 2 j + 1, 2 j + 8 and 2 j + 9 of each 16: columns 8 i to 8 i + 7 of each 64. */
  uint4 v[TILE / 16][4][HEAD_DIM / 64];
};

/** Loads rows of Q, in the same columns as K. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ Scales begin_rows(const LaneTile<T, HEAD_DIM, TILE> &, const T *q,
                                             MmaRows<HEAD_DIM, ROWS> &rows, const Problem &problem,
                                             const DecodeTensors &, const RowGroup &group) {
  start_rows(rows, problem, q, group);
  return {{problem.scale * LOG2_E, problem.scale * LOG2_E}, 1.0f};
}
// [lane_tile]

// [load_tile]
/** Starts to load K of the next tile. */
template <typename T, int HEAD_DIM, int TILE>
__device__ __forceinline__ void load_k(LaneTile<T, HEAD_DIM, TILE> &tile, const Problem &problem,
                                       const T *k, const Walk &walk,
                                       const int (&found)[TILE / 16]) {
  if (walk.tile >= walk.end || walk.last < 0) return;
  const int lane = threadIdx.x % WARP_SIZE, stride = (int)problem.k_strides.row;
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
    const auto keys = find_keys(k + lane % 4 * CHUNK, problem.k_strides, walk, found[n],
                                walk.first_key + walk.tile * TILE + 16 * n);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const T *const row = keys.row + (int64_t)min(8 * r + lane / 4, keys.last) * stride;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / 32; c++) tile.k[2 * n + r][c] = load_once_16(row + 32 * c);
    }
  }
}

/** The same for V. P of keys past the last is 0; without a key so is V, as 0 * NaN is NaN. */
template <typename T, int HEAD_DIM, int TILE>
__device__ __forceinline__ void load_v(LaneTile<T, HEAD_DIM, TILE> &tile, const Problem &problem,
                                       const T *v, const Walk &walk,
                                       const int (&found)[TILE / 16]) {
  if (walk.tile >= walk.end) return;
  if (walk.last < 0) {
    for (auto &words : tile.v) memset(words, 0, sizeof words);
    return;
  }
  const int lane = threadIdx.x % WARP_SIZE, stride = (int)problem.v_strides.row;
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
    const auto keys = find_keys(v + lane / 4 * CHUNK, problem.v_strides, walk, found[n],
                                walk.first_key + walk.tile * TILE + 16 * n);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int key = min(lane % 4 * 2 + r % 2 + r / 2 * 8, keys.last);
      const T *const row = keys.row + (int64_t)key * stride;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / 64; c++) tile.v[n][r][c] = load_once_16(row + 64 * c);
    }
  }
}
// [load_tile]

// [multiply_qk]
/** S = Q K^T. Of each 8 keys, a lane gets keys 2 (lane % 4) and the next, of rows lane / 4 and 8
 * below. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ void multiply_qk(float (&s)[TILE / 8][4],
                                            const MmaRows<HEAD_DIM, ROWS> &rows,
                                            const LaneTile<T, HEAD_DIM, TILE> &tile) {
#pragma unroll
  for (int c = 0; c < HEAD_DIM / 32; c++) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
      mma_m16n8k16<T>(s[n], rows.q[2 * c], tile.k[n][c].x, tile.k[n][c].y);
      mma_m16n8k16<T>(s[n], rows.q[2 * c + 1], tile.k[n][c].z, tile.k[n][c].w);
    }
  }
}
// [multiply_qk]

// [multiply_pv]
/** O^T += V^T P^T. Row i of operand A is column 8 i + 2 w of V, and row i + 8 the next: a lane that
 * has eight columns of two keys has pairs of keys for the rows i and i + 8 of four mma. */
template <typename T, int HEAD_DIM, int ROWS, int TILE>
__device__ __forceinline__ void multiply_pv(MmaRows<HEAD_DIM, ROWS> &rows,
                                            const uint32_t (&probs)[ROWS / 8][TILE / 8],
                                            const LaneTile<T, HEAD_DIM, TILE> &tile) {
#pragma unroll
  for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
    for (int c = 0; c < HEAD_DIM / 64; c++) {
#pragma unroll
      for (int w = 0; w < 4; w++) {
        uint32_t two[4];  // columns 8 i + 2 w and the next of each of the four keys
#pragma unroll
        for (int r = 0; r < 4; r++) {
          const uint4 &x = tile.v[n][r][c];
          two[r] = w == 0 ? x.x : w == 1 ? x.y : w == 2 ? x.z : x.w;
        }
        const uint32_t a[4] = {
            select_bytes(two[0], two[1], 0x5410), select_bytes(two[0], two[1], 0x7632),
            select_bytes(two[2], two[3], 0x5410), select_bytes(two[2], two[3], 0x7632)};
#pragma unroll
        for (int half = 0; half < ROWS / 8; half++) {
          mma_m16n8k16<T>(rows.o[half][4 * c + w], a, probs[half][2 * n], probs[half][2 * n + 1]);
        }
      }
    }
  }
}
// [multiply_pv]

/** The decode pass but for merging. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(MMA_THREADS, 1) decode_kernel(Problem problem, DecodeTensors t) {
  extern __shared__ __align__(16) unsigned char smem[];
  auto *const places = (PartPlace<HEAD_DIM, ROWS> *)t.workspace + 2 * blockIdx.x;
  attend_share<T, LaneTile<T, HEAD_DIM, WARP_KEYS<HEAD_DIM, ROWS>>>(
      problem, t, *(MmaParts<HEAD_DIM, ROWS, Columns64> *)smem,
      [&](bool begins, int row, int column, const ColumnSum &part) {
        const RowResult result = result_of(part);
        *(float4 *)&places[begins].o[row][column] = result.o;
        if (column == 0) places[begins].lse_log2[row] = result.lse_log2;
      });
}

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, MMA_THREADS, WARP_KEYS<D, ROWS>),
    merge_kernel<Share, T, D, ROWS>, 1, sizeof(PartPlace<D, ROWS>)};

static constexpr SharesConfig CONFIGS[] = {
    CONFIG<__half, 64, 8>,         CONFIG<__half, 64, 16>,        CONFIG<__half, 128, 8>,
    CONFIG<__half, 128, 16>,       CONFIG<__half, 256, 8>,        CONFIG<__nv_bfloat16, 64, 8>,
    CONFIG<__nv_bfloat16, 64, 16>, CONFIG<__nv_bfloat16, 128, 8>, CONFIG<__nv_bfloat16, 128, 16>,
    CONFIG<__nv_bfloat16, 256, 8>};

static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  const cudaError_t error =
      cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(c));
  if (error) return error;
  c->kernel<<<share_count(c, problem), MMA_THREADS, shared_bytes(c), stream>>>(*problem, *t);
  c->merge<<<share_count(c, problem), THREADS, 0, stream>>>(*problem, *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step20c",
    .after = "step20b",
    .title = "Tensor cores, operands straight from memory",
    .idea = "Rows of a group are rows of an mma; K and V need no shared memory and no barrier.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_mma<CONFIGS>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .describe = describe_mma<CONFIGS>,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
