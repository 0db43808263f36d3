/** @file Tests of mbarriers, tensor copies, named barriers and setmaxnreg on the CPU backend. */
#include <climits>
#include <cmath>

#include "../tests/unit/simt/hopper_testing.h"

enum { BARRIERS = 4096, SHARED = BARRIERS + 64 }; /* where the mbarriers are */

/* --- mbarriers ------------------------------------------------------------------------------ */

/** Warp 0 hands numbers to warp 1, five times through the same place. */
template <bool BY_NAME>
__global__ void hand_over(int *out) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS), *empty = full + 1;
  int *place = (int *)smem;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0 && !BY_NAME) {
    mbarrier_init(full, 32);
    mbarrier_init(empty, 1);
    fence_mbarrier_init();
  }
  if (!BY_NAME) __syncthreads();
  for (int i = 0; i < 5; i++) {
    if (threadIdx.x < 32) {
      if (!BY_NAME) mbarrier_wait(empty, (i & 1) ^ 1); /* the first returns at once */
      if (BY_NAME && i > 0) named_barrier_sync<64>(15);
      place[lane] = 32 * i + lane;
      BY_NAME ? named_barrier_arrive<64>(1) : mbarrier_arrive(full);
    } else {
      BY_NAME ? named_barrier_sync<64>(1) : mbarrier_wait(full, i & 1);
      out[32 * i + lane] = place[31 - lane];
      if (!BY_NAME) __syncwarp();
      if (!BY_NAME && lane == 0) mbarrier_arrive(empty);
      if (BY_NAME && i < 4) named_barrier_arrive<64>(15);
    }
  }
}

TEST(barriers_order_two_warps) {
  for (const auto kernel : {hand_over<false>, hand_over<true>}) {
    const auto out = results<int>(160, [=](int *to) { kernel<<<1, 64, SHARED>>>(to); });
    for (int i = 0; i < 160; i++) assert_int_equal(out[i], i / 32 * 32 + 31 - i % 32);
  }
}

/** Two loads of 1024 bytes; threads 0 and 32 expect `first` and `second`, negative: no arrival. */
__global__ void expect_bytes(const __grid_constant__ CUtensorMap map, int first, int second) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  if (threadIdx.x == 0) mbarrier_init(full, 2), fence_mbarrier_init();
  __syncthreads();
  const int bytes = threadIdx.x == 0 ? first : second;
  if (threadIdx.x % 32 == 0) {
    tma_load(smem + 32 * threadIdx.x, map, full, 0, 0, 0, 0);
    if (bytes >= 0) mbarrier_arrive_expect(full, bytes);
  }
  mbarrier_wait(full, 0);
}
enum { EXPECT_WAIT_LINE = __LINE__ - 2 };

TEST(a_phase_ends_after_all_arrivals_and_bytes) {
  static const struct {
    int first, second;
    const char *lacks; /* NULL: nothing */
  } cases[] = {
      {1024, 1024, nullptr},
      {0, 2048, nullptr},
      {1024, 1040, "lacks 0 of 2 arrivals and 16 bytes of tensor copies\n"},
      {1024, 1008,
       "lacks 0 of 2 arrivals, and tensor copies brought 16 bytes more than were expected\n"},
      {2048, -1, "lacks 1 of 2 arrivals\n"},
      {-1, -1,
       "lacks 2 of 2 arrivals, and tensor copies brought 2048 bytes more than were expected\n"},
  };
  for (const auto &c : cases) {
    const CUtensorMap map =
        matrix_map(device_zeros<uint16_t>(512), 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
    const auto launch = [&] { expect_bytes<<<1, 64, SHARED>>>(map, c.first, c.second); };
    if (c.lacks == nullptr) {
      launch();
      assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
      continue;
    }
    const std::string report =
        expect_report(launch, "simt: DEADLOCK in expect_bytes, launch ", EXPECT_WAIT_LINE);
    assert_contains(report, {"in block (0,0,0), 64 of 64 threads wait:\n  threads 0-63 wait for ",
                             "the mbarrier at shared + 4096: its phase 0 lacks ", c.lacks});
  }
}

/* --- Tensor copies -------------------------------------------------------------------------- */

struct Coordinates {
  int of[5];
};

__global__ void load_box(const __grid_constant__ CUtensorMap map, Coordinates at, int bytes,
                         unsigned char *early, unsigned char *late) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) smem[i] = 1;
  if (threadIdx.x == 0) mbarrier_init(full, 1), fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect(full, bytes);
    simt_tensor_load(smem, &map, full, at.of);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) early[i] = smem[i];
  mbarrier_wait(full, 0);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) late[i] = smem[i];
}

