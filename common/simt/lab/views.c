/*
 * What a thread knows of the other blocks of its cluster: of each one how far it had come, as a
 * clock of its threads in one of its epochs. A View is never changed.
 */
#include <string.h>

#include "internal.h"

Clock *lab_kept_clock(LabWorker *lab, const Clock *clock) {
  const size_t bytes = sizeof *clock + lab->clocks->width * sizeof *clock->of;
  Clock *copy = lab_allocate(lab, bytes);
  memcpy(copy, clock, bytes);
  return copy;
}

static bool covers(const Known *a, const Known *b, size_t width) {
  if (b->epoch == 0 || a->epoch > b->epoch) return true;
  if (a->epoch < b->epoch) return false;
  for (size_t i = 0; i < width && a->clock != b->clock; i++) {
    if (a->clock->of[i] < b->clock->of[i]) return false;
  }
  return true;
}

/** Of one epoch. */
static Known merged(LabWorker *lab, const Known *a, const Known *b, size_t width) {
  Clock *sum = lab_kept_clock(lab, a->clock);
  for (size_t i = 0; i < width; i++) {
    if (sum->of[i] < b->clock->of[i]) sum->of[i] = b->clock->of[i];
  }
  return (Known){a->epoch, sum};
}

const View *lab_join_views(LabWorker *lab, const View *a, const View *b) {
  if (a == NULL || a == b) return b;
  if (b == NULL) return a;
  const size_t width = lab->clocks->width;
  bool is_a = a->started || !b->started, is_b = b->started || !a->started;
  View sum = {.started = a->started || b->started};
  for (int rank = 0; rank < MAX_CLUSTER; rank++) {
    const Known *x = &a->of[rank], *y = &b->of[rank];
    const bool by_a = covers(x, y, width), by_b = covers(y, x, width);
    is_a &= by_a;
    is_b &= by_b;
    sum.of[rank] = by_a ? *x : by_b ? *y : merged(lab, x, y, width);
  }
  if (is_a || is_b) return is_a ? a : b;
  View *own = lab_allocate(lab, sizeof *own);
  *own = sum;
  return own;
}

const View *lab_view_of(const LabWorker *lab, int thread) {
  return lab->talk[thread] != NULL ? lab->talk[thread]->peers : NULL;
}

unsigned lab_unknown(const View *view, unsigned rank, int agent, int warp, unsigned lanes,
                     uint32_t epoch, uint32_t time) {
  if (view == NULL) return lanes;
  const Known *known = &view->of[rank];
  if (known->epoch == 0) return lanes;
  if (agent != BY_THREAD) return known->clock->of[agent] > time ? 0 : lanes;
  if (epoch != known->epoch) return epoch < known->epoch ? 0 : lanes;
  const uint32_t *seen = &known->clock->of[FIRST_THREAD + warp * WARP_SIZE];
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (seen[lane] > time) lanes &= ~(1u << lane);
  }
  return lanes;
}
