/**
 * @file
 * Step 06: step 05, tuned towards the limit of mma.sync.
 *
 * The idea: the result is that of step 05. Everything beside the mma instructions is removed, made
 * smaller, or executed while the tensor cores are busy.
 *
 * What changed since step 05:
 * - Tiles are swizzled instead of padded: chunk c of row r is at place c ^ (r % 8). At D = 32 and
 *   96 it is c ^ (r / 2 % 4).
 * - K and V have two buffers each, so one barrier per tile is enough.
 * - Tiles have more keys. A lane computes its address in each tile once.
 * - The maximum m of a row is rarely updated. P is computed with the old m. If a sum of P exceeds
 *   MOST_SUM, m is raised to the maximum of the tile, O is rescaled, and P is computed again.
 * - P is computed for 32 keys at a time. The exponentials of the next 32 keys overlap P V of the
 *   current ones.
 * - D = 256 has a kernel of its own, in which two warps share 32 rows.
 *
 * What it costs: two more buffers for larger tiles, and a loop whose parts are interleaved.
 *
 * What to look at: docs/step06.md says what the changes gave, and what else was tried.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/fragments.cuh"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/log2.cuh"
#include "device/ptx.cuh"
#include "device/tile_list.cuh"
#include "device/warp.cuh"

constexpr int PART = 32;  // keys whose probabilities are computed at a time
// Of the P of a row in one lane; in fp16, P must be below 65504. Scores beyond 2^28 are so coarse
// in fp32 that even P of a new m may be larger (docs/correctness.md).
constexpr float MOST_SUM = 512;

/* --- Swizzled tiles in shared memory ---------------------------------------------------------- */

// [swizzle_place]
/**
 * 8 chunks of 16 bytes span all banks. ldmatrix reads chunk c of 8 rows, so each of these rows has
 * it at another place of its group of 8 chunks: c ^ (row % 8). At D = 32 and 96 neighbouring rows
 * start in different halves of the banks. There groups of 4 chunks are enough: c ^ (row / 2 % 4).
 */
template <int HEAD_DIM>
constexpr int GROUP = HEAD_DIM % 64 == 0 ? 8 : 4;

/** The byte at which a chunk of a row starts in a tile. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  const int place = GROUP<HEAD_DIM> == 8 ? row % 8 : row / 2 % 4;
  return row * 2 * HEAD_DIM + (chunk ^ place) * 16;
}
// [swizzle_place]

// [lane_addresses]
/** The address of chunk c + `more` of a row, given that of chunk c; c and `more` must have no 1 in
 * the same bit. Tiles start at multiples of 128, so one XOR moves the address within its group. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t more_chunks(uint32_t address, int more) {
  return (address ^ more % GROUP<HEAD_DIM> * 16) + more / GROUP<HEAD_DIM> * GROUP<HEAD_DIM> * 16;
}

/** What a lane passes to ldmatrix for 16 rows and 16 columns of a tile of Q, P or, transposed, V:
 * lanes 0-15 pass the rows of the left 8 columns, lanes 16-31 those of the right ones. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t lane_of_rows(const unsigned char *tile) {
  const int lane = threadIdx.x % WARP_SIZE;
  uint32_t address = shared_address(tile) + chunk_offset<HEAD_DIM>(lane % 16, lane / 16);
  keep_in_register(address);
  return address;
}
// [lane_addresses]

/** The same for K: columns 0-7 and 8-15 of 8 keys, then of the next 8 keys. */
template <int HEAD_DIM>
__device__ __forceinline__ uint32_t lane_of_keys(const unsigned char *tile) {
  const int lane = threadIdx.x % WARP_SIZE;
  const int key = lane / 16 * 8 + lane % 8;
  uint32_t address = shared_address(tile) + chunk_offset<HEAD_DIM>(key, lane / 8 % 2);
  keep_in_register(address);
  return address;
}

/** Copies tiles of ROWS rows. A group of chunks is copied by neighbouring threads, so that a thread
 * computes one address of each row and adds constants to get to its other chunks. */
template <int HEAD_DIM, int ROWS, int THREADS>
struct TileCopy {
  static constexpr int ROW_STEP = THREADS / GROUP<HEAD_DIM>;  // rows that are copied at a time
  static_assert(ROWS % ROW_STEP == 0 && ROW_STEP % 8 == 0,
                "each thread copies the same number of chunks");
  int row, column;  // of this thread's first chunk
  uint32_t target;

  __device__ __forceinline__ TileCopy(const unsigned char *tile) {
    row = threadIdx.x / GROUP<HEAD_DIM>;
    column = threadIdx.x % GROUP<HEAD_DIM> * CHUNK;
    target = shared_address(tile) + chunk_offset<HEAD_DIM>(row, column / CHUNK);
  }

