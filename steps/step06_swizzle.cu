/**
 * @file
 * Step 06: less beside the mma instructions: swizzled tiles, and one barrier per tile.
 *
 * The idea: step 04 spends time on barriers, on addresses, and on copies whose rows do not fit the
 * sectors of memory. With tiles that are swizzled instead of padded, and with two stages for K and
 * V, most of that is gone.
 *
 * What changed since step 04:
 * - Rows keep their length, because the chunks of a row change places instead: chunk c of row r is
 *   at place c ^ (r % 8). At D = 32 and 96 it is at c ^ (r / 2 % 4).
 * - K and V have two stages each, so the copies of the next tile overwrite nothing that this tile
 *   reads. One barrier per tile is enough.
 * - Up to D = 128, tiles have twice as many keys. Two thread blocks fit an SM.
 * - A lane computes its address in each tile once; all others are an XOR or an addition away.
 * - Thread blocks take the longest rows of several heads first (row_of_block() in heads.cuh).
 *
 * What it costs: shared memory, 96 KiB at D = 128, where step 04 takes 51.
 *
 * What to look at: `--report=traffic,banks,counts` of both steps. cp.async requests 16 sectors
 * instead of 24, and at D = 64 there is one barrier for 128 keys, where step 04 has six.
 */
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/store_rows.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_SIZE;

// [tile_shapes]
/** Sizes of the tiles, by measurement on an H200. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int M_FRAGMENTS = HEAD_DIM <= 128 ? 2 : 1;  // of 16 rows of Q each, per warp
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;                                 // rows of Q
  static constexpr int BLOCK_N = HEAD_DIM <= 64 ? 128 : HEAD_DIM <= 128 ? 64 : 32;  // of K and V
  static constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;  // of one stage of K or of V
  static constexpr int SHARED_BYTES = Q_BYTES + 4 * KV_BYTES;
};
// [tile_shapes]

// [swizzle_place]
/**
 * 8 chunks of 16 bytes span all banks. ldmatrix reads the same chunk of 8 rows, so each of these
 * rows has it at another place among 8 chunks: c ^ (row % 8). At D = 32 and 96 neighbouring rows
 * start in different halves of the banks, so places among 4 chunks are enough: c ^ (row / 2 % 4).
 */
template <int HEAD_DIM>
constexpr int SWIZZLE_CHUNKS = HEAD_DIM % 64 == 0 ? 8 : 4;

/** The byte at which a chunk of a row starts in a tile. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  const int place = SWIZZLE_CHUNKS<HEAD_DIM> == 8 ? row % 8 : row / 2 % 4;
  return row * 2 * HEAD_DIM + (chunk ^ place) * 16;
}
// [swizzle_place]

// [lane_addresses]
/** The address of a chunk of a row, which a lane computes once and keeps. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t lane_address(const unsigned char *tile, int row, int chunk) {
  uint32_t address = shared_address(tile) + chunk_offset<HEAD_DIM>(row, chunk);
  keep_in_register(address);
  return address;
}

/** The address of chunk c + `more` of a row, given that of chunk c; c and `more` must have no 1 in
 * the same bit. Tiles start at multiples of 128, so one XOR moves the address among the chunks that
 * change places. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t more_chunks(uint32_t address, int more) {
  constexpr int CHUNKS = SWIZZLE_CHUNKS<HEAD_DIM>;
  return (address ^ more % CHUNKS * 16) + more / CHUNKS * CHUNKS * 16;
}
// [lane_addresses]

// [copy_rows]
/** Neighbouring threads copy SWIZZLE_CHUNKS chunks of a row. This is the first chunk of this thread
 * in a [rows][HEAD_DIM] matrix; it reaches its others by constant steps. */
template <int HEAD_DIM, typename T>
__device__ __forceinline__ const T *first_chunk(const T *matrix, int64_t row_stride) {
  constexpr int CHUNKS = SWIZZLE_CHUNKS<HEAD_DIM>;
  return matrix + threadIdx.x / CHUNKS * row_stride + threadIdx.x % CHUNKS * CHUNK;
}

