/*
 * wgmma (PTX ISA 8.7, 9.7.15). The warps of a warpgroup issue each instruction together. It reads
 * its operands, and each warp gets its accumulators, at the first moment that a wait guarantees it;
 * until then the accumulators hold NaN.
 *
 * The wait of the first warp reads the operands for all four. If warps complete alone, each does
 * so for its own rows, whatever the other warps have issued.
 */
#include <string.h>

#include "hopper.h"

/* --- Issue ------------------------------------------------------------------------------------ */

static WarpGroup *own_group(Worker *worker) {
  return &simt_hopper(worker)->groups[worker->running / GROUP_THREADS];
}

static int own_warp(const Worker *worker) {
  return worker->running / WARP_SIZE % GROUP_WARPS;
}

static bool same_instruction(const SimtWgmma *a, const SimtWgmma *b) {
  return a->n == b->n && a->b_descriptor == b->b_descriptor && (a->a == NULL) == (b->a == NULL) &&
         (a->a != NULL || a->a_descriptor == b->a_descriptor) && a->accumulate == b->accumulate &&
         a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
         a->element == b->element;
}

/** May instruction `number` take the place of the one that is MAX_IN_FLIGHT before it? */
static bool has_place(const WarpGroup *group, uint64_t number) {
  for (int warp = 0; warp < GROUP_WARPS; warp++) {
    if (group->done[warp] + MAX_IN_FLIGHT <= number) return false;
  }
  return true;
}

/** The next instruction of this warp, which it may be the first of its warpgroup to issue. */
static Wgmma *next_instruction(Worker *worker, const SimtWgmma *own) {
  WarpGroup *group = own_group(worker);
  const int warp = own_warp(worker);
  const uint64_t number = group->issued[warp];
  Wgmma **slot = &group->ring[number % MAX_IN_FLIGHT];
  const void *call_site = worker->access_call_site;
  if (!has_place(group, number)) {
    simt_complain(call_site, "more than the %d wgmma in flight that are simulated", MAX_IN_FLIGHT);
  }
  if (*slot == NULL) *slot = simt_zeroed(1, sizeof **slot);
  bool is_first = true;
  for (int other = 0; other < GROUP_WARPS; other++) is_first &= group->issued[other] <= number;
  if (is_first) {
    const size_t floats = (size_t)GROUP_THREADS * (size_t)own->n / 2;
    if (floats > (*slot)->saved_floats) {
      (*slot)->saved = simt_resized((*slot)->saved, floats * sizeof(float));
      (*slot)->saved_floats = floats;
    }
    (*slot)->common = *own;
    (*slot)->issued = (*slot)->done = (*slot)->continues = 0;
    (*slot)->call_site = call_site;
  } else if (!same_instruction(&(*slot)->common, own)) {
    simt_complain(call_site, "warps of a warpgroup issue different wgmma");
  }
  group->issued[warp]++;
  return *slot;
}

/** Is a sum with these accumulators of the warp in flight, before instruction `number`? */
static bool is_in_flight(const WarpGroup *group, int warp, const float *d, uint64_t number) {
  for (uint64_t i = group->done[warp]; i < number; i++) {
    if (group->ring[i % MAX_IN_FLIGHT]->d[warp * WARP_SIZE] == d) return true;
  }
  return false;
}

/** Keeps the accumulators of a warp, and leaves NaN in their place. */
static void save(Wgmma *w, int warp) {
  const size_t count = (size_t)w->common.n / 2;
  for (int lane = warp * WARP_SIZE; lane < (warp + 1) * WARP_SIZE; lane++) {
    memcpy(&w->saved[(size_t)lane * count], w->d[lane], count * sizeof(float));
    memset(w->d[lane], 0xff, count * sizeof(float));
  }
}

static void issue(void **operands, unsigned mask) {
  (void)mask;
  Worker *worker = simt_worker;
  WarpGroup *group = own_group(worker);
  const int warp = own_warp(worker);
  const SimtWgmma *own = operands[0];
  Wgmma *w = next_instruction(worker, own);
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const SimtWgmma *its = operands[lane];
    if (!same_instruction(&w->common, its)) {
      simt_complain(worker->access_call_site, "lanes of a warp issue different wgmma");
    }
    w->d[warp * WARP_SIZE + lane] = its->d;
    w->a[warp * WARP_SIZE + lane] = its->a;
  }
  if (simt_observer != NULL) simt_observer->wgmma_issued(w, w->issued == 0);
  if (is_in_flight(group, warp, own->d, group->issued[warp] - 1)) {
    w->continues |= 1u << warp;
  } else {
    save(w, warp);
  }
  w->issued |= 1u << warp;
  if (w->issued == (1u << GROUP_WARPS) - 1) simt_unpark(worker, ITS_WARPGROUP, 0);
}

static const SimtWarpOperation wgmma = {"wgmma", SIMT_WGMMA, issue};

void simt_wgmma(const SimtWgmma *operands) {
  Worker *worker = simt_worker;
  const void *call_site = __builtin_return_address(0);
  if ((worker->running | (GROUP_THREADS - 1)) >= worker->thread_count) {
    simt_complain(call_site, "wgmma in a warpgroup without four warps");
  }
  if (worker->running % WARP_SIZE == 0) simt_check_wgmma(operands, call_site);
  const WarpGroup *group = own_group(worker);
  const int warp = own_warp(worker);
  /* A warp that completes alone may be far ahead of others; then it waits for them. */
  const bool alone = simt_settings()->warps_complete_alone;
  while (alone && group->issued[warp] - group->done[warp] < MAX_IN_FLIGHT &&
         !has_place(group, group->issued[warp])) {
    simt_park(ITS_WARPGROUP, 0, call_site);
  }
  SimtWgmma own = *operands;
  simt_warp_instruction_at(&wgmma, ~0u, &own, call_site);
}

