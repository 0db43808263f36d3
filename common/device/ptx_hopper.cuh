/**
 * @file
 * The PTX instructions that compute capability 9.0 (Hopper) added, a function each: barriers in
 * shared memory, TMA, products of a warpgroup (wgmma), registers moved between warps. Section
 * numbers are those of the PTX ISA 8.7. As in ptx.cuh each function has two bodies: nvcc compiles
 * the first, the CPU backend the second.
 *
 * wgmma and setmaxnreg exist on compute capability 9.0 alone, in code for sm_90a. Code for other
 * GPUs traps here; it is never launched, because the steps refuse those GPUs. Barriers, which steps
 * with clusters use, too, are in code for all later ones.
 */
#ifndef DEVICE_PTX_HOPPER_CUH
#define DEVICE_PTX_HOPPER_CUH

#include <cuda.h>

#include "device/ptx.cuh"

#ifndef __CUDACC__
#include <simt_hopper.h>
#endif

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_ASM(...) __trap()
#else
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__) /**< on other GPUs a trap */
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CLUSTER_ASM(...) __trap()
#else
#define CLUSTER_ASM(...) asm volatile(__VA_ARGS__) /**< on GPUs without clusters a trap */
#endif

constexpr int WARPGROUP_THREADS = 128; /**< four warps, the first of which is a multiple of 4 */

/* --- mbarriers (9.7.13.15) ------------------------------------------------------------------ */

/**
 * mbarrier.init: a barrier whose phases each end after `arrivals` arrivals, and after the bytes
 * that were expected. Other threads may use it after a fence_mbarrier_init() and a barrier.
 */
__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, int arrivals) {
#ifdef __CUDACC__
  CLUSTER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
              "r"(arrivals)
              : "memory");
#else
  simt_mbarrier_init(barrier, (unsigned)arrivals);
#endif
}

/** fence.mbarrier_init: TMA sees the barriers that this thread has initialised. */
__device__ __forceinline__ void fence_mbarrier_init() {
#ifdef __CUDACC__
  CLUSTER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  simt_fence_mbarrier_init();
#endif
}

/** mbarrier.arrive: one arrival at the current phase. */
__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
#ifdef __CUDACC__
  CLUSTER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#else
  simt_mbarrier_arrive(barrier, 0);
#endif
}

