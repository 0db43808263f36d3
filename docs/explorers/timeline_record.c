/*
 * Records what the threads of one block do. The linker replaces functions that the kernel calls
 * with those here (--wrap). The checking build of a step calls the __tsan functions at each load
 * and store; neither the lab nor that sanitizer's library is linked.
 */
#include <simt.h>
#include <stdlib.h>
#include <string.h>

#include "simt/runtime/hopper.h"
#include "timeline.h"

extern _Thread_local unsigned char smem[];

enum { MOST_SHARED = 227 << 10, CHUNK_BYTES = 16 };

/** A thread block or cluster of a launch. Two launches after each other differ in their sizes. */
typedef struct Place {
  unsigned grid, threads, cluster;
} Place;

static struct {
  bool recording, has_query, done;
  Place at; /* whose records are in the log */
  uint32_t place_in_q;
  Range memory[SHARED];
  Log log;
} state;

void record_block(const Range memory[SHARED], uint32_t place_in_q) {
  memset(state.log.counts, 0, sizeof state.log.counts);
  memcpy(state.memory, memory, sizeof state.memory);
  state.place_in_q = place_in_q;
  state.at = (Place){0, 0, 0};
  state.has_query = state.done = false;
  state.recording = true;
}

const Log *recorded_block(void) {
  state.recording = false;
  return state.has_query ? &state.log : NULL;
}

/** Clusters run one after another, as SIMT_THREADS is 1. */
static void change_place(Place at) {
  state.at = at;
  state.done = state.has_query;
  if (!state.done) memset(state.log.counts, 0, sizeof state.log.counts);
}

static void append(Record record) {
  const SimtThread *self = simt_self();
  const unsigned blocks = simt_cluster_size(), own = self->index.x;
  const unsigned thread = simt_cluster_rank() * MOST_BLOCK_THREADS + own;
  const Place at = {self->block->grid.x, self->block->dim.x, self->block->index.x / blocks};
  Log *log = &state.log;
  if (memcmp(&at, &state.at, sizeof at) != 0) change_place(at);
  if (state.done || own >= MOST_BLOCK_THREADS || thread >= MOST_THREADS) return;
  if (log->counts[thread] == log->capacities[thread]) {
    log->capacities[thread] = 2 * log->capacities[thread] + 1024;
    log->records[thread] = realloc(log->records[thread], log->capacities[thread] * sizeof record);
    if (log->records[thread] == NULL) abort();
  }
  log->records[thread][log->counts[thread]++] = record;
  log->threads = (int)self->block->dim.x;
  log->blocks = (int)blocks;
  state.has_query |=
      record.memory == Q && (record.action == TENSOR_LOAD || record.place == state.place_in_q);
}

/** A place in shared memory of the running block, among those of its cluster. */
static uint32_t in_block(uint32_t place, unsigned rank) {
  return place + rank * BLOCK_PLACES;
}

/** The memory and the place of an address; false if it is in none. */
static bool find(const void *pointer, Record *record) {
  const uint64_t address = (uintptr_t)pointer, in_shared = address - (uintptr_t)smem;
  if (in_shared < MOST_SHARED) {
    record->memory = SHARED;
    record->place = in_block((uint32_t)in_shared, simt_cluster_rank());
    return true;
  }
  for (int i = 0; i < SHARED; i++) {
    if (address < state.memory[i].begin || address >= state.memory[i].end) continue;
    record->memory = (uint8_t)i;
    record->place = (uint32_t)(address - state.memory[i].begin);
    return true;
  }
  return false;
}

static void record_access(Action action, const void *pointer, unsigned bytes) {
  Record record = {.action = action, .bytes = bytes};
  if (state.recording && find(pointer, &record)) append(record);
}

static void record_other(Action action, unsigned pending) {
  if (!state.recording) return;
  append((Record){.action = action, .memory = MEMORIES, .pending = (uint8_t)pending});
}

/* --- Functions of the CPU backend, and 2^x ---------------------------------------------------- */

#define WRAP(result, name, ...)      \
  result __real_##name(__VA_ARGS__); \
  result __wrap_##name(__VA_ARGS__); \
  result __wrap_##name(__VA_ARGS__)

WRAP(void, simt_copy_async_16, void *shared, const void *global, unsigned source_bytes) {
  Record record = {.action = COPY, .zeros = source_bytes == 0};
  if (state.recording && find(shared, &record)) {
    record.target = record.place;
    if (find(global, &record)) append(record);
  }
  __real_simt_copy_async_16(shared, global, source_bytes);
}

