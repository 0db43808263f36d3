/** @file What the lab finds and counts of clusters: small kernels without faults, and with one. */
#include <vector>

#include "../tests/unit/lab/lab_testing.h"
#include "../tests/unit/simt/hopper_testing.h"
#include "device/ptx_cluster.cuh"

enum { BARRIERS = 8192, SHARED = BARRIERS + 64, BOX_BYTES = 1024, THREADS = 64 };

/** Launches clusters of two blocks. */
template <typename... Parameters, typename... Arguments>
void launch(int blocks, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 2;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = THREADS;
  config.dynamicSmemBytes = SHARED;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

typedef enum Fault {
  NO_FAULT,
  NO_BARRIER,
  RELAXED,
  BLOCK_ONLY,
  BETWEEN_HALVES,
  NO_START,
  NO_END,
  OUTSIDE,
  UNWRITTEN,
  WAIT_OF_BLOCK,
  NO_PROXY_FENCE,
  PROXY_FENCE_OF_BLOCK,
  NO_WAIT,
  OVER_READ,
  OVERWRITES
} Fault;

/** The findings name these lines and no others, and contain this. Starts anew. */
static void expect_lines(std::initializer_list<int> lines, const std::string &part,
                         const char *file = __builtin_FILE()) {
  const std::string text = findings_text(), start = std::string(file) + ":";
  assert_contains(text, part);
  for (const int line : lines) assert_names_line(text, line, file);
  for (size_t at = 0; (at = text.find(start, at)) != text.npos; at++) {
    const int named = atoi(&text[at + start.size()]);
    bool expected = false;
    for (const int line : lines) expected |= line == named;
    if (!expected) fail_msg("another line:\n%s", text.c_str());
  }
  lab_start(LAB_EVERYTHING);
}

/* --- Stores and loads ------------------------------------------------------------------------- */

/** Each block stores into the other one, and reads what the other one has stored here. */
template <Fault FAULT>
__global__ void exchange(int *out) {
  int *own = (int *)smem, *there = cluster_map(own, 1 - cluster_rank());
  cluster_sync();
  there[threadIdx.x] = threadIdx.x;  // STORE
  if (FAULT == NO_FAULT) cluster_sync();
  if (FAULT == RELAXED) cluster_arrive_relaxed(), cluster_wait();
  if (FAULT == BLOCK_ONLY) __syncthreads();
  if (FAULT == BETWEEN_HALVES) cluster_arrive();
  out[blockIdx.x * THREADS + threadIdx.x] = own[63 - threadIdx.x];
  if (FAULT == BETWEEN_HALVES) cluster_wait();
  cluster_sync();
}
enum { EXCHANGE_READ = __LINE__ - 4, EXCHANGE_STORE = EXCHANGE_READ - 5 };

TEST(a_remote_store_needs_the_barrier_of_the_cluster) {
  int *out = named<int>("out", 4 * THREADS);
  launch(4, exchange<NO_FAULT>, out);
  assert_finds_nothing();
  for (auto kernel :
       {exchange<NO_BARRIER>, exchange<RELAXED>, exchange<BLOCK_ONLY>, exchange<BETWEEN_HALVES>}) {
    launch(2, kernel, out);
    expect_lines({EXCHANGE_READ, EXCHANGE_STORE}, "shared memory race: ");
  }
}

/** Each block reads what the other one has stored in its own memory. */
template <Fault FAULT>
__global__ void read_there(int *out) {
  __shared__ int own[THREADS];
  if (FAULT != UNWRITTEN || threadIdx.x != 7) own[threadIdx.x] = threadIdx.x;
  if (FAULT == NO_START) __syncthreads();
  if (FAULT != NO_START) cluster_sync();
  const int *there = cluster_map(own, 1 - cluster_rank());
  out[blockIdx.x * THREADS + threadIdx.x] = there[63 - threadIdx.x + (FAULT == OUTSIDE)];
  if (FAULT != NO_END) cluster_sync();
}
enum { THERE_READ = __LINE__ - 3 };

TEST(a_block_must_have_started_and_not_end_while_others_use_its_memory) {
  int *out = named<int>("out", 2 * THREADS);
  launch(2, read_there<NO_FAULT>, out);
  assert_finds_nothing();
  launch(2, read_there<NO_START>, out);
  expect_finding(
      LAB_CLUSTER_UNSTARTED, THERE_READ, 0,
      "128 times, first: block 0 thread 0, static shared memory own + 252 (256 bytes) of "
      "the block of rank 1");
  launch(2, read_there<NO_END>, out);
  expect_finding(
      LAB_CLUSTER_ENDED, THERE_READ, 0,
      "128 times, first: block 0 thread 0, static shared memory own + 252 (256 bytes) of "
      "the block of rank 1");
  launch(2, read_there<OUTSIDE>, out);
  expect_finding(LAB_SHARED_OUTSIDE, THERE_READ, 0,
                 "2 times, first: block 0 thread 0, 1 byte past static shared memory own (256 "
                 "bytes) of the block of rank 1");
  launch(2, read_there<UNWRITTEN>, out);
  expect_finding(LAB_SHARED_UNWRITTEN, THERE_READ, 0,
                 "own + 28 (256 bytes) of the block of rank 1");
}

/** Block 1 overwrites what block 0 reads of it. */
template <Fault FAULT>
__global__ void overwrite(int *out) {
  int *own = (int *)smem;
  own[threadIdx.x] = 0;
  cluster_sync();
  if (cluster_rank() == 0) out[threadIdx.x] = cluster_map(own, 1)[threadIdx.x];  // READ
  if (FAULT == NO_FAULT) cluster_sync();
  if (cluster_rank() == 1) own[threadIdx.x] = 1;
  cluster_sync();
}
enum { OVERWRITE = __LINE__ - 3, OVERWRITE_READ = OVERWRITE - 2 };

TEST(what_others_read_must_not_be_overwritten) {
  int *out = named<int>("out", THREADS);
  launch(2, overwrite<NO_FAULT>, out);
  assert_finds_nothing();
  launch(2, overwrite<NO_BARRIER>, out);
  expect_lines({OVERWRITE, OVERWRITE_READ}, "shared memory race: ");
}

/** Counts in block 0, by atomics of both; a counter and a plain store to it race. */
template <Fault FAULT>
__global__ void count(int *out) {
  int *own = (int *)smem;
  if (threadIdx.x < 8) own[threadIdx.x] = 0;
  cluster_sync();
  atomicAdd(cluster_map(own, 0) + threadIdx.x % 8, 1);  // ADD
  if (FAULT == OVERWRITES && threadIdx.x == 9) *cluster_map(own, 0) = 1;
  cluster_sync();
  if (cluster_rank() == 0 && threadIdx.x < 8) out[threadIdx.x] = own[threadIdx.x];
}
enum { COUNT_STORE = __LINE__ - 4, COUNT_ADD = COUNT_STORE - 1 };

TEST(remote_atomics_do_not_race_with_each_other) {
  int *out = named<int>("out", 8);
  launch(2, count<NO_FAULT>, out);
  assert_finds_nothing();
  launch(2, count<OVERWRITES>, out);
  const std::string text = findings_text();
  assert_names_line(text, COUNT_STORE);
  assert_names_line(text, COUNT_ADD);
}

/** Block 0 writes global memory that block 1 reads. */
template <Fault FAULT>
__global__ void hand_over(int *global, int *out) {
  if (cluster_rank() == 0) global[threadIdx.x] = threadIdx.x;
  if (FAULT == NO_FAULT) cluster_sync();
  if (FAULT == RELAXED) cluster_arrive_relaxed(), cluster_wait();
  if (cluster_rank() == 1) out[threadIdx.x] = global[63 - threadIdx.x];
}
enum { HAND_READ = __LINE__ - 2, HAND_WRITE = HAND_READ - 3 };

TEST(the_barrier_of_the_cluster_orders_global_memory_too) {
  int *out = named<int>("out", THREADS), *global = named<int>("global", THREADS);
  launch(2, hand_over<NO_FAULT>, global, out);
  assert_finds_nothing();
  launch(2, hand_over<RELAXED>, named<int>("other", THREADS), out);
  assert_finds({LAB_BLOCKS_WRITE_READ, HAND_READ, HAND_WRITE, "hand_over<",
                "256 bytes, first: block 1, the other block 0, other + 0 (256 bytes)"});
}

/* --- mbarriers of other blocks ------------------------------------------------------------------
 */

/** Block 0 stores into block 1 and arrives at an mbarrier there, for which block 1 waits; then it
 * reads through the async proxy, too. */
template <Fault FAULT>
__global__ void signal(const __grid_constant__ CUtensorMap map, int *out) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  int *own = (int *)smem;
  if (threadIdx.x == 0) mbarrier_init(full, THREADS), fence_mbarrier_init();
  cluster_sync();
  if (cluster_rank() == 0) {
    for (int i = threadIdx.x; i < 256; i += THREADS) cluster_map(own, 1)[i] = i;  // STORE
    if (FAULT == PROXY_FENCE_OF_BLOCK) fence_proxy_async();
    if (FAULT != NO_PROXY_FENCE && FAULT != PROXY_FENCE_OF_BLOCK) fence_proxy_async_cluster();
    mbarrier_arrive_at(full, 1);
  } else {
    FAULT == WAIT_OF_BLOCK ? mbarrier_wait(full, 0) : mbarrier_wait_cluster(full, 0);
    if (FAULT == WAIT_OF_BLOCK || FAULT == NO_FAULT) out[threadIdx.x] = own[threadIdx.x];
    if (FAULT != WAIT_OF_BLOCK && threadIdx.x == 0) {
      tma_store(map, smem, 0, 0, 0, 0);
      tma_store_commit();
      tma_store_wait<0>();
    }
  }
  cluster_sync();
}
enum { SIGNAL_TMA = __LINE__ - 7, SIGNAL_READ = SIGNAL_TMA - 2, SIGNAL_STORE = SIGNAL_READ - 6 };