/** Starts copying ROWS rows to a tile. `to` is the address of this thread's first chunk in it, and
 * `from` that chunk in global memory. From row `rows` on, counted from that of the chunk, the tile
 * becomes zero, so that these rows add nothing to any product. */
template <int HEAD_DIM, int ROWS, int THREADS, typename T>
__device__ __forceinline__ void copy_rows(uint32_t to, const T *from, int64_t stride, int rows) {
  constexpr int ROW_STEP = THREADS / SWIZZLE_CHUNKS<HEAD_DIM>;  // rows that are copied at a time
  static_assert(ROWS % ROW_STEP == 0 && ROW_STEP % 8 == 0, "all threads copy as much");
#pragma unroll
  for (int i = 0; i < ROWS; i += ROW_STEP) {
#pragma unroll
    for (int c = 0; c < HEAD_DIM / CHUNK; c += SWIZZLE_CHUNKS<HEAD_DIM>) {
      cp_async_16(shared_pointer(to + i * 2 * HEAD_DIM + c * 16), from + c * CHUNK, i < rows);
    }
    from += ROW_STEP * stride;
  }
}
// [copy_rows]

/**
 * S += Q K^T for this warp's rows and the keys of one tile. `q` is the lane's address in Q: of row
 * lane % 16, chunk lane / 16. `k` is that in K: of key lane / 16 * 8 + lane % 8, chunk lane / 8
 * % 2.
 */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_qk(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4], uint32_t q,
                                            uint32_t k) {
#pragma unroll
  for (int d = 0; d < HEAD_DIM / 16; d++) {
    uint32_t a[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      ldmatrix_x4(a[i], shared_pointer(more_chunks<HEAD_DIM>(q, 2 * d) + 16 * i * 2 * HEAD_DIM));
    }
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, shared_pointer(more_chunks<HEAD_DIM>(k, 2 * d) + 8 * n * 2 * HEAD_DIM));
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        mma_m16n8k16<T>(s[i][n], a[i], b[0], b[1]);
        mma_m16n8k16<T>(s[i][n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/** O += P V for this warp's rows and the keys of one tile. `v` is the lane's address in V: of key
 * lane % 16, chunk lane / 16. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[M_FRAGMENTS][HEAD_DIM / MMA_N][4],
                                            const float (&probs)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            uint32_t v) {
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
    uint32_t a[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        a[i][c] = pack<T>(probs[i][n + c / 2][c % 2 * 2], probs[i][n + c / 2][c % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, shared_pointer(more_chunks<HEAD_DIM>(v, 2 * d) + 8 * n * 2 * HEAD_DIM));
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        mma_m16n8k16<T>(o[i][2 * d], a[i], b[0], b[1]);
        mma_m16n8k16<T>(o[i][2 * d + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, HEAD_DIM <= 128 ? 2 : 1)
    attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;

  extern __shared__ __align__(128) unsigned char smem[];
  // Of K and V there are two stages.
  unsigned char *k_shared = smem + Tile::Q_BYTES, *v_shared = k_shared + 2 * Tile::KV_BYTES;

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const BlockRow row = row_of_block(problem, heads_per_wave(problem), q_tiles, blockIdx.x);
  const int first_q = (q_tiles - 1 - row.entry) * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, row.head);

  const T *q_global = (const T *)t.q + offset.q;
  const T *k_global = (const T *)t.k + offset.k;
  const T *v_global = (const T *)t.v + offset.v;

  // [lanes_and_copies]
  const int lane = threadIdx.x % WARP_SIZE;
  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  const uint32_t q_lane = lane_address<HEAD_DIM>(smem, warp_row + lane % 16, lane / 16);
  const uint32_t k_lane = lane_address<HEAD_DIM>(k_shared, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const uint32_t v_lane = lane_address<HEAD_DIM>(v_shared, lane % 16, lane / 16);

  const int copy_row = threadIdx.x / SWIZZLE_CHUNKS<HEAD_DIM>;
  const uint32_t target = shared_address(smem) +
                          chunk_offset<HEAD_DIM>(copy_row, threadIdx.x % SWIZZLE_CHUNKS<HEAD_DIM>);
  const T *k_chunk = first_chunk<HEAD_DIM>(k_global, problem.k_strides.row);
  const T *v_chunk = first_chunk<HEAD_DIM>(v_global, problem.v_strides.row);
  const auto copy_keys = [&](int key, int stage) {
    const int rows = problem.kv_len - key - copy_row;
    const uint32_t k_target = target + Tile::Q_BYTES + stage * Tile::KV_BYTES;
    const int64_t k_stride = problem.k_strides.row, v_stride = problem.v_strides.row;
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_target, k_chunk + key * k_stride, k_stride, rows);
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(k_target + 2 * Tile::KV_BYTES,
                                                v_chunk + key * v_stride, v_stride, rows);
    cp_async_commit();
  };
  // [lanes_and_copies]

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // running maximum of score * scale * log2(e)
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / MMA_N][4] = {};
  start_rows(m, l, -INFINITY);
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_q);

  const int64_t q_stride = problem.q_strides.row;
  copy_rows<HEAD_DIM, Tile::BLOCK_M, THREADS>(
      target, first_chunk<HEAD_DIM>(q_global, q_stride) + first_q * q_stride, q_stride,
      problem.q_len - first_q - copy_row);
  copy_keys(0, 0);

  // [iteration]
  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    const int stage = first_key / Tile::BLOCK_N % 2;
    cp_async_wait<0>();  // K and V of this tile, at first also Q: nothing else is in flight
    __syncthreads();     // all threads' copies are visible; all warps are done with the tile before

    float s[M_FRAGMENTS][Tile::BLOCK_N / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_lane, k_lane + stage * Tile::KV_BYTES);
    // The copies come after Q K^T, so that the tensor cores have work after the barrier at once.
    const int next_key = first_key + Tile::BLOCK_N;
    if (next_key < key_end) copy_keys(next_key, 1 - stage);
    if (next_key > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + warp_row, first_key);
    }
    update_softmax(s, m, l, o, scale_log2);

    multiply_pv<T, HEAD_DIM>(o, s, v_lane + stage * Tile::KV_BYTES);
  }
  // [iteration]

  cp_async_wait<0>();  // Q and the first keys, if all keys are masked
  __syncthreads();     // no warp reads Q or K any more; O can be written there, in padded rows
  T *o_warp = (T *)smem + warp_row * SMEM_STRIDE<HEAD_DIM>;
  store_rows<T, HEAD_DIM>(o, m, l, o_warp, (T *)t.o + offset.o, problem.o_strides.row,
                          t.lse + offset.lse, first_q + warp_row, problem.q_len);
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  THREADS,
                                                                  Tiles<HEAD_DIM>::SHARED_BYTES,
                                                                  USES_MMA);

static constexpr KernelConfig<> CONFIGS[] = {
    CONFIG<__half, 32>,        CONFIG<__half, 64>,        CONFIG<__half, 96>,
    CONFIG<__half, 128>,       CONFIG<__half, 256>,       CONFIG<__nv_bfloat16, 32>,
    CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 96>, CONFIG<__nv_bfloat16, 128>,
    CONFIG<__nv_bfloat16, 256>};

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  config->kernel<<<grid_size(config, problem), THREADS, config->shared_bytes, stream>>>(*problem,
                                                                                        *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step06",
    .after = "step04",
    .title = "Swizzled tiles, one barrier per tile",
    .idea = "An XOR of chunk and row replaces the padding, and K and V have two stages each.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
