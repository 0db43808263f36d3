/**
 * @file
 * Step 12: fp8.
 *
 * The idea: the tensor cores multiply numbers of 8 bits twice as fast as numbers of 16, and half as
 * many bytes move. So Q, K and V are e4m3, each with scales, and P is rounded to e4m3, too.
 *
 * What changed since step 10c:
 * - wgmma cannot transpose bytes. V must lie with its keys side by side, so the three warps beside
 *   the producer transpose each tile of V, from one buffer to another.
 * - A register of S holds other keys than a register of P must. Instead of moving P between lanes,
 *   V gets the order of keys that P has.
 * - With e4m3, tensor cores keep only 13 bits after the leading one of a sum. So P V of each tile
 *   begins at 0, and is added to O in fp32.
 * - A consumer has one product in flight at a time, because S and P V share registers. The other
 *   two consumers fill the gaps.
 * - The largest sum of P is 448, the largest number of e4m3. So a new m leaves P room to grow. How
 *   much depends on the row, so that small P keep their bits: see softmax_with_new_m().
 * - P of e4m3 takes few registers, so S stays beside it. A new m needs no second Q K^T, and K is
 *   released before the softmax.
 *
 * What it costs: only 3 bits of mantissa are left in Q, K, V and P. And a second pass of V through
 * shared memory.
 *
 * What to look at: transpose_v(), and who waits for whom.
 *
 * Longer than other steps: neither the transposition nor the arithmetic of e4m3 is right without
 * the other, and each takes about 100 lines.
 */
#include <float.h>
#include <math.h>

#include "attention.h"
#include "device/heads.cuh"
#include "device/launch.cuh"
#include "device/lazy_softmax.cuh"
#include "device/overlap.cuh"
#include "device/pipeline.cuh"
#include "device/producer.cuh"
#include "device/ptx_hopper.cuh"
#include "device/scheduler.cuh"
#include "device/skip_tile.cuh"
#include "device/store_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/warp.cuh"
#include "device/wgmma_tile.cuh"

// [tiles]
/** Sizes of the tiles, by head dimension. */
template <int HEAD_DIM>
struct Tiles {
  static constexpr int CONSUMERS = 3;    // warpgroups that compute
  static constexpr int TRANSPOSERS = 3;  // warps, of the producer's warpgroup
  static constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP_THREADS;
  static constexpr int CONSUMER_ROWS = 64;                   // rows of Q of a consumer
  static constexpr int BLOCK_M = CONSUMERS * CONSUMER_ROWS;  // rows of Q
  static constexpr int BLOCK_N = 128;  // keys: a row of V transposed has 128 bytes
  static constexpr int STAGES = 3;     // tiles of K, and of V transposed
  static constexpr int V_STAGES = 2;   // tiles of V as they arrive
  // Registers of each thread. All together are at most 65536.
  static constexpr int PRODUCER_REGISTERS = 32, CONSUMER_REGISTERS = 160;
  static_assert(registers_suffice<CONSUMERS, PRODUCER_REGISTERS, CONSUMER_REGISTERS>());
};
// [tiles]

constexpr int AHEAD = 2;  // times that a warp loads 32 keys before it stores the first of them
// Sums of P of a row in a lane. 448 is the largest e4m3, and no P exceeds the sum.
constexpr float MOST_P_SUM = 448;
// How much lower than the maximum a new m is, in powers of two: at least 3, and more while the sum
// stays at 100 or below, so that P has room to grow. If one or two keys have nearly all of the sum,
// it may be 448: then all other P are small, and must not become 0.
constexpr int LEAST_SHIFT = 3;
constexpr float NEW_P_SUM = 100, SUM_OF_TWO = 2.25f;

