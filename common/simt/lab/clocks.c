/*
 * Vector clocks: what each thread knows to be done, through barriers other than __syncthreads().
 *
 * A thread's time advances when it arrives at a barrier, and what it did and had seen before is
 * seen by those that wait for the phase. A barrier of a whole warp sets the times of its lanes to
 * the same value, `synced`, so that they need no clocks until one of them uses another barrier.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* --- The state of a block --------------------------------------------------------------------- */

LabHopper *lab_hopper(LabWorker *lab) {
  if (lab->hopper == NULL) {
    lab->hopper = simt_zeroed(1, sizeof *lab->hopper);
    lab_begin_hopper(lab);
  }
  return lab->hopper;
}

void lab_begin_hopper(LabWorker *lab) {
  LabHopper *hopper = lab->hopper;
  if (hopper == NULL) return;
  memset(hopper->proxy_fences, 0, sizeof hopper->proxy_fences);
  memset(hopper->cluster_fences, 0, sizeof hopper->cluster_fences);
  for (int thread = 0; thread < MAX_THREADS; thread++) hopper->registers[thread].count = 0;
  for (int warp = 0; warp < MAX_WARPS; warp++) hopper->registers_written[warp] = true;
}

/* --- Clocks ----------------------------------------------------------------------------------- */

/** A clock that nobody has yet. */
static Clock *new_clock(Clocks *clocks) {
  Clock *clock = clocks->free;
  if (clock != NULL) {
    clocks->free = clock->next_free;
  } else {
    clock = simt_resized(NULL, sizeof *clock + clocks->width * sizeof *clock->of);
    clock->next = clocks->all;
    clocks->all = clock;
  }
  clock->references = 0;
  return clock;
}

static Clock *copy_of(Clocks *clocks, const Clock *clock) {
  Clock *copy = new_clock(clocks);
  memcpy(copy->of, clock->of, clocks->width * sizeof *copy->of);
  return copy;
}

static void set(Clocks *clocks, Clock **place, Clock *clock) {
  if (*place == clock) return;
  if (clock != NULL) clock->references++;
  Clock *before = *place;
  *place = clock;
  if (before == NULL || --before->references > 0) return;
  before->next_free = clocks->free;
  clocks->free = before;
}

static void merge(const Clocks *clocks, Clock *sum, const Clock *other) {
  for (size_t i = 0; i < clocks->width; i++) {
    if (other->of[i] > sum->of[i]) sum->of[i] = other->of[i];
  }
}

static void forget_meeting(Clocks *clocks, Meeting *meeting) {
  Clock **places[] = {&meeting->arriving, &meeting->ended, &meeting->merged, &meeting->from,
                      &meeting->to};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) set(clocks, places[i], NULL);
  *meeting = (Meeting){.phase = 0};
}

static void begin_block(Clocks *clocks) {
  Clock *nothing = new_clock(clocks);
  memset(nothing->of, 0, clocks->width * sizeof *nothing->of);
  for (int thread = 0; thread < MAX_THREADS; thread++) {
    set(clocks, &clocks->of_thread[thread], nothing);
  }
}

Clocks *lab_clocks(LabWorker *lab) {
  if (lab->clocks == NULL) {
    lab->clocks = simt_zeroed(1, sizeof *lab->clocks);
    const dim3 dim = lab->launch->block;
    lab->clocks->width =
        FIRST_THREAD + (dim.x * dim.y * dim.z + WARP_SIZE - 1) / WARP_SIZE * WARP_SIZE;
    begin_block(lab->clocks);
  }
  return lab->clocks;
}

void lab_begin_clocks(LabWorker *lab) {
  memset(lab->times, 0, sizeof lab->times);
  memset(lab->synced, 0, sizeof lab->synced);
  Clocks *clocks = lab->clocks;
  if (clocks == NULL) return;
  for (int i = 0; i < MAX_MBARRIERS; i++) forget_meeting(clocks, &clocks->mbarriers[i]);
  forget_meeting(clocks, &clocks->cluster);
  for (int i = 0; i < NAMED_BARRIERS; i++) {
    forget_meeting(clocks, &clocks->named[i]);
    set(clocks, &clocks->openings[i].arrived, NULL);
    set(clocks, &clocks->openings[i].known, NULL);
  }
  begin_block(clocks);
}

