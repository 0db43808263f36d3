#include "runtime.h"

/* --- Shuffles ------------------------------------------------------------------------------- */

typedef struct ShuffleOperands {
  uint64_t value, result;
  const SimtWarpOperation *operation;
  const SimtExtremes *extremes;
  unsigned source_lane;
  int width;
  bool keeps; /* its own value, as the lane to read is not in its part of the warp */
} ShuffleOperands;

/** What a lane gets that reads a lane which takes no part: a NaN, but not that of unset memory. */
static const uint64_t UNDEFINED = UINT64_MAX - 1;

static _Atomic SimtReading current_reading;

void simt_read_as(SimtReading reading) {
  current_reading = reading;
  simt_forget_errors();
}

bool simt_reads_otherwise(void) {
  return current_reading != SIMT_AS_WRITTEN;
}

void simt_describe_no_source(const Worker *worker, int lane, int source, char *text,
                             size_t text_size) {
  const int first = worker->running / WARP_SIZE * WARP_SIZE;
  const Wait *wait = &worker->waits[first + lane];
  const Executed *its = &worker->executed[first + source];
  char why[64];
  if ((wait->mask >> source & 1) == 0) {
    const bool asked = wait->mask == 1u << lane &&
                       (worker->asked_who_is_active[first / WARP_SIZE] >> lane & 1) != 0;
    snprintf(why, sizeof why, "is not in the mask 0x%08x%s", wait->mask,
             asked ? ", that of __activemask()" : "");
  } else if (first + source >= worker->thread_count) {
    snprintf(why, sizeof why, "is past the end of the block");
  } else if (its->call_site == wait->call_site && its->mask != wait->mask) {
    snprintf(why, sizeof why, "called it with another mask, 0x%08x", its->mask);
  } else {
    snprintf(why, sizeof why, "has exited");
  }
  snprintf(text, text_size, "lane %d reads lane %d, which %s", lane, source, why);
}

static void note_no_source(Worker *worker, const SimtWarpOperation *operation, int lane,
                           int source) {
  const void *call_site = worker->access_call_site;
  Hint *hint = simt_note_hint(worker, SOURCE_MISSING, call_site);
  if (hint != NULL) {
    hint->operation = operation;
    simt_describe_no_source(worker, lane, source, hint->what, sizeof hint->what);
  }
  if (simt_observer != NULL) simt_observer->no_source(lane, source, call_site);
}

/** Lanes in `apart` execute the shuffle at another place than the first lane of `mask` does: they
 * go on there, with values that were not meant for it. */
static void note_apart(Worker *worker, const Wait *waits, unsigned mask, unsigned apart) {
  const Wait *first = &waits[__builtin_ctz(mask)], *other = &waits[__builtin_ctz(apart)];
  Hint *hint = simt_note_hint(worker, LANES_APART, first->call_site);
  if (hint == NULL) return;
  char here[48], there[48];
  simt_format_threads((unsigned[MAX_WARPS]){mask & ~apart}, here, sizeof here);
  simt_format_threads((unsigned[MAX_WARPS]){apart}, there, sizeof there);
  hint->operation = first->operation;
  hint->other_site = other->call_site;
  snprintf(hint->what, sizeof hint->what, "lanes %s here, lanes %s there", here, there);
}

/** Lanes in `lanes`, such as `keeper`, keep their value. */
static void note_kept_values(Worker *worker, const ShuffleOperands *keeper, unsigned lanes) {
  Hint *hint = simt_note_hint(worker, KEPT_OWN_VALUE, worker->access_call_site);
  if (hint == NULL) return;
  hint->operation = keeper->operation;
  hint->width = keeper->width;
  hint->goes_up = keeper->operation == &simt_shuffle_up;
  hint->goes_down = keeper->operation == &simt_shuffle_down;
  hint->lanes = lanes;
}

static void execute_shuffle(void **operands, unsigned mask) {
  Worker *worker = simt_worker;
  const Wait *waits = &worker->waits[worker->running / WARP_SIZE * WARP_SIZE];
  unsigned kept = 0, apart = 0;
  const ShuffleOperands *keeper = NULL;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if ((mask >> lane & 1) == 0) continue;
    if (waits[lane].call_site != waits[__builtin_ctz(mask)].call_site) apart |= 1u << lane;
    ShuffleOperands *own = operands[lane];
    const ShuffleOperands *source = operands[own->source_lane];
    own->result = source != NULL ? source->value : UNDEFINED;
    if (source == NULL) note_no_source(worker, own->operation, lane, (int)own->source_lane);
    if (!own->keeps) continue;
    kept |= 1u << lane;
    keeper = own;
    if (current_reading == SIMT_KEPT_LARGEST) own->result = own->extremes->largest;
    if (current_reading == SIMT_KEPT_SMALLEST) own->result = own->extremes->smallest;
  }
  if (keeper != NULL) note_kept_values(worker, keeper, kept);
  if (apart != 0) note_apart(worker, waits, mask, apart);
}