__global__ void store_box(const __grid_constant__ CUtensorMap map, Coordinates at, int bytes) {
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) smem[i] = (unsigned char)(i * 37 + i / 251);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x != 0) return;
  simt_tensor_store(&map, smem, at.of);
  tma_store_commit();
  tma_store_wait<0>();
}

/** Loads and stores the box at these coordinates, and compares all bytes with plain loops. */
static void expect_box(const MapRequest &r, int element, const Coordinates &at) {
  enum { TENSOR = 2 * 6048, MOST = 3072 };
  static unsigned char tensor[TENSOR], stored[TENSOR], early[MOST], loaded[MOST];
  unsigned char *device_early = device_zeros<unsigned char>(MOST);
  for (int i = 0; i < TENSOR; i++) tensor[i] = stored[i] = (unsigned char)(i * 91 + i / 253);
  int elements = 1;
  for (cuuint32_t i = 0; i < r.rank; i++) elements *= (int)r.box[i];
  const int bytes = elements * element;
  for (int n = 0; n < elements; n++) {
    int64_t offset = 0;
    bool inside = true;
    for (int i = 0, rest = n; i < (int)r.rank; rest /= (int)r.box[i++]) {
      const int64_t x = at.of[i] + (int64_t)(rest % (int)r.box[i]);
      inside = inside && x >= 0 && x < (int64_t)r.sizes[i];
      offset += x * (i == 0 ? element : (int64_t)r.strides[i - 1]);
    }
    /* Of each 128 bytes the 16-byte chunks change places, as many as the swizzle spans. */
    const int linear = n * element, line = linear / 128, chunks = 1 << r.swizzle;
    const int shared = linear ^ line % chunks * 16;
    for (int i = shared; i < shared + element; i++, offset++) {
      loaded[i] = inside ? tensor[offset] : 0;
      if (inside) stored[offset] = (unsigned char)(i * 37 + i / 251);
    }
  }
  const CUtensorMap map = make_map(r);
  assert_int_equal(cudaMemcpy(r.address, tensor, TENSOR, cudaMemcpyHostToDevice), cudaSuccess);
  const auto late = results<unsigned char>(
      MOST, [&](auto *to) { load_box<<<1, 64, SHARED>>>(map, at, bytes, device_early, to); });
  fetch(early, device_early);
  for (int i = 0; i < bytes; i++) assert_int_equal(early[i], 0xff);
  assert_memory_equal(late.data(), loaded, bytes);
  store_box<<<1, 64, SHARED>>>(map, at, bytes);
  fetch(tensor, (const unsigned char *)r.address);
  assert_memory_equal(tensor, stored, TENSOR);
  assert_int_equal(cudaFree(device_early), cudaSuccess);
}

TEST(boxes_are_clipped_and_swizzled) {
  static const Coordinates places[] = {
      {{0, 0, 0, 0, 0}}, {{13, 2, 1, 1, 0}},  {{-5, -2, -1, -1, -1}},     {{19, 4, 3, 2, 1}},
      {{0, 5, 0, 0, 0}}, {{-64, 0, 0, 0, 0}}, {{INT_MAX, INT_MIN, 0, 0}}, {{-3, 1, INT_MAX, 0}},
  };
  static const CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                              CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                              CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
  unsigned char *tensor = device_zeros<unsigned char>(2 * 6048);
  for (unsigned rank = 1; rank <= 5; rank++) {
    for (unsigned swizzle = 0; swizzle < 4; swizzle++) {
      const unsigned type = (rank + swizzle) % 3, element = 1 << type;
      const unsigned row_bytes = swizzle == 0 ? 48 : 16 << swizzle;
      for (const Coordinates &at : places) {
        expect_box({tensor,
                    rank,
                    {80 / element, 5, 4, 3, 2},
                    {96, 496, 2016, 6048},
                    {row_bytes / element, 3, 2, 2, 2},
                    (CUtensorMapSwizzle)swizzle,
                    types[type]},
                   (int)element, at);
      }
    }
  }
}

