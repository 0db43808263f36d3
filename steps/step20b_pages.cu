/**
 * @file
 * Step 20b: K and V in pages.
 *
 * The idea: a server does not know how long an answer will be. If each sequence had room for the
 * longest, most of the memory would be empty. So memory is cut into pages of 16 to 256 keys, and a
 * sequence gets a page when it needs one; sequences that begin alike may have the same pages. A
 * table says which pages a sequence has, in their order. A contiguous cache is a special case: one
 * page for each sequence, which has its number.
 *
 * What changed since step 20: where a key is. Its row is found by the number of its page, and that
 * is in the table, in device memory. To load a key, a lane needs that number first: two loads, one
 * after the other, twice the latency. So it looks up the pages of a tile when it loads the tile
 * before.
 *
 * What it costs: a register for each key that a lane loads, and the loads of the table, which L1
 * and L2 serve. Rows of a page are kv_heads * D elements apart, in runs of one row of a head, so a
 * warp reads the same whole sectors as before.
 *
 * What to look at: find_pages() is called twice. What happens without the first call?
 */
#include "decode.h"
#include "device/decode_launch.cuh"
#include "device/decode_part_places.cuh"
#include "device/decode_rows.cuh"
#include "device/decode_shares.cuh"

// [pages]
/** The pages of a sequence. */
struct Pages {
  const int *table;        /**< their numbers; NULL: the cache is contiguous */
  int sequence;            /**< its number: the "page" of a contiguous cache */
  int log2_size, row_mask; /**< a key is row `key & row_mask` of page number `key >> log2_size` */
};

/** Those of a sequence of the batch. */
__device__ __forceinline__ Pages pages_of_sequence(const Problem &problem, const DecodeTensors &t,
                                                   int sequence) {
  if (t.page_table == NULL) return {NULL, sequence, 31, INT32_MAX};
  return {t.page_table + (int64_t)sequence * t.page_table_stride, sequence,
          __ffs(problem.page_size) - 1, problem.page_size - 1};
}

/** The page of a key, in the tensors of K and V. */
__device__ __forceinline__ int find_page(const Pages &pages, int key) {
  return pages.table == NULL ? pages.sequence : pages.table[key >> pages.log2_size];
}

/** Where a key is in K or V, in elements from the first row of page 0 of its head. */
__device__ __forceinline__ int64_t row_offset(const Strides &strides, const Pages &pages, int page,
                                              int key) {
  return page * strides.batch + (key & pages.row_mask) * strides.row;
}
// [pages]

// [load_tile]
/** Looks up the pages of the KEYS keys of a lane: `key` and every GROUPS-th after it before `end`.
 */
template <int GROUPS>
__device__ __forceinline__ void find_pages(int (&found)[KEYS], const Pages &pages, int key,
                                           int end) {
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    found[i] = key + i * GROUPS < end ? find_page(pages, key + i * GROUPS) : 0;
  }
}

/** Loads the columns of this lane of these keys. `k` and `v` are those of row 0 of page 0. */
template <typename T, int GROUPS>
__device__ __forceinline__ void load_tile(TileColumns &tile, const Problem &problem, const T *k,
                                          const T *v, const Pages &pages, const int (&found)[KEYS],
                                          int first, int end) {
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    const int key = first + i * GROUPS;
    tile.k[i] = load_columns(k + row_offset(problem.k_strides, pages, found[i], key), key < end);
    tile.v[i] = load_columns(v + row_offset(problem.v_strides, pages, found[i], key), key < end);
  }
}
// [load_tile]

// [attend_pages]
/** attend_keys() of step 18b for a cache in pages. */
template <typename T, int HEAD_DIM, int ROWS>
__device__ __forceinline__ void attend_pages(WarpParts<HEAD_DIM> (&parts)[ROWS],
                                             const Problem &problem, const DecodeTensors &t,
                                             const RowGroup &group, KeyRange keys,
                                             KeyRange unmasked, int length) {
  constexpr int LANES = HEAD_DIM / COLUMNS, GROUPS = WARP_SIZE / LANES;
  constexpr int WARP_KEYS = KEYS * GROUPS, STEP = WARPS * WARP_KEYS;
  const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  const int column = lane % LANES * COLUMNS;
  const T *const k = (const T *)t.k + group.kv_head * problem.k_strides.head + column;
  const T *const v = (const T *)t.v + group.kv_head * problem.v_strides.head + column;
  const Pages pages = pages_of_sequence(problem, t, group.batch);
  LaneRows<ROWS> rows;
  load_rows(rows, problem, (const T *)t.q, group, column);
  const int begin = keys.begin + warp * WARP_KEYS;
  int found[KEYS];
  find_pages<GROUPS>(found, pages, begin + lane / LANES, keys.end);
  for (int first = begin; first < keys.end; first += STEP) {
    const bool masked = first < unmasked.begin || first + WARP_KEYS > min(unmasked.end, keys.end);
    const int key = first + lane / LANES;
    TileColumns tile;
    load_tile<T, GROUPS>(tile, problem, k, v, pages, found, key, keys.end);
    find_pages<GROUPS>(found, pages, key + STEP, keys.end);  // those of the next tile
    attend_tile<T, HEAD_DIM>(rows, problem, group, tile, key, keys, length, masked);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    merge_lanes<LANES>(rows.part[r]);
    store_part(parts[r], rows.part[r]);
  }
  __syncthreads();  // the parts of all warps are there
}
// [attend_pages]

