/*
 * The turns of the blocks of a team: one runs at a time, until all its threads wait.
 */
#include <errno.h>
#include <stdlib.h>

#include "hopper.h"

static void await(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0 && errno == EINTR) continue;
}

void simt_team_begin(Team *team, Worker *const *members, unsigned size, unsigned cluster_size) {
  *team = (Team){.members = members,
                 .size = size,
                 .clusters = simt_zeroed(size / cluster_size, sizeof *team->clusters)};
  sem_init(&team->joined, 0, 0);
  for (unsigned place = 0; place < size; place++) {
    Worker *worker = members[place];
    sem_init(&worker->turn, 0, 0);
    worker->team = team;
    worker->place = place;
    worker->rank = place % cluster_size;
    worker->cluster = &team->clusters[place / cluster_size];
    *worker->cluster = (Cluster){.members = &members[place - worker->rank], .size = cluster_size};
  }
}

void simt_team_end(Team *team) {
  sem_destroy(&team->joined);
  for (unsigned place = 0; place < team->size; place++) sem_destroy(&team->members[place]->turn);
  free(team->clusters);
}

void simt_team_join(Team *team, unsigned place) {
  if (place != 0) sem_post(&team->joined);
  for (unsigned i = 1; place == 0 && i < team->size; i++) await(&team->joined);
}

static bool can_run(const Worker *worker) {
  return worker->live && (worker->team->failed || !worker->begun || worker->ready_warps != 0);
}

/** A block of another cluster than the running one may also let copies land that it waits for. */
static bool may_have_a_turn(const Worker *worker, const Worker *running) {
  if (can_run(worker) || worker->cluster == running->cluster) return can_run(worker);
  return worker->live && worker->hopper != NULL && worker->hopper->loads.count > 0;
}

bool simt_cluster_can_run(const Worker *worker) {
  const Cluster *cluster = worker->cluster;
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    if (cluster->members[rank] != worker && can_run(cluster->members[rank])) return true;
  }
  return false;
}

/** The first block other than the one at `place` that may run, in the order of SIMT_ORDER; NULL:
 * none. */
static Worker *next_to_run(Team *team, unsigned place) {
  const unsigned size = team->size;
  const Worker *worker = team->members[place];
  const bool down = worker->order == REVERSE;
  const unsigned skipped = worker->order == RANDOM ? (unsigned)(team->random >> 32) % size : 0;
  team->random = team->random * 0x5851f42d4c957f2d + 1;
  for (unsigned i = 0; i < size; i++) {
    const unsigned step = (i + skipped) % size;
    const unsigned other = (place + (down ? size - 1 - step : 1 + step)) % size;
    if (other != place && may_have_a_turn(team->members[other], worker))
      return team->members[other];
  }
  return NULL;
}

bool simt_team_turn(Worker *worker) {
  Team *team = worker->team;
  if (team->size == 1) return false;
  Worker *next = next_to_run(team, worker->place);
  if (next == NULL) return false;
  sem_post(&next->turn);
  await(&worker->turn);
  return true;
}

void simt_team_start(Team *team, unsigned block_threads) {
  Worker *worker = team->members[0];
  team->live = team->size;
  team->failed = false;
  for (unsigned place = 0; place < team->size; place++) {
    Worker *member = team->members[place];
    Cluster *cluster = member->cluster;
    member->live = true;
    member->begun = false;
    cluster->arrived = cluster->phase = 0;
    cluster->threads = cluster->size * block_threads;
  }
  if (team->size == 1 || worker->order == FORWARD) return;
  sem_post(&next_to_run(team, 0)->turn);
  await(&worker->turn);
}

bool simt_team_await(Worker *worker) {
  await(&worker->turn);
  return !worker->team->over;
}

void simt_team_close(Team *team) {
  team->over = true;
  for (unsigned place = 1; place < team->size; place++) sem_post(&team->members[place]->turn);
}

void simt_team_leave(Worker *worker, bool failed) {
  Team *team = worker->team;
  const unsigned place = worker->place;
  worker->live = false;
  team->failed |= failed;
  if (--team->live != 0) {
    Worker *next = next_to_run(team, place);
    /* If none can run, the one whose turn it is finds out what is to be done. */
    for (unsigned i = 0; next == NULL; i++) next = team->members[i]->live ? team->members[i] : NULL;
    sem_post(&next->turn);
    if (place == 0) await(&worker->turn);
  } else if (place != 0) {
    sem_post(&team->members[0]->turn);
  }
}