/** Stores two boxes in two groups; after each wait, reads what has arrived of the tensor. */
__global__ void store_groups(const __grid_constant__ CUtensorMap map, volatile uint16_t *tensor,
                             unsigned *out) {
  uint16_t *box = (uint16_t *)smem;
  for (int i = 0; i < 64; i++) box[i] = 1, box[64 + i] = 2;
  tma_store(map, box, 0, 0, 0, 0);
  tma_store_commit();
  tma_store(map, box + 64, 0, 1, 0, 0);
  tma_store_wait<0>(); /* legal, and does not cover the second */
  out[0] = tensor[0], out[1] = tensor[64];
  tma_store_commit();
  tma_store_wait<1>();
  out[2] = tensor[0], out[3] = tensor[64];
  tma_store_wait<0>();
  out[4] = tensor[0], out[5] = tensor[64];
}

TEST(a_wait_covers_the_groups_of_stores_committed_before_it) {
  uint16_t *tensor = device_zeros<uint16_t>(128);
  const CUtensorMap map = matrix_map(tensor, 2, 1, CU_TENSOR_MAP_SWIZZLE_NONE);
  const auto out =
      results<unsigned>(6, [&](unsigned *to) { store_groups<<<1, 1, SHARED>>>(map, tensor, to); });
  assert_true(out == std::vector<unsigned>({1, 0, 1, 0, 1, 2}));
}

/** Loads floats, and adds them to others; before and after each wait, reads what has arrived. */
__global__ void add_in_bulk(const float *in, volatile float *sums, float *out) {
  uint64_t *full = (uint64_t *)(smem + BARRIERS);
  const float *loaded = (const float *)smem;
  mbarrier_init(full, 1);
  fence_mbarrier_init();
  mbarrier_arrive_expect(full, 2064);
  bulk_load(smem, in, 2064, full);
  out[0] = loaded[0];
  mbarrier_wait(full, 0);
  out[1] = loaded[0], out[2] = loaded[515];
  bulk_reduce_add((float *)sums, loaded + 4, 2048);
  tma_store_commit();
  out[3] = sums[511];
  tma_store_wait<0>();
  out[4] = sums[511], out[5] = sums[512];
}

TEST(bulk_copies_and_reductions_complete_at_their_waits) {
  std::vector<float> numbers(516);
  for (int i = 0; i < 516; i++) numbers[i] = (float)i + 1;
  float *in = device_zeros<float>(516), *sums = device_zeros<float>(516);
  for (float *to : {in, sums}) {
    cudaMemcpy(to, numbers.data(), 516 * sizeof(float), cudaMemcpyHostToDevice);
  }
  const auto out =
      results<float>(6, [&](float *to) { add_in_bulk<<<1, 1, SHARED>>>(in, sums, to); });
  assert_true(std::isnan(out[0]));
  assert_true(std::vector<float>(out.begin() + 1, out.end()) ==
              std::vector<float>({1, 516, 512, 512 + 516, 513}));
}

/** Encodes a right request after `change`. */
static CUresult encode_changed(void (*change)(MapRequest *)) {
  static CUtensorMap map;
  MapRequest r = {device_zeros<char>(16), 3, {64, 1, 1}, {128, 128}, {64, 8, 1}};
  r.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  change(&r);
  return encode(&map, r);
}

/** A change of the right request, and what the report then says. */
struct Refusal {
  void (*change)(MapRequest *);
  const char *why;
};

