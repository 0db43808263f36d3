/**
 * @file
 * Step 19b: the last block of a row group merges the parts.
 *
 * The idea: a second kernel starts when all blocks of the first have ended, and its launch takes
 * longer than what it does. But one of the blocks of a row group is the last to finish, and it can
 * merge the parts, if it knows that it is the last. A counter tells it: each block raises it after
 * it has stored its parts, and the one that finds parts - 1 is the last.
 *
 * What changed since step 19: one kernel. The workspace begins with a counter for each row group. A
 * block *releases* its parts by a fence before the atomic, and the last block *acquires* those of
 * the others by a fence behind it. atomicInc() sets the counter back to 0 when it has reached parts
 * - 1, so the next pass finds it as this one did.
 *
 * What it costs: one block merges what `parts` blocks have computed, while the rest of the GPU has
 * nothing to do any more. With many parts of many rows that takes longer than a launch.
 *
 * What to look at: finish_parts(). docs/lab.md says what each of its lines is for.
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_rows.cuh"
#include "device/decode_split.cuh"

// [finish_parts]
/** Publishes what the threads of this block have stored. Returns to all of them whether `parts`
 * blocks have done so: then this block sees what all have stored. */
__device__ __forceinline__ bool finish_parts(unsigned *counter, int parts) {
  __shared__ bool is_last;
  __syncthreads();  // all threads have stored their parts
  if (threadIdx.x == 0) {
    __threadfence();  // release: the parts are visible before the counter is
    is_last = atomicInc(counter, parts - 1) == (unsigned)parts - 1;
    __threadfence();  // acquire: the parts of blocks that came before are visible
  }
  __syncthreads();  // to all threads
  return is_last;
}
// [finish_parts]

/** The counters of the row groups come first in the workspace, in whole sectors of 32 bytes. */
__host__ __device__ inline size_t counter_bytes(int row_groups) {
  return (row_groups + 7) / 8 * (size_t)32;
}

// [merge_rows]
/** Merges the parts of all rows of a block, a row in each warp. */
template <typename T, int HEAD_DIM>
__device__ __forceinline__ void merge_rows(const Problem &problem, const DecodeTensors &t,
                                           const RowGroup &group, void *all_parts, int parts) {
  constexpr int LANES = HEAD_DIM / COLUMNS;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int column = lane % LANES * COLUMNS;
  for (int row = group.first + warp; row < group.end; row += WARPS) {
    const QueryRow of = query_row(problem, group, row);
    Part sum = EMPTY_PART;
    merge_slice<HEAD_DIM>(sum, parts_of_row(problem, all_parts, parts, of), parts, lane / LANES,
                          WARP_SIZE / LANES, column);
    merge_lanes<LANES>(sum);
    if (lane >= LANES) continue;  // other groups of lanes have the same
    const float factor = sum.l == 0.0f ? 0.0f : 1.0f / sum.l;
    const float lse_log2 = sum.m + log2_approx(sum.l);
    for (float &o : sum.o) o *= factor;
    for (int c = 0; c < COLUMNS; c += 4) {
      const float4 o = make_float4(sum.o[c], sum.o[c + 1], sum.o[c + 2], sum.o[c + 3]);
      store_result<T>(problem, t, of, column + c, {o, lse_log2});
    }
  }
}
// [merge_rows]

// [decode_kernel]
/** One thread block for a part of the keys of up to ROWS rows of Q. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(THREADS, blocks_per_sm(ROWS))
    decode_kernel(Problem problem, DecodeTensors t, int parts) {
  __shared__ WarpParts<HEAD_DIM> warps[ROWS];
  const int row_groups = gridDim.x / parts, number = blockIdx.x / parts;
  const RowGroup group = row_group(problem, ROWS, number);
  const int part = blockIdx.x % parts, length = t.lengths[group.batch];
  const GroupKeys keys = keys_of_group(problem, group, length);
  void *const all_parts = (char *)t.workspace + counter_bytes(row_groups);
  attend_keys<T>(warps, problem, t, group,
                 keys_of_part<TILE_KEYS<HEAD_DIM>>(keys.some, parts, part), keys.all, length);
  merge_block(warps, group, [&](int row, int column, const RowResult &result) {
    const QueryRow of = query_row(problem, group, row);
    if (parts == 1) {
      store_result<T>(problem, t, of, column, result);
      return;
    }
    const RowParts to = parts_of_row(problem, all_parts, parts, of);
    *(float4 *)&to.o[part * HEAD_DIM + column] = result.o;
    if (column == 0) to.lse_log2[part] = result.lse_log2;
  });
  if (parts > 1 && finish_parts((unsigned *)t.workspace + number, parts)) {
    merge_rows<T, HEAD_DIM>(problem, t, group, all_parts, parts);
  }
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr DecodeConfig<int> CONFIG = make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>,
                                                                    THREADS, TILE_KEYS<D>);

#define CONFIGS_OF(T, D) CONFIG<T, D, 1>, CONFIG<T, D, 2>, CONFIG<T, D, 4>
static constexpr DecodeConfig<int> CONFIGS[] = {
    CONFIGS_OF(__half, 64),        CONFIGS_OF(__half, 128),        CONFIGS_OF(__half, 256),
    CONFIGS_OF(__nv_bfloat16, 64), CONFIGS_OF(__nv_bfloat16, 128), CONFIGS_OF(__nv_bfloat16, 256)};

static int parts_of(const DecodeConfig<int> *c, const Problem *problem) {
  return part_count(c, problem, MOST_PARTS, 1);
}

static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const DecodeConfig<int> *c = find_decode<CONFIGS>(problem);
  const int parts = parts_of(c, problem);
  c->kernel<<<row_blocks(c, problem) * parts, THREADS, 0, stream>>>(*problem, *t, parts);
  return cudaGetLastError();
}

const Step step = {
    .name = "step19b",
    .after = "step19",
    .title = "The last block merges the parts",
    .idea = "A counter tells the last block of a row group that all parts are there.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_decode<CONFIGS>,
    .workspace_bytes =
        [](const Problem *problem) {
          const DecodeConfig<int> *c = find_decode<CONFIGS>(problem);
          return counter_bytes(row_blocks(c, problem)) + part_bytes(problem, parts_of(c, problem));
        },
    .workspace_zero = true,
    .zero_bytes =
        [](const Problem *problem) {
          return counter_bytes(row_blocks(find_decode<CONFIGS>(problem), problem));
        },
    .describe =
        [](const Problem *problem, int, Description *description) {
          const int parts = parts_of(find_decode<CONFIGS>(problem), problem);
          describe_decode<CONFIGS>(problem, parts, description);
        },
    .decode = decode,
    .caches = CACHE_16_BIT,
};