  /** This thread's first chunk of a [rows][HEAD_DIM] matrix that starts at row `first`. */
  template <typename T>
  __device__ __forceinline__ const T *first_chunk(const T *matrix, int64_t row_stride,
                                                  int first = 0) const {
    return matrix + (first + row) * row_stride + column;
  }

  /** Starts copying rows first to first + ROWS - 1 of the matrix with this first chunk to `offset`
   * bytes after the tile. Rows past the end become zero. */
  template <typename T>
  __device__ __forceinline__ void start(int offset, const T *chunk, int64_t row_stride, int first,
                                        int rows) const {
    const T *source = chunk + first * row_stride;
    const int left = rows - first - row;
#pragma unroll
    for (int i = 0; i < ROWS; i += ROW_STEP) {
      const bool valid = i < left;
#pragma unroll
      for (int c = 0; c < HEAD_DIM / CHUNK; c += GROUP<HEAD_DIM>) {
        cp_async_16(shared_pointer(target + offset + i * 2 * HEAD_DIM + c * 16), source + c * CHUNK,
                    valid);
      }
      source += ROW_STEP * row_stride;
    }
  }
};

/** S += Q K^T for the lane's addresses in Q and K. */
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

/** O += P V for 16 keys, `v` being the lane's address in V. */
template <typename T, int HEAD_DIM, int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void multiply_pv(float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                            const uint32_t (&p)[M_FRAGMENTS][4], uint32_t v) {
#pragma unroll
  for (int d = 0; d < O_FRAGMENTS / 2; d++) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, shared_pointer(more_chunks<HEAD_DIM>(v, 2 * d)));
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
      mma_m16n8k16<T>(o[i][2 * d], p[i], b[0], b[1]);
      mma_m16n8k16<T>(o[i][2 * d + 1], p[i], b[2], b[3]);
    }
  }
}

/* --- Masks ------------------------------------------------------------------------------------ */

/** Starts copying the bits of a PARTIAL tile. */
template <int BYTES, int THREADS>
__device__ __forceinline__ void copy_bits(unsigned char *bits_shared, const uint32_t *bits) {
  static_assert(BYTES / 16 <= THREADS, "one chunk per thread");
  if (threadIdx.x < BYTES / 16) {
    cp_async_16(bits_shared + 16 * threadIdx.x, bits + 4 * threadIdx.x, true);
  }
}

/** Sets the scores whose bit is 0 to -inf. Bit j of a word is key 32 * word + j; rows are WORDS
 * apart, and `row_bits` is the word of this warp's first row and first key. */
template <int WORDS, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void apply_bitmask(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                              const uint32_t *row_bits) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint32_t *words = row_bits + (16 * i + 8 * half + lane / 4) * WORDS;
#pragma unroll
      for (int n = 0; n < N_FRAGMENTS; n += 4) {  // four accumulator tiles are 32 keys, one word
        const uint32_t word = words[n / 4] >> lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if ((word >> (j / 2 * 8 + j % 2) & 1) == 0) s[i][n + j / 2][2 * half + j % 2] = -INFINITY;
        }
      }
    }
  }
}

/** Applies the mask of a tile to the scores of this warp; its first row is query `first_q`. */
template <int WORDS, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void mask_scores(float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                            const Problem &p, int mask, int first_q, int first_key,
                                            const uint32_t *row_bits) {
  if (mask == ALL_ATTENDED) return;
  if (mask < 0 || first_key + 8 * N_FRAGMENTS > p.kv_len) {
    apply_mask(s, p, mask == CAUSAL_RULE, first_q, first_key);
  }
  if (mask >= 0) apply_bitmask<WORDS>(s, row_bits);
}

/* --- Softmax ---------------------------------------------------------------------------------- */

// [probabilities]
/** Probabilities 2^(scale_log2 s - m) of PART keys from accumulator tile `first` on, as operand A
 * of one mma per 16 keys, and their sums over the keys of this lane. */
template <typename T, int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void exponentiate(uint32_t (&probs)[PART / 16][M_FRAGMENTS][4],
                                             float (&sums)[M_FRAGMENTS][2],
                                             const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                             int first, const float (&m)[M_FRAGMENTS][2],
                                             float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
    sums[i][0] = sums[i][1] = 0.0f;
#pragma unroll
    for (int j = 0; j < PART / 16; j++) {
      float prob[8];  // of two accumulator tiles
#pragma unroll
      for (int c = 0; c < 8; c++) {
        const int half = c / 2 % 2;
        prob[c] = exp2_approx(fmaf(s[i][first + 2 * j + c / 4][c % 4], scale_log2, -m[i][half]));
        sums[i][half] += prob[c];
      }
#pragma unroll
      for (int c = 0; c < 4; c++) probs[j][i][c] = pack<T>(prob[2 * c], prob[2 * c + 1]);
    }
  }
}