/** mbarrier.arrive.expect_tx: one arrival; the phase also waits for `bytes` of TMA loads. */
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t *barrier, int bytes) {
#ifdef __CUDACC__
  CLUSTER_ASM(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
#else
  simt_mbarrier_arrive(barrier, (unsigned)bytes);
#endif
}

/**
 * mbarrier.try_wait.parity, again and again: waits until the phase of this parity has ended. The
 * phases of a barrier have parity 0, 1, 0 and so on. A wait for parity 1 at a new barrier returns
 * at once, as if the phase before the first had ended.
 */
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, uint32_t parity) {
#ifdef __CUDACC__
  uint32_t ended = 0;
  do {
    CLUSTER_ASM(
        "{\n"
        "  .reg .pred ended;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, ended;\n"
        "}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!ended);
#else
  simt_mbarrier_wait(barrier, parity);
#endif
}

/* --- TMA: tensor copies (9.7.9.27.1) ---------------------------------------------------------- */

/**
 * cp.async.bulk.tensor.4d: starts the copy of a box of a tensor to shared memory. The coordinates
 * of its first element are in elements, innermost first; what lies outside of the tensor becomes 0.
 * When the box has arrived, all its bytes count for `barrier`. One thread issues it.
 */
__device__ __forceinline__ void tma_load(void *shared, const CUtensorMap &map, uint64_t *barrier,
                                         int column, int row, int head, int batch) {
#ifdef __CUDACC__
  HOPPER_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
#else
  const int coordinates[] = {column, row, head, batch};
  simt_tensor_load(shared, &map, barrier, coordinates);
#endif
}

/** cp.async.bulk.tensor.4d in the other direction; what lies outside of the tensor is left out. */
__device__ __forceinline__ void tma_store(const CUtensorMap &map, const void *shared, int column,
                                          int row, int head, int batch) {
#ifdef __CUDACC__
  HOPPER_ASM(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(shared_address(shared)), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
#else
  const int coordinates[] = {column, row, head, batch};
  simt_tensor_store(&map, shared, coordinates);
#endif
}

/** cp.async.bulk (9.7.9.25): the same as tma_load() for a range of memory, without a tensor
 * map. Addresses and `bytes` are multiples of 16. */
__device__ __forceinline__ void bulk_load(void *shared, const void *global, int bytes,
                                          uint64_t *barrier) {
#ifdef __CUDACC__
  HOPPER_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
#else
  simt_bulk_load(shared, global, (unsigned)bytes, barrier);
#endif
}

/** cp.reduce.async.bulk (9.7.9.25): TMA reads floats from shared memory and adds them to those
 * in global memory, each as a whole, in an order that may differ from run to run. It belongs to a
 * group, as stores do; addresses and `bytes` are multiples of 16. */
__device__ __forceinline__ void bulk_reduce_add(float *global, const float *shared, int bytes) {
#ifdef __CUDACC__
  HOPPER_ASM("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                 __cvta_generic_to_global(global)),
             "r"(shared_address(shared)), "r"(bytes)
             : "memory");
#else
  simt_bulk_reduce_add(global, shared, (unsigned)bytes);
#endif
}

/** cp.async.bulk.commit_group (9.7.9.25.4.2): the stores since the last one become a group. */
__device__ __forceinline__ void tma_store_commit() {
#ifdef __CUDACC__
  HOPPER_ASM("cp.async.bulk.commit_group;" ::: "memory");
#else
  simt_bulk_commit();
#endif
}

/** cp.async.bulk.wait_group.read: waits until at most the latest PENDING groups of this thread may
 * still read shared memory. */
template <int PENDING>
__device__ __forceinline__ void tma_store_wait() {
#ifdef __CUDACC__
  HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
#else
  simt_bulk_wait(PENDING);
#endif
}

/** fence.proxy.async: this thread's loads and stores of shared memory come before later tensor
 * copies and wgmma. These see what it has stored, and do not overwrite what it still reads. */
__device__ __forceinline__ void fence_proxy_async() {
#ifdef __CUDACC__
  HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
#else
  simt_fence_proxy_async();
#endif
}

/* --- Transposing bytes -------------------------------------------------------------------------
 */

/** stmatrix .x4 (9.7.14.5.16), the reverse of ldmatrix: lanes 8 i to 8 i + 7 give the addresses of
 * the rows of matrix i, 8 x 8 elements of 16 bits. Of matrix i a lane stores r[i], elements
 * 2 (lane % 4) and the next of row lane / 4. */
__device__ __forceinline__ void stmatrix_x4(void *row, const uint32_t (&r)[4]) {
#ifdef __CUDACC__
  HOPPER_ASM(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
#else
  simt_stmatrix(row, SimtWords{r[0], r[1], r[2], r[3]}, 4);
#endif
}

/** prmt (9.7.8.7): four of the eight bytes of `low` and `high`. The hexadecimal digits of
 * `selector` name them, the last digit for the lowest byte; 0 to 3 are those of `low`. */
__device__ __forceinline__ uint32_t select_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef __CUDACC__
  return __byte_perm(low, high, selector);
#else
  const uint64_t bytes = (uint64_t)high << 32 | low;
  uint32_t selected = 0;
  for (int i = 0; i < 4; i++) {
    selected |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return selected;
#endif
}

/** cvt.rn.satfinite.e4m3x2.f32 (9.7.9.22), twice: four numbers as e4m3, `x0` in the lowest byte.
 * What is beyond 448 becomes 448. */
__device__ __forceinline__ uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
#ifdef __CUDACC__
  uint32_t packed = 0;
#if __CUDA_ARCH__ >= 900
  asm("{\n"
      "  .reg .b16 low, high;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "  mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
#endif
  return packed;
#else
  return simt_pack_e4m3(x0, x1, x2, x3);
#endif
}

/** cvt.rn.f16x2.e4m3x2 (9.7.9.22): the two e4m3 in the lower or upper half of `word` as fp16,
 * exactly; that of the lower byte in the lower half. Compute capability 8.9 and later have it. A
 * shift in place of `UPPER` would be an instruction. */
template <bool UPPER = false>
__device__ __forceinline__ uint32_t e4m3_to_half2(uint32_t word) {
#ifdef __CUDACC__
  uint32_t halves = 0;
#if __CUDA_ARCH__ >= 890
  asm("{\n"
      "  .reg .b16 half<2>;\n"
      "  mov.b32 {half0, half1}, %1;\n"
      "  cvt.rn.f16x2.e4m3x2 %0, half%2;\n"
      "}"
      : "=r"(halves)
      : "r"(word), "n"((int)UPPER));
#endif
  return halves;
#else
  return simt_e4m3_to_half2(UPPER ? word >> 16 : word);
#endif
}

/* --- wgmma (9.7.15) -----------------------------------------------------------------------------
 */

/** wgmma.fence: other instructions have read and written registers before the wgmma after it do. */
__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDACC__
  HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory");
#else
  simt_wgmma_fence();
#endif
}

/** wgmma.commit_group: the wgmma since the last one become a group. */
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDACC__
  HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  simt_wgmma_commit();
#endif
}

/** Emits no instruction, but counts as reading and writing the accumulators. Volatile asm
 * statements keep their order, so no arithmetic on the accumulators can move above a wait before
 * it. */
template <int TILES>
__device__ __forceinline__ void touch_accumulators(float (&d)[TILES][4]) {
#ifdef __CUDACC__
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]));
  }
