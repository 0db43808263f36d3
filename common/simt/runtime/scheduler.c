#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "hopper.h"

_Thread_local Worker *simt_worker;

const Observer *simt_observer;

/* --- Who runs next -------------------------------------------------------------------------- */

static int lowest_bit(unsigned bits) {
  return __builtin_ctz(bits);
}
static int highest_bit(unsigned bits) {
  return 31 - __builtin_clz(bits);
}

/** The first ready thread from `start` upwards, continuing at 0 after the last. */
static int next_upwards(const Worker *w, int start) {
  const unsigned warp = (unsigned)start / WARP_SIZE;
  const unsigned in_warp = w->warps[warp].ready & ~0u << start % WARP_SIZE;
  if (in_warp != 0) return (int)warp * WARP_SIZE + lowest_bit(in_warp);
  const unsigned later = w->ready_warps & ~1u << warp;
  const int next = lowest_bit(later != 0 ? later : w->ready_warps);
  return next * WARP_SIZE + lowest_bit(w->warps[next].ready);
}

static int next_downwards(const Worker *w, int start) {
  const unsigned warp = (unsigned)start / WARP_SIZE;
  const unsigned in_warp = w->warps[warp].ready & ~0u >> (WARP_SIZE - 1 - start % WARP_SIZE);
  if (in_warp != 0) return (int)warp * WARP_SIZE + highest_bit(in_warp);
  const unsigned earlier = w->ready_warps & ~(~0u << warp);
  const int next = highest_bit(earlier != 0 ? earlier : w->ready_warps);
  return next * WARP_SIZE + highest_bit(w->warps[next].ready);
}

/** xorshift64* */
static unsigned random_bits(Worker *w) {
  w->random_state ^= w->random_state >> 12;
  w->random_state ^= w->random_state << 25;
  w->random_state ^= w->random_state >> 27;
  return (unsigned)(w->random_state * 0x2545f4914f6cdd1d >> 32);
}

/** The first set bit from `start` upwards or downwards, wrapping around. */
static int next_in_round(unsigned bits, unsigned start, bool upwards) {
  if (upwards) {
    const unsigned rotated = bits >> start | bits << (-start & 31);
    return (int)(start + (unsigned)lowest_bit(rotated)) & 31;
  }
  const unsigned rotated = bits << (31 - start) | bits >> ((start + 1) & 31);
  return (int)(start - (unsigned)(31 - highest_bit(rotated))) & 31;
}

/** Where to look for the next thread. */
typedef enum Preference {
  SAME_WARP,  /* a warp runs until all its lanes wait */
  WARP_GO_ON, /* the same, after a warp instruction */
  NEXT,       /* the thread after the running one */
  NEXT_WARP,  /* one of another warp */
  WHOLE_BLOCK /* from the start, after a barrier */
} Preference;

/**
 * Chooses a random warp, and runs its lanes from a random one up or down until all of them wait or
 * a warp instruction is done. A random number for each switch would cost more than the switch.
 */
static int choose_at_random(Worker *w, Preference preference) {
  unsigned warp = (unsigned)w->running / WARP_SIZE, lane = (unsigned)w->running % WARP_SIZE;
  if (preference != SAME_WARP || w->warps[warp].ready == 0) {
    const unsigned random = random_bits(w);
    warp = (unsigned)next_in_round(w->ready_warps, random >> 27, random >> 16 & 1);
    lane = random >> 22 & 31;
    w->random_upwards = random >> 21 & 1;
  }
  return (int)warp * WARP_SIZE + next_in_round(w->warps[warp].ready, lane, w->random_upwards);
}