const SimtWarpOperation simt_shuffle_index = {"__shfl_sync", SIMT_SHUFFLE, execute_shuffle};
const SimtWarpOperation simt_shuffle_up = {"__shfl_up_sync", SIMT_SHUFFLE, execute_shuffle};
const SimtWarpOperation simt_shuffle_down = {"__shfl_down_sync", SIMT_SHUFFLE, execute_shuffle};
const SimtWarpOperation simt_shuffle_xor = {"__shfl_xor_sync", SIMT_SHUFFLE, execute_shuffle};

/** Finds the lane to read from, after the pseudocode of shfl.sync in the PTX manual; false: there
 * is none, and the lane keeps its value. */
static bool find_source(const SimtWarpOperation *shuffle, unsigned lane, unsigned argument,
                        unsigned width, unsigned *found) {
  const unsigned segment = lane & ~(width - 1);
  const unsigned segment_end = segment + width - 1;
  argument %= WARP_SIZE;
  unsigned source;
  bool in_range;
  if (shuffle == &simt_shuffle_up) {
    source = lane - argument;
    in_range = (int)source >= (int)segment;
  } else if (shuffle == &simt_shuffle_down && current_reading != SIMT_DOWN_AS_XOR) {
    source = lane + argument;
    in_range = source <= segment_end;
  } else if (shuffle == &simt_shuffle_index) {
    source = segment | (argument & (width - 1));
    in_range = true;
  } else {
    source = lane ^ argument;
    in_range = source <= segment_end;
  }
  *found = in_range ? source : lane;
  return in_range;
}

uint64_t simt_shuffle(const SimtWarpOperation *shuffle, unsigned mask, uint64_t bits,
                      unsigned lane_argument, int width, const SimtExtremes *extremes) {
  const unsigned lane = (unsigned)simt_worker->running % WARP_SIZE;
  const void *call_site = __builtin_return_address(0);
  if (width < 1 || width > WARP_SIZE || (width & (width - 1)) != 0) {
    simt_worker->shuffle_width = width;
    simt_end_block(BAD_WIDTH, &(Wait){.operation = shuffle, .mask = mask, .call_site = call_site});
  }
  if (shuffle != &simt_shuffle_index && lane_argument >= WARP_SIZE) {
    Hint *hint = simt_note_hint(simt_worker, FAR_LANE, call_site);
    if (hint != NULL) {
      hint->operation = shuffle;
      snprintf(hint->what, sizeof hint->what, "%d, which counts modulo %d, so as %d",
               (int)lane_argument, WARP_SIZE, (int)(lane_argument % WARP_SIZE));
    }
  }
  ShuffleOperands operands = {
      .value = bits, .operation = shuffle, .extremes = extremes, .width = width};
  operands.keeps =
      !find_source(shuffle, lane, lane_argument, (unsigned)width, &operands.source_lane);
  simt_warp_instruction_at(shuffle, mask, &operands, call_site);
  return operands.result;
}

/* --- Votes ---------------------------------------------------------------------------------- */

typedef struct VoteOperands {
  int predicate;
  unsigned ballot;
} VoteOperands;

static void execute_vote(void **operands, unsigned mask) {
  unsigned ballot = 0;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const VoteOperands *vote = operands[lane];
    if (vote != NULL && vote->predicate) ballot |= 1u << lane;
  }
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (mask >> lane & 1) ((VoteOperands *)operands[lane])->ballot = ballot;
  }
}

const SimtWarpOperation simt_vote_ballot = {"__ballot_sync", SIMT_VOTE, execute_vote};
const SimtWarpOperation simt_vote_any = {"__any_sync", SIMT_VOTE, execute_vote};
const SimtWarpOperation simt_vote_all = {"__all_sync", SIMT_VOTE, execute_vote};

unsigned simt_vote(const SimtWarpOperation *vote, unsigned mask, int predicate) {
  VoteOperands operands = {.predicate = predicate};
  simt_warp_instruction_at(vote, mask, &operands, __builtin_return_address(0));
  return operands.ballot;
}

/* --- Matches -------------------------------------------------------------------------------- */

typedef struct MatchOperands {
  uint64_t bits;
  unsigned lanes;
} MatchOperands;