/**
 * Whether m is too small for a row of this lane. Before its first attended key a row has m =
 * -FLT_MAX: P of a masked key is 0, and P of any other is infinite. A score of NaN or +inf makes
 * the sum NaN or infinite, too.
 */
template <int M_FRAGMENTS>
__device__ __forceinline__ bool too_large(const float (&sums)[M_FRAGMENTS][2]) {
  bool large = false;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) large |= !(sums[i][half] <= MOST_SUM);
  }
  return large;
}
// [probabilities]

/** The maximum score of each row from accumulator tile `first` on. */
template <int M_FRAGMENTS, int N_FRAGMENTS>
__device__ __forceinline__ void row_maxima(float (&maxima)[M_FRAGMENTS][2],
                                           const float (&s)[M_FRAGMENTS][N_FRAGMENTS][4],
                                           int first) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float maximum = -INFINITY;
#pragma unroll
      for (int n = first; n < N_FRAGMENTS; n++) {
        maximum = fmaxf(maximum, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
      }
      maxima[i][half] = lanes_reduce_max<4>(maximum);
    }
  }
}

/** Gives m of rows without an attended key so far, whose l and O are 0, these maxima. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void start_m(float (&m)[M_FRAGMENTS][2],
                                        const float (&maxima)[M_FRAGMENTS][2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (m[i][half] == -FLT_MAX) m[i][half] = fmaxf(-FLT_MAX, maxima[i][half] * scale_log2);
    }
  }
}

// [raise_maximum]
/** Raises m to these maxima and rescales l and O. */
template <int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void raise_m(float (&m)[M_FRAGMENTS][2], float (&l)[M_FRAGMENTS][2],
                                        float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                        const float (&maxima)[M_FRAGMENTS][2], float scale_log2) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float raised = fmaxf(m[i][half], maxima[i][half] * scale_log2);
      const float rescale = exp2_approx(m[i][half] - raised);
      m[i][half] = raised;
      l[i][half] *= rescale;
#pragma unroll
      for (int n = 0; n < O_FRAGMENTS; n++) {
        o[i][n][2 * half] *= rescale;
        o[i][n][2 * half + 1] *= rescale;
      }
    }
  }
}
// [raise_maximum]

/** Adds the sums of PART keys to l. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void add_sums(float (&l)[M_FRAGMENTS][2],
                                         const float (&sums)[M_FRAGMENTS][2]) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) l[i][half] += sums[i][half];
  }
}

/** Sets m and l before the first tile. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void start_rows(float (&m)[M_FRAGMENTS][2], float (&l)[M_FRAGMENTS][2]) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      m[i][half] = -FLT_MAX;
      l[i][half] = 0.0f;
    }
  }
}

/* --- Results ---------------------------------------------------------------------------------- */

/** From sums over the keys of this lane to sums of whole rows. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void sum_lanes(float (&l)[M_FRAGMENTS][2]) {
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) l[i][half] = lanes_reduce_sum<4>(l[i][half]);
  }
}

/** Stores the LSE of this warp's rows; `sums` are l of whole rows. The first row is query `first`.
 */
template <int M_FRAGMENTS>
__device__ __forceinline__ void store_lse(const float (&m)[M_FRAGMENTS][2],
                                          const float (&sums)[M_FRAGMENTS][2], float *lse_global,
                                          int first, int rows) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = first + 16 * i + 8 * half + lane / 4;
      // A row that attends nothing has m = -FLT_MAX and sum = 0; log2(0) is -inf, and so is LSE.
      if (lane % 4 == 0 && row < rows) {
        lse_global[row] = (m[i][half] + log2_approx(sums[i][half])) * LN_2;
      }
    }
  }
}

/**
 * Divides O by the sums of whole rows and stores this warp's rows, of 8 * O_FRAGMENTS columns; the
 * first is query `first`. Each 8 rows are collected in `rows_shared`, shared memory of this warp
 * alone, so that a lane stores 16 bytes at a time.
 */
