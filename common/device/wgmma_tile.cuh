/**
 * @file
 * What step 07 introduces: tiles that TMA writes and wgmma reads, and the products of a
 * warpgroup. S and O of a warpgroup are 64 rows, 16 for each warp, laid out as in fragments.cuh.
 */
#ifndef DEVICE_WGMMA_TILE_CUH
#define DEVICE_WGMMA_TILE_CUH

#include "device/fragments.cuh"
#include "device/ptx_hopper.cuh"
#include "device/tensor_map.cuh"

/** Sizes of the tiles: each step has its own. */
template <int HEAD_DIM>
struct Tiles;

/** Shared memory of a thread block: each step has its own. */
template <typename T, int HEAD_DIM>
struct Shared;

/** Bytes in the units of a descriptor. Added to one, it moves its first element. */
__host__ __device__ constexpr uint64_t units(int bytes) {
  return (uint64_t)(bytes >> 4);
}

/**
 * Describes to wgmma a matrix in shared memory that TMA has written: columns side by side in rows
 * of ROW_BYTES, 128 or 64, swizzled. `start` is its first element. The hardware adds the swizzle to
 * every address that it computes, so a part of a panel is described by where it starts.
 *
 * Bits 0-13: the address; 16-29: bytes to the next panel, where the instruction needs several;
 * 32-45: bytes to the next 8 rows; 62-63: the swizzle. The first three are in units of 16 bytes
 * (PTX ISA, 9.7.15.5.1.2).
 */
template <int ROW_BYTES>
__device__ __forceinline__ uint64_t descriptor_of_rows(const void *start, int panel_bytes) {
  constexpr uint64_t SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
  return (shared_address(start) & 0x3ffff) >> 4 | units(panel_bytes) << 16 |
         units(8 * ROW_BYTES) << 32 | SWIZZLE << 62;
}

/** The same of 16-bit elements. */
template <int HEAD_DIM, typename T>
__device__ __forceinline__ uint64_t wgmma_descriptor(const T *start, int panel_bytes) {
  return descriptor_of_rows<2 * PANEL<HEAD_DIM>>(start, panel_bytes);
}

/** Starts S = Q K^T for 64 rows of Q and the first 8 TILES rows of a tile of K, which has BLOCK_N.
 * Of both operands the columns d to d + 15 are described. */
template <typename T, int HEAD_DIM, int BLOCK_N, int TILES>
__device__ __forceinline__ void start_qk(float (&s)[TILES][4], const T *q_group, const T *k_tile) {
  constexpr int PANEL_COLUMNS = PANEL<HEAD_DIM>;
  const uint64_t q = wgmma_descriptor<HEAD_DIM>(q_group, 0);
  const uint64_t k = wgmma_descriptor<HEAD_DIM>(k_tile, 0);
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 16) {
    const int panel = d / PANEL_COLUMNS, column = d % PANEL_COLUMNS;
    wgmma<T, false>(s, q + units(2 * (panel * 64 * PANEL_COLUMNS + column)),
                    k + units(2 * (panel * BLOCK_N * PANEL_COLUMNS + column)), d > 0);
  }
  wgmma_commit();
}

/** Starts O += P V for the first 16 P_FRAGMENTS rows of a tile of V, which has BLOCK_N. P comes
 * from registers; of V the rows `key` to `key` + 15 are described, with all columns. The
 * instruction transposes them, so that 16 keys of a column are together. */
template <typename T, int HEAD_DIM, int BLOCK_N, int P_FRAGMENTS>
__device__ __forceinline__ void start_pv(float (&o)[HEAD_DIM / MMA_N][4],
                                         const uint32_t (&probs)[P_FRAGMENTS][4], const T *v_tile) {
  constexpr int PANEL_COLUMNS = PANEL<HEAD_DIM>;
  const uint64_t v = wgmma_descriptor<HEAD_DIM>(v_tile, 2 * BLOCK_N * PANEL_COLUMNS);
#pragma unroll
  for (int key = 0; key < 16 * P_FRAGMENTS; key += 16) {
    wgmma<T, true>(o, probs[key / 16], v + units(2 * key * PANEL_COLUMNS), true);
  }
  wgmma_commit();
}

/** P in the type of V: two neighbouring fragments of S are operand A of one wgmma. */
template <typename T, int N_FRAGMENTS>
__device__ __forceinline__ void pack_probs(uint32_t (&probs)[N_FRAGMENTS / 2][4],
                                           const float (&s)[N_FRAGMENTS][4]) {
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
    probs[n / 2][0] = pack<T>(s[n][0], s[n][1]);
    probs[n / 2][1] = pack<T>(s[n][2], s[n][3]);
    probs[n / 2][2] = pack<T>(s[n + 1][0], s[n + 1][1]);
    probs[n / 2][3] = pack<T>(s[n + 1][2], s[n + 1][3]);
  }
}

// As in steps/step07_wgmma.cu:

/** One thread sets up the barriers: a TMA load fills a tile, and then `warps` warps read it. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void init_barriers(Shared<T, HEAD_DIM> &shared, int warps) {
  mbarrier_init(&shared.q_full, 1);
  for (int stage = 0; stage < Tiles<HEAD_DIM>::STAGES; stage++) {
    mbarrier_init(&shared.k_full[stage], 1);
    mbarrier_init(&shared.v_full[stage], 1);
    mbarrier_init(&shared.k_empty[stage], warps);  // one thread of each warp arrives
    mbarrier_init(&shared.v_empty[stage], warps);
  }
}

/** Asks for ROWS rows of a head, from row `row` on, panel by panel. All bytes count for `barrier`,
 * those of rows past the end too. */
template <int HEAD_DIM, int ROWS, typename T>
__device__ __forceinline__ void load_rows(T *target, const CUtensorMap &map, uint64_t *barrier,
                                          int row, int head, int batch) {
  constexpr int PANEL_COLUMNS = PANEL<HEAD_DIM, sizeof(T)>;
#pragma unroll
  for (int column = 0; column < HEAD_DIM; column += PANEL_COLUMNS) {
    tma_load(target + ROWS * column, map, barrier, column, row, head, batch);
  }
}

#endif