static int choose_next(Worker *w, Preference preference) {
  if (w->order == RANDOM) return choose_at_random(w, preference);
  const int warp_begin = w->running / WARP_SIZE * WARP_SIZE;
  if (w->order == REVERSE) {
    const int warp_end = warp_begin + WARP_SIZE - 1;
    const int start[] = {warp_end, warp_end, (w->running + MAX_THREADS - 1) % MAX_THREADS,
                         (warp_begin + MAX_THREADS - 1) % MAX_THREADS, MAX_THREADS - 1};
    return next_downwards(w, start[preference]);
  }
  const int start[] = {warp_begin, warp_begin, (w->running + 1) % MAX_THREADS,
                       (warp_begin + WARP_SIZE) % MAX_THREADS, 0};
  return next_upwards(w, start[preference]);
}

/** Abandons the fibers and returns to simt_run_threads(). */
__attribute__((noreturn)) static void end_block(Worker *w, Outcome outcome) {
  void *abandoned;
  w->outcome = outcome;
  simt_switch(&abandoned, w->own_stack);
  __builtin_unreachable();
}

void simt_end_block(Outcome outcome, const Wait *culprit) {
  Worker *w = simt_worker;
  w->waits[w->running] = *culprit;
  end_block(w, outcome);
}

void simt_complain(const void *call_site, const char *complaint, ...) {
  Worker *worker = simt_worker;
  va_list arguments;
  va_start(arguments, complaint);
  vsnprintf(worker->complaint, sizeof worker->complaint, complaint, arguments);
  va_end(arguments);
  simt_end_block(WRONG_CALL, &(Wait){.call_site = call_site});
}

static bool name_each_other_in_vain(const Wait *waits, int lane, int other) {
  const Wait *a = &waits[lane], *b = &waits[other];
  const bool differ = a->operation != b->operation || a->mask != b->mask;
  return differ && (a->mask >> other & 1) && (b->mask >> lane & 1);
}

/** Why no thread can continue. */
static Outcome why_stuck(const Worker *w) {
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    const unsigned waiting = w->warps[warp].in_instruction;
    const Wait *waits = &w->waits[warp * WARP_SIZE];
    for (unsigned rest = waiting; rest != 0; rest &= rest - 1) {
      for (unsigned others = rest & (rest - 1); others != 0; others &= others - 1) {
        if (name_each_other_in_vain(waits, lowest_bit(rest), lowest_bit(others))) return DIVERGED;
      }
    }
  }
  return DEADLOCK;
}

bool simt_let_others_run(Worker *w) {
  if (!simt_team_turn(w)) return false;
  if (w->team->failed) simt_end_block(ABANDONED, &w->waits[w->running]);
  return true;
}

static void run_others(Worker *w, Preference preference) {
  while (w->ready_warps == 0) {
    /* Other blocks of the team may never wait, but poll. */
    if (!simt_cluster_can_run(w) && w->land_next(w)) continue;
    if (!simt_let_others_run(w)) end_block(w, why_stuck(w));
  }
  const int previous = w->running;
  const int next = choose_next(w, preference);
  if (next == previous) return;
  w->running = next;
  simt_switch(&w->stacks[previous], w->stacks[next]);
}

static void set_ready(Worker *w, int warp, unsigned lanes) {
  w->warps[warp].ready |= lanes;
  w->ready_warps |= 1u << warp;
}

static void release_held(Worker *w, int warp) {
  if (w->warps[warp].held == 0) return;
  set_ready(w, warp, w->warps[warp].held);
  w->warps[warp].held = 0;
}

static void clear_ready(Worker *w, int warp, unsigned lanes) {
  w->warps[warp].ready &= ~lanes;
  if (w->warps[warp].ready != 0) return;
  w->ready_warps &= ~(1u << warp);
  if (simt_observer != NULL) simt_observer->warp_waits(warp);
  release_held(w, warp);
}

void simt_yield(void) {
  Worker *w = simt_worker;
  const int warp = w->running / WARP_SIZE;
  if (w->warps[warp].held != 0) { /* the running thread may spin until they write */
    if (simt_observer != NULL) simt_observer->warp_waits(warp);
    release_held(w, warp);
  }
  /* If lanes that poll also wait for each other, one of them is always ready. All threads have had
   * a turn in so many. */
  const bool leaves = w->idle_atomics % (MAX_THREADS + 1) == MAX_THREADS;
  run_others(w, leaves ? NEXT_WARP : NEXT);
}

