/**
 * @file
 * What step 06 introduces: tiles that are swizzled instead of padded, and addresses in them that a
 * lane computes once.
 */
#ifndef DEVICE_SWIZZLE_TILE_CUH
#define DEVICE_SWIZZLE_TILE_CUH

#include "device/fragments.cuh"
#include "device/ptx.cuh"

// As in steps/step06_swizzle.cu:

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

#endif
