/*
 * Barriers and warp instructions that not all required threads reach. A __syncthreads() requires
 * all threads of the block, a shuffle or an mma all lanes of its mask. The runtime continues
 * threads that wait at different places, or without exited threads, so that later errors are found
 * too.
 */
#include "internal.h"

/** Threads of the block, by warp and lane. */
typedef struct ThreadSet {
  unsigned lanes[MAX_WARPS];
} ThreadSet;

static int lowest_thread(const ThreadSet *set) {
  int warp = 0;
  while (warp < MAX_WARPS - 1 && set->lanes[warp] == 0) warp++;
  return warp * WARP_SIZE + __builtin_ctz(set->lanes[warp]);
}

static const void *site_of(const LabWorker *lab, int thread) {
  return lab->worker->waits[thread].call_site;
}

/** Moves the threads that wait at `site` out of `*rest`. */
static ThreadSet take_waiting_at(const LabWorker *lab, const void *site, ThreadSet *rest,
                                 bool *some_left) {
  ThreadSet taken = {{0}};
  *some_left = false;
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    for (unsigned lanes = rest->lanes[warp]; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      if (site_of(lab, warp * WARP_SIZE + lane) == site) taken.lanes[warp] |= 1u << lane;
    }
    rest->lanes[warp] &= ~taken.lanes[warp];
    *some_left |= rest->lanes[warp] != 0;
  }
  return taken;
}

/** lab_count_finding() for a thread that does not run. */
static RawFinding *count_for(LabWorker *lab, int thread, LabKind kind, uint32_t pc,
                             uint32_t other_pc, int other) {
  const int running = lab->worker->running;
  lab->worker->running = thread;
  RawFinding *finding = lab_count_finding(lab, kind, pc, other_pc, (uint64_t)other);
  lab->worker->running = running;
  return finding;
}

/** Writes the numbers of the threads. */
static const char *numbers(const ThreadSet *set, char text[48]) {
  simt_format_threads(set->lanes, text, 48);
  return text;
}

/** The missing threads wait at another place, or have exited. */
static void report(LabWorker *lab, LabKind kind, const ThreadSet *here, const ThreadSet *missing,
                   bool elsewhere) {
  const int thread = lowest_thread(here), other = lowest_thread(missing);
  const uint32_t other_pc = elsewhere ? lab_pc(site_of(lab, other)) : 0;
  RawFinding *finding = count_for(lab, thread, kind, lab_pc(site_of(lab, thread)), other_pc, other);
  if (finding == NULL) return;
  char own[48], theirs[48];
  snprintf(finding->where, sizeof finding->where, "threads %s here, %sthreads %s%s",
           numbers(here, own), elsewhere ? "" : "without ", numbers(missing, theirs),
           elsewhere ? " there" : "");
}

/** Reports all places except that of the lowest thread; returns the threads at that place. */
static ThreadSet report_places(LabWorker *lab, LabKind kind, ThreadSet waiting) {
  bool some_left;
  const ThreadSet first =
      take_waiting_at(lab, site_of(lab, lowest_thread(&waiting)), &waiting, &some_left);
  while (some_left) {
    const ThreadSet others =
        take_waiting_at(lab, site_of(lab, lowest_thread(&waiting)), &waiting, &some_left);
    report(lab, kind, &first, &others, true);
  }
  return first;
}

void lab_check_barrier(LabWorker *lab) {
  const Worker *worker = lab->worker;
  ThreadSet waiting = {{0}}, exited = {{0}};
  bool some_exited = false, apart = false;
  const void *site = NULL;
  for (int thread = 0; thread < worker->thread_count; thread++) {
    const int warp = thread / WARP_SIZE;
    const unsigned bit = 1u << thread % WARP_SIZE;
    if (worker->warps[warp].at_barrier & bit) {
      waiting.lanes[warp] |= bit;
      if (site == NULL) site = site_of(lab, thread);
      apart |= site_of(lab, thread) != site;
    } else {
      exited.lanes[warp] |= bit;
      some_exited = true;
    }
  }
  if (!apart && !some_exited) return;
  const ThreadSet first = report_places(lab, LAB_BARRIER_APART, waiting);
  if (some_exited) report(lab, LAB_BARRIER_EXITED, &first, &exited, false);
}

/** Lanes that are named but have exited: did they come here with another mask? */
static void check_masks(LabWorker *lab, int warp, unsigned lanes) {
  const Worker *worker = lab->worker;
  const int first = warp * WARP_SIZE;
  const Wait *wait = &worker->waits[first + __builtin_ctz(lanes)];
  ThreadSet here = {{0}}, missing = {{0}};
  here.lanes[warp] = lanes;
  for (unsigned rest = wait->mask & ~lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (first + lane >= worker->thread_count) break;
    const Executed *its = &worker->executed[first + lane];
    if (its->call_site != wait->call_site || its->mask == wait->mask) continue;
    missing.lanes[warp] |= 1u << lane;
  }
  if (missing.lanes[warp] == 0) return;
  const int thread = lowest_thread(&here), other = lowest_thread(&missing);
  RawFinding *finding = count_for(lab, thread, LAB_WARP_MASKS, lab_pc(wait->call_site), 0, other);
  if (finding == NULL) return;
  char own[48], theirs[48];
  snprintf(finding->where, sizeof finding->where,
           "threads %s with the mask 0x%08x, threads %s with 0x%08x", numbers(&here, own),
           wait->mask, numbers(&missing, theirs), worker->executed[other].mask);
}

void lab_check_lanes(LabWorker *lab, const SimtWarpOperation *operation, int warp, unsigned lanes) {
  check_masks(lab, warp, lanes);
  if (operation->kind == SIMT_SYNCWARP) return; /* lanes may be at different places */
  const Wait *waits = &lab->worker->waits[warp * WARP_SIZE];
  const void *site = waits[__builtin_ctz(lanes)].call_site;
  bool apart = false;
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    apart |= waits[__builtin_ctz(rest)].call_site != site;
  }
  if (!apart) return;
  ThreadSet waiting = {{0}};
  waiting.lanes[warp] = lanes;
  report_places(lab, LAB_WARP_APART, waiting);
}

void lab_no_source(int lane, int source, const void *call_site) {
  LabWorker *lab = lab_worker;
  if (!(lab->checks & LAB_RACES)) return;
  const int thread = lab_thread(lab) / WARP_SIZE * WARP_SIZE + lane;
  RawFinding *finding = count_for(lab, thread, LAB_NO_SOURCE, lab_pc(call_site), 0, 0);
  if (finding == NULL) return;
  simt_describe_no_source(lab->worker, lane, source, finding->where, sizeof finding->where);
}
