/*
 * Clusters: their barrier, and accesses to the shared memory of other blocks.
 *
 * Blocks tell each other what they have done at the cluster's barrier, and by arrivals at mbarriers
 * of other blocks. An access to another block's shared memory has a stamp, which says in which
 * epoch of its own block and at which time of its thread it was made. It needs to know that the
 * other block has started, and that block needs to know of it before it ends. That a block does not
 * end before a copy to it has landed is what the runtime checks.
 *
 * Of the blocks of a cluster one runs at a time, so that their states need no locks.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

void lab_begin_cluster(LabWorker *lab) {
  LabCluster *cluster = lab->cluster;
  lab->block_release = NULL;
  if (cluster == NULL) return;
  cluster->stamp_count = 0;
  cluster->ended = false;
  cluster->opened = NULL;
  for (int rank = 0; rank < MAX_CLUSTER; rank++) {
    cluster->releases[rank] = NULL;
    if (cluster->uses[rank] == NULL) continue;
    memset(cluster->uses[rank], 0, MAX_THREADS * sizeof *cluster->uses[rank]);
  }
}

void lab_free_cluster(LabWorker *lab) {
  LabCluster *cluster = lab->cluster;
  if (cluster == NULL) return;
  for (int rank = 0; rank < MAX_CLUSTER; rank++) free(cluster->uses[rank]);
  free(cluster->stamps);
  free(cluster);
}

/* --- The barrier ------------------------------------------------------------------------------ */

void lab_cluster_arrived(void) {
  LabWorker *lab = lab_worker;
  lab_arrive_at_cluster(lab);
  lab_cluster(lab)->arrival_epoch = lab->epoch;
  lab->talk_epoch = lab->epoch;
}

void lab_cluster_opens(void) {
  LabWorker *lab = lab_worker;
  const Cluster *cluster = lab->worker->cluster;
  View *own = lab_allocate(lab, sizeof *own);
  own->started = true;
  const View *peers = NULL;
  Release *releases[MAX_CLUSTER] = {NULL};
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    LabWorker *member = cluster->members[rank]->lab;
    if (!cluster->members[rank]->begun) continue;
    const Meeting *meeting = lab_open_cluster(member);
    if (meeting->ended == NULL) continue; /* all arrivals were relaxed */
    const uint32_t epoch = lab_cluster(member)->arrival_epoch;
    const Clock *clock = lab_kept_clock(lab, meeting->ended);
    own->of[rank] = (Known){epoch, clock};
    releases[rank] = lab_release_block(member, meeting->talk_ended, clock, epoch);
    if (meeting->talk_ended != NULL) {
      peers = lab_join_views(lab, peers, meeting->talk_ended->peers);
    }
  }
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    LabCluster *member = lab_cluster(cluster->members[rank]->lab);
    member->opened = lab_join_views(lab, own, peers);
    memcpy(member->releases, releases, sizeof releases);
  }
}

void lab_cluster_passed(void) {
  LabWorker *lab = lab_worker;
  LabCluster *cluster = lab_cluster(lab);
  lab_pass_cluster(lab);
  lab_add_view(lab, cluster->opened);
  lab_know_releases(lab, cluster->releases, lab->worker->cluster->size);
}

/* --- Accesses --------------------------------------------------------------------------------- */

bool lab_touch_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, bool lands,
                      uint32_t pc) {
  const int thread = lab_thread(lab);
  const View *view = lab_view_of(lab, thread);
  const bool started = view != NULL && (view->started || view->of[owner->worker->rank].epoch != 0);
  if (!started || lab_cluster(owner)->ended) {
    const LabKind kind = started ? LAB_CLUSTER_ENDED : LAB_CLUSTER_UNSTARTED;
    if (lab->checks & LAB_RACES) lab_report_here(lab, kind, pc, 0, 0, address);
    return false;
  }
  if (lands) return true;
  RemoteUse **uses = &lab_cluster(owner)->uses[lab->worker->rank];
  if (*uses == NULL) *uses = simt_zeroed(MAX_THREADS, sizeof **uses);
  (*uses)[thread] = (RemoteUse){1 + lab_stamp(lab, thread), pc, address};
  return true;
}

void lab_use_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, unsigned size, Use use,
                    uint32_t pc) {
  if (!(lab->checks & (LAB_RACES | LAB_INIT))) return;
  const bool copies = use == TENSOR_COPIES;
  if (!lab_touch_remote(lab, owner, address, copies, pc)) return;
  const int thread = lab_thread(lab);
  const Access access = {
      .lab = owner,
      .by = lab,
      .address = address,
      .use = (uint8_t)use,
      .thread = (uint16_t)thread,
      .pc = pc,
      .agent = (uint8_t)(copies ? FIRST_MBARRIER : FIRST_PEER + (int)lab->worker->rank),
      .time = copies ? lab->times[thread] : lab_stamp(lab, thread)};
  lab_use_cells(&access, size);
}

/** Reports a use that no thread of the block which has ended knew of. */
static void report_use(LabWorker *peer, int thread, const RemoteUse *use) {
  Worker *worker = peer->worker;
  const int running = worker->running;
  worker->running = thread;
  lab_report_here(peer, LAB_CLUSTER_ENDED, use->pc, 0, 0, use->address);
  worker->running = running;
}

void lab_block_ended(void) {
  LabWorker *lab = lab_worker;
  LabCluster *own = lab_cluster(lab);
  const Cluster *cluster = lab->worker->cluster;
  const View *view = NULL;
  own->ended = true;
  if (!(lab->checks & LAB_RACES)) return;
  for (int thread = 0; thread < lab->worker->thread_count; thread++) {
    view = lab_join_views(lab, view, lab_view_of(lab, thread));
  }
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    const RemoteUse *uses = own->uses[rank];
    LabWorker *peer = cluster->members[rank]->lab;
    for (int thread = 0; thread < MAX_THREADS && uses != NULL; thread++) {
      if (uses[thread].stamp == 0) continue;
      const Stamp when = peer->cluster->stamps[uses[thread].stamp - 1];
      const unsigned lane = 1u << thread % WARP_SIZE;
      if (lab_unknown(view, rank, BY_THREAD, thread / WARP_SIZE, lane, when.epoch, when.time) !=
          0) {
        report_use(peer, thread, &uses[thread]);
      }
    }
  }
}