/* --- Completion ------------------------------------------------------------------------------- */

/** Completes the instructions of a warp before number `end`. */
static void complete(Worker *worker, WarpGroup *group, int warp, uint64_t end) {
  const bool alone = simt_settings()->warps_complete_alone;
  for (; group->done[warp] < end; group->done[warp]++) {
    Wgmma *w = group->ring[group->done[warp] % MAX_IN_FLIGHT];
    const bool is_first = w->done == 0;
    w->done |= 1u << warp;
    const bool is_last = w->done == (1u << GROUP_WARPS) - 1;
    if (is_first || alone) simt_fetch_wgmma(w);
    if (simt_observer != NULL) simt_observer->wgmma_done(w, alone ? is_last : is_first);
    simt_compute_wgmma(w, warp);
  }
  if (alone) simt_unpark(worker, ITS_WARPGROUP, 0);
  /* Later instructions go on with these sums. */
  for (uint64_t i = end; i < group->issued[warp]; i++) {
    Wgmma *later = group->ring[i % MAX_IN_FLIGHT];
    if (!(later->continues >> warp & 1)) continue;
    if (is_in_flight(group, warp, later->d[warp * WARP_SIZE], i)) continue;
    later->continues &= ~(1u << warp);
    save(later, warp);
  }
}

/* --- Groups of instructions ------------------------------------------------------------------- */

static void note_fence(void **operands, unsigned mask) {
  (void)operands, (void)mask;
  if (simt_observer != NULL) simt_observer->wgmma_fence();
}

static void commit(void **operands, unsigned mask) {
  (void)operands, (void)mask;
  Worker *worker = simt_worker;
  WarpGroup *group = own_group(worker);
  const int warp = own_warp(worker);
  if (group->commits[warp] - group->waited[warp] == MAX_IN_FLIGHT) {
    simt_complain(worker->access_call_site, "more than %d groups of wgmma in flight",
                  MAX_IN_FLIGHT);
  }
  group->committed[warp][group->commits[warp]++ % MAX_IN_FLIGHT] = group->issued[warp];
}

static const SimtWarpOperation fence_operation = {"wgmma.fence", SIMT_WGMMA_SYNC, note_fence},
                               commit_operation = {"wgmma.commit_group", SIMT_WGMMA_SYNC, commit},
                               wait_operation = {"wgmma.wait_group", SIMT_WGMMA_SYNC, NULL};

void simt_wgmma_fence(void) {
  simt_warp_instruction_at(&fence_operation, ~0u, NULL, __builtin_return_address(0));
}

void simt_wgmma_commit(void) {
  simt_warp_instruction_at(&commit_operation, ~0u, NULL, __builtin_return_address(0));
}

/** Have all warps issued the instructions before number `end`? */
static bool all_have_issued(const WarpGroup *group, uint64_t end) {
  for (int warp = 0; warp < GROUP_WARPS; warp++) {
    if (group->issued[warp] < end) return false;
  }
  return true;
}

void simt_wgmma_named(unsigned pending, const float *const *accumulators, unsigned count) {
  const Worker *worker = simt_worker;
  const WarpGroup *group = own_group(simt_worker);
  const int warp = own_warp(worker), lane = worker->running % GROUP_THREADS;
  if (count == 0 || group->commits[warp] <= pending) return;
  const unsigned last = group->commits[warp] - pending - 1;
  for (uint64_t i = group->done[warp]; i < group->committed[warp][last % MAX_IN_FLIGHT]; i++) {
    bool named = false;
    for (unsigned j = 0; j < count; j++) {
      named |= group->ring[i % MAX_IN_FLIGHT]->d[lane] == accumulators[j];
    }
    if (!named) {
      simt_complain(__builtin_return_address(0),
                    "wgmma_wait() completes a wgmma whose accumulators it does not name, so nvcc "
                    "may use them before it");
    }
  }
}

void simt_wgmma_wait(unsigned pending) {
  Worker *worker = simt_worker;
  WarpGroup *group = own_group(worker);
  const int warp = own_warp(worker);
  const void *call_site = __builtin_return_address(0);
  simt_warp_instruction_at(&wait_operation, ~0u, NULL, call_site);
  if (group->commits[warp] <= pending) return;
  const unsigned last = group->commits[warp] - pending - 1;
  const uint64_t end = group->committed[warp][last % MAX_IN_FLIGHT];
  /* The group is complete when the whole instruction is, of all four warps. */
  const bool alone = simt_settings()->warps_complete_alone;
  while (!alone && !all_have_issued(group, end)) simt_park(ITS_WARPGROUP, 0, call_site);
  group->waited[warp] = last + 1;
  if (group->done[warp] >= end) return; /* another lane of the warp was first */
  complete(worker, group, warp, end);
}

void simt_refuse_exit_of_wgmma(Worker *worker) {
  if (worker->hopper == NULL) return;
  const WarpGroup *group = own_group(worker);
  const int warp = own_warp(worker);
  if (group->done[warp] == group->issued[warp]) return;
  const bool committed = group->done[warp] < simt_committed_wgmma(group, warp);
  simt_complain(group->ring[group->done[warp] % MAX_IN_FLIGHT]->call_site,
                "a warp exits while its wgmma is in flight%s",
                committed ? "" : ": no wgmma.commit_group follows it, so no wait covers it");
}