template <typename T, int M_FRAGMENTS, int O_FRAGMENTS>
__device__ __forceinline__ void store_rows(const float (&o)[M_FRAGMENTS][O_FRAGMENTS][4],
                                           const float (&sums)[M_FRAGMENTS][2],
                                           unsigned char *rows_shared, T *o_global,
                                           int64_t row_stride, int first, int rows) {
  constexpr int COLUMNS = 8 * O_FRAGMENTS, ITERATIONS = 8 * COLUMNS / CHUNK / WARP_SIZE;
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < 2 * M_FRAGMENTS; i++) {
    const float sum = sums[i / 2][i % 2];
    const float factor = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
#pragma unroll
    for (int n = 0; n < O_FRAGMENTS; n++) {
      const float *pair = &o[i / 2][n][i % 2 * 2];
      *reinterpret_cast<uint32_t *>(rows_shared + chunk_offset<COLUMNS>(lane / 4, n) +
                                    lane % 4 * 4) = pack<T>(pair[0] * factor, pair[1] * factor);
    }
    __syncwarp();  // the rows are complete: a lane stores what other lanes have written
#pragma unroll
    for (int j = 0; j < ITERATIONS; j++) {
      const ChunkPosition at = chunk_position<COLUMNS, WARP_SIZE>(j, lane);
      const int row = at.row + at.row_offset;
      const uint4 chunk = *reinterpret_cast<const uint4 *>(
          rows_shared + chunk_offset<COLUMNS>(row, at.column / CHUNK));
      store_16(o_global + (first + 8 * i + row) * row_stride + at.column, chunk,
               first + 8 * i + row < rows);
    }
    __syncwarp();  // all lanes have read them
  }
}

/* --- The kernel for head dimensions up to 128 ------------------------------------------------- */

/** What a thread block computes: a tile of queries of one head. */
struct Work {
  int head;
  QueryTile own;
  const KeyTile *tiles;  // [own.tile_count + 1]
};

__device__ __forceinline__ Work work_of_block(const Problem &p, const TileLists &lists) {
  const BlockRow row = row_of_block(p, lists, blockIdx.x);
  const int list = list_of_head(lists, row.head / p.q_heads, row.head % p.q_heads) * lists.q_tiles;
  // The tiles of queries with the longest lists start first.
  const QueryTile own = lists.order[list + row.entry];
  return {row.head, own, lists.tiles + (int64_t)(list + own.q_tile) * lists.most_tiles};
}

// [tile_shapes]
/**
 * Shapes of the tiles, by measurement on an H200. LARGE tiles need mask blocks whose sides are
 * multiples of BLOCK_M and BLOCK_N, and up to 98 KiB of shared memory. The others are for smaller
 * mask blocks or less shared memory.
 */
template <int HEAD_DIM, bool LARGE>
struct Tiles {
  static constexpr int WARPS = 4;
  static constexpr int THREADS = WARPS * WARP_SIZE;
  static constexpr int M_FRAGMENTS = LARGE ? 2 : 1;  // 16-row tiles of Q per warp
  static constexpr int WARP_ROWS = 16 * M_FRAGMENTS;
  static constexpr int BLOCK_M = WARPS * WARP_ROWS;                             // rows of Q
  static constexpr int BLOCK_N = (LARGE ? 64 : 32) * (HEAD_DIM <= 64 ? 2 : 1);  // rows of K and V
  static constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;   // of one stage of K or of V
  static constexpr int BITS_BYTES = BLOCK_M * BLOCK_N / 8;  // of one stage of the mask's bits
  static constexpr int SHARED_BYTES = Q_BYTES + 4 * KV_BYTES + 2 * BITS_BYTES;
  static constexpr int BLOCKS_PER_SM = HEAD_DIM == 256 ? 1 : 2;
};
// [tile_shapes]

