/*
 * Requests of a warp whose lanes are not all at the same access: some lanes may make an access
 * later than others. Accesses form one request if they have the same program counter and are the
 * n-th at it in their lane since the warp last waited. When a log is full, requests that lanes may
 * still join are kept here until they have joined or the warp waits.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* If more requests are kept, all are counted; lanes that come later form requests of their own. */
enum { MOST_KEPT = 1 << 14 };

/** The kept requests of one warp. */
typedef struct Behind {
  bool active;
  unsigned live; /* lanes that were live since the warp last waited */
  Request *requests;
  uint64_t *keys; /* of the requests */
  size_t count;
  Table places; /* 1 + index, by key */
  Table visits; /* how often a lane has executed an instruction */
} Behind;

bool lab_is_behind(const LabWorker *lab, int warp) {
  return lab->behind[warp] != NULL && lab->behind[warp]->active;
}

/** Includes the kind, because one instruction may access both memory spaces. */
static uint64_t key_of(const Record *record, uint32_t number) {
  return (uint64_t)record->pc << 32 | (uint64_t)record->kind << 28 | number;
}

static Request *request_of(Behind *b, const Record *record, uint64_t key) {
  uint32_t *place = lab_entry(&b->places, key);
  if (*place == 0) {
    b->requests = simt_with_room(b->requests, b->count, sizeof *b->requests);
    b->keys = simt_with_room(b->keys, b->count, sizeof *b->keys);
    b->requests[b->count] =
        (Request){.kind = (LabAccessKind)record->kind, .pc = record->pc, .size = record->size};
    b->keys[b->count++] = key;
    *place = (uint32_t)b->count;
  }
  return &b->requests[*place - 1];
}

/** Adds the logs, from record `first` of each lane on; those before it have been counted. */
static void take_logs(LabWorker *lab, int warp, unsigned first, Behind *b) {
  uint16_t *counts = &lab->log_counts[warp * WARP_SIZE];
  b->live |= lab->worker->warps[warp].live;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    const Record *log = lab_log_of(lab, warp, lane);
    for (unsigned k = first; k < counts[lane]; k++) {
      const uint32_t visit = (*lab_entry(&b->visits, key_of(&log[k], (uint32_t)lane)))++;
      Request *request = request_of(b, &log[k], key_of(&log[k], visit));
      request->lanes |= 1u << lane;
      request->addresses[lane] = log[k].address;
      request->copies[lane] = log[k].copy;
    }
    if (counts[lane] != 0) b->live |= 1u << lane;
    counts[lane] = 0;
  }
}

/** Counts the requests that no lane of `going` can still join. */
static void count_complete(LabWorker *lab, int warp, Behind *b, unsigned going) {
  size_t kept = 0;
  lab_clear_table(&b->places);
  for (size_t i = 0; i < b->count; i++) {
    if ((going & ~b->requests[i].lanes) == 0) {
      lab_count_request(lab, &b->requests[i], warp, b->live);
    } else {
      b->requests[kept] = b->requests[i];
      b->keys[kept++] = b->keys[i];
      *lab_entry(&b->places, b->keys[i]) = (uint32_t)kept;
    }
  }
  b->count = kept;
}

void lab_flush_apart(LabWorker *lab, int warp, unsigned first, unsigned going) {
  if (lab->behind[warp] == NULL) lab->behind[warp] = simt_zeroed(1, sizeof *lab->behind[warp]);
  Behind *b = lab->behind[warp];
  b->active = true;
  take_logs(lab, warp, first, b);
  const bool too_many = b->count > MOST_KEPT;
  count_complete(lab, warp, b, too_many ? 0 : going);
  if (going != 0 && (b->count > 0 || too_many)) return; /* the warp stays dirty */
  /* All lanes wait, or all others have executed each instruction equally often. */
  b->active = false;
  b->live = 0;
  lab_clear_table(&b->visits);
  lab->dirty_warps &= ~(1u << warp);
}

void lab_free_behind(LabWorker *lab) {
  for (int warp = 0; warp < MAX_WARPS; warp++) {
    Behind *b = lab->behind[warp];
    if (b == NULL) continue;
    free(b->requests);
    free(b->keys);
    lab_free_table(&b->places);
    lab_free_table(&b->visits);
    free(b);
  }
}