/** Shared memory of a thread block. Tiles that TMA swizzles begin at multiples of 1024 bytes. */
template <typename T, int HEAD_DIM>
struct Shared {
  using Tile = Tiles<HEAD_DIM>;
  alignas(1024) uint8_t q[Tile::CONSUMERS][Tile::CONSUMER_ROWS * HEAD_DIM];
  alignas(1024) T o[Tile::CONSUMERS][4][16 * HEAD_DIM];  // by warp
  alignas(1024) uint8_t k[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];
  alignas(1024) uint8_t v[Tile::V_STAGES][Tile::BLOCK_N * HEAD_DIM];  // as it arrives
  alignas(1024) uint8_t vt[Tile::STAGES][Tile::BLOCK_N * HEAD_DIM];   // row d is column d of V
  WorkTile work[2];                      // this tile of queries and the next one
  uint64_t work_full[2], work_empty[2];  // it has been written; has been read
  uint64_t q_full[Tile::CONSUMERS], q_empty[Tile::CONSUMERS];  // Q has arrived; has been read
  uint64_t k_full[Tile::STAGES], k_empty[Tile::STAGES];        // a tile has arrived; has been read
  uint64_t v_full[Tile::V_STAGES], v_empty[Tile::V_STAGES];
  uint64_t vt_full[Tile::STAGES], vt_empty[Tile::STAGES];  // V is transposed; has been read
};

/** Where a swizzled tile with rows of ROW_BYTES has a chunk of 16 bytes. */
template <int ROW_BYTES>
__device__ __forceinline__ unsigned chunk_byte(unsigned row, unsigned chunk) {
  return row * ROW_BYTES + (chunk ^ (ROW_BYTES == 128 ? row % 8 : row / 2 % 4)) * 16;
}

// [transpose]
/**
 * Writes columns of V as rows. A warp transposes 16 columns of 32 keys with one ldmatrix and one
 * stmatrix, AHEAD times at a time.
 *
 * ldmatrix.trans moves pairs of bytes: a lane gets columns 2c and 2c + 1 (c = lane / 4) of keys 2t
 * and 2t + 1 (t = lane % 4), and with the next register of keys 8 + 2t and 9 + 2t. Two byte
 * permutations separate the columns: one register has four keys of column 2c, the other of 2c + 1.
 *
 * Then keys lie in the order 0, 1, 8, 9, 2, 3, 10, 11 and so on, which is the order that a lane
 * holds P in: see pack_probs_e4m3(). Lanes with c >= 4 store the odd column first, so that the 8
 * rows of each matrix lie in different banks.
 */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void transpose_v(uint8_t *vt_tile, const uint8_t *v_tile, int part,
                                            int parts) {
  static_assert(BLOCK_N == 128 && 4 % AHEAD == 0, "rows of V transposed have 128 bytes");
  constexpr unsigned BLOCKS = HEAD_DIM / 16;  // of 16 columns
  const unsigned lane = threadIdx.x % WARP_SIZE, row = lane % 8, matrix = lane / 8;
  const uint32_t even = 0x6420, odd = 0x7531;
  const uint32_t first = lane / 4 < 4 ? even : odd, second = first ^ even ^ odd;
#pragma unroll 1
  for (unsigned i = part; i < BLOCKS * (BLOCK_N / 32 / AHEAD); i += parts) {
    const unsigned columns = i % BLOCKS, first_key = i / BLOCKS * 32 * AHEAD;
    const unsigned column = 16 * columns + 2 * row + ((row >= 4) ^ matrix % 2);
    const unsigned chunk = first_key / 16 + matrix / 2;  // of 16 keys
    const uint8_t *from = v_tile + chunk_byte<HEAD_DIM>(first_key + 8 * matrix + row, columns);
    const unsigned to = chunk_byte<128>(column, chunk);
    uint32_t pairs[AHEAD][4];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) ldmatrix_x4_trans(pairs[j], from + 32 * j * HEAD_DIM);
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const uint32_t fours[4] = {select_bytes(pairs[j][0], pairs[j][1], first),
                                 select_bytes(pairs[j][0], pairs[j][1], second),
                                 select_bytes(pairs[j][2], pairs[j][3], first),
                                 select_bytes(pairs[j][2], pairs[j][3], second)};
      stmatrix_x4(vt_tile + (to ^ 32 * j), fours);
    }
  }
}