/** The whole forward pass: one thread block for BLOCK_M queries of one head. */
template <typename T, int HEAD_DIM, bool LARGE>
__global__ void __launch_bounds__(Tiles<HEAD_DIM, LARGE>::THREADS,
                                  Tiles<HEAD_DIM, LARGE>::BLOCKS_PER_SM)
    attention_kernel(Problem p, Tensors t, TileLists lists) {
  using Tile = Tiles<HEAD_DIM, LARGE>;
  constexpr int M_FRAGMENTS = Tile::M_FRAGMENTS, BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N;
  constexpr int THREADS = Tile::THREADS, WORDS = BLOCK_N / 32, PARTS = BLOCK_N / PART;

  extern __shared__ __align__(128) unsigned char smem[];
  unsigned char *k_shared = smem + Tile::Q_BYTES;              // [2 stages]
  unsigned char *v_shared = k_shared + 2 * Tile::KV_BYTES;     // [2 stages]
  unsigned char *bits_shared = v_shared + 2 * Tile::KV_BYTES;  // [2 stages][BLOCK_M][WORDS]

  // [lanes_and_copies]
  const Work work = work_of_block(p, lists);
  const int first_q = work.own.q_tile * BLOCK_M;
  const HeadOffsets at = head_offsets(p, work.head);
  const int warp_row = threadIdx.x / WARP_SIZE * Tile::WARP_ROWS;
  unsigned char *q_warp = smem + warp_row * 2 * HEAD_DIM;
  const uint32_t q_lane = lane_of_rows<HEAD_DIM>(q_warp);
  const uint32_t k_lane = lane_of_keys<HEAD_DIM>(k_shared);
  const uint32_t v_lane = lane_of_rows<HEAD_DIM>(v_shared);

  const TileCopy<HEAD_DIM, BLOCK_N, THREADS> copy(k_shared);
  const T *k_chunk = copy.first_chunk((const T *)t.k + at.k, p.k_strides.row);
  const T *v_chunk = copy.first_chunk((const T *)t.v + at.v, p.v_strides.row);
  const auto copy_keys = [&](KeyTile tile, int stage) {
    copy.start(stage * Tile::KV_BYTES, k_chunk, p.k_strides.row, tile.first_key, p.kv_len);
    copy.start((2 + stage) * Tile::KV_BYTES, v_chunk, p.v_strides.row, tile.first_key, p.kv_len);
    if (tile.mask >= 0) {
      copy_bits<Tile::BITS_BYTES, THREADS>(bits_shared + stage * Tile::BITS_BYTES,
                                           bits_of_tile(lists, tile.mask));
    }
    cp_async_commit();
  };
  // [lanes_and_copies]

  float m[M_FRAGMENTS][2];  // maximum of score * scale * log2(e) over some of the keys so far
  float l[M_FRAGMENTS][2];  // running sum of the probabilities of this lane's keys
  float o[M_FRAGMENTS][HEAD_DIM / 8][4] = {};
  start_rows(m, l);
  const float scale_log2 = p.scale * LOG2_E;

  const TileCopy<HEAD_DIM, BLOCK_M, THREADS> copy_q(smem);
  copy_q.start(0, copy_q.first_chunk((const T *)t.q + at.q, p.q_strides.row, first_q),
               p.q_strides.row, 0, p.q_len - first_q);
  KeyTile tile = work.own.first;
  copy_keys(tile, 0);  // zeros, if no key is attended

  // [iteration_start]
  const KeyTile *list = work.tiles, *end = list + work.own.tile_count;
  int stage = 1;
  while (list < end) {
    stage ^= 1;
    cp_async_wait<0>();  // K and V of this tile, at first also Q: nothing else is in flight
    __syncthreads();  // all threads' copies are visible, and all warps are done with the last tile

    float s[M_FRAGMENTS][BLOCK_N / 8][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_lane, k_lane + stage * Tile::KV_BYTES);
    // The copies come after Q K^T, so that the tensor cores have work after the barrier at once.
    const KeyTile next = *++list;
    if (list < end) copy_keys(next, 1 - stage);
    mask_scores<WORDS>(
        s, p, tile.mask, first_q + warp_row, tile.first_key,
        (const uint32_t *)(bits_shared + stage * Tile::BITS_BYTES) + warp_row * WORDS);
    if (__any_sync(FULL_WARP, m[0][0] == -FLT_MAX)) {
      // Usually the first tile. Without this branch, its P would be computed twice. One row decides
      // for all of the warp: others without an attended key so far have P computed twice.
      float maxima[M_FRAGMENTS][2];
      row_maxima(maxima, s, 0);
      start_m(m, maxima, scale_log2);
    }
    // [iteration_start]

    // [parts_overlap]
    uint32_t probs[2][PART / 16][M_FRAGMENTS][4];  // of this part and the next
    float sums[2][M_FRAGMENTS][2];
    exponentiate<T>(probs[0], sums[0], s, 0, m, scale_log2);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const int now = part % 2;
      if (__any_sync(FULL_WARP, too_large(sums[now]))) {
        float maxima[M_FRAGMENTS][2];
        row_maxima(maxima, s, part * PART / 8);
        raise_m(m, l, o, maxima, scale_log2);
        exponentiate<T>(probs[now], sums[now], s, part * PART / 8, m, scale_log2);
      }
      add_sums(l, sums[now]);
      // No branch separates this from P V, so nvcc can put the exponentials between its mma.
      if (part + 1 < PARTS) {
        exponentiate<T>(probs[1 - now], sums[1 - now], s, (part + 1) * PART / 8, m, scale_log2);
      }
#pragma unroll
      for (int j = 0; j < PART / 16; j++) {
        const int key = part * PART + 16 * j;
        multiply_pv<T, HEAD_DIM>(o, probs[now][j],
                                 v_lane + stage * Tile::KV_BYTES + key * 2 * HEAD_DIM);
      }
      // [parts_overlap]
    }
    tile = next;
  }

  cp_async_wait<0>();  // Q and the tiles of zeros, if no key was attended
  __syncthreads();     // all threads' copies of Q are complete; its rows can be overwritten by O
  sum_lanes(l);
  store_lse(m, l, t.lse + at.lse, first_q + warp_row, p.q_len);
  store_rows(o, l, q_warp, (T *)t.o + at.o, p.o_strides.row, first_q + warp_row, p.q_len);
}

