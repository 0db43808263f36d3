/** @file Tests of clusters on the CPU backend: launches, the barrier, shared memory of other
 * blocks, and what is asynchronous between blocks. */
#include <cmath>

#include "../tests/unit/simt/hopper_testing.h"
#include "device/ptx_cluster.cuh"

enum { BARRIERS = 4096, SHARED = BARRIERS + 64, BOX_BYTES = 1024, THREADS = 64 };

/** Launches a kernel in clusters of this shape. */
template <typename... Parameters, typename... Arguments>
cudaError_t launch(dim3 grid, dim3 cluster, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = THREADS;
  config.dynamicSmemBytes = SHARED;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/* --- Launches --------------------------------------------------------------------------------- */

__global__ void tell_rank(int *out) {
  if (threadIdx.x != 0) return;
  const int block = blockIdx.x + gridDim.x * blockIdx.y;
  out[block] = 10 * cluster_size() + cluster_rank();
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS) tell_own(int *out) {
  if (threadIdx.x == 0) out[blockIdx.x] = 10 * cluster_size() + cluster_rank();
}

TEST(ranks_count_the_blocks_of_a_cluster) {
  assert_true(results<int>(4, [](int *out) { tell_rank<<<4, THREADS>>>(out); }) ==
              std::vector<int>({10, 10, 10, 10}));
  const auto rows = results<int>(8, [](int *out) { launch({4, 2}, {2, 2}, tell_rank, out); });
  assert_true(rows == std::vector<int>({40, 41, 40, 41, 42, 43, 42, 43}));
  assert_true(results<int>(4, [](int *out) { tell_own<<<4, THREADS>>>(out); }) ==
              std::vector<int>({20, 21, 20, 21}));
}

TEST(a_grid_must_consist_of_clusters_of_at_most_8_blocks) {
  int *out = device_zeros<int>(64);
  assert_int_equal(launch(6, 4, tell_rank, out), cudaErrorInvalidClusterSize);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidClusterSize);
  assert_int_equal(launch(16, 16, tell_rank, out), cudaErrorInvalidClusterSize);
  assert_int_equal(cudaGetLastError(), cudaErrorInvalidClusterSize);
  assert_int_equal(launch(64, 8, tell_rank, out), cudaSuccess);
}

/* --- Shared memory of other blocks
 * ---------------------------------------------------------------- */

/** Each block adds what all blocks of its cluster have stored, and tells the next one. */
__global__ void add_all(int *out) {
  __shared__ int told;
  int *own = (int *)smem;
  own[threadIdx.x] = 100 * (int)blockIdx.x + threadIdx.x;
  cluster_sync();
  int sum = 0;
  for (int rank = 0; rank < cluster_size(); rank++) sum += cluster_map(own, rank)[threadIdx.x];
  const int next = (cluster_rank() + 1) % cluster_size();
  if (threadIdx.x == 7) *cluster_map(&told, next) = sum;
  if (threadIdx.x < 9) atomicAdd(cluster_map(own + THREADS, 0), 1 + (threadIdx.x == 0) * (1 << 30));
  cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = told;
}

TEST(blocks_reach_each_others_memory) {
  in_many_orders([] {
    const auto out = results<int>(12, [](int *to) { launch(12, 4, add_all, to); });
    for (int i = 0; i < 12; i++) {
      assert_int_equal(out[i], 4 * 7 + 100 * (4 * 4 * (i / 4) + 0 + 1 + 2 + 3));
    }
  });
}

/** Counts what arrives in two halves; the threads from 32 on exit before. */
__global__ void count_in_halves(int *out) {
  int *own = (int *)smem;
  if (threadIdx.x == 0) *own = 0;
  cluster_sync();
  if (threadIdx.x >= 32) return;
  atomicAdd(cluster_map(own, 1 - cluster_rank()), 1);
  cluster_arrive();
  const int before = threadIdx.x;  // work that needs nothing of the other block
  cluster_wait();
  if (before == 0) out[blockIdx.x] = *own;
  cluster_arrive();
  cluster_wait();
}

TEST(the_barrier_has_two_halves_and_does_not_wait_for_who_has_exited) {
  in_many_orders([] {
    const auto out = results<int>(4, [](int *to) { launch(4, 2, count_in_halves, to); });
    assert_true(out == std::vector<int>({32, 32, 32, 32}));
  });
}