#else
  (void)d;
#endif
}

/** wgmma.wait_group: waits until at most the latest PENDING groups are unfinished. Before it, no
 * thread may read or write the accumulators, nor write the registers or the shared memory that the
 * older groups read. To the compiler an accumulator is a variable like any other, so `completed`
 * names those of the older groups. (Operands A need no name: nvcc gives a new P virtual registers
 * of its own, and ptxas, which maps these to real ones, knows which of them a wgmma reads.) */
template <int PENDING, typename... Fragments>
__device__ __forceinline__ void wgmma_wait(Fragments &...completed) {
#ifdef __CUDACC__
  HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#else
  const float *const named[] = {completed[0]..., NULL};
  simt_wgmma_named(PENDING, named, sizeof...(completed));
  simt_wgmma_wait(PENDING);
#endif
  (touch_accumulators(completed), ...);
}

#ifdef __CUDACC__

// The operands of one instruction: its accumulators first, numbered from %0.
#define WGMMA_TILE(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_ACCUMULATORS_16 WGMMA_TILE(0), WGMMA_TILE(1)
#define WGMMA_ACCUMULATORS_32 WGMMA_ACCUMULATORS_16, WGMMA_TILE(2), WGMMA_TILE(3)
#define WGMMA_ACCUMULATORS_48 WGMMA_ACCUMULATORS_32, WGMMA_TILE(4), WGMMA_TILE(5)
#define WGMMA_ACCUMULATORS_64 WGMMA_ACCUMULATORS_48, WGMMA_TILE(6), WGMMA_TILE(7)
#define WGMMA_ACCUMULATORS_80 WGMMA_ACCUMULATORS_64, WGMMA_TILE(8), WGMMA_TILE(9)
#define WGMMA_ACCUMULATORS_96 WGMMA_ACCUMULATORS_80, WGMMA_TILE(10), WGMMA_TILE(11)
#define WGMMA_ACCUMULATORS_112 WGMMA_ACCUMULATORS_96, WGMMA_TILE(12), WGMMA_TILE(13)
#define WGMMA_ACCUMULATORS_128 WGMMA_ACCUMULATORS_112, WGMMA_TILE(14), WGMMA_TILE(15)
#define WGMMA_ACCUMULATORS_144 WGMMA_ACCUMULATORS_128, WGMMA_TILE(16), WGMMA_TILE(17)
#define WGMMA_ACCUMULATORS_160 WGMMA_ACCUMULATORS_144, WGMMA_TILE(18), WGMMA_TILE(19)
#define WGMMA_ACCUMULATORS_176 WGMMA_ACCUMULATORS_160, WGMMA_TILE(20), WGMMA_TILE(21)
#define WGMMA_ACCUMULATORS_192 WGMMA_ACCUMULATORS_176, WGMMA_TILE(22), WGMMA_TILE(23)
#define WGMMA_ACCUMULATORS_208 WGMMA_ACCUMULATORS_192, WGMMA_TILE(24), WGMMA_TILE(25)
#define WGMMA_ACCUMULATORS_224 WGMMA_ACCUMULATORS_208, WGMMA_TILE(26), WGMMA_TILE(27)
#define WGMMA_ACCUMULATORS_240 WGMMA_ACCUMULATORS_224, WGMMA_TILE(28), WGMMA_TILE(29)
#define WGMMA_ACCUMULATORS_256 WGMMA_ACCUMULATORS_240, WGMMA_TILE(30), WGMMA_TILE(31)
#define WGMMA_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_REGISTERS_32 WGMMA_REGISTERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGISTERS_48 WGMMA_REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_REGISTERS_64 WGMMA_REGISTERS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_80 WGMMA_REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_REGISTERS_96 WGMMA_REGISTERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_REGISTERS_112 WGMMA_REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_REGISTERS_128 WGMMA_REGISTERS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_REGISTERS_144 WGMMA_REGISTERS_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_REGISTERS_160 WGMMA_REGISTERS_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_REGISTERS_176 WGMMA_REGISTERS_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_REGISTERS_192 WGMMA_REGISTERS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_REGISTERS_208 WGMMA_REGISTERS_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_REGISTERS_224 WGMMA_REGISTERS_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_REGISTERS_240 WGMMA_REGISTERS_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_REGISTERS_256 WGMMA_REGISTERS_240 ", %120, %121, %122, %123, %124, %125, %126, %127"

