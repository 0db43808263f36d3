/*
 * The turns of the blocks of a cluster: one runs at a time, until all its threads wait.
 */
#include <errno.h>

#include "hopper.h"

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
