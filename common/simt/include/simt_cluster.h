/**
 * @file
 * Functions of the CPU backend for clusters of thread blocks (compute capability 9.0), whose blocks
 * reach each other's shared memory. device/ptx_cluster.cuh calls them.
 *
 * Blocks of a cluster run in turns: a block runs until all its threads wait.
 */
#ifndef SIMT_CLUSTER_H
#define SIMT_CLUSTER_H

#include <simt_hopper.h>

#ifdef __cplusplus
extern "C" {
#endif

/** %cluster_ctarank and %cluster_nctarank; 0 and 1 in a launch without clusters. */
unsigned simt_cluster_rank(void);
unsigned simt_cluster_size(void);

/** barrier.cluster.arrive and .wait, by each thread of the cluster. Without `orders` (.relaxed) the
 * arrival does not make visible what the thread has written. */
void simt_cluster_arrive(bool orders);
void simt_cluster_wait(void);

/** mapa: where `own`, an address in shared memory of this block, is in that of the block of this
 * rank. */
void *simt_cluster_map(const void *own, unsigned rank);

/** mbarrier.arrive at the barrier of the block of this rank which is where `barrier` is here. */
void simt_mbarrier_arrive_at(void *barrier, unsigned rank);
/** simt_mbarrier_wait() with .acquire.cluster: sees what threads of other blocks have written
 * before they arrived. */
void simt_mbarrier_wait_cluster(void *barrier, unsigned parity);

/** st.async of 4, 8 or 16 bytes to the shared memory of the block of this rank, where `own` is
 * here. When they have arrived, they count for its mbarrier. */
void simt_store_async(void *own, const void *value, unsigned bytes, void *barrier, unsigned rank);

/** cp.async.bulk.shared::cluster.shared::cta: the same for a range of this block's shared memory.
 */
void simt_bulk_send(void *target, const void *source, unsigned bytes, void *barrier, unsigned rank);

/** simt_tensor_load() to the same place of each block whose bit is set, each with its own mbarrier.
 */
void simt_tensor_multicast(void *shared, const CUtensorMap *map, void *barrier,
                           const int *coordinates, unsigned ranks);

/** fence.proxy.async for the shared memory of all blocks of the cluster. */
void simt_fence_proxy_async_cluster(void);

#ifdef __cplusplus
}
#endif

#endif