/* --- The kernel for D = 256 ------------------------------------------------------------------- */

/**
 * O of 32 rows has 256 registers per lane at D = 256. With 16 rows per warp, reading K and V from
 * shared memory takes longer than the mma. So two warps share 32 rows: each computes S for one half
 * of the keys and O for one half of the columns. They exchange P, and sums, in shared memory.
 */
struct PairTiles {
  static constexpr int HEAD_DIM = 256;
  static constexpr int WARPS = 8;
  static constexpr int THREADS = WARPS * WARP_SIZE;
  static constexpr int M_FRAGMENTS = 2;
  static constexpr int BLOCK_M = 16 * M_FRAGMENTS * WARPS / 2;  // rows of Q
  static constexpr int BLOCK_N = 2 * PART;                      // rows of K and V
  static constexpr int Q_BYTES = 2 * BLOCK_M * HEAD_DIM;
  static constexpr int KV_BYTES = 2 * BLOCK_N * HEAD_DIM;   // of one stage of K or of V
  static constexpr int P_BYTES = 2 * BLOCK_M * BLOCK_N;     // of one stage
  static constexpr int BITS_BYTES = BLOCK_M * BLOCK_N / 8;  // of one stage
  static constexpr int SHARED_BYTES =
      Q_BYTES + 4 * KV_BYTES + 2 * P_BYTES + 2 * BITS_BYTES + 2 * BLOCK_M * (int)sizeof(float);
};

/** Combines a number of each row with that of the other warp of the pair. `pair_rows` is shared
 * memory [rows][2]. All threads of the block call it. */
template <int M_FRAGMENTS, typename Combine>
__device__ __forceinline__ void exchange(float (&numbers)[M_FRAGMENTS][2], float (*pair_rows)[2],
                                         int side, Combine combine) {
  const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (lane % 4 == 0) pair_rows[16 * i + 8 * half + lane / 4][side] = numbers[i][half];
    }
  }
  __syncthreads();  // the numbers of the other warp are visible
#pragma unroll
  for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float other = pair_rows[16 * i + 8 * half + lane / 4][1 - side];
      numbers[i][half] = combine(numbers[i][half], other);
    }
  }
}

/** Stores the probabilities of PART keys as rows of P. `p` is the lane's address: of row lane / 4
 * and 2 * (lane % 4) keys after the first. */
template <int M_FRAGMENTS>
__device__ __forceinline__ void store_probs(uint32_t p,
                                            const uint32_t (&probs)[PART / 16][M_FRAGMENTS][4]) {
#pragma unroll
  for (int j = 0; j < PART / 16; j++) {
#pragma unroll
    for (int i = 0; i < M_FRAGMENTS; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) {  // operand A: 8 keys of rows g and g + 8, then the next 8 keys
        const uint32_t chunk = more_chunks<PairTiles::BLOCK_N>(p, 2 * j + c / 2);
        *(uint32_t *)shared_pointer(chunk + (16 * i + c % 2 * 8) * 2 * PairTiles::BLOCK_N) =
            probs[j][i][c];
      }
    }
  }
}