/** A block waits for a flag in the memory of another, with atomics only. */
__global__ void spin(int *out) {
  int *flag = (int *)smem;
  if (threadIdx.x == 0) *flag = 0;
  cluster_sync();
  if (cluster_rank() == 1 && threadIdx.x == 0) {
    while (atomicAdd(cluster_map(flag, 0), 0) == 0) continue;
    out[0] = 1;
  }
  if (cluster_rank() == 0 && threadIdx.x == 0) atomicExch(flag, 1);
  cluster_sync();
}

TEST(a_block_may_spin_until_another_one_of_its_cluster_writes) {
  in_many_orders([] {
    assert_true(results<int>(1, [](int *to) { launch(2, 2, spin, to); }) == std::vector<int>({1}));
  });
}

/* --- Between blocks, asynchronously
 * --------------------------------------------------------------- */

/** Block 0 sends to block 1, which reads before and after its wait. */
__global__ void send(float *out) {
  float *own = (float *)smem;
  uint64_t *full = (uint64_t *)(smem + BARRIERS), *empty = full + 1;
  if (threadIdx.x == 0) mbarrier_init(full, 1), mbarrier_init(empty, 1), fence_mbarrier_init();
  own[threadIdx.x] = threadIdx.x + 1000;
  fence_proxy_async_cluster();
  cluster_sync();
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    store_async(own + 1024 / 4, make_float4(1, 2, 3, 4), full, 1);
    bulk_send(own + 2048 / 4, own, 4 * THREADS, full, 1);
    mbarrier_wait_cluster(empty, 0);
  } else if (threadIdx.x == 0) {
    mbarrier_arrive_expect(full, 16 + 4 * THREADS);
    out[0] = own[1024 / 4 + 1], out[1] = own[2048 / 4 + 63];
    mbarrier_wait(full, 0);
    out[2] = own[1024 / 4 + 1], out[3] = own[2048 / 4 + 63];
    mbarrier_arrive_at(empty, 0);
  }
  cluster_sync();
}

TEST(what_is_sent_arrives_with_the_phase_of_the_mbarrier_there) {
  in_many_orders([] {
    const auto out = results<float>(4, [](float *to) { launch(2, 2, send, to); });
    assert_true(out[2] == 2 && out[3] == 1063);
  });
  set_variable("SIMT_ORDER", "forward"); /* block 0 has sent before block 1 reads */
  const auto out = results<float>(4, [](float *to) { launch(2, 2, send, to); });
  assert_true(std::isnan(out[0]) && std::isnan(out[1]));
}

typedef enum Mistake {
  NO_MISTAKE,
  NOBODY_EXPECTS,
  ONE_EXPECTS,
  ONE_ARRIVES,
  NO_MBARRIER,
  NO_SUCH_RANK
} Mistake;

/** Each block loads half of a box of 16 rows into both. */
template <Mistake MISTAKE>
__global__ void multicast(const __grid_constant__ CUtensorMap map, int *out) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  const int rank = cluster_rank();
  if (threadIdx.x == 0 && !(MISTAKE == NO_MBARRIER && rank == 1)) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  if (threadIdx.x == 0 && !(MISTAKE == NO_MBARRIER && rank == 1)) {
    const bool expects = MISTAKE != NOBODY_EXPECTS && !(MISTAKE == ONE_EXPECTS && rank == 1);
    if (MISTAKE != ONE_ARRIVES || rank == 0)
      mbarrier_arrive_expect(full, expects ? 2 * BOX_BYTES : 0);
    tma_multicast(smem + rank * BOX_BYTES, map, full, 0, 8 * rank, 0, 0,
                  MISTAKE == NO_SUCH_RANK ? 4 : 3);
  }
  if (MISTAKE != NO_MBARRIER) mbarrier_wait(full, 0);
  if (MISTAKE == NO_MISTAKE)
    out[blockIdx.x * THREADS + threadIdx.x] = ((uint16_t *)smem)[16 * threadIdx.x];
  cluster_sync();
}
enum { MULTICAST = __LINE__ - 8 };