WRAP(void, simt_commit_group, void) {
  record_other(COMMIT, 0);
  __real_simt_commit_group();
}

WRAP(void, simt_wait_group, unsigned still_pending) {
  record_other(WAIT, still_pending);
  __real_simt_wait_group(still_pending);
}

WRAP(unsigned, simt_barrier, int predicate) {
  record_other(BARRIER, 0);
  return __real_simt_barrier(predicate);
}

WRAP(SimtWords, simt_ldmatrix, const void *row, int matrices, bool transposed) {
  record_access(LDMATRIX, row, CHUNK_BYTES);
  return __real_simt_ldmatrix(row, matrices, transposed);
}

WRAP(void, simt_stmatrix, void *row, SimtWords registers, int matrices) {
  record_access(WRITE, row, CHUNK_BYTES);
  __real_simt_stmatrix(row, registers, matrices);
}

WRAP(SimtFloats, simt_mma, SimtFloats d, SimtWords a, uint32_t b0, uint32_t b1,
     SimtElement element) {
  record_other(MMA, 0);
  return __real_simt_mma(d, a, b0, b1, element);
}

WRAP(uint64_t, simt_shuffle, const SimtWarpOperation *shuffle, unsigned mask, uint64_t bits,
     unsigned lane_argument, int width, const SimtExtremes *extremes) {
  record_other(SHUFFLE, 0);
  return __real_simt_shuffle(shuffle, mask, bits, lane_argument, width, extremes);
}

WRAP(unsigned, simt_vote, const SimtWarpOperation *vote, unsigned mask, int predicate) {
  record_other(VOTE, 0);
  return __real_simt_vote(vote, mask, predicate);
}

WRAP(float, exp2f, float x) {
  record_other(EXP, 0);
  return __real_exp2f(x);
}

/* --- Instructions of compute capability 9.0 --------------------------------------------------- */

static uint32_t in_shared(const void *pointer) {
  return in_block((uint32_t)((uintptr_t)pointer - (uintptr_t)smem), simt_cluster_rank());
}

/** The same place in the block of this rank. */
static uint32_t in_shared_of(const void *pointer, unsigned rank) {
  return in_block((uint32_t)((uintptr_t)pointer - (uintptr_t)smem), rank);
}

/** The current phase of the mbarrier that is at this place in the block of this rank. */
static int phase_in(const void *barrier, unsigned rank) {
  Worker *worker = simt_cluster_member(rank, NULL);
  const int number = simt_find_mbarrier(worker, simt_cluster_map(barrier, rank), NULL);
  return (int)simt_hopper(worker)->mbarriers[number].phase;
}

static int phase_of(const void *barrier) {
  return phase_in(barrier, simt_cluster_rank());
}

static void record_hopper(Record record) {
  if (!state.recording) return;
  if (record.action != TENSOR_LOAD && record.action != TENSOR_STORE) record.memory = MEMORIES;
  append(record);
}

WRAP(void, simt_mbarrier_arrive, void *barrier, unsigned bytes) {
  record_hopper((Record){
      .action = ARRIVE, .target = in_shared(barrier), .bytes = bytes, .phase = phase_of(barrier)});
  __real_simt_mbarrier_arrive(barrier, bytes);
}

/** The phase of this parity that ended last, or the current one. */
static void record_wait(const void *barrier, unsigned parity) {
  const int phase = phase_of(barrier);
  const int awaited = (phase & 1) == (int)parity ? phase : phase - 1;
  record_hopper((Record){.action = AWAIT, .target = in_shared(barrier), .phase = awaited});
}

WRAP(void, simt_mbarrier_wait, void *barrier, unsigned parity) {
  record_wait(barrier, parity);
  __real_simt_mbarrier_wait(barrier, parity);
}

WRAP(void, simt_mbarrier_wait_cluster, void *barrier, unsigned parity) {
  record_wait(barrier, parity);
  __real_simt_mbarrier_wait_cluster(barrier, parity);
}

WRAP(void, simt_mbarrier_arrive_at, void *barrier, unsigned rank) {
  record_hopper((Record){.action = ARRIVE,
                         .target = in_shared_of(barrier, rank),
                         .remote = true,
                         .phase = phase_in(barrier, rank)});
  __real_simt_mbarrier_arrive_at(barrier, rank);
}

WRAP(void, simt_bulk_send, void *target, const void *source, unsigned bytes, void *barrier,
     unsigned rank) {
  record_hopper((Record){.action = SEND,
                         .place = in_shared(source),
                         .target = in_shared_of(target, rank),
                         .bytes = bytes,
                         .barrier = in_shared_of(barrier, rank),
                         .phase = phase_in(barrier, rank)});
  __real_simt_bulk_send(target, source, bytes, barrier, rank);
}