TEST(maps_that_the_driver_does_not_take_are_refused_and_explained) {
  assert_int_equal(encode_changed([](MapRequest *) {}), CUDA_SUCCESS);
  static const Refusal refusals[] = {
      {[](MapRequest *r) { r->rank = 0; }, "tensorRank is 0: must be 1 to 5"},
      {[](MapRequest *r) { r->rank = 6; }, "tensorRank is 6: must be 1 to 5"},
      {[](MapRequest *r) { r->rank = 2, r->interleave = CU_TENSOR_MAP_INTERLEAVE_16B; },
       "tensorRank is 2: must be 3 to 5"},
      {[](MapRequest *r) { r->address = (char *)r->address + 8; },
       "globalAddress is 8 bytes past a multiple of 16, at which it must be"},
      {[](MapRequest *r) { r->sizes[1] = 0; }, "globalDim[1] is 0: must be 1 to 2^32"},
      {[](MapRequest *r) { r->sizes[1] = (UINT64_C(1) << 32) + 1; },
       "globalDim[1] is 4294967297: must be 1 to 2^32"},
      {[](MapRequest *r) { r->strides[0] = 136; },
       "globalStrides[0] is 136 bytes: must be a multiple of 16 below 2^40"},
      {[](MapRequest *r) { r->strides[1] = UINT64_C(1) << 40; },
       "globalStrides[1] is 1099511627776 bytes: must be a multiple of 16 below 2^40"},
      {[](MapRequest *r) { r->box[1] = 0; }, "boxDim[1] is 0: must be 1 to 256"},
      {[](MapRequest *r) { r->box[1] = 512; }, "boxDim[1] is 512: must be 1 to 256"},
      {[](MapRequest *r) { r->box[0] = 60; },
       "boxDim[0] is 60 elements of 2 bytes: must be a multiple of 16 bytes"},
      {[](MapRequest *r) { r->box[0] = 72; },
       "boxDim[0] is 72 elements of 2 bytes, 144 in all: at most 128 with this swizzle"},
      {[](MapRequest *r) { r->swizzle = CU_TENSOR_MAP_SWIZZLE_64B; },
       "boxDim[0] is 64 elements of 2 bytes, 128 in all: at most 64 with this swizzle"},
      {[](MapRequest *r) { r->steps[1] = 0; }, "elementStrides[1] is 0: must be 1 to 8"},
      {[](MapRequest *r) { r->steps[2] = 9; }, "elementStrides[2] is 9: must be 1 to 8"},
      {[](MapRequest *r) { r->interleave = CU_TENSOR_MAP_INTERLEAVE_32B; },
       "interleave of 32 bytes: takes CU_TENSOR_MAP_SWIZZLE_32B only"},
      {[](MapRequest *r) { r->interleave = CU_TENSOR_MAP_INTERLEAVE_16B; },
       "the CPU backend does not simulate the value of interleave"},
      {[](MapRequest *r) { r->steps[1] = 2; },
       "the CPU backend does not simulate the value of elementStrides"},
      {[](MapRequest *r) { r->type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32; },
       "the CPU backend does not simulate the value of tensorDataType"},
  };
  for (const auto &[change, why] : refusals) {
    const std::string wanted = "simt: cuTensorMapEncodeTiled: " + std::string(why) + "\n";
    CUresult result;
    const std::string text = stderr_of([&] { result = encode_changed(change); });
    assert_int_equal(result, CUDA_ERROR_INVALID_VALUE);
    assert_string_equal(text.c_str(), wanted.c_str());
  }
  void *function;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &found);
  assert_int_equal(found, cudaDriverEntryPointSymbolNotFound);
}

/* --- Mistakes ------------------------------------------------------------------------------- */

