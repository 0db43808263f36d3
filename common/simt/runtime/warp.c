#include "runtime.h"

/* --- Shuffles ------------------------------------------------------------------------------- */

typedef struct ShuffleOperands {
  uint64_t value, result;
  unsigned source_lane;
} ShuffleOperands;

static void execute_shuffle(void **operands, unsigned mask) {
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if ((mask >> lane & 1) == 0) continue;
    ShuffleOperands *own = operands[lane];
    const ShuffleOperands *source = operands[own->source_lane];
    /* The value of a lane outside the mask is undefined: return all ones, a NaN. */
    own->result = source != NULL ? source->value : UINT64_MAX;
  }
}

const SimtWarpOperation simt_shuffle_index = {"__shfl_sync", SIMT_SHUFFLE, execute_shuffle};
const SimtWarpOperation simt_shuffle_up = {"__shfl_up_sync", SIMT_SHUFFLE, execute_shuffle};
const SimtWarpOperation simt_shuffle_down = {"__shfl_down_sync", SIMT_SHUFFLE, execute_shuffle};
const SimtWarpOperation simt_shuffle_xor = {"__shfl_xor_sync", SIMT_SHUFFLE, execute_shuffle};

/** The lane to read from, after the pseudocode of shfl.sync in the PTX manual. */
static unsigned source_lane(const SimtWarpOperation *shuffle, unsigned lane, unsigned argument,
                            unsigned width) {
  const unsigned segment = lane & ~(width - 1);
  const unsigned segment_end = segment + width - 1;
  argument %= WARP_SIZE;
  unsigned source;
  bool in_range;
  if (shuffle == &simt_shuffle_up) {
    source = lane - argument;
    in_range = (int)source >= (int)segment;
  } else if (shuffle == &simt_shuffle_down) {
    source = lane + argument;
    in_range = source <= segment_end;
  } else if (shuffle == &simt_shuffle_xor) {
    source = lane ^ argument;
    in_range = source <= segment_end;
  } else {
    source = segment | (argument & (width - 1));
    in_range = true;
  }
  return in_range ? source : lane;
}

uint64_t simt_shuffle(const SimtWarpOperation *shuffle, unsigned mask, uint64_t bits,
                      unsigned lane_argument, int width) {
  const unsigned lane = (unsigned)simt_worker->running % WARP_SIZE;
  const void *call_site = __builtin_return_address(0);
  if (width < 1 || width > WARP_SIZE || (width & (width - 1)) != 0) {
    simt_worker->shuffle_width = width;
    simt_end_block(BAD_WIDTH, &(Wait){.operation = shuffle, .mask = mask, .call_site = call_site});
  }
  ShuffleOperands operands = {
      .value = bits,
      .source_lane = source_lane(shuffle, lane, lane_argument, (unsigned)width),
  };
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

/* --- __syncwarp ----------------------------------------------------------------------------- */

static void execute_nothing(void **operands, unsigned mask) {
  (void)operands;
  (void)mask;
}

const SimtWarpOperation simt_syncwarp = {"__syncwarp", SIMT_SYNCWARP, execute_nothing};