/** A map of 16 rows of 64 elements, in boxes of 8 rows. */
static CUtensorMap box_map() {
  return matrix_map(named_zeros<uint16_t>("tensor", 1024), 16, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
}

TEST(a_wait_for_other_blocks_acquires_at_the_scope_of_the_cluster) {
  int *out = named<int>("out", THREADS);
  const CUtensorMap map = box_map();
  launch(2, signal<NO_FAULT>, map, out);
  assert_finds_nothing();
  launch(2, signal<WAIT_OF_BLOCK>, map, out);
  expect_finding(LAB_RACE_WRITE_READ, SIGNAL_READ, SIGNAL_STORE, "block 1 thread 0");
  launch(2, signal<NO_PROXY_FENCE>, map, out);
  expect_finding(LAB_NO_PROXY_FENCE, SIGNAL_TMA, SIGNAL_STORE, "block 1 thread 0");
  launch(2, signal<PROXY_FENCE_OF_BLOCK>, map, out);
  expect_finding(LAB_NO_PROXY_FENCE, SIGNAL_TMA, SIGNAL_STORE, "block 1 thread 0");
}

/* --- Asynchronous copies between blocks
 * ----------------------------------------------------------- */

/** Both blocks multicast half of a box, read it, and multicast again. */
template <Fault FAULT>
__global__ void multicast(const __grid_constant__ CUtensorMap map, int *out) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS), *empty = full + 1;
  const int rank = cluster_rank();
  if (threadIdx.x == 0) mbarrier_init(full, 1), mbarrier_init(empty, 2), fence_mbarrier_init();
  if (FAULT == NO_START) __syncthreads();
  if (FAULT != NO_START) cluster_arrive_relaxed(), cluster_wait();
  for (int i = 0; i < 2; i++) {
    if (threadIdx.x == 0) {
      if (i > 0 && FAULT != OVER_READ) mbarrier_wait_cluster(empty, 0);
      mbarrier_arrive_expect(full, 2 * BOX_BYTES);
      tma_multicast(smem + rank * BOX_BYTES, map, full, 0, 8 * rank, 0, 0, 3);
    }
    if (FAULT != NO_WAIT || threadIdx.x < 32) mbarrier_wait(full, i);
    out[blockIdx.x * THREADS + threadIdx.x] = ((int *)smem)[8 * threadIdx.x];
    if (FAULT == NO_WAIT) mbarrier_wait(full, i);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_arrive_at(empty, 0), mbarrier_arrive_at(empty, 1);
  }
  if (threadIdx.x == 0) mbarrier_wait_cluster(empty, 1);
  cluster_sync();
}
enum { MULTI_READ = __LINE__ - 8, MULTI_COPY = MULTI_READ - 3 };

