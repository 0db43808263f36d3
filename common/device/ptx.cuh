/**
 * @file
 * The PTX instructions of the kernels, a function each: tensor cores, asynchronous copies, a
 * 16-byte store, loads, stores and atomics that order memory, 2^x and log2(x). No other file has
 * inline assembly. Section numbers are those of the PTX ISA 8.7. Each function has two bodies: nvcc
 * compiles the first; the CPU backend compiles the second, which simulates the instruction. GPUs of
 * compute capability 7.5 (Turing) lack some of the instructions; for them the first body has others
 * instead.
 *
 * All but 2^x and log2(x) are volatile: they read or write memory, or all lanes of a warp execute
 * them together, so they must not be moved.
 */
#ifndef DEVICE_PTX_CUH
#define DEVICE_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/**
 * The 32-bit address of a pointer to shared memory, and back. It takes half of the registers of a
 * pointer. On the CPU backend it counts from the start of dynamic shared memory.
 */
#ifdef __CUDACC__
__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}
/** The pointer to a 32-bit address of shared memory. */
__device__ __forceinline__ void *shared_pointer(uint32_t address) {
  return __cvta_shared_to_generic(address);
}
#else
/** Under a name of its own: a kernel may give its dynamic shared memory any name and type. */
extern __shared__ unsigned char simt_dynamic_shared[] __asm__("smem");

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return (uint32_t)((const unsigned char *)pointer - simt_dynamic_shared);
}
__device__ __forceinline__ void *shared_pointer(uint32_t address) {
  unsigned char *start = simt_dynamic_shared;
  asm("" : "+r"(start));  // the compiler must not think that it is another array than the kernel's
  return start + address;
}
#endif

/** Not an instruction: it stops nvcc from computing x again at each use, instead of keeping it in a
 * register. */
__device__ __forceinline__ void keep_in_register(uint32_t &x) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(x));
#else
  (void)x;
#endif
}

/**
 * ldmatrix .x1 (9.7.14.5.15): loads an 8 x 8 matrix of 16-bit elements. Lanes 0-7 give the
 * addresses of its rows, 16 bytes each, at multiples of 16. A lane gets elements 2 (lane % 4) and
 * the next of row lane / 4.
 */
__device__ __forceinline__ void ldmatrix_x1(uint32_t &r, const void *row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r)
               : "r"(shared_address(row))
               : "memory");
#else
  r = simt_ldmatrix(row, 1, false)[0];
#endif
}

/** ldmatrix .x2: lanes 8-15 give the rows of a second matrix. */
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void *row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#else
  const SimtWords loaded = simt_ldmatrix(row, 2, false);
  r[0] = loaded[0], r[1] = loaded[1];
#endif
}

/** ldmatrix .x4: lanes 8 i to 8 i + 7 give the rows of matrix i. */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#else
  const SimtWords loaded = simt_ldmatrix(row, 4, false);
  r[0] = loaded[0], r[1] = loaded[1], r[2] = loaded[2], r[3] = loaded[3];
#endif
}

/** ldmatrix .x1.trans: a lane gets elements 2 (lane % 4) and the next of column lane / 4. */
__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t &r, const void *row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r)
               : "r"(shared_address(row))
               : "memory");
#else
  r = simt_ldmatrix(row, 1, true)[0];
#endif
}

/** ldmatrix .x2.trans */
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
#else
  const SimtWords loaded = simt_ldmatrix(row, 2, true);
  r[0] = loaded[0], r[1] = loaded[1];
#endif
}

/** ldmatrix .x4.trans */
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#else
  const SimtWords loaded = simt_ldmatrix(row, 4, true);
  r[0] = loaded[0], r[1] = loaded[1], r[2] = loaded[2], r[3] = loaded[3];
#endif
}

constexpr int MMA_M = 16; /**< rows of A and D of one mma */
constexpr int MMA_N = 8;  /**< columns of B and D */
constexpr int MMA_K = 16; /**< columns of A, rows of B */

/**
 * mma.m16n8k16 (9.7.14.5.8): D += A B for a 16 x 16 matrix A and a 16 x 8 matrix B of 16-bit
 * elements, with fp32 accumulators. With g = lane / 4 and j = 2 * (lane % 4), a lane holds of A, in
 * pairs along a row: (g, j), (g + 8, j), (g, j + 8), (g + 8, j + 8); of B, in pairs down a
 * column: (j, g), (j + 8, g); of D, in pairs along a row: (g, j), (g + 8, j).
 */
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1);