void lab_free_clocks(LabWorker *lab) {
  if (lab->clocks == NULL) return;
  for (Clock *clock = lab->clocks->all, *next; clock != NULL; clock = next) {
    next = clock->next;
    free(clock);
  }
  free(lab->clocks);
}

void lab_see(LabWorker *lab, int warp, int agent, uint32_t time) {
  Clocks *clocks = lab_clocks(lab);
  Clock **lanes = &clocks->of_thread[warp * WARP_SIZE];
  Clock *from = NULL, *to = NULL;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (lanes[lane] != from) {
      from = lanes[lane];
      to = copy_of(clocks, from);
      to->of[agent] = time;
    }
    set(clocks, &lanes[lane], to);
  }
}

unsigned lab_unordered(LabWorker *lab, int thread, int agent, int warp, unsigned lanes,
                       uint32_t time) {
  if (agent != BY_THREAD) return lab_has_seen(lab, agent, time) ? 0 : lanes;
  if (warp == thread / WARP_SIZE) {
    lanes &= time < lab->synced[warp] ? 0 : ~(1u << thread % WARP_SIZE);
  }
  if (lab->clocks != NULL) {
    const uint32_t *seen = &lab->clocks->of_thread[thread]->of[FIRST_THREAD + warp * WARP_SIZE];
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (seen[lane] > time) lanes &= ~(1u << lane);
    }
  }
  if (lanes == 0 || lab->talk[thread] == NULL) return lanes;
  /* What another block has seen of this one, and told the thread. */
  lanes = lab_unknown(lab->talk[thread]->peers, lab->worker->rank, BY_THREAD, warp, lanes,
                      lab->epoch, time);
  if (lanes == 0) return 0;
  const Point point = {lab->block_tag, lab->epoch, time, lanes, BY_THREAD, (uint8_t)warp};
  return lab_unpublished(lab->talk[thread]->known, &point);
}

/* --- Barriers of the block and of warps ------------------------------------------------------- */

/** Gives all threads first .. end - 1 whose bit is set what any of them has seen. */
static void share_clocks(LabWorker *lab, int first, int end, const unsigned *bits) {
  Clocks *clocks = lab->clocks;
  Clock *all = NULL, *latest = NULL;
  bool copied = false;
  for (int thread = first; thread < end; thread++) {
    Clock *own = clocks->of_thread[thread];
    if (!(bits[(thread - first) / WARP_SIZE] >> thread % WARP_SIZE & 1) || own == latest) continue;
    latest = own;
    if (all == NULL) {
      all = own;
      continue;
    }
    if (!copied) all = copy_of(clocks, all);
    copied = true;
    merge(clocks, all, own);
  }
  for (int thread = first; thread < end && copied; thread++) {
    if (!(bits[(thread - first) / WARP_SIZE] >> thread % WARP_SIZE & 1)) continue;
    set(clocks, &clocks->of_thread[thread], all);
  }
}

static void share_talk(LabWorker *lab, int first, int end, const unsigned *bits) {
  const Talk *all = NULL;
  for (int thread = first; thread < end; thread++) {
    if (!(bits[(thread - first) / WARP_SIZE] >> thread % WARP_SIZE & 1)) continue;
    all = lab_join_talk(lab, all, lab->talk[thread]);
  }
  for (int thread = first; thread < end; thread++) {
    if (!(bits[(thread - first) / WARP_SIZE] >> thread % WARP_SIZE & 1)) continue;
    lab_set_talk(lab, thread, all);
  }
}

void lab_meet_all(LabWorker *lab) {
  unsigned bits[MAX_WARPS];
  memset(bits, 0xff, sizeof bits);
  const int count = lab->worker->thread_count;
  if (lab->clocks != NULL) share_clocks(lab, 0, count, bits);
  if (lab->talks) share_talk(lab, 0, count, bits);
}