// A from shared memory: the operands after the accumulators are numbered A0, A1, ...
#define WGMMA_SHARED(n, type, A0, A1, A2, A3, A4)                                               \
  HOPPER_ASM("{ .reg .pred add; setp.ne.b32 add, %" #A2                                         \
             ", 0;\n"                                                                           \
             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type                    \
             " {" WGMMA_REGISTERS_##n "}, %" #A0 ", %" #A1 ", add, 1, 1, %" #A3 ", %" #A4 "; }" \
             : WGMMA_ACCUMULATORS_##n                                                           \
             : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)TRANSPOSE_A), "n"((int)TRANSPOSE_B))

#define WGMMA_REGISTER(n, type, A0, A1, A2, A3, A4, A5, A6)                                \
  HOPPER_ASM("{ .reg .pred add; setp.ne.b32 add, %" #A5                                    \
             ", 0;\n"                                                                      \
             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
             " {" WGMMA_REGISTERS_##n "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #A4 \
                                      ", add, 1, 1, %" #A6 "; }"                           \
             : WGMMA_ACCUMULATORS_##n                                                      \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate),   \
               "n"((int)TRANSPOSE_B))

// One instruction of the first shape of this list that N names.
#define WGMMA_SHAPES(SHAPE)                 \
  SHAPE(32, 16, 17, 18, 19, 20, 21, 22)     \
  SHAPE(64, 32, 33, 34, 35, 36, 37, 38)     \
  SHAPE(80, 40, 41, 42, 43, 44, 45, 46)     \
  SHAPE(96, 48, 49, 50, 51, 52, 53, 54)     \
  SHAPE(112, 56, 57, 58, 59, 60, 61, 62)    \
  SHAPE(128, 64, 65, 66, 67, 68, 69, 70)    \
  SHAPE(144, 72, 73, 74, 75, 76, 77, 78)    \
  SHAPE(160, 80, 81, 82, 83, 84, 85, 86)    \
  SHAPE(176, 88, 89, 90, 91, 92, 93, 94)    \
  SHAPE(192, 96, 97, 98, 99, 100, 101, 102) \
  SHAPE(256, 128, 129, 130, 131, 132, 133, 134)

