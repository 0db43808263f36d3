/*
 * A log is full, and the lanes of its warp are not all at the same access: some may come later to
 * what others have done. What they may still join is kept here, together with how often each lane
 * has been at each instruction, until they have joined it or the warp waits.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* So many requests are kept; behind by more, lanes make requests of their own. */
enum { MOST_KEPT = 1 << 14 };

/** Of one warp. */
typedef struct Behind {
  bool active;
  unsigned live; /* lanes that were live since the warp last waited */
  Request *requests;
  uint32_t *visits; /* which visit of its lanes each request is */
  size_t count, capacity;
  uint32_t *slots; /* open addressing: 1 + index; 0: free */
  size_t slot_count;
  uint32_t (*visited)[WARP_SIZE]; /* how often, by instruction_of() and lane */
  size_t visited_count;
} Behind;

bool lab_is_behind(const LabWorker *lab, int warp) {
  return lab->behind[warp] != NULL && lab->behind[warp]->active;
}

static void *grown(void *memory, size_t count, size_t size) {
  void *larger = realloc(memory, count * size);
  if (larger == NULL) abort();
  return larger;
}

/* --- Visits --------------------------------------------------------------------------------- */

/** A number for what the record tells of: an instruction may use one memory and another. */
static size_t instruction_of(LabWorker *lab, const Record *record) {
  const bool shared =
      record->kind == SHARED_LOAD || record->kind == SHARED_STORE || record->kind == COPY_SHARED;
  return 2 * (size_t)lab_site(&lab->sites, record->pc) + shared;
}

/** How often the lane has been there before; one more from now on. */
static uint32_t visit(Behind *b, size_t instruction, int lane) {
  if (instruction >= b->visited_count) {
    const size_t count = 2 * instruction + 64;
    b->visited = grown(b->visited, count, sizeof *b->visited);
    memset(&b->visited[b->visited_count], 0, (count - b->visited_count) * sizeof *b->visited);
    b->visited_count = count;
  }
  return b->visited[instruction][lane]++;
}

/* --- Requests in the making ------------------------------------------------------------------ */

static uint32_t *slot_of(const Behind *b, uint32_t pc, uint32_t kind, uint32_t visits) {
  const uint32_t mixed = pc * 0x9e3779b1u ^ kind * 0x85ebca6bu ^ visits * 0xc2b2ae35u;
  for (size_t slot = (mixed * 0x27d4eb2fu >> 8) % b->slot_count;;
       slot = (slot + 1) % b->slot_count) {
    if (b->slots[slot] == 0) return &b->slots[slot];
    const size_t i = b->slots[slot] - 1;
    const Request *request = &b->requests[i];
    if (request->pc == pc && request->kind == kind && b->visits[i] == visits)
      return &b->slots[slot];
  }
}

static void find_anew(Behind *b) {
  memset(b->slots, 0, b->slot_count * sizeof *b->slots);
  for (size_t i = 0; i < b->count; i++) {
    const Request *request = &b->requests[i];
    *slot_of(b, request->pc, request->kind, b->visits[i]) = (uint32_t)i + 1;
  }
}

static void grow(Behind *b) {
  b->capacity = 2 * b->capacity + 256;
  b->slot_count = 2 * b->capacity;
  b->requests = grown(b->requests, b->capacity, sizeof *b->requests);
  b->visits = grown(b->visits, b->capacity, sizeof *b->visits);
  b->slots = grown(b->slots, b->slot_count, sizeof *b->slots);
  find_anew(b);
}

static Request *request_of(Behind *b, const Record *record, uint32_t visits) {
  if (b->count == b->capacity) grow(b);
  uint32_t *slot = slot_of(b, record->pc, record->kind, visits);
  if (*slot == 0) {
    b->requests[b->count] =
        (Request){.kind = (RecordKind)record->kind, .pc = record->pc, .size = record->size};
    b->visits[b->count++] = visits;
    *slot = (uint32_t)b->count;
  }
  return &b->requests[*slot - 1];
}

static void take_logs(LabWorker *lab, int warp, Behind *b) {
  uint16_t *counts = &lab->log_counts[warp * WARP_SIZE];
  b->live |= lab->worker->warps[warp].live;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const Record *log = lab_log_of(lab, warp, lane);
    for (unsigned k = 0; k < counts[lane]; k++) {
      const uint32_t visits = visit(b, instruction_of(lab, &log[k]), lane);
      Request *request = request_of(b, &log[k], visits);
      request->lanes |= 1u << lane;
      request->addresses[lane] = log[k].address;
      request->copies[lane] = log[k].copy;
    }
    if (counts[lane] != 0) b->live |= 1u << lane;
    counts[lane] = 0;
  }
}

/** Counts the requests that none of the lanes `going` can join any more. */
static void count_complete(LabWorker *lab, int warp, Behind *b, unsigned going) {
  size_t kept = 0;
  for (size_t i = 0; i < b->count; i++) {
    if ((going & ~b->requests[i].lanes) == 0) {
      lab_count_request(lab, &b->requests[i], warp, b->live);
    } else {
      b->requests[kept] = b->requests[i];
      b->visits[kept++] = b->visits[i];
    }
  }
  b->count = kept;
  find_anew(b);
}

void lab_flush_some(LabWorker *lab, int warp, unsigned going) {
  if (lab->behind[warp] == NULL) lab->behind[warp] = calloc(1, sizeof *lab->behind[warp]);
  Behind *b = lab->behind[warp];
  if (b == NULL) abort();
  b->active = true;
  take_logs(lab, warp, b);
  const bool too_many = b->count > MOST_KEPT;
  count_complete(lab, warp, b, too_many ? 0 : going);
  if (going != 0 && (b->count > 0 || too_many)) return; /* the warp stays dirty */
  /* All wait; or all that go on have been at each instruction equally often. */
  b->active = false;
  b->live = 0;
  if (b->visited_count != 0) memset(b->visited, 0, b->visited_count * sizeof *b->visited);
  lab->dirty_warps &= ~(1u << warp);
}

void lab_free_behind(LabWorker *lab) {
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    Behind *b = lab->behind[warp];
    if (b == NULL) continue;
    free(b->requests);
    free(b->visits);
    free(b->slots);
    free(b->visited);
    free(b);
  }
}