void lab_meet_lanes(LabWorker *lab, int warp, unsigned lanes) {
  const int first = warp * WARP_SIZE, threads = lab->worker->thread_count - first;
  const unsigned all = threads < WARP_SIZE ? (1u << threads) - 1 : ~0u;
  uint32_t *times = &lab->times[first];
  lanes &= all;
  if (lanes == all) {
    uint32_t latest = 0;
    for (int lane = 0; lane < WARP_SIZE; lane++)
      latest = times[lane] > latest ? times[lane] : latest;
    for (int lane = 0; lane < WARP_SIZE; lane++) times[lane] = latest + 1;
    lab->synced[warp] = latest + 1;
  } else {
    Clocks *clocks = lab_clocks(lab);
    const int lowest = first + __builtin_ctz(lanes);
    Clock *own = copy_of(clocks, clocks->of_thread[lowest]);
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      own->of[FIRST_THREAD + first + lane] = ++times[lane];
    }
    set(clocks, &clocks->of_thread[lowest], own);
  }
  if (lab->clocks != NULL) share_clocks(lab, first, first + WARP_SIZE, &lanes);
  if (lab->talks) share_talk(lab, first, first + WARP_SIZE, &lanes);
}

/* --- Other barriers --------------------------------------------------------------------------- */

/** Adds what the running thread has done and seen, and begins its next time. */
static void arrive(LabWorker *lab, Meeting *meeting) {
  Clocks *clocks = lab->clocks;
  const int thread = lab_thread(lab), first = thread / WARP_SIZE * WARP_SIZE;
  Clock *own = clocks->of_thread[thread];
  if (meeting->arriving == NULL) {
    set(clocks, &meeting->arriving, copy_of(clocks, own));
  } else if (meeting->merged != own) {
    merge(clocks, meeting->arriving, own);
  }
  set(clocks, &meeting->merged, own);
  uint32_t *seen = &meeting->arriving->of[FIRST_THREAD + first];
  const uint32_t synced = lab->synced[first / WARP_SIZE];
  for (int lane = 0; lane < WARP_SIZE; lane++)
    seen[lane] = seen[lane] > synced ? seen[lane] : synced;
  seen[thread % WARP_SIZE] = ++lab->times[thread];
  meeting->talk_arriving = lab_join_talk(lab, meeting->talk_arriving, lab->talk[thread]);
}

static void end_phase(Clocks *clocks, Meeting *meeting) {
  if (meeting->arriving != NULL) {
    set(clocks, &meeting->ended, copy_of(clocks, meeting->arriving));
  }
  set(clocks, &meeting->from, NULL);
  set(clocks, &meeting->to, NULL);
  meeting->talk_ended = meeting->talk_arriving;
  meeting->view_ended = meeting->view_arriving;
}

/** The thread has seen what arrived up to the last phase that has ended. */
static void pass(LabWorker *lab, Meeting *meeting, int thread) {
  Clocks *clocks = lab->clocks;
  Clock **own = &clocks->of_thread[thread];
  if (meeting->ended == NULL) return;
  if (meeting->from != *own) {
    set(clocks, &meeting->from, *own);
    set(clocks, &meeting->to, copy_of(clocks, *own));
    merge(clocks, meeting->to, meeting->ended);
  }
  set(clocks, own, meeting->to);
  lab_set_talk(lab, thread, lab_join_talk(lab, lab->talk[thread], meeting->talk_ended));
}

/** The meeting at an mbarrier. A phase that has ended has seen the tensor copies that it waited
 * for. */
static Meeting *meeting_at(LabWorker *lab, int barrier) {
  Clocks *clocks = lab_clocks(lab);
  Meeting *meeting = &clocks->mbarriers[barrier];
  const unsigned phase = lab->worker->hopper->mbarriers[barrier].phase;
  if (meeting->phase == phase) return meeting;
  meeting->phase = phase;
  if (meeting->arriving == NULL) { /* all arrivals were those of other blocks */
    Clock *nothing = new_clock(clocks);
    memset(nothing->of, 0, clocks->width * sizeof *nothing->of);
    set(clocks, &meeting->arriving, nothing);
  }
  meeting->arriving->of[FIRST_MBARRIER + barrier] = phase;
  end_phase(clocks, meeting);
  return meeting;
}

void lab_mbarrier_arrived(Worker *owner, int barrier) {
  LabWorker *lab = lab_worker;
  Meeting *meeting = meeting_at(owner->lab, barrier);
  if (owner->lab == lab) {
    arrive(lab, meeting);
  } else {
    meeting->view_arriving = lab_join_views(lab, meeting->view_arriving, lab_publish_view(lab));
  }
}

