/*
 * Vector clocks: what each warp knows to be done, through mbarriers and named barriers. A warp's
 * time advances when it arrives at a barrier. What it did before is seen by the warps that wait for
 * the phase. Arrivals count for the whole warp of the thread that arrives.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

LabHopper *lab_hopper(LabWorker *lab) {
  if (lab->hopper == NULL) {
    lab->hopper = calloc(1, sizeof *lab->hopper);
    if (lab->hopper == NULL) abort();
    lab->hopper->reads = calloc(MAX_SHARED_BYTES / COPY_BYTES, sizeof *lab->hopper->reads);
    lab->hopper->registers = calloc(MAX_THREADS, sizeof *lab->hopper->registers);
    if (lab->hopper->reads == NULL || lab->hopper->registers == NULL) abort();
    lab_begin_hopper(lab);
  }
  return lab->hopper;
}

void lab_begin_hopper(LabWorker *lab) {
  LabHopper *hopper = lab->hopper;
  if (hopper == NULL) return;
  memset(hopper->seen, 0, sizeof hopper->seen);
  memset(hopper->mbarriers, 0, sizeof hopper->mbarriers);
  memset(hopper->named, 0, sizeof hopper->named);
  memset(hopper->proxy_fences, 0, sizeof hopper->proxy_fences);
  for (int thread = 0; thread < MAX_THREADS; thread++) hopper->registers[thread].count = 0;
  for (int warp = 0; warp < MAX_WARPS; warp++) hopper->registers_written[warp] = true;
}

void lab_free_hopper(LabWorker *lab) {
  if (lab->hopper == NULL) return;
  free(lab->hopper->reads);
  free(lab->hopper->registers);
  free(lab->hopper);
}

bool lab_has_seen(const LabWorker *lab, int agent, uint32_t clock) {
  return lab->hopper != NULL && lab->hopper->seen[lab_thread(lab) / WARP_SIZE].of[agent] > clock;
}

uint32_t lab_clock(const LabWorker *lab, int warp) {
  return lab->hopper != NULL ? lab->hopper->seen[warp].of[warp] : 0;
}

static void merge(Clocks *sum, const Clocks *other) {
  for (int i = 0; i < AGENTS; i++) {
    if (other->of[i] > sum->of[i]) sum->of[i] = other->of[i];
  }
}

/** Adds what the running warp has done and seen, and begins its next time. */
static void arrive(LabWorker *lab, Clocks *meeting) {
  const int warp = lab_thread(lab) / WARP_SIZE;
  Clocks *own = &lab->hopper->seen[warp];
  own->of[warp]++;
  merge(meeting, own);
}

void lab_meet_all(LabWorker *lab) {
  if (lab->hopper == NULL) return;
  Clocks all = {{0}};
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    lab->hopper->seen[warp].of[warp]++;
    merge(&all, &lab->hopper->seen[warp]);
  }
  for (int warp = 0; warp < MAX_WARPS; warp++) lab->hopper->seen[warp] = all;
}

/* --- mbarriers -------------------------------------------------------------------------------- */

/** The meeting at a barrier; `ended` holds what arrived up to the last phase that has ended. */
static Meeting *meeting_at(LabWorker *lab, int barrier) {
  Meeting *meeting = &lab_hopper(lab)->mbarriers[barrier];
  const unsigned phase = lab->worker->hopper->mbarriers[barrier].phase;
  if (meeting->phase == phase) return meeting;
  meeting->phase = phase;
  meeting->ended = meeting->arriving;
  memcpy(meeting->ended_lanes, meeting->lanes, sizeof meeting->lanes);
  memset(meeting->lanes, 0, sizeof meeting->lanes);
  return meeting;
}

/** Its initialisation counts as a write, each use as a read, which must be ordered behind it. */
void lab_mbarrier_used(Worker *worker, const void *barrier, bool initialises,
                       const void *call_site) {
  (void)worker;
  if (lab_worker == NULL) return;
  lab_check_shared(lab_worker, (uintptr_t)barrier, sizeof(uint64_t), initialises ? WRITES : READS,
                   lab_pc(call_site));
}

void lab_mbarrier_arrived(Worker *worker, int barrier) {
  if (lab_worker == NULL) return;
  Meeting *meeting = meeting_at(lab_worker, barrier);
  meeting->lanes[worker->running / WARP_SIZE] |= 1u << worker->running % WARP_SIZE;
  arrive(lab_worker, &meeting->arriving);
}

void lab_mbarrier_passed(Worker *worker, int barrier) {
  LabWorker *lab = lab_worker;
  if (lab == NULL) return;
  Meeting *meeting = meeting_at(lab, barrier);
  const int warp = worker->running / WARP_SIZE;
  Clocks *own = &lab->hopper->seen[warp];
  merge(own, &meeting->ended);
  if (meeting->ended_lanes[warp] == ~0u) { /* the first lane that passes: like a __syncwarp() */
    lab->warp_epochs[warp]++;
    meeting->ended_lanes[warp] = 0;
  }
  /* The tensor copies that the ended phases waited for. */
  if (meeting->phase > own->of[FIRST_MBARRIER + barrier]) {
    own->of[FIRST_MBARRIER + barrier] = meeting->phase;
  }
}

/* --- Named barriers ------------------------------------------------------------------------------
 */

void lab_named_barrier_arrived(Worker *worker, unsigned id) {
  (void)worker;
  if (lab_worker != NULL) arrive(lab_worker, &lab_hopper(lab_worker)->named[id].arriving);
}

void lab_named_barrier_opens(Worker *worker, unsigned id) {
  LabWorker *lab = lab_worker;
  if (lab == NULL) return;
  Meeting *meeting = &lab_hopper(lab)->named[id];
  meeting->ended = meeting->arriving;
  for (int warp = 0; warp < MAX_WARPS; warp++) { /* for those that wait: like a __syncwarp() */
    const unsigned lanes = worker->warps[warp].parked;
    if (lanes == 0) continue;
    const Wait *wait = &worker->waits[warp * WARP_SIZE + __builtin_ctz(lanes)];
    if (wait->awaited == A_NAMED_BARRIER && wait->number == id) lab->warp_epochs[warp]++;
  }
}

void lab_named_barrier_passed(Worker *worker, unsigned id) {
  if (lab_worker == NULL) return;
  LabHopper *hopper = lab_hopper(lab_worker);
  merge(&hopper->seen[worker->running / WARP_SIZE], &hopper->named[id].ended);
}
