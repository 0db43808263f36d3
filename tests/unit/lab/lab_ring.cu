/** @file What the lab finds and counts of a ring of tiles, which TMA fills and wgmma reads. */
#include <vector>

#include "../tests/unit/lab/lab_hopper.h"

enum {
  STAGES = 2,
  TILES = 5,
  TILE = 64 * 64, /* elements */
  TILE_BYTES = 2 * TILE,
  RING_SHARED = (3 * STAGES + 2) * TILE_BYTES + 16 * STAGES,
  O_ROWS = 100 /* of 128 */
};

/** Rows of 128 bytes, swizzled. */
__device__ uint64_t tile_descriptor(const __half *start) {
  return shared_address(start) >> 4 | (uint64_t)(1024 >> 4) << 32 | UINT64_C(1) << 62;
}

/** O = sum of A_t B_t^T. Warpgroups 0 and 1 have 64 rows each, and warp 8 loads. With EARLY they
 * say that a stage is empty when its products are still in flight. */
template <bool EARLY>
__global__ void ring(const __grid_constant__ CUtensorMap a_map,
                     const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap o_map) {
  __half *a_ring = (__half *)smem, *b_ring = a_ring + 2 * STAGES * TILE;
  __half *o_tile = b_ring + (STAGES + threadIdx.x / 128) * TILE;
  uint64_t *full = (uint64_t *)(smem + (3 * STAGES + 2) * TILE_BYTES), *empty = full + STAGES;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], 2);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const int group = threadIdx.x / 128, in_group = threadIdx.x % 128;
  if (group == 2) {
    for (int t = 0; t < TILES && in_group == 0; t++) {
      const int stage = t % STAGES;
      mbarrier_wait(&empty[stage], (t / STAGES & 1) ^ 1);
      mbarrier_arrive_expect(&full[stage], 3 * TILE_BYTES);
      for (int i = 0; i < 2; i++) {
        tma_load(a_ring + (2 * stage + i) * TILE, a_map, &full[stage], 0, 128 * t + 64 * i, 0, 0);
      }
      tma_load(b_ring + stage * TILE, b_map, &full[stage], 0, 64 * t, 0, 0);
    }
    return;
  }
  float d[8][4];
  for (int t = 0; t < TILES; t++) {
    const int stage = t % STAGES;
    mbarrier_wait(&full[stage], t / STAGES & 1);
    wgmma_fence();
    for (int k = 0; k < 64; k += 16) {
      wgmma<__half, false>(d, tile_descriptor(a_ring + (2 * stage + group) * TILE + k),
                           tile_descriptor(b_ring + stage * TILE + k), t + k > 0);
    }
    wgmma_commit();
    if (EARLY && in_group == 0) mbarrier_arrive(&empty[stage]);
    wgmma_wait<1>();
    if (!EARLY && t > 0 && in_group == 0) mbarrier_arrive(&empty[(t - 1) % STAGES]);
  }
  wgmma_wait<0>();
  for (int i = 0; i < 32; i++) {
    const int row = in_group / 4 / 8 * 16 + in_group / 4 % 8 + i / 2 % 2 * 8;
    const int column = i / 4 * 8 + in_group % 4 * 2 + i % 2;
    o_tile[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8] = __float2half(d[i / 4][i % 4]);
  }
  fence_proxy_async();
  named_barrier_sync<128>(1 + group);
  if (in_group != 0) return;
  tma_store(o_map, o_tile, 0, 64 * group, 0, 0);
  tma_store_commit();
  tma_store_wait<0>();
}

static int ring_value(int i) {
  return (i * 5 + i / 64 * 3) % 5 - 2;
}

template <bool EARLY>
static void run_ring() {
  std::vector<__half> a(TILES * 2 * TILE), b(TILES * TILE), o(128 * 64);
  for (int i = 0; i < TILES * 2 * TILE; i++) a[i] = __float2half((float)ring_value(i));
  for (int i = 0; i < TILES * TILE; i++) b[i] = __float2half((float)ring_value(i + 1));
  __half *device_a = named<__half>("a", TILES * 2 * TILE),
         *device_b = named<__half>("b", TILES * TILE);
  __half *device_o = named_zeros<__half>("o", 128 * 64);
  cudaMemcpy(device_a, a.data(), 2 * a.size(), cudaMemcpyHostToDevice);
  cudaMemcpy(device_b, b.data(), 2 * b.size(), cudaMemcpyHostToDevice);
  const CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  cudaFuncSetAttribute(ring<EARLY>, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_SHARED);
  ring<EARLY><<<1, 288, RING_SHARED>>>(matrix_map(device_a, TILES * 128, 64, swizzle),
                                       matrix_map(device_b, TILES * 64, 64, swizzle),
                                       matrix_map(device_o, O_ROWS, 64, swizzle));
  assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
  cudaMemcpy(o.data(), device_o, 2 * o.size(), cudaMemcpyDeviceToHost);
  for (int i = 0; i < 128 * 64 && !EARLY; i++) {
    float sum = 0;
    for (int k = 0; k < TILES * 64 && i / 64 < O_ROWS; k++) {
      const int t = k / 64;
      sum += __half2float(a[(t * 128 + i / 64) * 64 + k % 64]) *
             __half2float(b[(t * 64 + i % 64) * 64 + k % 64]);
    }
    assert_float_equal(__half2float(o[i]), sum, 0);
  }
}

TEST(a_ring_of_tiles_has_no_findings) {
  const std::string order = getenv("SIMT_ORDER");
  for (const char *other : {order.c_str(), "random:3", "random:4", "random:5"}) {
    set_variable("SIMT_ORDER", other);
    run_ring<false>();
  }
  set_variable("SIMT_ORDER", order.c_str());
  assert_finds_nothing();
}

TEST(a_stage_that_is_released_too_early_is_found) {
  run_ring<true>();
  assert_contains(findings_text(), lab_kind_text(LAB_ASYNC_OVER_READ));
}

TEST(instructions_and_boxes_are_counted) {
  run_ring<false>();
  const LabCounts counts = counts_of_kernel();
  const uint64_t loads = 3 * TILES;
  assert_int_equal(counts.wgmma, 2 * TILES * 4);
  assert_int_equal(counts.wgmma_flop, 2ull * TILES * 4 * 2 * 64 * 64 * 16);
  const uint64_t read = counts.wgmma * (64 + 64) * 16 * 2; /* A and B, both from shared memory */
  assert_int_equal(counts.wgmma_read.requests, counts.wgmma);
  assert_int_equal(counts.wgmma_read.bytes, read);
  assert_int_equal(counts.wgmma_read.wavefronts, read / 128); /* swizzled: no conflicts */
  assert_int_equal(counts.wgmma_read.ideal_wavefronts, read / 128);
  assert_sectors(counts.tensor_load, loads, loads * 256, loads * 8192, loads * 8192, 256);
  assert_sectors(counts.tensor_store, 2, O_ROWS * 4, O_ROWS * 128, O_ROWS * 128, 256);
  assert_sectors(counts.global_load, 0, 0, 0, 0, 0);
  assert_sectors(counts.global_store, 0, 0, 0, 0, 0);
}

RUN_IN_ALL_SETTINGS("lab", start_lab, stop_lab)