void simt_hold(void) {
  Worker *w = simt_worker;
  const int warp = w->running / WARP_SIZE;
  const unsigned lane_bit = 1u << w->running % WARP_SIZE;
  w->warps[warp].held |= lane_bit;
  clear_ready(w, warp, lane_bit);
  run_others(w, SAME_WARP);
}

void simt_park(Awaited awaited, unsigned number, const void *call_site) {
  Worker *w = simt_worker;
  const int warp = w->running / WARP_SIZE;
  const unsigned lane_bit = 1u << w->running % WARP_SIZE;
  w->waits[w->running] = (Wait){.call_site = call_site, .awaited = awaited, .number = number};
  w->warps[warp].parked |= lane_bit;
  clear_ready(w, warp, lane_bit);
  run_others(w, SAME_WARP);
}

void simt_unpark(Worker *w, Awaited awaited, unsigned number) {
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    for (unsigned rest = w->warps[warp].parked; rest != 0; rest &= rest - 1) {
      const int lane = lowest_bit(rest);
      const Wait *wait = &w->waits[warp * WARP_SIZE + lane];
      if (wait->awaited != (int)awaited) continue;
      if (wait->number != number && awaited != REGISTERS_TO_BE_FREE) continue;
      w->warps[warp].parked &= ~(1u << lane);
      set_ready(w, warp, 1u << lane);
    }
  }
}

/* --- The barrier ---------------------------------------------------------------------------- */

/** Opens the barrier if all threads that have not exited have arrived. */
static bool open_barrier(Worker *w) {
  if (w->barrier_arrived == 0 || w->barrier_arrived < w->live_threads) return false;
  if (simt_observer != NULL) simt_observer->barrier_opens();
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    if (w->warps[warp].at_barrier == 0) continue;
    set_ready(w, warp, w->warps[warp].at_barrier);
    w->warps[warp].at_barrier = 0;
  }
  /* The next barrier opens only after all threads have run again and read this result. */
  w->barrier_result = w->barrier_true;
  w->barrier_true = w->barrier_arrived = 0;
  w->counters.barriers++;
  return true;
}

unsigned simt_barrier(int predicate) {
  Worker *w = simt_worker;
  const int warp = w->running / WARP_SIZE;
  const unsigned lane_bit = 1u << w->running % WARP_SIZE;
  w->waits[w->running] = (Wait){.call_site = __builtin_return_address(0)};
  clear_ready(w, warp, lane_bit);
  w->warps[warp].at_barrier |= lane_bit;
  w->barrier_true += predicate != 0;
  w->barrier_arrived++;
  run_others(w, open_barrier(w) ? WHOLE_BLOCK : SAME_WARP);
  return w->barrier_result;
}

/* --- Warp instructions ---------------------------------------------------------------------- */

/**
 * Executes the instruction that `lane` waits in if all live lanes of its mask wait in it; returns
 * whether it did. A lane that waits in another instruction may still arrive; if it never does, no
 * thread can continue in the end, and run_others() ends the block.
 */
static bool try_instruction(Worker *w, int warp_index, int lane) {
  Warp *warp = &w->warps[warp_index];
  const Wait *waits = &w->waits[warp_index * WARP_SIZE];
  const SimtWarpOperation *operation = waits[lane].operation;
  const unsigned mask = waits[lane].mask;
  const unsigned active = mask & warp->live;
  if ((active & ~warp->in_instruction) != 0) return false;

  void *operands[WARP_SIZE] = {0};
  for (unsigned rest = active; rest != 0; rest &= rest - 1) {
    const int other = lowest_bit(rest);
    if (waits[other].operation != operation || waits[other].mask != mask) return false;
    operands[other] = waits[other].operands;
  }
  const bool aligned = operation->kind >= SIMT_LDMATRIX;
  if (aligned && active != ~0u) {
    snprintf(
        w->complaint, sizeof w->complaint, "%s without all lanes of its warp%s", operation->name,
        operation->kind == SIMT_SETMAXNREG ? ": all threads of a warpgroup must execute it" : "");
    end_block(w, INCOMPLETE);
  }
  w->access_is_write = false;
  w->access_call_site = waits[lane].call_site;
  if (simt_observer != NULL) {
    simt_observer->warp_instruction(operation, active, warp_index, waits[lane].call_site);
  }
  if (operation->execute != NULL) operation->execute(operands, active);
  w->access_call_site = NULL;
  w->counters.warp_instructions[operation->kind]++;
  warp->in_instruction &= ~active;
  set_ready(w, warp_index, active);
  return true;
}

