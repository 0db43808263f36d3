/*
 * Clusters (PTX ISA 8.7): barrier.cluster (9.7.13.4), and mapa (9.7.9.21).
 */
#include "hopper.h"

/* --- Shared memory of other blocks -------------------------------------------------------------
 */

Worker *simt_cluster_member(unsigned rank, const void *call_site) {
  const Cluster *cluster = simt_worker->cluster;
  if (rank < cluster->size) return cluster->members[rank];
  simt_complain(call_site, "rank %u in a cluster of %u block%s", rank, cluster->size,
                cluster->size == 1 ? "" : "s");
}

void simt_require_live(const Worker *member, const void *call_site) {
  if (member->live) return;
  simt_complain(call_site, "use of the shared memory of the block of rank %u, which has ended",
                member->rank);
}

Worker *simt_cluster_owner(const Worker *worker, const void *shared) {
  const Cluster *cluster = worker->cluster;
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    Worker *member = cluster->members[rank];
    const uintptr_t begin = (uintptr_t)member->shared - SHARED_MARGIN;
    const uintptr_t bytes = SHARED_MARGIN + MAX_SHARED_BYTES + SHARED_MARGIN;
    if (member != worker && (uintptr_t)shared - begin < bytes) return member;
  }
  return NULL;
}

unsigned simt_cluster_rank(void) {
  return simt_worker->rank;
}

unsigned simt_cluster_size(void) {
  return simt_worker->cluster->size;
}

void *simt_cluster_map(const void *own, unsigned rank) {
  const Worker *member = simt_cluster_member(rank, __builtin_return_address(0));
  return (char *)(uintptr_t)own - (uintptr_t)smem + (uintptr_t)member->shared;
}

/* --- The barrier ------------------------------------------------------------------------------ */

void simt_cluster_arrive(bool orders) {
  Worker *worker = simt_worker;
  Cluster *cluster = worker->cluster;
  unsigned *arrived_at = &worker->arrived_at[worker->running];
  if (*arrived_at != 0) {
    simt_complain(__builtin_return_address(0),
                  "barrier.cluster.arrive by a thread that has not waited since its last one");
  }
  *arrived_at = 1 + cluster->phase;
  if (simt_observer != NULL && orders) simt_observer->cluster_arrived();
  cluster->arrived++;
  simt_open_cluster(cluster);
}

void simt_cluster_wait(void) {
  Worker *worker = simt_worker;
  const void *call_site = __builtin_return_address(0);
  unsigned *arrived_at = &worker->arrived_at[worker->running];
  if (*arrived_at == 0) {
    simt_complain(call_site, "barrier.cluster.wait by a thread that has not arrived");
  }
  while (worker->cluster->phase == *arrived_at - 1) simt_park(THE_CLUSTER, 0, call_site);
  *arrived_at = 0;
  if (simt_observer != NULL) simt_observer->cluster_passed();
}