/** The record of a tensor copy: the row and the size of its box. */
static Record copy_record(Action action, const CUtensorMap *map, const void *shared,
                          const int *coordinates) {
  Record record = {.action = (uint8_t)action, .memory = MEMORIES};
  TensorMap known;
  memcpy(&known, map, sizeof known);
  find((const void *)(uintptr_t)known.address, &record);
  record.place = (uint32_t)coordinates[1];
  record.target = in_shared(shared);
  record.bytes = known.element_bytes;
  for (int i = 0; i < known.rank; i++) record.bytes *= known.box[i];
  record.rows = known.box[1];
  record.columns = known.box[0];
  record.first_column = (uint16_t)coordinates[0];
  return record;
}

WRAP(void, simt_tensor_load, void *shared, const CUtensorMap *map, void *barrier,
     const int *coordinates) {
  Record record = copy_record(TENSOR_LOAD, map, shared, coordinates);
  record.barrier = in_shared(barrier);
  record.phase = phase_of(barrier);
  record_hopper(record);
  __real_simt_tensor_load(shared, map, barrier, coordinates);
}

WRAP(void, simt_tensor_store, const CUtensorMap *map, const void *shared, const int *coordinates) {
  record_hopper(copy_record(TENSOR_STORE, map, shared, coordinates));
  __real_simt_tensor_store(map, shared, coordinates);
}

WRAP(void, simt_bulk_wait, unsigned pending) {
  record_other(STORES_READ, pending);
  __real_simt_bulk_wait(pending);
}

/** The place that a descriptor names. */
static uint32_t described(uint64_t descriptor) {
  return in_block((uint32_t)(descriptor & 0x3fff) << 4, simt_cluster_rank());
}

WRAP(void, simt_wgmma, const SimtWgmma *operands) {
  record_hopper((Record){
      .action = WGMMA,
      .place = described(operands->b_descriptor),
      .target = operands->a == NULL ? described(operands->a_descriptor) : (uint32_t)IN_REGISTERS});
  __real_simt_wgmma(operands);
}

WRAP(void, simt_wgmma_commit, void) {
  record_other(WGMMA_COMMIT, 0);
  __real_simt_wgmma_commit();
}

WRAP(void, simt_wgmma_wait, unsigned pending) {
  record_other(WGMMA_WAIT, pending);
  __real_simt_wgmma_wait(pending);
}

WRAP(void, simt_named_barrier, unsigned id, unsigned threads, bool wait) {
  /* At a barrier of one warpgroup no role waits for another. */
  if (threads > GROUP_THREADS) {
    record_hopper((Record){.action = wait ? NAMED_SYNC : NAMED_ARRIVE, .place = id});
  }
  __real_simt_named_barrier(id, threads, wait);
}

WRAP(uint32_t, simt_atomic_32, SimtAtomic operation, void *address, uint32_t operand,
     SimtOrder order) {
  if (order == SIMT_RELAXED) record_other(operation == SIMT_ATOMIC_ADD_FLOAT ? ADD : DRAW, 0);
  if (order == SIMT_RELEASE) record_other(PASS_ON, 0);
  return __real_simt_atomic_32(operation, address, operand, order);
}

WRAP(uint32_t, simt_load_acquire_32, const void *address) {
  record_other(LOOK, 0);
  return __real_simt_load_acquire_32(address);
}

/* --- Loads and stores of the checking build --------------------------------------------------- */

#define HOOK(name, action, size)          \
  void name(const void *address);         \
  void name(const void *address) {        \
    record_access(action, address, size); \
  }

#define HOOKS(size)                             \
  HOOK(__tsan_read##size, READ, size)           \
  HOOK(__tsan_write##size, WRITE, size)         \
  HOOK(__tsan_unaligned_read##size, READ, size) \
  HOOK(__tsan_unaligned_write##size, WRITE, size)

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

#define RANGE_HOOK(name, action)                    \
  void name(const void *address, size_t size);      \
  void name(const void *address, size_t size) {     \
    record_access(action, address, (unsigned)size); \
  }

RANGE_HOOK(__tsan_read_range, READ)
RANGE_HOOK(__tsan_write_range, WRITE)

void __tsan_init(void);
void __tsan_init(void) {}

/** Called for an index outside of an array. The tests of the lab say that there is none. */
void __ubsan_handle_out_of_bounds(void);
void __ubsan_handle_out_of_bounds(void) {
  abort();
}