/** What a warp that transposes V does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void transpose(Shared<T, HEAD_DIM> &shared, int part) {
  using Tile = Tiles<HEAD_DIM>;
  PipelineState<Tile::V_STAGES> v;
  PipelineState<Tile::STAGES> vt;
  for (PipelineState<2> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const int key_end = shared.work[work_state.index()].key_end;
    if (key_end < 0) break;
    __syncwarp();  // all lanes have read it
    release(shared.work_empty, work_state);
    for (int first_key = 0; first_key < key_end; first_key += Tile::BLOCK_N, ++v, ++vt) {
      mbarrier_wait(&shared.v_full[v.index()], v.phase());  // V has arrived
      mbarrier_wait(&shared.vt_empty[vt.index()],
                    vt.phase() ^ 1);  // no product reads what was here
      transpose_v<HEAD_DIM, Tile::BLOCK_N>(shared.vt[vt.index()], shared.v[v.index()], part,
                                           Tile::TRANSPOSERS);
      fence_proxy_async();  // wgmma sees the stores; the next TMA load comes after the loads
      __syncwarp();         // all lanes have stored, and passed their fence
      release(shared.vt_full, vt);  // this warp has written its part
      release(shared.v_empty, v);
    }
  }
}
// [transpose]

/** Starts S = Q K^T for 64 rows of Q. Of both operands 32 columns at a time are described. */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void start_qk_e4m3(float (&s)[BLOCK_N / MMA_N][4], const uint8_t *q_rows,
                                              const uint8_t *k_tile) {
  const uint64_t q = descriptor_of_rows<HEAD_DIM>(q_rows, 0);
  const uint64_t k = descriptor_of_rows<HEAD_DIM>(k_tile, 0);
#pragma unroll
  for (int d = 0; d < HEAD_DIM; d += 32) wgmma_e4m3(s, q + units(d), k + units(d), d > 0);
  wgmma_commit();
}

// [pv]
/** Starts PV = P V for a tile of keys. The order of keys is that of both P and V transposed. */
template <int HEAD_DIM, int BLOCK_N>
__device__ __forceinline__ void start_pv_e4m3(float (&pv)[HEAD_DIM / MMA_N][4],
                                              const uint32_t (&probs)[BLOCK_N / 32][4],
                                              const uint8_t *vt_tile) {
  const uint64_t v = descriptor_of_rows<128>(vt_tile, 0);
#pragma unroll
  for (int key = 0; key < BLOCK_N; key += 32) {
    wgmma_e4m3(pv, probs[key / 32], v + units(key), key > 0);
  }
  wgmma_commit();
}

/** P in e4m3: what a lane holds of two neighbouring fragments of S becomes one register, four keys
 * in the order 2t, 2t + 1, 8 + 2t, 9 + 2t. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void pack_probs_e4m3(uint32_t (&probs)[N_FRAGMENTS / 4][4],
                                                const float (&s)[N_FRAGMENTS][4]) {
#pragma unroll
  for (int n = 0; n < N_FRAGMENTS; n += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      probs[n / 4][n / 2 % 2 * 2 + half] =
          pack_e4m3(s[n][2 * half], s[n][2 * half + 1], s[n + 1][2 * half], s[n + 1][2 * half + 1]);
    }
  }
}

/** O += PV: the sum over tiles of keys is in fp32. */
template <int O_FRAGMENTS>
__device__ __forceinline__ void add_rows(float (&o)[O_FRAGMENTS][4],
                                         const float (&pv)[O_FRAGMENTS][4]) {
#pragma unroll
  for (int n = 0; n < O_FRAGMENTS; n++) {
#pragma unroll
    for (int c = 0; c < 4; c++) o[n][c] += pv[n][c];
  }
}
// [pv]