static void execute_match_any(void **operands, unsigned mask) {
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    MatchOperands *own = operands[lane];
    for (int other = 0; own != NULL && other < WARP_SIZE; other++) {
      const MatchOperands *its = operands[other];
      if (its != NULL && its->bits == own->bits) own->lanes |= 1u << other;
    }
  }
  (void)mask;
}

static void execute_match_all(void **operands, unsigned mask) {
  execute_match_any(operands, mask);
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    MatchOperands *own = operands[lane];
    if (own != NULL && own->lanes != mask) own->lanes = 0;
  }
}

const SimtWarpOperation simt_match_any = {"__match_any_sync", SIMT_VOTE, execute_match_any};
const SimtWarpOperation simt_match_all = {"__match_all_sync", SIMT_VOTE, execute_match_all};

unsigned simt_match(const SimtWarpOperation *match, unsigned mask, uint64_t bits) {
  MatchOperands operands = {.bits = bits};
  simt_warp_instruction_at(match, mask, &operands, __builtin_return_address(0));
  return operands.lanes;
}

/* --- Reductions ----------------------------------------------------------------------------- */

typedef struct ReduceOperands {
  SimtAtomic operation;
  unsigned value, result;
} ReduceOperands;

static void execute_reduction(void **operands, unsigned mask) {
  const int first = __builtin_ctz(mask);
  const ReduceOperands *own = operands[first];
  unsigned result = own->value;
  for (int lane = first + 1; lane < WARP_SIZE; lane++) {
    const ReduceOperands *other = operands[lane];
    if (other != NULL) result = simt_apply_32(own->operation, result, other->value);
  }
  for (int lane = first; lane < WARP_SIZE; lane++) {
    if (mask >> lane & 1) ((ReduceOperands *)operands[lane])->result = result;
  }
}

#define REDUCTION(name) \
  { name, SIMT_REDUCTION, execute_reduction }

static const SimtWarpOperation reductions[] = {
    [SIMT_ATOMIC_ADD] = REDUCTION("__reduce_add_sync"),
    [SIMT_ATOMIC_MAX_SIGNED] = REDUCTION("__reduce_max_sync"),
    [SIMT_ATOMIC_MAX_UNSIGNED] = REDUCTION("__reduce_max_sync"),
    [SIMT_ATOMIC_MIN_SIGNED] = REDUCTION("__reduce_min_sync"),
    [SIMT_ATOMIC_MIN_UNSIGNED] = REDUCTION("__reduce_min_sync"),
    [SIMT_ATOMIC_AND] = REDUCTION("__reduce_and_sync"),
    [SIMT_ATOMIC_OR] = REDUCTION("__reduce_or_sync"),
    [SIMT_ATOMIC_XOR] = REDUCTION("__reduce_xor_sync"),
};

unsigned simt_reduce(SimtAtomic operation, unsigned mask, unsigned value) {
  ReduceOperands operands = {.operation = operation, .value = value};
  simt_warp_instruction_at(&reductions[operation], mask, &operands, __builtin_return_address(0));
  return operands.result;
}

/* --- __activemask --------------------------------------------------------------------------- */

/** Waits until no lane of the warp can go on elsewhere; returns those that wait here. */
static unsigned meet_lanes(Worker *worker, const void *call_site) {
  Wait *waits = &worker->waits[worker->running / WARP_SIZE * WARP_SIZE];
  Wait *own = &worker->waits[worker->running];
  *own = (Wait){.call_site = call_site};
  simt_hold();
  if (own->mask != 0) return own->mask;
  /* The first that goes on tells the others, before any of them waits elsewhere. */
  unsigned lanes = 0;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (waits[lane].call_site == call_site && waits[lane].mask == 0) lanes |= 1u << lane;
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) waits[__builtin_ctz(rest)].mask = lanes;
  return lanes;
}

unsigned simt_active_mask(void) {
  Worker *worker = simt_worker;
  const unsigned lane_bit = 1u << worker->running % WARP_SIZE;
  const int warp = worker->running / WARP_SIZE;
  worker->asked_who_is_active[warp] |= lane_bit;
  if (worker->warps[warp].live != lane_bit) {
    simt_note_hint(worker, ACTIVE_MASK, __builtin_return_address(0));
    if (current_reading == SIMT_ACTIVE_TOGETHER) {
      return meet_lanes(worker, __builtin_return_address(0));
    }
  }
  return lane_bit;
}

/* --- __syncwarp ----------------------------------------------------------------------------- */

const SimtWarpOperation simt_syncwarp = {"__syncwarp", SIMT_SYNCWARP, NULL};
