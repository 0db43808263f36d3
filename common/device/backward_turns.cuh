/**
 * @file
 * What step 17h introduces: warps that add to dQ take turns.
 */
#ifndef DEVICE_BACKWARD_TURNS_CUH
#define DEVICE_BACKWARD_TURNS_CUH

#include "device/backward_tile.cuh"
#include "device/dq_sums.cuh"
#include "device/warp.cuh"

// As in steps/step17h_deterministic.cu:

/** The turns of a pass: how many thread blocks have started, then for each head, TURN_QUERIES rows
 * and warp how many have added. They lie behind the sums. */
constexpr int TURN_QUERIES = 128;
/** Those of a head of the pass. */
__host__ __device__ inline uint32_t *turns_of(const Problem &problem, void *workspace, int heads,
                                              int head) {
  return (uint32_t *)dq_sums(problem, workspace, heads, heads) + 1 +
         (int64_t)head * (padded_rows(problem) / TURN_QUERIES * 4);
}

/** The turns of one warp. */
struct Turns {
  const uint32_t before; /**< how many blocks add before this one, the same for all turns */
  uint32_t *at = NULL;   /**< the turn that this warp has */
  uint32_t seen = 0;     /**< how many had added when the next turn was read */

  /** Passes the turn on. */
  __device__ __forceinline__ void pass() const {
    __syncwarp();  // all lanes have added
    if (at != NULL && threadIdx.x % WARP_SIZE == 0) reduce_add_release(at, 1);
  }
  /** Reads early how many have added where the next turn is counted. */
  __device__ __forceinline__ void look_at(const uint32_t *next) {
    if (threadIdx.x % WARP_SIZE == 0) seen = load_acquire(next);
  }
  /** Passes the turn on, and waits for the next. */
  __device__ __forceinline__ void take(uint32_t *next) {
    pass();
    while (threadIdx.x % WARP_SIZE == 0 && seen < before) seen = load_acquire(next);
    __syncwarp();  // no lane adds before
    at = next;
  }
};

/** The work of block `number`: the first keys of `most` heads, then the keys after them. */
template <int BLOCK_N>
__device__ __forceinline__ KeyBlock ordered_block(const Problem &problem, PassHeads heads, int most,
                                                  int number) {
  const int tiles = (problem.kv_len + BLOCK_N - 1) / BLOCK_N;
  const int group = problem.q_heads / problem.kv_heads, all = heads.count / group;
  const int section = min(all, most), first = number / (section * tiles) * section;
  const int together = min(section, all - first), rest = number - first * tiles;
  return {rest / together * BLOCK_N, heads.first + (first + rest % together) * group};
}

#endif
