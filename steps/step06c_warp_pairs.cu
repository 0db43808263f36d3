/**
 * @file
 * Step 06c: D = 256, where two warps share 32 rows.
 *
 * The idea: O of 32 rows has 256 registers per lane at D = 256, more than there are. With 16 rows
 * per warp, as in step 06b, each fragment of K and V feeds one mma, and shared memory delivers less
 * than the tensor cores could use. So two warps share 32 rows: each computes S for half of the
 * keys, and O for half of the columns.
 *
 * What changed since step 06b: tiles have 128 x 64 instead of 64 x 32 entries, so K and V are read
 * half as often. Each warp writes its P to shared memory, where both warps of the pair read P of
 * all keys. Maxima and sums are exchanged there, too. The barrier of a tile comes after the
 * softmax: it shows P, and it tells all threads whether a sum of any row was too large.
 *
 * What it costs: nearly all shared memory of an SM, so nothing hides the beginning and
 * the end of a thread block.
 *
 * What to look at: `--report=banks,counts` of both steps at D = 256: ldmatrix for each mma.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/rare_max.cuh"
#include "device/store_rows.cuh"
#include "device/swizzle_tile.cuh"
#include "device/warp.cuh"

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * WARP_SIZE;

/** Sizes of the tiles. Each warp of a pair computes P for PART keys. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int M_FRAGMENTS = 2;  // of 16 rows of Q each, per pair of warps
  static constexpr int PAIR_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS / 2 * PAIR_ROWS;  // rows of Q
  static constexpr int BLOCK_N = 2 * PART;               // rows of K and V
  static constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;  // of one stage of K or of V
  static constexpr int P_BYTES = 2 * BLOCK_M * BLOCK_N;    // of one stage of P
  static constexpr int P_START = Q_BYTES + 4 * KV_BYTES;
  static constexpr int SHARED_BYTES = P_START + 2 * P_BYTES;
};

/** Where a lane finds its operands in shared memory. */
struct Lane {
  uint32_t q, k, v, p;  // what it passes to ldmatrix, as in step 06
  uint32_t own_p;       // its first two probabilities: of row lane / 4, keys 2 * (lane % 4)
};

// [halves]
/** `side` says which warp of the pair this is: it has the first or the last PART keys of K, and the
 * first or the last half of the columns of V. `pair_row` is the pair's first row. */
template <int HEAD_DIM>
__device__ __forceinline__ Lane lane_of_pair(const unsigned char *smem, int pair_row, int side) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  const int lane = threadIdx.x % WARP_SIZE;
  const unsigned char *k_shared = smem + Tile::Q_BYTES, *v_shared = k_shared + 2 * Tile::KV_BYTES;
  const unsigned char *p_shared = v_shared + 2 * Tile::KV_BYTES;
  const int key = side * PART + lane / 16 * 8 + lane % 8, column = side * HEAD_DIM / 2;
  return {lane_address<HEAD_DIM>(smem, pair_row + lane % 16, lane / 16),
          lane_address<HEAD_DIM>(k_shared, key, lane / 8 % 2),
          lane_address<HEAD_DIM>(v_shared, lane % 16, column / CHUNK + lane / 16),
          lane_address<BLOCK_N>(p_shared, pair_row + lane % 16, lane / 16),
          lane_address<BLOCK_N>(p_shared, pair_row + lane / 4, side * PART / CHUNK) + lane % 4 * 4};
}
// [halves]

// [exchange]
/** Combines numbers with those of the same lane in the other warp of the pair, by `memory` that
 * only this pair uses. All threads of the block call it. */
template <int M_FRAGMENTS, typename Combine>
__device__ __forceinline__ void exchange(float (&numbers)[M_FRAGMENTS][2], unsigned char *memory,
                                         int side, Combine combine) {
  float(*of_sides)[2 * M_FRAGMENTS][WARP_SIZE] = (float(*)[2 * M_FRAGMENTS][WARP_SIZE]) memory;
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * M_FRAGMENTS; i++) of_sides[side][i][lane] = numbers[i / 2][i % 2];
  __syncthreads();  // the numbers of the other warp are visible
#pragma unroll
  for (int i = 0; i < 2 * M_FRAGMENTS; i++) {
    numbers[i / 2][i % 2] = combine(numbers[i / 2][i % 2], of_sides[1 - side][i][lane]);
  }
}
// [exchange]

// [store_probs]
/** Stores the probabilities of PART keys as rows of P. `p` is the lane's address: of row lane / 4
 * and 2 * (lane % 4) keys after the first. */
