/*
 * Clusters (PTX ISA 8.7): the turns of their blocks, barrier.cluster (9.7.13.4), and mapa
 * (9.7.9.21).
 */
#include <errno.h>

#include "hopper.h"

/* --- Turns ------------------------------------------------------------------------------------ */

static void await(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0 && errno == EINTR) continue;
}

void simt_cluster_begin(Cluster *cluster, Worker *const *members, unsigned size) {
  *cluster = (Cluster){.size = size};
  sem_init(&cluster->joined, 0, 0);
  for (unsigned rank = 0; rank < size; rank++) {
    sem_init(&cluster->turn[rank], 0, 0);
    cluster->members[rank] = members[rank];
    members[rank]->cluster = cluster;
    members[rank]->rank = rank;
  }
}

void simt_cluster_end(Cluster *cluster) {
  sem_destroy(&cluster->joined);
  for (unsigned rank = 0; rank < cluster->size; rank++) sem_destroy(&cluster->turn[rank]);
}

void simt_cluster_join(Cluster *cluster, unsigned rank) {
  if (rank != 0) sem_post(&cluster->joined);
  for (unsigned i = 1; rank == 0 && i < cluster->size; i++) await(&cluster->joined);
}

static bool can_run(const Cluster *cluster, unsigned rank) {
  const unsigned bit = 1u << rank;
  if ((cluster->live & bit) == 0) return false;
  return cluster->failed || (cluster->begun & bit) == 0 || cluster->members[rank]->ready_warps != 0;
}

/** The first block other than `rank` that can run, in the order of SIMT_ORDER; -1: none. */
static int next_to_run(Cluster *cluster, unsigned rank) {
  const unsigned size = cluster->size;
  const Worker *worker = cluster->members[rank];
  const bool down = worker->order == REVERSE;
  const unsigned skipped = worker->order == RANDOM ? (unsigned)(cluster->random >> 32) % size : 0;
  cluster->random = cluster->random * 0x5851f42d4c957f2d + 1;
  for (unsigned i = 0; i < size; i++) {
    const unsigned step = (i + skipped) % size;
    const unsigned other = (rank + (down ? size - 1 - step : 1 + step)) % size;
    if (other != rank && can_run(cluster, other)) return (int)other;
  }
  return -1;
}

bool simt_cluster_turn(Worker *worker) {
  Cluster *cluster = worker->cluster;
  if (cluster->size == 1) return false;
  const int next = next_to_run(cluster, worker->rank);
  if (next < 0) return false;
  sem_post(&cluster->turn[next]);
  await(&cluster->turn[worker->rank]);
  if (cluster->failed) simt_end_block(ABANDONED, &worker->waits[worker->running]);
  return true;
}

void simt_cluster_start(Cluster *cluster, unsigned block_threads) {
  const Worker *worker = cluster->members[0];
  cluster->live = (1u << cluster->size) - 1;
  cluster->failed = false;
  cluster->begun = cluster->arrived = cluster->phase = 0;
  cluster->threads = cluster->size * block_threads;
  if (cluster->size == 1 || worker->order == FORWARD) return;
  const int first = next_to_run(cluster, 0);
  sem_post(&cluster->turn[first]);
  await(&cluster->turn[0]);
}

bool simt_cluster_await(Cluster *cluster, unsigned rank) {
  await(&cluster->turn[rank]);
  return !cluster->over;
}

void simt_cluster_close(Cluster *cluster) {
  cluster->over = true;
  for (unsigned rank = 1; rank < cluster->size; rank++) sem_post(&cluster->turn[rank]);
}

void simt_cluster_leave(Worker *worker, bool failed) {
  Cluster *cluster = worker->cluster;
  const unsigned rank = worker->rank;
  cluster->live &= ~(1u << rank);
  cluster->failed |= failed;
  if (cluster->live != 0) {
    /* If none can run, the one whose turn it is finds out what is to be done. */
    const int next = next_to_run(cluster, rank);
    sem_post(&cluster->turn[next >= 0 ? next : __builtin_ctz(cluster->live)]);
    if (rank == 0) await(&cluster->turn[0]);
  } else if (rank != 0) {
    sem_post(&cluster->turn[0]);
  }
}

/* --- Shared memory of other blocks --------------------------------------------------------------
 */

Worker *simt_cluster_member(unsigned rank, const void *call_site) {
  const Cluster *cluster = simt_worker->cluster;
  if (rank < cluster->size) return cluster->members[rank];
  simt_complain(call_site, "rank %u in a cluster of %u block%s", rank, cluster->size,
                cluster->size == 1 ? "" : "s");
}

void simt_require_live(const Worker *member, const void *call_site) {
  if ((member->cluster->live >> member->rank & 1) != 0) return;
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

static void open_if_complete(Cluster *cluster) {
  if (cluster->arrived < cluster->threads || cluster->arrived == 0) return;
  if (simt_observer != NULL) simt_observer->cluster_opens();
  cluster->arrived = 0;
  cluster->phase++;
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    simt_unpark(cluster->members[rank], THE_CLUSTER, 0);
  }
}

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
  open_if_complete(cluster);
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

void simt_cluster_exit(Worker *worker) {
  Cluster *cluster = worker->cluster;
  cluster->threads--; /* the barrier does not wait for it any more */
  if (worker->arrived_at[worker->running] == 1 + cluster->phase) cluster->arrived--;
  open_if_complete(cluster);
}
