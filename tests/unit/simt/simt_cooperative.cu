/** @file Tests of cooperative launches on the CPU backend: blocks that wait for each other. */
#include "../tests/unit/simt/hopper_testing.h"
#include "device/ptx.cuh"
#include "device/ptx_cluster.cuh"

enum { THREADS = 64, SHARED = 1024 };

/** Launches a kernel whose blocks all run at the same time. */
template <typename... Parameters, typename... Arguments>
cudaError_t launch_in_clusters(int size, int blocks, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = size;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = THREADS;
  config.dynamicSmemBytes = SHARED;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch_together(int blocks, void (*kernel)(Parameters...), Arguments... arguments) {
  return launch_in_clusters(1, blocks, kernel, arguments...);
}

__device__ float4 wait_for(const float4 *message) {
  float4 words = {};
  while (words.x == 0 || words.y == 0 || words.z == 0 || words.w == 0) {
    words = load_relaxed(message);
  }
  return words;
}

/** Each thread sends to the same thread of the block before, and waits for the one behind. */
__global__ void pass_on(float4 *messages, int *out) {
  const int own = blockIdx.x * THREADS + threadIdx.x, count = gridDim.x * THREADS;
  const float i = 1 + own;
  store_relaxed(&messages[(own + count - THREADS) % count], make_float4(i, i, i, i));
  const float4 words = wait_for(&messages[own]);
  const int sum = (int)words.x + (int)words.y + (int)words.z + (int)words.w;
  out[own] = 10 * sum + cluster_size() + cluster_rank();
}

TEST(blocks_wait_for_each_other) {
  set_variable("SIMT_SMS", "132");
  enum { COUNT = 132 * THREADS };
  const auto out = results<int>(COUNT, [](int *to) {
    assert_int_equal(launch_together(132, pass_on, device_zeros<float4>(COUNT), to), cudaSuccess);
  });
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(out[i], 40 * (1 + (i + THREADS) % COUNT) + 1); /* each is a cluster of one */
  }
}

/** Half of the lanes of warp 0 poll until all of them have what warp 1 sends later. */
__global__ void poll_together(float4 *messages, int *out) {
  const int lane = threadIdx.x % 32;
  if (threadIdx.x >= 32) {
    store_relaxed(&messages[lane], make_float4(1 + lane, 1, 1, 1));
    return;
  }
  float4 words = {};
  for (bool waits = true; __any_sync(~0u, waits);) {
    if (lane < 16) words = load_relaxed(&messages[lane]);
    waits = lane < 16 && words.x == 0;
  }
  out[lane] = (int)words.x;
}

TEST(a_warp_that_polls_together_lets_others_run) {
  for (const char *order : {"forward", "reverse", "random:1"}) {
    set_variable("SIMT_ORDER", order);
    const auto out = results<int>(32, [](int *to) {
      assert_int_equal(launch_together(1, poll_together, device_zeros<float4>(32), to),
                       cudaSuccess);
    });
    for (int i = 0; i < 32; i++) assert_int_equal(out[i], i < 16 ? 1 + i : 0);
  }
}

TEST(blocks_that_do_not_fit_are_refused) {
  float4 *messages = device_zeros<float4>(257 * THREADS);
  int *out = device_zeros<int>(257 * THREADS);
  set_variable("SIMT_SMS", "2"); /* with 32 blocks each */
  assert_int_equal(launch_together(65, pass_on, messages, out), 720);
  assert_int_equal(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
  assert_int_equal(launch_together(64, pass_on, messages, out), cudaSuccess);
  set_variable("SIMT_SMS", "1024");
  assert_int_equal(launch_together(257, pass_on, messages, out),
                   cudaErrorCooperativeLaunchTooLarge);
  assert_int_equal(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
}

/** The first block waits for its copy, and the others, which never stop to ask, for the first. */
__global__ void copy_and_tell(const float *from, float4 *message, int *out) {
  uint64_t *full = (uint64_t *)smem;
  float *copied = (float *)(smem + 128);
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect(full, 16);
    bulk_load(copied, from, 16, full);
    mbarrier_wait(full, 0);
    store_relaxed(message, make_float4(copied[0], 1, 1, 1));
  }
  out[blockIdx.x] = (int)wait_for(message).x;
}

TEST(a_block_gets_its_copies_while_others_wait_for_it) {
  const float numbers[] = {7, 7, 7, 7};
  const float *from = device_copy(numbers);
  const auto out = results<int>(
      4, [=](int *to) { launch_together(4, copy_and_tell, from, device_zeros<float4>(1), to); });
  assert_true(out == std::vector<int>({7, 7, 7, 7}));
}

/** Block 2 sends to block 3 of its cluster, and ends or waits like all for what that one tells. */
template <bool ENDS>
__global__ void send_and_tell(float4 *message, int *out) {
  uint64_t *full = (uint64_t *)smem;
  float *own = (float *)(smem + 128);
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  cluster_sync();
  if (threadIdx.x != 0) return;
  out[blockIdx.x] = 10 * cluster_size() + cluster_rank();
  if (blockIdx.x == 2) {
    store_async(own, make_float4(7, 7, 7, 7), full, 1);
    if (ENDS) return;
  }
  if (blockIdx.x == 3) {
    mbarrier_arrive_expect(full, 16);
    mbarrier_wait_cluster(full, 0);
    store_relaxed(message, make_float4(own[0], 1, 1, 1));
  }
  out[blockIdx.x] += 100 * (int)wait_for(message).x;
}

TEST(clusters_wait_for_each_other) {
  for (auto kernel : {send_and_tell<false>, send_and_tell<true>}) {
    const auto out = results<int>(
        6, [=](int *to) { launch_in_clusters(2, 6, kernel, device_zeros<float4>(1), to); });
    const int third = kernel == send_and_tell<true> ? 20 : 720;
    assert_true(out == std::vector<int>({720, 721, third, 721, 720, 721}));
  }
}

/** The last block sends nothing. */
__global__ void forget(float4 *messages) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x != 2) store_relaxed(&messages[blockIdx.x], make_float4(1, 1, 1, 1));
  wait_for(&messages[(blockIdx.x + 1) % 3]);
}

TEST(a_message_that_nobody_sends_is_a_deadlock) {
  float4 *messages = device_zeros<float4>(3);
  expect_report([=] { launch_together(3, forget, messages); }, "DEADLOCK", 0);
}

RUN_IN_ALL_SETTINGS("simt_cooperative", reset_device, reset_device)