template <int BLOCK_N, int M_FRAGMENTS>
__device__ __forceinline__ void store_probs(uint32_t p,
                                            const uint32_t (&probs)[PART / 16][M_FRAGMENTS][4]) {
#pragma unroll
  for (int j = 0; j < PART / 16; j++) {
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) {  // operand A: 8 keys of rows g and g + 8, then the next 8 keys
        const uint32_t chunk = more_chunks<BLOCK_N>(p, 2 * j + c / 2);
        *(uint32_t *)shared_pointer(chunk + (16 * i + c % 2 * 8) * 2 * BLOCK_N) = probs[j][i][c];
      }
    }
  }
}
// [store_probs]

/** O += P V for all keys of a tile and half of the columns, for the lane's addresses in P and V. */
template <typename T, int HEAD_DIM, int BLOCK_N, int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void multiply_shared_p(float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                                  uint32_t p, uint32_t v) {
#pragma unroll
  for (int n = 0; n < BLOCK_N / 16; n++) {
    uint32_t probs[M_FRAGMENTS][4];
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      ldmatrix_x4(probs[i], shared_pointer(more_chunks<BLOCK_N>(p, 2 * n) + 16 * i * 2 * BLOCK_N));
    }
    multiply_pv<T, HEAD_DIM>(o, probs, v + 16 * n * 2 * HEAD_DIM);
  }
}

// [pair_barrier]
/** P of a tile for both warps of a pair, in shared memory: `own_p` is the lane's address. `memory`
 * is for exchanges. Waits for all copies. */