#ifdef __CUDACC__

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // mma.m16n8k8 with the left 8 columns of A, then with the right 8.
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%8}, {%0, %1, %2, %3};\n"
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%6, %7}, {%9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                            uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();  // never launched: Step::supports refuses bf16 there
#endif
}

#else

/** The caller's arrays never have their address taken, so that they can stay in registers. */
__device__ __forceinline__ void mma_of(SimtElement element, float (&d)[4], const uint32_t (&a)[4],
                                       uint32_t b0, uint32_t b1) {
  const SimtFloats sum = simt_mma(SimtFloats{d[0], d[1], d[2], d[3]},
                                  SimtWords{a[0], a[1], a[2], a[3]}, b0, b1, element);
  d[0] = sum[0], d[1] = sum[1], d[2] = sum[2], d[3] = sum[3];
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
  mma_of(SIMT_FP16, d, a, b0, b1);
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                            uint32_t b0, uint32_t b1) {
  mma_of(SIMT_BF16, d, a, b0, b1);
}

#endif

/**
 * cp.async.cg (9.7.9.25.3.1): starts a copy of 16 bytes from global to shared memory, without
 * registers or L1. With `valid` false nothing is read, and the 16 bytes become zero. Compute
 * capability 7.5 copies at once, through registers.
 */
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid) {
#if defined(__CUDACC__) && __CUDA_ARCH__ < 800
  *(uint4 *)shared = valid ? *(const uint4 *)global : make_uint4(0, 0, 0, 0);
#elif defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
#else
  simt_copy_async_16(shared, global, valid ? 16 : 0);
#endif
}

/** cp_async_16() of bytes that are read once: of those that L2 holds, it gives them up first
 * (createpolicy). */
__device__ __forceinline__ void cp_async_16_once(void *shared, const void *global, bool valid) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
#else
  cp_async_16(shared, global, valid);
#endif
}

/** cp.async.commit_group (9.7.9.25.3.2): the copies since the last one become a group. */
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
  simt_commit_group();
#endif
}

/**
 * cp.async.wait_group (9.7.9.25.3.3): waits until at most the latest PENDING groups of this thread
 * are unfinished. Copies of other threads are visible after their wait and a barrier.
 */
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#elif !defined(__CUDACC__)
  simt_wait_group(PENDING);
#endif
}

/**
 * st.global.v4.u32 (9.7.9.11): stores 16 bytes to a multiple of 16, if `valid`. nvcc would split a
 * conditional assignment of 16 bytes into four stores of 4 bytes.
 */
__device__ __forceinline__ void store_16(void *global, const uint4 &value, bool valid) {
#ifdef __CUDACC__
  asm volatile(
      "{\n"
      "  .reg .pred valid;\n"
      "  setp.ne.u32 valid, %5, 0;\n"
      "  @valid st.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"l"(__cvta_generic_to_global(global)),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"((uint32_t)valid)
      : "memory");
#else
  if (valid) *(uint4 *)global = value;
#endif
}

/**
 * ld.global.nc.L1::no_allocate.L2::128B (9.7.9.8): loads 16 bytes that no thread stores to while
 * the kernel runs, and that this SM needs once: they do not take the place of other data in L1. L2
 * fetches whole lines of 128 bytes.
 */
__device__ __forceinline__ uint4 load_once_16(const void *global) {
#ifdef __CUDACC__
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(global)));
  return value;
#else
  return *(const uint4 *)global;
#endif
}

/** The same for what the other warps of the block load, too: L1 keeps it. */
__device__ __forceinline__ uint4 load_cached_16(const void *global) {
#ifdef __CUDACC__
  uint4 value;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(global)));
  return value;
#else
  return *(const uint4 *)global;
#endif
}

/**
 * ld.acquire.gpu (9.7.9.8): a load that orders what the thread does next behind what a release that
 * it reads from has published. It may be used on memory of any block, as the three below.
 */
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *global) {
#ifdef __CUDACC__
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(global))
               : "memory");
  return value;
#else
  return simt_load_acquire_32(global);
#endif
}

/** st.release.gpu (9.7.9.11): a store that publishes what the thread has done, and what it has seen
 * that others have done. */
