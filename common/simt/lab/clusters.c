/*
 * Clusters: what the threads of a block know of other blocks, and their accesses to each other's
 * shared memory.
 *
 * Blocks tell each other what they have done at the cluster's barrier, and by arrivals at mbarriers
 * of other blocks. An access to another block's shared memory has a stamp, which says in which
 * epoch of its own block and at which time of its thread it was made. It needs to know that the
 * other block has started, and that block needs to know of it before it ends.
 *
 * Of the blocks of a cluster one runs at a time, so that their states need no locks.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

typedef struct Stamp {
  uint32_t epoch, time;
} Stamp;

/** The last use of a block's shared memory by a thread of another block. */
typedef struct RemoteUse {
  uint32_t stamp; /* 1 + its index; 0: none */
  uint32_t pc;
  uintptr_t address;
} RemoteUse;

typedef struct LabCluster {
  Stamp *stamps; /* of this block's accesses to others */
  uint32_t stamp_count;
  RemoteUse *uses[MAX_CLUSTER]; /* of this block's memory, by rank and thread; NULL: none so far */
  bool ended;
  uint32_t arrival_epoch; /* of the last arrival at the cluster's barrier */
  const View *opened;     /* what all knew when that barrier opened last */
  Release *releases[MAX_CLUSTER];
} LabCluster;

/** It is made when it is first needed. */
static LabCluster *cluster_of(LabWorker *lab) {
  if (lab->cluster == NULL) lab->cluster = simt_zeroed(1, sizeof *lab->cluster);
  return lab->cluster;
}

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

/* --- Views ------------------------------------------------------------------------------------ */

/** A copy that lives until the end of the launch. */
static Clock *kept_clock(LabWorker *lab, const Clock *clock) {
  const size_t bytes = sizeof *clock + lab_clocks(lab)->width * sizeof *clock->of;
  Clock *copy = lab_allocate(lab, bytes);
  memcpy(copy, clock, bytes);
  return copy;
}

static bool covers(const Known *a, const Known *b, size_t width) {
  if (b->epoch == 0 || a->epoch > b->epoch) return true;
  if (a->epoch < b->epoch) return false;
  for (size_t i = 0; i < width && a->clock != b->clock; i++) {
    if (a->clock->of[i] < b->clock->of[i]) return false;
  }
  return true;
}

/** Of one epoch. */
static Known merged(LabWorker *lab, const Known *a, const Known *b, size_t width) {
  Clock *sum = kept_clock(lab, a->clock);
  for (size_t i = 0; i < width; i++) {
    if (sum->of[i] < b->clock->of[i]) sum->of[i] = b->clock->of[i];
  }
  return (Known){a->epoch, sum};
}

const View *lab_join_views(LabWorker *lab, const View *a, const View *b) {
  if (a == NULL || a == b) return b;
  if (b == NULL) return a;
  const size_t width = lab_clocks(lab)->width;
  bool is_a = a->started || !b->started, is_b = b->started || !a->started;
  View sum = {.started = a->started || b->started};
  for (int rank = 0; rank < MAX_CLUSTER; rank++) {
    const Known *x = &a->of[rank], *y = &b->of[rank];
    const bool by_a = covers(x, y, width), by_b = covers(y, x, width);
    is_a &= by_a;
    is_b &= by_b;
    sum.of[rank] = by_a ? *x : by_b ? *y : merged(lab, x, y, width);
  }
  if (is_a || is_b) return is_a ? a : b;
  View *own = lab_allocate(lab, sizeof *own);
  *own = sum;
  return own;
}

static const View *view_of(const LabWorker *lab, int thread) {
  return lab->talk[thread] != NULL ? lab->talk[thread]->peers : NULL;
}

void lab_add_view(LabWorker *lab, const View *view) {
  if (view == NULL) return;
  Talk *talk = lab_allocate(lab, sizeof *talk);
  *talk = (Talk){.peers = view};
  lab_set_talk(lab, lab_thread(lab), lab_join_talk(lab, lab->talk[lab_thread(lab)], talk));
}

const View *lab_publish_view(LabWorker *lab) {
  const int thread = lab_thread(lab), first = thread / WARP_SIZE * WARP_SIZE;
  Clock *own = kept_clock(lab, lab_clocks(lab)->of_thread[thread]);
  const uint32_t synced = lab->synced[first / WARP_SIZE];
  for (int i = FIRST_THREAD + first; i < FIRST_THREAD + first + WARP_SIZE; i++) {
    if (own->of[i] < synced) own->of[i] = synced;
  }
  own->of[FIRST_THREAD + thread] = ++lab->times[thread];
  View *view = lab_allocate(lab, sizeof *view);
  const View *peers = view_of(lab, thread);
  if (peers != NULL) *view = *peers;
  view->of[lab->worker->rank] = (Known){lab->epoch, own};
  return view;
}