/** The whole forward pass at D = 256. It takes all shared memory of a multiprocessor. */
template <typename T>
__global__ void __launch_bounds__(PairTiles::THREADS, 1)
    pair_kernel(Problem p, Tensors t, TileLists lists) {
  using Tile = PairTiles;
  constexpr int HEAD_DIM = Tile::HEAD_DIM, M_FRAGMENTS = Tile::M_FRAGMENTS, THREADS = Tile::THREADS;
  constexpr int BLOCK_M = Tile::BLOCK_M, BLOCK_N = Tile::BLOCK_N, WORDS = BLOCK_N / 32;

  extern __shared__ __align__(128) unsigned char smem[];
  unsigned char *k_shared = smem + Tile::Q_BYTES;             // [2 stages]
  unsigned char *v_shared = k_shared + 2 * Tile::KV_BYTES;    // [2 stages]
  unsigned char *p_shared = v_shared + 2 * Tile::KV_BYTES;    // [2 stages]
  unsigned char *bits_shared = p_shared + 2 * Tile::P_BYTES;  // [2 stages][BLOCK_M][WORDS]
  float(*exchanged)[2] = (float(*)[2])(bits_shared + 2 * Tile::BITS_BYTES);  // [BLOCK_M][2]

  const int lane = threadIdx.x % WARP_SIZE;
  const int side = threadIdx.x / WARP_SIZE % 2;  // of the pair: which keys of S, columns of O
  const int pair_row = threadIdx.x / (2 * WARP_SIZE) * 16 * M_FRAGMENTS;
  unsigned char *p_rows = p_shared + pair_row * 2 * BLOCK_N;
  const uint32_t q_lane = lane_of_rows<HEAD_DIM>(smem + pair_row * 2 * HEAD_DIM);
  const uint32_t k_lane = lane_of_keys<HEAD_DIM>(k_shared + side * PART * 2 * HEAD_DIM);
  const uint32_t v_lane = lane_of_rows<HEAD_DIM>(v_shared + side * HEAD_DIM);
  const uint32_t p_lane = lane_of_rows<BLOCK_N>(p_rows);
  const uint32_t p_own =
      shared_address(p_rows) + lane % 4 * 4 + chunk_offset<BLOCK_N>(lane / 4, side * PART / CHUNK);

  const TileCopy<HEAD_DIM, BLOCK_N, THREADS> copy(k_shared);
  const Work work = work_of_block(p, lists);
  const int first_q = work.own.q_tile * BLOCK_M;
  const HeadOffsets at = head_offsets(p, work.head);
  const T *k_chunk = copy.first_chunk((const T *)t.k + at.k, p.k_strides.row);
  const T *v_chunk = copy.first_chunk((const T *)t.v + at.v, p.v_strides.row);
  const auto copy_k = [&](KeyTile tile, int stage) {
    copy.start(stage * Tile::KV_BYTES, k_chunk, p.k_strides.row, tile.first_key, p.kv_len);
    if (tile.mask >= 0) {
      copy_bits<Tile::BITS_BYTES, THREADS>(bits_shared + stage * Tile::BITS_BYTES,
                                           bits_of_tile(lists, tile.mask));
    }
  };
  const auto copy_v = [&](KeyTile tile, int stage) {
    copy.start((2 + stage) * Tile::KV_BYTES, v_chunk, p.v_strides.row, tile.first_key, p.kv_len);
  };

  float m[M_FRAGMENTS][2], l[M_FRAGMENTS][2];
  float o[M_FRAGMENTS][HEAD_DIM / 2 / 8][4] = {};
  start_rows(m, l);
  const float scale_log2 = p.scale * LOG2_E;

  const TileCopy<HEAD_DIM, BLOCK_M, THREADS> copy_q(smem);
  copy_q.start(0, copy_q.first_chunk((const T *)t.q + at.q, p.q_strides.row), p.q_strides.row,
               first_q, p.q_len);
  KeyTile tile = work.own.first;
  copy_k(tile, 0);  // zeros, if no key is attended
  cp_async_commit();
  cp_async_wait<0>();  // Q and the first K
  __syncthreads();     // all threads' copies are visible
  const KeyTile *list = work.tiles, *end = list + work.own.tile_count;
  int stage = 1;
  while (list < end) {
    stage ^= 1;
    const KeyTile next = list[1];
    const KeyTile after = list + 2 < end ? list[2] : tile;

    float s[M_FRAGMENTS][PART / 8][4] = {};
    multiply_qk<T, HEAD_DIM>(s, q_lane, k_lane + stage * Tile::KV_BYTES);
    mask_scores<WORDS>(
        s, p, tile.mask, first_q + pair_row, tile.first_key + side * PART,
        (const uint32_t *)(bits_shared + stage * Tile::BITS_BYTES) + pair_row * WORDS + side);
    if (list == work.tiles) {
      // These copies start now, so that the first Q K^T need not wait for them.
      copy_v(tile, 0);
      if (list + 1 < end) copy_k(next, 1);
      cp_async_commit();
      float maxima[M_FRAGMENTS][2];  // without them, P of the first tile would be computed twice
      row_maxima(maxima, s, 0);
      exchange(maxima, exchanged + pair_row, side, [](float a, float b) { return fmaxf(a, b); });
      start_m(m, maxima, scale_log2);
    }
    // [pair_barrier]
    uint32_t probs[PART / 16][M_FRAGMENTS][4];
    float sums[M_FRAGMENTS][2];
    exponentiate<T>(probs, sums, s, 0, m, scale_log2);
    store_probs(p_own + stage * Tile::P_BYTES, probs);

    cp_async_wait<0>();  // V of this tile and K of the next: nothing else is in flight
    // P and all threads' copies are visible; all warps are done with this K and the last V.
    if (__syncthreads_or(too_large(sums))) {
      float maxima[M_FRAGMENTS][2];
      row_maxima(maxima, s, 0);
      exchange(maxima, exchanged + pair_row, side, [](float a, float b) { return fmaxf(a, b); });
      raise_m(m, l, o, maxima, scale_log2);
      exponentiate<T>(probs, sums, s, 0, m, scale_log2);
      store_probs(p_own + stage * Tile::P_BYTES, probs);
      __syncthreads();  // the new P is visible
    }
    add_sums(l, sums);
    // [pair_barrier]

    if (list + 1 < end) {
      copy_v(next, 1 - stage);
      if (list + 2 < end) copy_k(after, stage);
      cp_async_commit();
    }

#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++) {
      uint32_t a[M_FRAGMENTS][4];
#pragma unroll
      for (int i = 0; i < M_FRAGMENTS; i++) {
        ldmatrix_x4(a[i], shared_pointer(more_chunks<BLOCK_N>(p_lane, 2 * n) +
                                         stage * Tile::P_BYTES + 16 * i * 2 * BLOCK_N));
      }
      multiply_pv<T, HEAD_DIM>(o, a, v_lane + stage * Tile::KV_BYTES + 16 * n * 2 * HEAD_DIM);
    }
    tile = next;
    list++;
  }

  sum_lanes(l);
  exchange(l, exchanged + pair_row, side, [](float a, float b) { return a + b; });
  if (side == 0) store_lse(m, l, t.lse + at.lse, first_q + pair_row, p.q_len);
  // exchange() has a barrier: no warp reads Q any more.
  unsigned char *own_rows = smem + threadIdx.x / WARP_SIZE * 8 * HEAD_DIM;
  store_rows(o, l, own_rows, (T *)t.o + at.o + side * HEAD_DIM / 2, p.o_strides.row,
             first_q + pair_row, p.q_len);
}