__device__ __forceinline__ void store_release(uint32_t *global, uint32_t value) {
#ifdef __CUDACC__
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(value)
               : "memory");
#else
  simt_store_release_32(global, value);
#endif
}

/**
 * ld.relaxed.gpu and st.relaxed.gpu: four words that another block may store or load meanwhile, at
 * a multiple of 16 bytes. Each word is loaded or stored as a whole. Nothing is ordered: who sees
 * one of them knows nothing of others.
 */
__device__ __forceinline__ float4 load_relaxed(const float4 *global) {
#ifdef __CUDACC__
  float4 value;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(__cvta_generic_to_global(global))
               : "memory");
  return value;
#else
  return make_float4(__uint_as_float(simt_load_relaxed_32(&global->x)),
                     __uint_as_float(simt_load_relaxed_32(&global->y)),
                     __uint_as_float(simt_load_relaxed_32(&global->z)),
                     __uint_as_float(simt_load_relaxed_32(&global->w)));
#endif
}

/** The same if it is `wanted`, without a branch; else `value` remains. */
__device__ __forceinline__ void load_relaxed_if(bool wanted, float4 &value, const float4 *global) {
#ifdef __CUDACC__
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, "
      "[%4]; }"
      : "+f"(value.x), "+f"(value.y), "+f"(value.z), "+f"(value.w)
      : "l"(__cvta_generic_to_global(global)), "r"((int)wanted)
      : "memory");
#else
  if (wanted) value = load_relaxed(global);
#endif
}

/** The store. */
__device__ __forceinline__ void store_relaxed(float4 *global, float4 value) {
#ifdef __CUDACC__
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(global)),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
#else
  const uint32_t words[] = {__float_as_uint(value.x), __float_as_uint(value.y),
                            __float_as_uint(value.z), __float_as_uint(value.w)};
  simt_store_relaxed_128(global, words);
#endif
}

/** atom.acq_rel.gpu.add (9.7.13.5): an addition that does both; returns the old value. */
__device__ __forceinline__ uint32_t atomic_add_acq_rel(uint32_t *global, uint32_t value) {
#ifdef __CUDACC__
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(__cvta_generic_to_global(global)), "r"(value)
               : "memory");
  return old;
#else
  return simt_atomic_32(SIMT_ATOMIC_ADD, global, value, SIMT_ACQ_REL);
#endif
}

/** red.release.gpu.add (9.7.13.6): an addition that publishes, and returns nothing. */
__device__ __forceinline__ void reduce_add_release(uint32_t *global, uint32_t value) {
#ifdef __CUDACC__
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(global)),
               "r"(value)
               : "memory");
#else
  simt_atomic_32(SIMT_ATOMIC_ADD, global, value, SIMT_RELEASE);
#endif
}

/**
 * red.add.v4.f32 (9.7.13.6): adds four floats to those in global memory, at a multiple of 16, and
 * returns nothing. Each of the four is added as a whole, in an order that may differ from run to
 * run. Below compute capability 9.0 it is four instructions.
 */
__device__ __forceinline__ void reduce_add_4(float *global, float x, float y, float z, float w) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(global)),
               "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
#else
  atomicAdd(global, x), atomicAdd(global + 1, y), atomicAdd(global + 2, z),
      atomicAdd(global + 3, w);
#endif
}

/** bar.sync (9.7.13.1): waits until THREADS threads have arrived at barrier `id`, 1 to 15. */
template <int THREADS>
__device__ __forceinline__ void named_barrier_sync(int id) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
#else
  simt_named_barrier((unsigned)id, THREADS, true);
#endif
}

/** bar.arrive: counts as an arrival of bar.sync, without waiting. */
template <int THREADS>
__device__ __forceinline__ void named_barrier_arrive(int id) {
#ifdef __CUDACC__
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
#else
  simt_named_barrier((unsigned)id, THREADS, false);
#endif
}

/** ex2.approx.ftz (9.7.3, ex2): 2^x to about 2 ulp; results below the normal range are 0. */
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
#endif
}

/** lg2.approx.ftz (9.7.3, lg2): log2(x) to about 2^-22; -inf at 0. */
__device__ __forceinline__ float log2_approx(float x) {
#ifdef __CUDACC__
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return log2f(x);
#endif
}

#endif
