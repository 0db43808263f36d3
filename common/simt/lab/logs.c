/*
 * Turns the logs of lanes into requests of warps.
 *
 * As long as all lanes of a warp have logged the same program counters, their k-th accesses are one
 * request. After the first difference, behind.c matches the accesses.
 */
#include <string.h>

#include "internal.h"

void lab_log(LabWorker *lab, LabAccessKind kind, uintptr_t address, unsigned size, uint32_t pc,
             unsigned copy) {
  const int thread = lab_thread(lab);
  if (lab->log_counts[thread] == LOG_RECORDS) simt_hold(); /* the warp's logs are emptied */
  const unsigned at = lab->log_counts[thread]++;
  lab->logs[(size_t)thread * LOG_RECORDS + at] =
      (Record){address, pc, (uint8_t)size, (uint8_t)kind, (uint16_t)copy};
  lab->dirty_warps |= 1u << thread / WARP_SIZE;
}

/** Gathers the k-th accesses of `lanes` into a request; false if their pc or kind differ. */
static bool gather(const LabWorker *lab, int warp, unsigned lanes, unsigned k, Request *request) {
  const Record *first = &lab_log_of(lab, warp, __builtin_ctz(lanes))[k];
  *request = (Request){
      .kind = (LabAccessKind)first->kind, .pc = first->pc, .size = first->size, .lanes = lanes};
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const Record *record = &lab_log_of(lab, warp, lane)[k];
    if (record->pc != first->pc || record->kind != first->kind) return false;
    request->addresses[lane] = record->address;
    request->copies[lane] = record->copy;
  }
  return true;
}

/** Empties the logs of a warp whose lanes all wait, or are all at the same access. */
static void flush_all(LabWorker *lab, int warp) {
  uint16_t *counts = &lab->log_counts[warp * WARP_SIZE];
  unsigned lanes = 0, least = LOG_RECORDS, most = 0;
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (counts[lane] == 0) continue;
    lanes |= 1u << lane;
    if (counts[lane] < least) least = counts[lane];
    if (counts[lane] > most) most = counts[lane];
  }
  const unsigned live = lab->worker->warps[warp].live | lanes;
  unsigned k = 0;
  for (Request request; k < least && gather(lab, warp, lanes, k, &request); k++) {
    lab_count_request(lab, &request, warp, live);
  }
  if (k < most) {
    lab_flush_apart(lab, warp, k, 0);
    return;
  }
  memset(counts, 0, WARP_SIZE * sizeof *counts);
  lab->dirty_warps &= ~(1u << warp);
}

/** Have these lanes logged the same accesses, so that all continue from the same one? */
static bool in_step(const LabWorker *lab, int warp, unsigned lanes) {
  const int first_lane = __builtin_ctz(lanes);
  const Record *first = lab_log_of(lab, warp, first_lane);
  const unsigned count = lab->log_counts[warp * WARP_SIZE + first_lane];
  for (unsigned rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const Record *log = lab_log_of(lab, warp, lane);
    if (lab->log_counts[warp * WARP_SIZE + lane] != count) return false;
    for (unsigned k = 0; k < count; k++) {
      if (log[k].pc != first[k].pc || log[k].kind != first[k].kind) return false;
    }
  }
  return true;
}

void lab_flush_warp(LabWorker *lab, int warp) {
  const Warp *w = &lab->worker->warps[warp];
  const unsigned going = w->ready | w->held; /* these wait for no other thread */
  if (lab_is_behind(lab, warp) || (going != 0 && !in_step(lab, warp, going))) {
    lab_flush_apart(lab, warp, 0, going);
  } else {
    flush_all(lab, warp);
  }
}
