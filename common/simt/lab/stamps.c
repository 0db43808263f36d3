/*
 * Stamps of the accesses of a block to the shared memory of others: in which of its epochs, and at
 * which time of its thread.
 */
#include "internal.h"

LabCluster *lab_cluster(LabWorker *lab) {
  if (lab->cluster == NULL) lab->cluster = simt_zeroed(1, sizeof *lab->cluster);
  return lab->cluster;
}

uint32_t lab_stamp(LabWorker *lab, int thread) {
  LabCluster *cluster = lab_cluster(lab);
  const Stamp own = {lab->epoch, lab->times[thread]};
  for (uint32_t i = 1; i <= 4 && i <= cluster->stamp_count; i++) { /* many accesses have the same */
    const Stamp *stamp = &cluster->stamps[cluster->stamp_count - i];
    if (stamp->epoch == own.epoch && stamp->time == own.time) return cluster->stamp_count - i;
  }
  cluster->stamps = simt_with_room(cluster->stamps, cluster->stamp_count, sizeof own);
  cluster->stamps[cluster->stamp_count] = own;
  return cluster->stamp_count++;
}

unsigned lab_unordered_peer(const Access *access, unsigned rank, int warp, unsigned lanes,
                            uint32_t stamp) {
  LabWorker *by = access->by;
  const LabWorker *peer = by->worker->cluster->members[rank]->lab;
  const Stamp when = peer->cluster->stamps[stamp];
  if (peer != by) {
    return lab_unknown(lab_view_of(by, access->thread), rank, BY_THREAD, warp, lanes, when.epoch,
                       when.time);
  }
  if (when.epoch != by->epoch) return 0;
  return lab_unordered(by, access->thread, BY_THREAD, warp, lanes, when.time);
}