void simt_warp_instruction_at(const SimtWarpOperation *operation, unsigned mask, void *operands,
                              const void *call_site) {
  Worker *w = simt_worker;
  const int warp = w->running / WARP_SIZE;
  const int lane = w->running % WARP_SIZE;
  const unsigned lane_bit = 1u << lane;
  w->waits[w->running] = (Wait){operation, mask, operands, call_site};
  if ((mask & lane_bit) == 0) end_block(w, NOT_IN_MASK);
  clear_ready(w, warp, lane_bit);
  w->warps[warp].in_instruction |= lane_bit;
  run_others(w, try_instruction(w, warp, lane) ? WARP_GO_ON : SAME_WARP);
  w->executed[w->running] = (Executed){call_site, mask};
}

void simt_warp_instruction(const SimtWarpOperation *operation, unsigned mask, void *operands) {
  simt_warp_instruction_at(operation, mask, operands, __builtin_return_address(0));
}

/* --- Threads ---------------------------------------------------------------------------------- */

void simt_open_cluster(Cluster *cluster) {
  if (cluster->arrived < cluster->threads || cluster->arrived == 0) return;
  if (simt_observer != NULL) simt_observer->cluster_opens();
  cluster->arrived = 0;
  cluster->phase++;
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    simt_unpark(cluster->members[rank], THE_CLUSTER, 0);
  }
}

static void exit_cluster(Worker *worker) {
  Cluster *cluster = worker->cluster;
  cluster->threads--; /* the barrier does not wait for it any more */
  if (worker->arrived_at[worker->running] == 1 + cluster->phase) cluster->arrived--;
  simt_open_cluster(cluster);
}

void simt_exit_thread(Worker *w) {
  const int warp = w->running / WARP_SIZE;
  const unsigned lane_bit = 1u << w->running % WARP_SIZE;
  w->warps[warp].live &= ~lane_bit;
  clear_ready(w, warp, lane_bit);
  exit_cluster(w);
  if (--w->live_threads == 0) return;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (w->warps[warp].in_instruction >> lane & 1) try_instruction(w, warp, lane);
  }
  run_others(w, open_barrier(w) ? WHOLE_BLOCK : SAME_WARP);
}

Outcome simt_run_threads(Worker *w) {
  const int count = w->thread_count;
  memset(w->warps, 0, sizeof w->warps);
  memset(w->asked_who_is_active, 0, sizeof w->asked_who_is_active);
  w->ready_warps = 0;
  for (int i = 0; i < count; i++) {
    w->executed[i] = (Executed){NULL, 0};
    w->warps[i / WARP_SIZE].live |= 1u << i % WARP_SIZE;
    set_ready(w, i / WARP_SIZE, 1u << i % WARP_SIZE);
  }
  w->live_threads = (unsigned)count;
  w->barrier_arrived = w->barrier_true = 0;
  w->access_call_site = NULL;
  if (simt_observer != NULL) simt_observer->block_begins();

  w->running = 0;
  w->running = choose_next(w, WHOLE_BLOCK);
  w->in_kernel = true;
  simt_switch(&w->own_stack, w->stacks[w->running]);
  w->in_kernel = false;
  return w->outcome;
}