__global__ void misuse(const __grid_constant__ CUtensorMap map,
                       const __grid_constant__ CUtensorMap nowhere, int mistake) {
  uint64_t *barrier = (uint64_t *)(smem + BARRIERS), *other = barrier + 1;
  const CUtensorMap none = {};
  if (threadIdx.x != 7) return;
  mbarrier_init(barrier, 1);
  if (mistake != 18) fence_mbarrier_init();
  if (mistake == 0) mbarrier_init(other, 0);
  if (mistake == 1) mbarrier_init((uint64_t *)(smem + SHARED), 1);
  if (mistake == 2) mbarrier_init((uint64_t *)(smem + 4), 1);
  if (mistake == 3) mbarrier_arrive(other);
  if (mistake == 4) mbarrier_wait(other, 1);
  if (mistake == 5) tma_load(smem, map, other, 0, 0, 0, 0);
  if (mistake == 6) mbarrier_arrive_expect(barrier, 16), mbarrier_arrive(barrier);
  if (mistake == 7) tma_load(smem + 64, map, barrier, 0, 0, 0, 0);
  if (mistake == 8) tma_load(smem + BARRIERS, map, barrier, 0, 0, 0, 0);
  if (mistake == 9) tma_load(smem, none, barrier, 0, 0, 0, 0);
  if (mistake == 10) tma_load(smem, nowhere, barrier, 0, 0, 0, 0);
  if (mistake == 11) tma_store(nowhere, smem, 0, 0, 0, 0);
  if (mistake == 12) tma_load(smem, map, barrier, 0, 0, 0, 0);
  if (mistake == 13) tma_store(map, smem, 0, 0, 0, 0);
  if (mistake == 14) named_barrier_sync<32>(0);
  if (mistake == 15) named_barrier_arrive<32>(16);
  if (mistake == 16) named_barrier_sync<48>(1);
  if (mistake == 17) named_barrier_arrive<64>(1), named_barrier_sync<96>(1);
  if (mistake == 18) tma_load(smem + 1024, map, barrier, 0, 0, 0, 0);
  if (mistake == 19) mbarrier_init(barrier, 1);
  for (int i = 0; mistake == 20 && i < 3; i++) mbarrier_arrive(barrier);
  if (mistake == 21) named_barrier_arrive<64>(1);
  if (mistake == 22) bulk_load(smem, barrier, 24, barrier);
}
enum { MISUSE_LINE = __LINE__ - 24 };