// [decode_kernel]
/** The decode pass but for merging; each block has a share of all tiles. */
template <typename T, int HEAD_DIM, int ROWS>
__global__ void __launch_bounds__(THREADS, blocks_per_sm(ROWS))
    decode_kernel(Problem problem, DecodeTensors t) {
  constexpr int TILE = TILE_KEYS<HEAD_DIM>;
  __shared__ WarpParts<HEAD_DIM> warps[ROWS];
  const Share share = ((const Share *)t.schedule)[blockIdx.x];
  auto *const places = (PartPlace<HEAD_DIM, ROWS> *)t.workspace;
  RowGroup rows = share.rows;
  int first = share.first;
  for (int left = share.tiles; left > 0;
       rows = next_rows<ROWS>(problem, rows, share.stride), first = 0) {
    const int length = t.lengths[rows.batch];
    const GroupKeys keys = keys_of_group(problem, rows, length);
    const SequenceTiles tiles = tiles_of_sequence(problem, length, TILE);
    const int count = min(tiles.count - first, left), begin = (tiles.first + first) * TILE;
    const KeyRange own = {max(keys.some.begin, begin), min(keys.some.end, begin + count * TILE)};
    attend_pages<T>(warps, problem, t, rows, own, keys.all, length);
    merge_block(warps, rows, [&](int row, int column, const RowResult &result) {
      if (count == tiles.count) {  // the block has all keys
        store_result<T>(problem, t, query_row(problem, rows, row), column, result);
        return;
      }
      PartPlace<HEAD_DIM, ROWS> &place = places[2 * blockIdx.x + (first == 0)];
      *(float4 *)&place.o[row - rows.first][column] = result.o;
      if (column == 0) place.lse_log2[row - rows.first] = result.lse_log2;
    });
    __syncthreads();  // the parts of the warps have been read and can be overwritten
    left -= count;
  }
}
// [decode_kernel]

template <typename T, int D, int ROWS>
constexpr SharesConfig CONFIG = {
    make_decode_config<T, D, ROWS>(decode_kernel<T, D, ROWS>, THREADS, TILE_KEYS<D>),
    merge_kernel<Share, T, D, ROWS>, blocks_per_sm(ROWS), sizeof(PartPlace<D, ROWS>)};

#define CONFIGS_OF(T, D) CONFIG<T, D, 1>, CONFIG<T, D, 2>, CONFIG<T, D, 4>
static constexpr SharesConfig CONFIGS[] = {
    CONFIGS_OF(__half, 64),        CONFIGS_OF(__half, 128),        CONFIGS_OF(__half, 256),
    CONFIGS_OF(__nv_bfloat16, 64), CONFIGS_OF(__nv_bfloat16, 128), CONFIGS_OF(__nv_bfloat16, 256)};

static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  if (!start_at_chunks(t)) return cudaErrorMisalignedAddress;
  const SharesConfig *c = find_decode<CONFIGS>(problem);
  c->kernel<<<share_count(c, problem), THREADS, 0, stream>>>(*problem, *t);
  c->merge<<<share_count(c, problem), THREADS, 0, stream>>>(*problem, *t);
  return cudaGetLastError();
}

const Step step = {
    .name = "step20b",
    .after = "step20",
    .title = "K and V in pages",
    .idea = "A table says where each page of a sequence is; it is looked up a tile ahead.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports_decode<CONFIGS>,
    .workspace_bytes = parts_bytes<CONFIGS>,
    .describe = describe_shares<CONFIGS>,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_PAGES,
    .schedule_bytes = shares_bytes<CONFIGS, Share>,
    .schedule = schedule_shares<CONFIGS, Share, schedule_kernel>,
};