// [exponentiate]
/** P of a tile of scores with the m that is there, packed. The scores stay, because they are needed
 * again if m is too small. `sums` is what P adds to l. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void exponentiate_e4m3(uint32_t (&probs)[N_FRAGMENTS / 4][4],
                                                  float (&sums)[2],
                                                  const float (&s)[N_FRAGMENTS][4],
                                                  const float (&m)[2], float scale_log2) {
  float p_of_tile[N_FRAGMENTS][4];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    sums[half] = 0.0f;
#pragma unroll
    for (int n = 0; n < N_FRAGMENTS; n++) {
#pragma unroll
      for (int c = 2 * half; c < 2 * half + 2; c++) {
        p_of_tile[n][c] = exp2_approx(fmaf(s[n][c], scale_log2, -m[half]));
        sums[half] += p_of_tile[n][c];
      }
    }
  }
  pack_probs_e4m3(probs, p_of_tile);
}
// [exponentiate]

// [shift]
/** Replaces scores by unnormalised probabilities with a new m, and updates l. `rescale` is what the
 * rows of O are to be multiplied by. With the exact maximum, P is at most 1, and P below 2^-6 lose
 * bits in e4m3. So m is lower than the maximum, by as much as the sum of P in each lane allows: by
 * 8 in a row with one large P, by 3 in a row whose P are all alike. */
template <int N_FRAGMENTS>
__device__ __forceinline__ void softmax_with_new_m(float (&s)[N_FRAGMENTS][4], float (&m)[2],
                                                   float (&l)[2], float (&rescale)[2],
                                                   float scale_log2) {
  static_assert((2 * N_FRAGMENTS << LEAST_SHIFT) <= (int)MOST_P_SUM, "equal scores do not raise m");
  float row_max[2] = {-FLT_MAX, -FLT_MAX}, sums[2] = {}, factor[2];
  softmax_of_tile(s, row_max, sums, rescale, scale_log2);  // with the exact maximum of this tile
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float most = lanes_reduce_max<4>(sums[half]);
    const float wanted = most <= SUM_OF_TWO ? MOST_P_SUM : NEW_P_SUM;
    // An integer, so that the largest P is a power of two, which e4m3 has exactly.
    const float shift = fmaxf(LEAST_SHIFT, floorf(log2_approx(__fdividef(wanted, most))));
    const float new_m = fmaxf(m[half], row_max[half] - shift);  // m never falls
    factor[half] = exp2_approx(row_max[half] - new_m);
    rescale[half] = exp2_approx(m[half] - new_m);
    m[half] = new_m;
    l[half] = l[half] * rescale[half] + sums[half] * factor[half];
  }
  rescale_rows(s, factor);
}
// [shift]

// [product]
/** The product of three positive numbers, as the normal float that is next to it: with 0, a masked
 * score of -inf would become NaN. The least times the largest lies between the two if 1 does. If
 * not, the third number makes a product that is too small or too large even more so. */
__device__ __forceinline__ float product_of_scales(float a, float b, float c) {
  const float least = fminf(fminf(a, b), c), largest = fmaxf(fmaxf(a, b), c);
  const float middle = fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
  return fminf(fmaxf(least * largest * middle, FLT_MIN), FLT_MAX);
}
// [product]