/** A map of 16 rows of 64 numbers, in boxes of 8 rows. */
static CUtensorMap numbers_map() {
  std::vector<uint16_t> numbers(1024);
  for (int i = 0; i < 1024; i++) numbers[i] = (uint16_t)i;
  uint16_t *tensor = device_zeros<uint16_t>(1024);
  cudaMemcpy(tensor, numbers.data(), 2048, cudaMemcpyHostToDevice);
  return matrix_map(tensor, 16, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
}

TEST(a_multicast_reaches_all_blocks_of_its_mask) {
  const CUtensorMap map = numbers_map();
  in_many_orders([&] {
    const auto out =
        results<int>(4 * THREADS, [&](int *to) { launch(4, 2, multicast<NO_MISTAKE>, map, to); });
    for (int i = 0; i < 4 * THREADS; i++) assert_int_equal(out[i], 16 * (i % THREADS));
  });
}

TEST(a_multicast_needs_an_mbarrier_that_expects_it_in_each_block) {
  int *out = nullptr;
  for (auto kernel : {multicast<NOBODY_EXPECTS>, multicast<ONE_EXPECTS>}) {
    expect_report([&] { launch(2, 2, kernel, numbers_map(), out); }, "the block ends", MULTICAST);
  }
  const auto report = expect_report(
      [&] { launch(2, 2, multicast<ONE_ARRIVES>, numbers_map(), out); }, "DEADLOCK", 0);
  assert_contains(report, {"block (0,0,0), 64 of 64 threads wait:\n  threads 0-63 wait for the "
                           "cluster's barrier: 64 of 128 threads have arrived",
                           "block (1,0,0), 64 of 64 threads wait:\n  threads 0-63 wait for the "
                           "mbarrier at shared + 4096: its phase 0 lacks 1 of 1 arrivals, and "
                           "tensor copies brought 2048 bytes more than were expected"});
  expect_report([&] { launch(2, 2, multicast<NO_MBARRIER>, numbers_map(), out); },
                "no mbarrier has been initialised at this address, shared + 4096", MULTICAST);
  expect_report([&] { launch(2, 2, multicast<NO_SUCH_RANK>, numbers_map(), out); },
                "rank 2 in a cluster of 2 blocks", MULTICAST);
}

/* --- Mistakes --------------------------------------------------------------------------------- */

__global__ void misuse(int mistake, float *out) {
  float *own = (float *)smem;
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  const int rank = cluster_rank();
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  cluster_sync();
  if (threadIdx.x != 0 || (rank == 1 && mistake < 4)) return;
  if (rank == 1) mbarrier_wait(full, 0); /* for ever */
  if (mistake == 0) out[0] = *cluster_map(own, 2);
  if (mistake == 1) cluster_arrive(), cluster_arrive();
  if (mistake == 2) cluster_wait();
  if (mistake == 3) store_async(own, make_float4(1, 1, 1, 1), full, 1);
  if (mistake == 4) mbarrier_arrive_at(full + 1, 1);
  if (mistake == 5) bulk_send(own, own, 64, full, 1);
}
enum { MISUSE_LINE = __LINE__ - 7 };

TEST(mistakes_are_reported_where_they_are_made) {
  static const struct {
    const char *what;
    int line;
  } MISTAKES[] = {
      {"rank 2 in a cluster of 2 blocks", 0},
      {"barrier.cluster.arrive by a thread that has not waited since its last one", 1},
      {"barrier.cluster.wait by a thread that has not arrived", 2},
      {"shared memory", 3}, /* to a block that ends before or after */
      {"no mbarrier has been initialised at this address, shared + 4104 of the block of rank 1", 4},
      {"the block ends while a tensor copy from its shared memory is in flight", 5},
  };
  int i = 0;
  for (const auto &mistake : MISTAKES) {
    expect_report([&] { launch(2, 2, misuse, i, (float *)nullptr); }, mistake.what,
                  MISUSE_LINE + mistake.line);
    i++;
  }
}

/** Block 1 ends early or never, and block 0 waits for it. */
__global__ void never_end(bool faults, volatile int *flag) {
  cluster_sync();
  if (cluster_rank() == 1) {
    if (faults) flag[1 << 26] = 1;
    while (*flag == 0) continue;
  }
  cluster_sync();
}
enum { FAULT = __LINE__ - 5 };

TEST(a_block_that_fails_ends_its_cluster) {
  int *flag = device_zeros<int>(1);
  expect_report([&] { launch(6, 2, never_end, true, flag); }, "out of bounds write", FAULT,
                cudaErrorIllegalAddress);
  flag = device_zeros<int>(1);
  simt_set_time_limit(0.1);
  expect_report([&] { launch(2, 2, never_end, false, flag); },
                "time limit of 0.1 s reached with 0 of 2 blocks done in never_end", FAULT + 1,
                cudaErrorLaunchTimeout);
  simt_set_time_limit(0);
}

RUN_IN_ALL_SETTINGS("simt_cluster", reset_device, reset_device)