TEST(mistakes_are_reported_where_they_are_made) {
  static const struct {
    const char *report;
    cudaError_t error = cudaErrorLaunchFailure;
  } mistakes[] = {
      {"an mbarrier of 0 arrivals"},
      {"an mbarrier outside of dynamic shared memory"},
      {"misaligned mbarrier: 4 bytes past a multiple of 8", cudaErrorMisalignedAddress},
      {"no mbarrier has been initialised at this address, shared + 4104"},
      {"no mbarrier has been initialised at this address, shared + 4104"},
      {"no mbarrier has been initialised at this address, shared + 4104"},
      {"more than the 1 arrivals of a phase at the mbarrier at shared + 4096"},
      {"misaligned shared memory of a tensor copy: 64 bytes past a multiple of 128",
       cudaErrorMisalignedAddress},
      {"a tensor copy of 1024 bytes at shared + 4096, of 4160 bytes of dynamic shared memory"},
      {"a tensor copy without a tensor map"},
      {"out of bounds read 1 byte past allocation ", cudaErrorIllegalAddress},
      {"out of bounds write 1 byte past allocation ", cudaErrorIllegalAddress},
      {"the block ends while a tensor copy to its shared memory is in flight"},
      {"a thread ends while its tensor copy from shared memory is in flight"},
      {"barrier 0: named barriers are 1 to 15"},
      {"barrier 16: named barriers are 1 to 15"},
      {"barrier 1 for 48 threads: must be a multiple of 32"},
      {"barrier 1 for 96 threads, for 64 by those that have arrived"},
      {"a tensor copy for an mbarrier without fence.mbarrier_init"},
      {"an mbarrier is initialised again"},
      {"two phases of the mbarrier at shared + 4096 have ended without a wait"},
      {"the block ends after 1 of 64 arrivals at barrier 1"},
      {"a bulk copy of 24 bytes: must be a multiple of 16"},
  };
  int line = MISUSE_LINE;
  for (const auto &m : mistakes) {
    uint16_t *tensor = device_zeros<uint16_t>(512);
    const CUtensorMap map = matrix_map(tensor, 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
    const CUtensorMap nowhere = matrix_map(tensor + 512, 8, 8, CU_TENSOR_MAP_SWIZZLE_NONE);
    const std::string report =
        expect_report([&] { misuse<<<1, 32, SHARED>>>(map, nowhere, line - MISUSE_LINE); },
                      m.report, line, m.error);
    assert_contains(report, "by thread (7,0,0) of block (0,0,0)");
    line++;
  }
}

/* --- Named barriers and setmaxnreg ------------------------------------------------------------ */

__global__ void wait_for_more() {
  if (threadIdx.x < 64) named_barrier_sync<96>(3);
}
enum { MORE_LINE = __LINE__ - 2 };

TEST(a_named_barrier_that_threads_miss_is_a_deadlock) {
  const std::string report = expect_report([] { wait_for_more<<<1, 128, SHARED>>>(); },
                                           "simt: DEADLOCK in wait_for_more, launch ", MORE_LINE);
  assert_contains(report, {"threads 0-63 wait for barrier 3: 64 of 96 threads have arrived\n",
                           "threads 64-127 have exited\n"});
}

/** The first of three warpgroups releases registers, the others take them. All begin with 168. */
template <int RELEASE, int TAKE>
__global__ void move_registers(int *done) {
  if (threadIdx.x < 128) {
    if (RELEASE > 0) setmaxnreg_dec<RELEASE>();
    if (RELEASE > 0) setmaxnreg_inc<RELEASE>(); /* no more than it has */
  } else {
    setmaxnreg_inc<TAKE>();
    atomicAdd(done, 1);
  }
}
enum { TAKE_LINE = __LINE__ - 4, RELEASE_LINE = TAKE_LINE - 3 };

/** Of the second of three warpgroups, some warps take what the first releases. */
__global__ void take_with_some_warps(unsigned warps) {
  if (threadIdx.x < 128) setmaxnreg_dec<24>();
  if (warps >> threadIdx.x / 32 & 1) setmaxnreg_inc<240>();
}
enum { SOME_WARPS_LINE = __LINE__ - 2 };

TEST(all_warps_of_a_warpgroup_move_registers) {
  for (const unsigned warps : {0x70u, 0xe0u}) {
    const std::string what = "setmaxnreg by some warps of a warpgroup: warp 4 has ";
    expect_report([=] { take_with_some_warps<<<1, 384>>>(warps); },
                  what + (warps == 0x70 ? "240 registers per thread, warp 7 168"
                                        : "168 registers per thread, warp 5 240"),
                  SOME_WARPS_LINE);
  }
}

__global__ void release_with_lane_0() {
  if (threadIdx.x % 32 == 0) setmaxnreg_dec<24>();
}
enum { LANE_0_LINE = __LINE__ - 2 };

TEST(all_lanes_of_a_warp_move_registers) {
  expect_report([] { release_with_lane_0<<<1, 128>>>(); },
                "simt: setmaxnreg without all lanes of its warp: all threads of a warpgroup must "
                "execute it in release_with_lane_0",
                LANE_0_LINE);
}

TEST(registers_move_between_warpgroups) {
  const auto done = results<int>(1, [](auto *to) { move_registers<24, 240><<<3, 384>>>(to); });
  assert_int_equal(done[0], 3 * 256);
}

static void expect_registers(void (*kernel)(int *), const char *what, int line) {
  int *done = device_zeros<int>(1);
  expect_report([=] { kernel<<<1, 384>>>(done); }, what, line);
}

TEST(registers_that_nobody_releases_are_a_deadlock) {
  expect_registers(move_registers<0, 240>,
                   "threads 128-383 wait for setmaxnreg.inc 240 of warps with 168 registers per "
                   "thread: 0 more are free for one of them\n",
                   TAKE_LINE);
  expect_registers(move_registers<160, 240>, "thread: 32 more are free for one of them\n",
                   TAKE_LINE);
  expect_registers(move_registers<0, 160>, "setmaxnreg.inc 160 by a warp of 168 registers",
                   TAKE_LINE);
  expect_registers(move_registers<176, 168>, "setmaxnreg.dec 176 by a warp of 168 registers",
                   RELEASE_LINE);
  expect_registers(move_registers<20, 168>, "setmaxnreg 20: must be a multiple of 8 from 24 to 256",
                   RELEASE_LINE);
  expect_registers(move_registers<0, 172>, "setmaxnreg 172: must be a multiple of 8 from 24 to 256",
                   TAKE_LINE);
}

RUN_IN_ALL_SETTINGS("barriers and tensor copies", reset_device, nullptr)