// [attend]
/** The loop over tiles of keys: O, m and l of a consumer's rows. It releases Q. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void attend(Shared<T, HEAD_DIM> &shared, const Problem &problem,
                                       int consumer, int first_row, int tile_count,
                                       float scale_log2,
                                       PipelineState<Tiles<HEAD_DIM>::STAGES> &state,
                                       float (&o)[HEAD_DIM / MMA_N][4], float (&m)[2],
                                       float (&l)[2]) {
  constexpr int BLOCK_N = Tiles<HEAD_DIM>::BLOCK_N;
  const int unmasked_end = attended_keys(problem, first_row);
  float pv[HEAD_DIM / MMA_N][4];  // P V of one tile of keys
  uint32_t probs[BLOCK_N / 32][4];
  for (int tile = 0; tile < tile_count; tile++, ++state) {
    {
      float s[1][BLOCK_N / MMA_N][4], sums[1][2], rescale[2];
      mbarrier_wait(&shared.k_full[state.index()], state.phase());  // K has arrived
      wgmma_fence();  // P V was read from the registers that S takes
      start_qk_e4m3<HEAD_DIM, BLOCK_N>(s[0], shared.q[consumer], shared.k[state.index()]);
      wgmma_wait<0>(s[0]);             // S is complete
      release(shared.k_empty, state);  // nothing reads this K any more
      mask_tile(s, problem, first_row, tile * BLOCK_N, unmasked_end);
      // [softmax]
      if (tile > 0) exponentiate_e4m3(probs, sums[0], s[0], m, scale_log2);
      if (tile == 0 || __any_sync(FULL_WARP, needs_new_max(sums, MOST_P_SUM))) {
        softmax_with_new_m(s[0], m, l, rescale, scale_log2);
        rescale_rows(o, rescale);
        pack_probs_e4m3(probs, s[0]);
      } else {
        l[0] += sums[0][0], l[1] += sums[0][1];
      }
      // [softmax]
    }
    mbarrier_wait(&shared.vt_full[state.index()], state.phase());  // V is transposed
    wgmma_fence();                                                 // P was written, and S was read
    start_pv_e4m3<HEAD_DIM, BLOCK_N>(pv, probs, shared.vt[state.index()]);  // where S was
    wgmma_wait<0>(pv);  // P V is complete, and nothing reads P any more
    release(shared.vt_empty, state);
    add_rows(o, pv);
  }
  // All products with Q are complete: the next Q may come.
  __syncwarp();  // if there was no tile: all lanes have seen that this Q has come
  if (threadIdx.x % WARP_SIZE == 0) mbarrier_arrive(&shared.q_empty[consumer]);
}
// [attend]

// [consumer_loop]
/** What a consumer does, one tile of queries after the other. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void consume(Shared<T, HEAD_DIM> &shared, const ForwardMaps &maps,
                                        const Problem &problem, const Tensors &t, int consumer) {
  using Tile = Tiles<HEAD_DIM>;
  constexpr int BLOCK_N = Tile::BLOCK_N;
  const int warp = threadIdx.x / WARP_SIZE % 4, lane = threadIdx.x % WARP_SIZE;
  PipelineState<Tile::STAGES> state;  // of the next tile of K and V
  for (PipelineState<2> work_state;; ++work_state) {
    mbarrier_wait(&shared.work_full[work_state.index()], work_state.phase());
    const WorkTile &work = shared.work[work_state.index()];
    if (work.key_end < 0) break;
    const int first_q = work.first_q + consumer * Tile::CONSUMER_ROWS;  // of this consumer
    const int first_row = first_q + 16 * warp;                          // of this warp
    const int own_end = keys_of_rows(problem, first_q, Tile::CONSUMER_ROWS);
    const int tile_count = (own_end + BLOCK_N - 1) / BLOCK_N;
    // [0] belongs to row lane / 4 of this warp, [1] to the row 8 below.
    float m[2] = {-FLT_MAX, -FLT_MAX};  // exponent of 2 that P is relative to
    float l[2] = {};                    // running sum of this lane's probabilities
    float o[HEAD_DIM / MMA_N][4] = {};
    // [scales]
    const int kv_index =
        work.batch * problem.kv_heads + work.head / (problem.q_heads / problem.kv_heads);
    const float scale_log2 =
        product_of_scales(problem.scale * LOG2_E, t.q_scales[kv_index], t.k_scales[kv_index]);
    // [scales]
    const PipelineState<1> q_state = {work_state.count};
    mbarrier_wait(&shared.q_full[consumer], q_state.phase());  // Q of this consumer has arrived
    attend(shared, problem, consumer, first_row, tile_count, scale_log2, state, o, m, l);
    for (int key = tile_count * BLOCK_N; key < work.key_end; key += BLOCK_N, ++state) {
      skip_tile(shared.k_full, shared.k_empty, state);
      skip_tile(shared.vt_full, shared.vt_empty, state);
    }

    const int64_t head_index = (int64_t)work.batch * problem.q_heads + work.head;
    finish_rows(o, m, l, t.lse + head_index * problem.q_len, first_row, problem.q_len);
    // [v_scale]
    const float v_scale = t.v_scales[kv_index];  // v_scale / l could be subnormal
    rescale_rows(o, {v_scale, v_scale});
    // [v_scale]
    store_tile<HEAD_DIM>(o, shared.o[consumer][warp], maps.o, first_row, work.head, work.batch);
    release(shared.work_empty, work_state);  // all lanes have read `work` before __syncwarp()
  }
  if (lane == 0) tma_store_wait<0>();  // shared memory must stay until TMA has read it
}
// [consumer_loop]

/** The whole forward pass: one thread block for each SM. T is the type of O. */
template <typename T, int HEAD_DIM>
__global__ void __launch_bounds__(Tiles<HEAD_DIM>::THREADS, 1)
    attention_kernel(Problem problem, Tensors t, const __grid_constant__ ForwardMaps maps,
                     TileScheduler scheduler) {
  using Tile = Tiles<HEAD_DIM>;
  extern __shared__ __align__(1024) unsigned char smem[];
  Shared<T, HEAD_DIM> &shared = *(Shared<T, HEAD_DIM> *)smem;

  if (threadIdx.x == 0) {
    constexpr int READS = 4 * Tile::CONSUMERS;  // one thread of each warp
    init_barriers(shared.work_full, 1, shared.work_empty, READS + Tile::TRANSPOSERS);
    init_barriers(shared.q_full, 1, shared.q_empty, 4);
    init_barriers(shared.k_full, 1, shared.k_empty, READS);
    init_barriers(shared.v_full, 1, shared.v_empty, Tile::TRANSPOSERS);
    init_barriers(shared.vt_full, Tile::TRANSPOSERS, shared.vt_empty, READS);
    fence_mbarrier_init();
  }
  __syncthreads();  // all threads see the barriers

  // [roles]
  // The same for all lanes of a warp, and the compiler can see it.
  const int warpgroup = __shfl_sync(FULL_WARP, threadIdx.x / WARPGROUP_THREADS, 0);
  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP_SIZE, 0);
    if (warp >= 1 && warp <= Tile::TRANSPOSERS) transpose(shared, warp - 1);
    if (threadIdx.x == 0) produce(shared, maps.in, problem, scheduler);
  } else {
    setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    consume(shared, maps, problem, t, warpgroup - 1);
  }
  // [roles]
}