#define WGMMA_SHARED_CASE(n, A0, A1, A2, A3, A4, A5, A6)                    \
  if constexpr (N == n && FP16) WGMMA_SHARED(n, "f16", A0, A1, A2, A3, A4); \
  if constexpr (N == n && !FP16) WGMMA_SHARED(n, "bf16", A0, A1, A2, A3, A4);
#define WGMMA_REGISTER_CASE(n, A0, A1, A2, A3, A4, A5, A6)                            \
  if constexpr (N == n && FP16) WGMMA_REGISTER(n, "f16", A0, A1, A2, A3, A4, A5, A6); \
  if constexpr (N == n && !FP16) WGMMA_REGISTER(n, "bf16", A0, A1, A2, A3, A4, A5, A6);
#define WGMMA_E4M3_SHARED_CASE(n, A0, A1, A2, ...)                            \
  if constexpr (N == n)                                                       \
    HOPPER_ASM("{ .reg .pred add; setp.ne.b32 add, %" #A2                     \
               ", 0;\n"                                                       \
               "wgmma.mma_async.sync.aligned.m64n" #n                         \
               "k32.f32.e4m3.e4m3"                                            \
               " {" WGMMA_REGISTERS_##n "}, %" #A0 ", %" #A1 ", add, 1, 1; }" \
               : WGMMA_ACCUMULATORS_##n                                       \
               : "l"(a), "l"(b), "r"((int)accumulate));
#define WGMMA_E4M3_REGISTER_CASE(n, A0, A1, A2, A3, A4, A5, A6)                              \
  if constexpr (N == n)                                                                      \
    HOPPER_ASM("{ .reg .pred add; setp.ne.b32 add, %" #A5                                    \
               ", 0;\n"                                                                      \
               "wgmma.mma_async.sync.aligned.m64n" #n                                        \
               "k32.f32.e4m3.e4m3"                                                           \
               " {" WGMMA_REGISTERS_##n "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #A4 \
                                        ", add, 1, 1; }"                                     \
               : WGMMA_ACCUMULATORS_##n                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate));
#define WGMMA_IS_N(n, ...) || N == n

#endif

/** The 16-bit element types, as instructions name them. */
template <typename T>
inline constexpr bool IS_FP16 = false;
template <>
inline constexpr bool IS_FP16<__half> = true; /**< see above */

/**
 * wgmma.mma_async m64nNk16: D = A B, plus D if `accumulate`, for a 64 x 16 matrix A and a 16 x N
 * matrix B in shared memory. All threads of a warpgroup issue it; it runs on its own until a wait.
 * Warp w holds rows 16 w to 16 w + 15 of D, in N / 8 tiles laid out like those of mma_m16n8k16().
 * `a` and `b` describe the matrices: see wgmma_descriptor(). Without TRANSPOSE_B the 16 elements of
 * a column of B are adjacent in memory, with it the N elements of a row. Without TRANSPOSE_A the 16
 * elements of a row of A are adjacent, with it the 64 of a column.
 */
template <typename T, bool TRANSPOSE_B, bool TRANSPOSE_A = false, int TILES>
__device__ __forceinline__ void wgmma(float (&d)[TILES][4], uint64_t a, uint64_t b,
                                      bool accumulate) {
  constexpr int N = 8 * TILES;
#ifdef __CUDACC__
  constexpr bool FP16 = IS_FP16<T>;
  static_assert(false WGMMA_SHAPES(WGMMA_IS_N), "add this N to the list of shapes");
  WGMMA_SHAPES(WGMMA_SHARED_CASE)
#else
  const SimtWgmma operands = {d[0],        NULL,        a,
                              b,           N,           accumulate,
                              TRANSPOSE_A, TRANSPOSE_B, IS_FP16<T> ? SIMT_FP16 : SIMT_BF16};
  simt_wgmma(&operands);
#endif
}

/** The same with A in registers, where warp w holds rows 16 w to 16 w + 15 as operand A of
 * mma_m16n8k16(). */
template <typename T, bool TRANSPOSE_B, int TILES>
__device__ __forceinline__ void wgmma(float (&d)[TILES][4], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate) {
  constexpr int N = 8 * TILES;
#ifdef __CUDACC__
  constexpr bool FP16 = IS_FP16<T>;
  static_assert(false WGMMA_SHAPES(WGMMA_IS_N), "add this N to the list of shapes");
  WGMMA_SHAPES(WGMMA_REGISTER_CASE)
#else
  const SimtWgmma operands = {
      d[0], a, 0, b, N, accumulate, false, TRANSPOSE_B, IS_FP16<T> ? SIMT_FP16 : SIMT_BF16};
  simt_wgmma(&operands);
#endif
}

/**
 * wgmma.mma_async m64nNk32 of e4m3: the same with a depth of 32, as many bytes. There is no
 * transposition: the 32 elements of a column of B must be adjacent in memory.
 */
template <int TILES>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[TILES][4], uint64_t a, uint64_t b,
                                           bool accumulate) {
  constexpr int N = 8 * TILES;
#ifdef __CUDACC__
  static_assert(false WGMMA_SHAPES(WGMMA_IS_N), "add this N to the list of shapes");
  WGMMA_SHAPES(WGMMA_E4M3_SHARED_CASE)
#else
  const SimtWgmma operands = {d[0], NULL, a, b, N, accumulate, false, false, SIMT_E4M3};
  simt_wgmma(&operands);
#endif
}