TEST(a_multicast_needs_barriers_in_each_block) {
  const CUtensorMap map = box_map();
  int *out = named<int>("out", 2 * THREADS);
  launch(2, multicast<NO_FAULT>, map, out);
  assert_finds_nothing();
  launch(2, multicast<NO_WAIT>, map, out);
  expect_lines({MULTI_READ, MULTI_COPY}, " tensor copy "); /* read before it lands, or is issued */
  launch(2, multicast<OVER_READ>, map, out);
  expect_lines({MULTI_COPY, MULTI_READ}, "tensor copy into what another thread may still read");
}

/** Block 0 sends to block 1, from registers and from shared memory. */
template <Fault FAULT>
__global__ void send(int *out) {
  float *own = (float *)smem;
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  own[threadIdx.x] = threadIdx.x;  // FILL
  if (FAULT != NO_PROXY_FENCE) fence_proxy_async();
  cluster_sync();
  if (cluster_rank() == 0 && threadIdx.x < 4) {
    store_async(own + 256 + 4 * threadIdx.x, make_float4(1, 2, 3, 4), full, 1);
    if (threadIdx.x == 0) bulk_send(own + 512, own, 4 * THREADS, full, 1);
    if (FAULT == OVERWRITES && threadIdx.x == 0) own[5] = 1;
  } else if (cluster_rank() == 1) {
    if (threadIdx.x == 0) mbarrier_arrive_expect(full, 64 + 4 * THREADS);
    if (FAULT != NO_WAIT || threadIdx.x < 32) mbarrier_wait(full, 0);
    out[threadIdx.x] = own[512 + threadIdx.x] + own[256 + threadIdx.x % 16];
    if (FAULT == NO_WAIT) mbarrier_wait(full, 0);
  }
  cluster_sync();
}
enum {
  SEND_READ = __LINE__ - 6,
  SEND_OVER = SEND_READ - 4,
  SEND = SEND_OVER - 1,
  STORE = SEND - 1
};