unsigned lab_unknown(const View *view, unsigned rank, int agent, int warp, unsigned lanes,
                     uint32_t epoch, uint32_t time) {
  if (view == NULL) return lanes;
  const Known *known = &view->of[rank];
  if (known->epoch == 0) return lanes;
  if (agent != BY_THREAD) return known->clock->of[agent] > time ? 0 : lanes;
  if (epoch != known->epoch) return epoch < known->epoch ? 0 : lanes;
  const uint32_t *seen = &known->clock->of[FIRST_THREAD + warp * WARP_SIZE];
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (seen[lane] > time) lanes &= ~(1u << lane);
  }
  return lanes;
}

/* --- The barrier ------------------------------------------------------------------------------ */

void lab_cluster_arrived(void) {
  LabWorker *lab = lab_worker;
  lab_arrive_at_cluster(lab);
  cluster_of(lab)->arrival_epoch = lab->epoch;
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
    if ((cluster->begun >> rank & 1) == 0) continue;
    const Meeting *meeting = lab_open_cluster(member);
    if (meeting->ended == NULL) continue; /* all arrivals were relaxed */
    const uint32_t epoch = cluster_of(member)->arrival_epoch;
    const Clock *clock = kept_clock(lab, meeting->ended);
    own->of[rank] = (Known){epoch, clock};
    releases[rank] = lab_release_block(member, meeting->talk_ended, clock, epoch);
    if (meeting->talk_ended != NULL) {
      peers = lab_join_views(lab, peers, meeting->talk_ended->peers);
    }
  }
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    LabCluster *member = cluster_of(cluster->members[rank]->lab);
    member->opened = lab_join_views(lab, own, peers);
    memcpy(member->releases, releases, sizeof releases);
  }
}

void lab_cluster_passed(void) {
  LabWorker *lab = lab_worker;
  LabCluster *cluster = cluster_of(lab);
  lab_pass_cluster(lab);
  lab_add_view(lab, cluster->opened);
  lab_know_releases(lab, cluster->releases, lab->worker->cluster->size);
}

/* --- Accesses --------------------------------------------------------------------------------- */

static uint32_t stamp_of(LabWorker *lab, int thread) {
  LabCluster *cluster = cluster_of(lab);
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
    return lab_unknown(view_of(by, access->thread), rank, BY_THREAD, warp, lanes, when.epoch,
                       when.time);
  }
  if (when.epoch != by->epoch) return 0;
  return lab_unordered(by, access->thread, BY_THREAD, warp, lanes, when.time);
}

bool lab_touch_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, uint32_t pc) {
  const int thread = lab_thread(lab);
  const View *view = view_of(lab, thread);
  const bool started = view != NULL && (view->started || view->of[owner->worker->rank].epoch != 0);
  if (!started || cluster_of(owner)->ended) {
    const LabKind kind = started ? LAB_CLUSTER_ENDED : LAB_CLUSTER_UNSTARTED;
    if (lab->checks & LAB_RACES) lab_report_here(lab, kind, pc, 0, 0, address);
    return false;
  }
  RemoteUse **uses = &cluster_of(owner)->uses[lab->worker->rank];
  if (*uses == NULL) *uses = simt_zeroed(MAX_THREADS, sizeof **uses);
  (*uses)[thread] = (RemoteUse){1 + stamp_of(lab, thread), pc, address};
  return true;
}

void lab_use_remote(LabWorker *lab, LabWorker *owner, uintptr_t address, unsigned size, Use use,
                    uint32_t pc) {
  if (!(lab->checks & (LAB_RACES | LAB_INIT))) return;
  if (!lab_touch_remote(lab, owner, address, pc)) return;
  const int thread = lab_thread(lab);
  const bool copies = use == TENSOR_COPIES;
  const Access access = {
      .lab = owner,
      .by = lab,
      .address = address,
      .use = (uint8_t)use,
      .thread = (uint16_t)thread,
      .pc = pc,
      .agent = (uint8_t)(copies ? FIRST_MBARRIER : FIRST_PEER + (int)lab->worker->rank),
      .time = copies ? lab->times[thread] : stamp_of(lab, thread)};
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
  LabCluster *own = cluster_of(lab);
  const Cluster *cluster = lab->worker->cluster;
  const View *view = NULL;
  own->ended = true;
  if (!(lab->checks & LAB_RACES)) return;
  for (int thread = 0; thread < lab->worker->thread_count; thread++) {
    view = lab_join_views(lab, view, view_of(lab, thread));
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