/* --- Launches --------------------------------------------------------------------------------- */

template <typename T, int HEAD_DIM, bool LARGE>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM, LARGE>>(
    attention_kernel<T, HEAD_DIM, LARGE>, Tiles<HEAD_DIM, LARGE>::THREADS,
    Tiles<HEAD_DIM, LARGE>::SHARED_BYTES, CEILING_MMA);

template <typename T>
constexpr auto PAIR_CONFIG = make_config<T, 256, PairTiles>(pair_kernel<T>, PairTiles::THREADS,
                                                            PairTiles::SHARED_BYTES, CEILING_MMA,
                                                            "pair");

#define CONFIGS_OF(HEAD_DIM, LARGE) \
  CONFIG<__half, HEAD_DIM, LARGE>, CONFIG<__nv_bfloat16, HEAD_DIM, LARGE>

static constexpr KernelConfig<TileLists> CONFIGS[] = {
    CONFIGS_OF(32, true), CONFIGS_OF(32, false),      CONFIGS_OF(64, true),  CONFIGS_OF(64, false),
    CONFIGS_OF(96, true), CONFIGS_OF(96, false),      CONFIGS_OF(128, true), CONFIGS_OF(128, false),
    PAIR_CONFIG<__half>,  PAIR_CONFIG<__nv_bfloat16>, CONFIGS_OF(256, false)};

static cudaError_t prepare(const Problem *p, const BlockMask *mask, void *prepared,
                           cudaStream_t stream) {
  const TileLists lists = lay_out_tile_lists(p, mask, find_config<CONFIGS>(p), prepared);
  if (lists.partial_tiles > 0) {
    pack_bits_kernel<<<(unsigned)lists.partial_tiles, 4 * WARP_SIZE, 0, stream>>>(*mask, lists);
  }
  list_tiles_kernel<<<lists.rows, WARP_SIZE, 0, stream>>>(*p, *mask, lists);
  order_rows_kernel<<<(lists.rows + 127) / 128, 128, 0, stream>>>(lists);
  return cudaGetLastError();
}

static cudaError_t forward(const Problem *p, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(p);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  const TileLists lists = lay_out_tile_lists(p, t->block_mask, config, t->prepared);
  config->kernel<<<grid_size(config, p), config->threads, config->shared_bytes, stream>>>(*p, *t,
                                                                                          lists);
  return cudaGetLastError();
}

static const BlockMaskSupport BLOCK_MASKS = {.prepared_bytes = tile_list_bytes<CONFIGS>,
                                             .prepare = prepare};

const Step step = {
    .name = "step06",
    .after = "step05",
    .title = "Tuned: less beside mma.sync",
    .idea = "Swizzled tiles, one barrier per tile, and a row maximum that is rarely updated.",
    .head_dims = "D = 32, 64, 96, 128 or 256",
    .supports = supports_block_masks<CONFIGS>,
    .describe = describe_config<CONFIGS>,
    .forward = forward,
    .block_masks = &BLOCK_MASKS,
};