TEST(what_is_sent_needs_a_wait_there) {
  int *out = named<int>("out", THREADS);
  launch(2, send<NO_FAULT>, out);
  assert_finds_nothing();
  launch(2, send<NO_WAIT>, out);
  expect_lines({SEND_READ, SEND, STORE}, " tensor copy "); /* read before it lands, or is issued */
  launch(2, send<NO_PROXY_FENCE>, out);
  expect_finding(LAB_NO_PROXY_FENCE, SEND, STORE - 4, "block 0 thread 0");
  launch(2, send<OVERWRITES>, out);
  expect_finding(LAB_ASYNC_OVER_READ, SEND_OVER, SEND, "block 0 thread 0");
}

/** Block 0 stores into block 1 and ends; block 1 ends when that has landed. */
__global__ void store_last(int *out) {
  float *own = (float *)smem;
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  cluster_sync();
  if (cluster_rank() == 0 && threadIdx.x < 4) {
    store_async(own + 4 * threadIdx.x, make_float4(1, 2, 3, 4), full, 1);
  } else if (cluster_rank() == 1) {
    if (threadIdx.x == 0) mbarrier_arrive_expect(full, 64);
    mbarrier_wait(full, 0);
    out[threadIdx.x] = own[threadIdx.x % 16];
  }
}

TEST(what_has_landed_needs_no_barrier_before_the_end) {
  launch(2, store_last, named<int>("out", THREADS));
  assert_finds_nothing();
}

/* --- Counts ----------------------------------------------------------------------------------- */

TEST(remote_accesses_are_counted) {
  int *out = named<int>("out", 4 * THREADS);
  LabCounts counts = counts_of([=] { launch(4, read_there<NO_FAULT>, out); });
  assert_sectors(counts.remote_load, 8, 32, 4 * 4 * THREADS, 4 * 4 * THREADS, 4);
  assert_int_equal(counts.shared_load.requests, 0);
  counts = counts_of([=] { launch(4, exchange<NO_FAULT>, out); });
  assert_sectors(counts.remote_store, 8, 32, 4 * 4 * THREADS, 4 * 4 * THREADS, 4);
  assert_waves(counts.shared_load, 8, 8, 8, 1);
  counts = counts_of([=] { launch(2, send<NO_FAULT>, out); });
  /* A warp's st.async, and the bulk copy. */
  assert_sectors(counts.remote_store, 2, 2 + 4 * THREADS / 32, 64 + 4 * THREADS, 64 + 4 * THREADS,
                 4 * THREADS / 32);
  counts = counts_of([=] { launch(2, multicast<NO_FAULT>, box_map(), out); });
  assert_int_equal(counts.tensor_load.bytes, 4 * BOX_BYTES); /* what is read, not what arrives */
}

RUN_IN_ALL_SETTINGS("lab_cluster", start_lab, stop_lab)
