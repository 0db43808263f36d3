/**
 * @file
 * The PTX instructions of thread block clusters (compute capability 9.0), a function each: ranks,
 * the barrier of the cluster, shared memory of other blocks. Section numbers are those of the PTX
 * ISA 8.7. As in ptx.cuh each function has two bodies: nvcc compiles the first, the CPU backend the
 * second.
 *
 * Blocks of a cluster run at the same time, on neighbouring SMs. A place in shared memory of
 * another one is named by the place in one's own that has the same offset, and by the rank of the
 * other.
 */
#ifndef DEVICE_PTX_CLUSTER_CUH
#define DEVICE_PTX_CLUSTER_CUH

#include "device/ptx_hopper.cuh"

#ifndef __CUDACC__
#include <simt_cluster.h>
#endif

/* --- Ranks (10.13, 10.14) --------------------------------------------------------------------- */

/** %cluster_ctarank: the number of this block in its cluster. */
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
#ifdef __CUDACC__
  CLUSTER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#else
  rank = simt_cluster_rank();
#endif
  return (int)rank;
}

/** %cluster_nctarank: the number of blocks of a cluster. */
__device__ __forceinline__ int cluster_size() {
  uint32_t size = 0;
#ifdef __CUDACC__
  CLUSTER_ASM("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#else
  size = simt_cluster_size();
#endif
  return (int)size;
}

/* --- The barrier of the cluster (9.7.13.4) -----------------------------------------------------
 */

/** barrier.cluster.arrive: what this thread has done is visible to those that pass the wait. */
__device__ __forceinline__ void cluster_arrive() {
#ifdef __CUDACC__
  CLUSTER_ASM("barrier.cluster.arrive.release;" ::: "memory");
#else
  simt_cluster_arrive(true);
#endif
}

/** The same, but makes nothing visible. */
__device__ __forceinline__ void cluster_arrive_relaxed() {
#ifdef __CUDACC__
  CLUSTER_ASM("barrier.cluster.arrive.relaxed;" ::: "memory");
#else
  simt_cluster_arrive(false);
#endif
}

/** barrier.cluster.wait: waits until all threads of the cluster that have not exited have arrived.
 */
__device__ __forceinline__ void cluster_wait() {
#ifdef __CUDACC__
  CLUSTER_ASM("barrier.cluster.wait.acquire;" ::: "memory");
#else
  simt_cluster_wait();
#endif
}

/** Both halves: the __syncthreads() of a cluster. */
__device__ __forceinline__ void cluster_sync() {
#ifdef __CUDACC__
  cluster_arrive();
  cluster_wait();
#else
  simt_cluster_arrive(true);
  simt_cluster_wait();
#endif
}

/* --- Shared memory of other blocks -------------------------------------------------------------
 */

/** mapa (9.7.9.21): where `own`, in shared memory of this block, is in that of the block of this
 * rank. Loads, stores and atomics through the pointer are those of distributed shared memory. */
template <typename T>
__device__ __forceinline__ T *cluster_map(T *own, int rank) {
#ifdef __CUDACC__
  T *there = own;
  CLUSTER_ASM("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
  return there;
#else
  return (T *)simt_cluster_map((const void *)own, (unsigned)rank);
#endif
}

#ifdef __CUDACC__
/** The same as an address in the window shared::cluster, which the instructions below take. */
__device__ __forceinline__ uint32_t cluster_address(const void *own, int rank) {
  uint32_t address = 0;
  CLUSTER_ASM("mapa.shared::cluster.u32 %0, %1, %2;"
              : "=r"(address)
              : "r"(shared_address(own)), "r"(rank));
  return address;
}
#endif

/** mbarrier.arrive.release.cluster: one arrival at the barrier of the block of this rank which is
 * where `barrier` is here. */
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t *barrier, int rank) {
#ifdef __CUDACC__
  CLUSTER_ASM("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                  cluster_address(barrier, rank))
              : "memory");
#else
  simt_mbarrier_arrive_at(barrier, (unsigned)rank);
#endif
}

/** The same with .relaxed: says that this thread has read something, but makes nothing visible that
 * it has written. .release would wait for all its stores and reductions, of device memory too. */
__device__ __forceinline__ void mbarrier_arrive_at_relaxed(uint64_t *barrier, int rank) {
#ifdef __CUDACC__
  CLUSTER_ASM("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                  cluster_address(barrier, rank))
              : "memory");
#else
  simt_mbarrier_arrive_at(barrier, (unsigned)rank);
#endif
}

/** mbarrier_wait() with .acquire.cluster: what threads of other blocks had done before they arrived
 * is visible. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint64_t *barrier, uint32_t parity) {
#ifdef __CUDACC__
  uint32_t ended = 0;
  do {
    CLUSTER_ASM(
        "{\n"
        "  .reg .pred ended;\n"
        "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 ended, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, ended;\n"
        "}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!ended);
#else
  simt_mbarrier_wait_cluster(barrier, parity);
#endif
}

/** st.async (9.7.9.12): stores four floats where `own` is in the block of this rank. Its mbarrier,
 * which is where `barrier` is here, counts the 16 bytes when they have arrived. */
__device__ __forceinline__ void store_async(float *own, float4 value, uint64_t *barrier, int rank) {
#ifdef __CUDACC__
  CLUSTER_ASM(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(cluster_address(own, rank)),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(cluster_address(barrier, rank))
      : "memory");
#else
  simt_store_async(own, &value, sizeof value, barrier, (unsigned)rank);
#endif
}

/** cp.async.bulk (9.7.9.25): copies a range of this block's shared memory to where `target` is in
 * the block of this rank, whose mbarrier counts the bytes. Addresses and `bytes` are multiples of
 * 16; the source may be overwritten only after the other block has waited. */
__device__ __forceinline__ void bulk_send(void *target, const void *source, int bytes,
                                          uint64_t *barrier, int rank) {
#ifdef __CUDACC__
  CLUSTER_ASM(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(cluster_address(target, rank)),
      "r"(shared_address(source)), "r"(bytes), "r"(cluster_address(barrier, rank))
      : "memory");
#else
  simt_bulk_send(target, source, (unsigned)bytes, barrier, (unsigned)rank);
#endif
}

/** tma_load() with .multicast::cluster: the box goes to the same place of all blocks whose bits are
 * set in `ranks`, and counts for the mbarrier of each. L2 is read once. */
__device__ __forceinline__ void tma_multicast(void *shared, const CUtensorMap &map,
                                              uint64_t *barrier, int column, int row, int head,
                                              int batch, uint32_t ranks) {
#ifdef __CUDACC__
  HOPPER_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch),
      "h"((uint16_t)ranks)
      : "memory");
#else
  const int coordinates[] = {column, row, head, batch};
  simt_tensor_multicast(shared, &map, barrier, coordinates, ranks);
#endif
}

/** fence.proxy.async for the shared memory of all blocks of the cluster: see fence_proxy_async().
 */
__device__ __forceinline__ void fence_proxy_async_cluster() {
#ifdef __CUDACC__
  CLUSTER_ASM("fence.proxy.async.shared::cluster;" ::: "memory");
#else
  simt_fence_proxy_async_cluster();
#endif
}

#endif