template <typename T, int HEAD_DIM>
constexpr auto CONFIG = make_config<T, HEAD_DIM, Tiles<HEAD_DIM>>(attention_kernel<T, HEAD_DIM>,
                                                                  Tiles<HEAD_DIM>::THREADS,
                                                                  sizeof(Shared<T, HEAD_DIM>),
                                                                  USES_WGMMA_FP8);

static constexpr KernelConfig<ForwardMaps, TileScheduler> CONFIGS[] = {
    CONFIG<__half, 64>, CONFIG<__half, 128>, CONFIG<__nv_bfloat16, 64>, CONFIG<__nv_bfloat16, 128>};

static cudaError_t forward(const Problem *problem, const Tensors *t, int, cudaStream_t stream) {
  const auto *config = find_config<CONFIGS>(problem);
  if (const cudaError_t error = prepare_launch(config, t)) return error;
  ForwardMaps maps;
  if (const cudaError_t error = make_forward_maps(&maps, problem, t, config->block_n)) return error;
  const TileScheduler scheduler = make_scheduler(problem, config->block_m, 1, t->workspace);
  config->kernel<<<block_count(config, problem), config->threads, config->shared_bytes, stream>>>(
      *problem, *t, maps, scheduler);
  return cudaGetLastError();
}

const Step step = {
    .name = "step12",
    .after = "step10c",
    .title = "fp8: Q, K, V and P in e4m3",
    .idea = "Tensor cores multiply bytes twice as fast; V is transposed on the way.",
    .head_dims = "D = 64 or 128",
    .fp8 = true,
    .supports = supports_config<CONFIGS>,
    .workspace_bytes = [](const Problem *) { return sizeof(unsigned); },
    .workspace_zero = true,
    .describe = describe_persistent<CONFIGS>,
    .forward = forward,
};