/** Only a wait with .acquire.cluster sees what threads of other blocks have done. */
void lab_mbarrier_passed(int barrier, bool of_cluster) {
  LabWorker *lab = lab_worker;
  Meeting *meeting = meeting_at(lab, barrier);
  pass(lab, meeting, lab_thread(lab));
  if (of_cluster) lab_add_view(lab, meeting->view_ended);
}

void lab_arrive_at_cluster(LabWorker *lab) {
  arrive(lab, &lab_clocks(lab)->cluster);
}

const Meeting *lab_open_cluster(LabWorker *lab) {
  Clocks *clocks = lab_clocks(lab);
  end_phase(clocks, &clocks->cluster);
  return &clocks->cluster;
}

void lab_pass_cluster(LabWorker *lab) {
  pass(lab, &lab_clocks(lab)->cluster, lab_thread(lab));
}

/** Whether the running thread knows that all have arrived at a named barrier before. */
static bool knows(LabWorker *lab, Opening *opening) {
  const int thread = lab_thread(lab);
  Clocks *clocks = lab->clocks;
  Clock *own = clocks->of_thread[thread];
  if (opening->arrived == NULL || opening->epoch != lab->epoch || opening->known == own)
    return true;
  for (size_t i = FIRST_THREAD; i < clocks->width; i++) {
    const int other = (int)i - FIRST_THREAD;
    const uint32_t time = opening->arrived->of[i];
    if (time <= own->of[i] || other == thread) continue;
    const unsigned lane = 1u << other % WARP_SIZE;
    if (lab_unordered(lab, thread, BY_THREAD, other / WARP_SIZE, lane, time - 1) != 0) return false;
  }
  set(clocks, &opening->known, own);
  return true;
}

/** A thread that does not know that the barrier has opened could have arrived before it did. */
void lab_named_barrier_arrived(unsigned id) {
  LabWorker *lab = lab_worker;
  Clocks *clocks = lab_clocks(lab);
  Opening *opening = &clocks->openings[id];
  if (lab->checks & LAB_RACES && !knows(lab, opening)) {
    const void *call_site = lab->worker->hopper->named[id].call_site;
    RawFinding *finding = lab_count_finding(lab, LAB_BARRIER_REUSED, lab_pc(call_site),
                                            lab_pc(opening->call_site), (uint64_t)opening->thread);
    if (finding != NULL) snprintf(finding->where, sizeof finding->where, "barrier %u", id);
  }
  arrive(lab, &clocks->named[id]);
}

/** Others may use the barrier next, so only those that wait now have seen what arrived. */
void lab_named_barrier_opens(unsigned id, bool waits) {
  LabWorker *lab = lab_worker;
  const Worker *worker = lab->worker;
  Meeting *meeting = &lab->clocks->named[id];
  end_phase(lab->clocks, meeting);
  for (int thread = 0; thread < worker->thread_count; thread++) {
    const Wait *wait = &worker->waits[thread];
    const bool parked = worker->warps[thread / WARP_SIZE].parked >> thread % WARP_SIZE & 1;
    const bool passes = parked ? wait->awaited == A_NAMED_BARRIER && wait->number == id
                               : waits && thread == worker->running;
    if (passes) pass(lab, meeting, thread);
  }
  Opening *opening = &lab->clocks->openings[id];
  set(lab->clocks, &opening->arrived, meeting->ended);
  set(lab->clocks, &opening->known, NULL);
  opening->epoch = lab->epoch;
  opening->call_site = worker->hopper->named[id].call_site;
  opening->thread = worker->hopper->named[id].thread;
  forget_meeting(lab->clocks, meeting);
}

const View *lab_publish_view(LabWorker *lab) {
  const int thread = lab_thread(lab), first = thread / WARP_SIZE * WARP_SIZE;
  Clock *own = lab_kept_clock(lab, lab_clocks(lab)->of_thread[thread]);
  const uint32_t synced = lab->synced[first / WARP_SIZE];
  for (int i = FIRST_THREAD + first; i < FIRST_THREAD + first + WARP_SIZE; i++) {
    if (own->of[i] < synced) own->of[i] = synced;
  }
  own->of[FIRST_THREAD + thread] = ++lab->times[thread];
  View *view = lab_allocate(lab, sizeof *view);
  const View *peers = lab_view_of(lab, thread);
  if (peers != NULL) *view = *peers;
  view->of[lab->worker->rank] = (Known){lab->epoch, own};
  return view;
}