/** The same with A in registers. With g = lane / 4 and j = 4 (lane % 4), a lane holds in fours
 * along a row: (g, j), (g + 8, j), (g, j + 16), (g + 8, j + 16). */
template <int TILES>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[TILES][4], const uint32_t (&a)[4], uint64_t b,
                                           bool accumulate) {
  constexpr int N = 8 * TILES;
#ifdef __CUDACC__
  static_assert(false WGMMA_SHAPES(WGMMA_IS_N), "add this N to the list of shapes");
  WGMMA_SHAPES(WGMMA_E4M3_REGISTER_CASE)
#else
  const SimtWgmma operands = {d[0], a, 0, b, N, accumulate, false, false, SIMT_E4M3};
  simt_wgmma(&operands);
#endif
}

/* --- Warp specialisation ------------------------------------------------------------------------
 */

/**
 * Are there enough registers if each thread of one warpgroup keeps FEW of them, and each thread of
 * GROUPS others takes MANY? A block that has an SM for itself by its launch bounds starts with
 * 65536 registers divided by its threads, in steps of 8, whatever -maxrregcount says.
 */
template <int GROUPS, int FEW, int MANY>
constexpr bool registers_suffice() {
  constexpr int EACH = 65536 / ((1 + GROUPS) * WARPGROUP_THREADS) / 8 * 8;
  static_assert(FEW % 8 == 0 && MANY % 8 == 0 && FEW >= 24 && MANY <= 256,
                "setmaxnreg takes 24 to 256 registers, in steps of 8");
  static_assert(FEW <= EACH && EACH <= MANY,
                "a warpgroup that releases registers would get more, or one that takes some fewer");
  static_assert(FEW + GROUPS * MANY <= (1 + GROUPS) * EACH,
                "more registers than the block starts with: setmaxnreg.inc would wait for ever");
  return true;
}

/** setmaxnreg.inc (9.7.19.5): the threads of this warpgroup get REGISTERS registers each, as soon
 * as other warpgroups have released enough. */
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_inc() {
#ifdef __CUDACC__
  HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#else
  simt_set_registers(REGISTERS, true);
#endif
}

/** setmaxnreg.dec: the threads of this warpgroup keep REGISTERS registers each. */
template <int REGISTERS>
__device__ __forceinline__ void setmaxnreg_dec() {
#ifdef __CUDACC__
  HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#else
  simt_set_registers(REGISTERS, false);
#endif
}

#endif