template <typename T, int BLOCK_N, int M_FRAGMENTS, int N_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void share_probs(uint32_t own_p, float (&m)[M_FRAGMENTS][2],
                                            float (&l)[M_FRAGMENTS][2],
                                            float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                            const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            unsigned char *memory, int side, bool is_first,
                                            float scale_log2) {
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  float maxima[M_FRAGMENTS][2], sums[M_FRAGMENTS][2];
  uint32_t probs[PART / 16][M_FRAGMENTS][4];
  if (is_first) {  // otherwise, P of the first tile would be computed twice
    row_maxima(maxima, s, 0);
    exchange(maxima, memory, side, larger);
    start_m(m, maxima, scale_log2);
  }
  exponentiate<T>(probs, sums, s, 0, m, scale_log2);
  store_probs<BLOCK_N>(own_p, probs);

  cp_async_wait<0>();  // V of this tile and K of the next: nothing else is in flight
  // P and all copies are visible; all warps are done with this K, and V and P of the tile before.
  if (__syncthreads_or(needs_new_max(sums, MOST_SUM))) {
    row_maxima(maxima, s, 0);
    exchange(maxima, memory, side, larger);
    raise_m(m, l, o, maxima, scale_log2);
    exponentiate<T>(probs, sums, s, 0, m, scale_log2);
    store_probs<BLOCK_N>(own_p, probs);
    __syncthreads();  // the new P is visible
  }
  add_sums(l, sums);
}
// [pair_barrier]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(THREADS, 1) attention_kernel(Problem problem, Tensors t) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS;
  extern __shared__ __align__(128) unsigned char smem[];

  // Under the causal mask the last rows of a head have the most work: they come first.
  const int q_tiles = (problem.q_len + Tile::BLOCK_M - 1) / Tile::BLOCK_M;
  const BlockRow row = row_of_block(problem, heads_per_wave(problem), q_tiles, blockIdx.x);
  const int first_q = (q_tiles - 1 - row.entry) * Tile::BLOCK_M;
  const HeadOffsets offset = head_offsets(problem, row.head);

  const int side = threadIdx.x / WARP_SIZE % 2;
  const int pair_row = threadIdx.x / (2 * WARP_SIZE) * Tile::PAIR_ROWS;
  unsigned char *p_pair = smem + Tile::P_START + pair_row * 2 * Tile::BLOCK_N;
  const Lane lane = lane_of_pair<HEAD_DIM>(smem, pair_row, side);

  const int copy_row = threadIdx.x / SWIZZLE_CHUNKS<HEAD_DIM>;
  const uint32_t target = shared_address(smem) +
                          chunk_offset<HEAD_DIM>(copy_row, threadIdx.x % SWIZZLE_CHUNKS<HEAD_DIM>);
  const T *q_chunk = first_chunk<HEAD_DIM>((const T *)t.q + offset.q, problem.q_strides.row);
  const T *k_chunk = first_chunk<HEAD_DIM>((const T *)t.k + offset.k, problem.k_strides.row);
  const T *v_chunk = first_chunk<HEAD_DIM>((const T *)t.v + offset.v, problem.v_strides.row);
  const auto copy = [&](const T *chunk, int64_t stride, int key, int place) {
    copy_rows<HEAD_DIM, Tile::BLOCK_N, THREADS>(target + Tile::Q_BYTES + place * Tile::KV_BYTES,
                                                chunk + key * stride, stride,
                                                problem.kv_len - key - copy_row);
  };

  // [i][0] belongs to row g of fragment i, [i][1] to row g + 8.
  float m[M_FRAGMENTS][2];  // maximum of score * scale * log2(e) over some of the keys so far
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / 2 / MMA_N][4] = {};
  start_rows(m, l, -FLT_MAX);
  const float scale_log2 = problem.scale * LOG2_E;
  const int key_end = attended_keys(problem, min(first_q + Tile::BLOCK_M, problem.q_len) - 1);
  // Every row attends to the keys before this one, so their scores need no mask.
  const int unmasked_end = attended_keys(problem, first_q);

  const int64_t q_stride = problem.q_strides.row;
  copy_rows<HEAD_DIM, Tile::BLOCK_M, THREADS>(target, q_chunk + first_q * q_stride, q_stride,
                                              problem.q_len - first_q - copy_row);
  copy(k_chunk, problem.k_strides.row, 0, 0);
  cp_async_commit();
  cp_async_wait<0>();  // Q and the first K
  __syncthreads();     // all threads' copies are visible

  int stage = 1;
  for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N) {
    stage ^= 1;
    float s[M_FRAGMENTS][PART / MMA_N][4] = {};
    multiply_qk<T, HEAD_DIM>(s, lane.q, lane.k + stage * Tile::KV_BYTES);
    const int next_key = first_key + Tile::BLOCK_N, after_next = next_key + Tile::BLOCK_N;
    if (next_key > unmasked_end) {
      apply_mask(s, problem, problem.mask == MASK_CAUSAL, first_q + pair_row,
                 first_key + side * PART);
    }
    if (first_key == 0) {
      // These copies start now, so that the first Q K^T need not wait for them.
      copy(v_chunk, problem.v_strides.row, 0, 2);
      if (next_key < key_end) copy(k_chunk, problem.k_strides.row, next_key, 1);
      cp_async_commit();
    }
    // Numbers are exchanged where P of the other stage was: no warp reads it any more.
    share_probs<T, Tile::BLOCK_N>(lane.own_p + stage * Tile::P_BYTES, m, l, o, s,
                                  p_pair + (1 - stage) * Tile::P_BYTES, side, first_key == 0,
                                  scale_log2);
    if (next_key < key_end) {
      copy(v_chunk, problem.v_strides.row, next_key, 2 + (1 - stage));
      if (after_next < key_end) copy(k_chunk, problem.k_strides.row, after_next, stage);
      cp_async_commit();
    }
    multiply_shared_p<T, HEAD_DIM, Tile::BLOCK_N>(o, lane.p + stage * Tile::P_BYTES,
                                                  lane.v + stage * Tile::KV_BYTES);
  }

  exchange(l, p_pair + (1 - stage) * Tile::P_BYTES, side, [](float a, float b) { return a + b; });
  // exchange() has a barrier: no warp reads Q or K any more, and O can be written there.
  T *o_warp = (T *)smem + threadIdx.x / WARP_SIZE * Tile::PAIR_ROWS * SMEM_STRIDE<HEAD_DIM / 2>;
  store_rows<T, HEAD_DIM / 2>(o, m, l, o_warp, (T *)t.o + offset.o + side * HEAD_DIM / 2,
                              problem.o_strides.row, side == 0 ? t.lse + offset.lse : NULL,
                              first_q + pair_row, problem.q_len);
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  THREADS,
                                                                  Tiles<HEAD_DIM>::SHARED_BYTES,
                                                                  USES_MMA);

static constexpr KernelConfig<> CONFIGS[] = {CONFIG<__half, 256>, CONFIG<__nv_bfloat16, 256>};

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  config->kernel<<<grid_size(config, problem), THREADS, config->shared_bytes, stream>>>(*problem,
                                                                                        *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step06c",
    .after = "step06b",
    .title = "D = 256: two warps share 32 rows",
    .idea = "Each warp of a pair computes S of half of the keys, and O of half of the columns.",
    .head_dims = "D = 256",
    .supports = supports_config<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
};
