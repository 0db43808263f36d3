/*
 * The buffers of shared memory, the mbarriers, and what is loaded. See timeline_roles.h.
 */
#include <stdlib.h>

#include "timeline_roles.h"

Roles all;

int end_of_threads(const Log *log) {
  return (log->blocks - 1) * MOST_BLOCK_THREADS + log->threads;
}

int find_buffer(uint32_t place) {
  for (int i = 0; i < all.buffer_count; i++) {
    if (place >= all.buffers[i].begin && place < all.buffers[i].end) return i;
  }
  return -1;
}

int barrier_at(uint32_t place) {
  for (int i = 0; i < all.barrier_count; i++) {
    if (all.barriers[i].place == place) return i;
  }
  require(all.barrier_count < MOST_BARRIERS, "too many mbarriers");
  all.barriers[all.barrier_count] = (Barrier){.place = place};
  return all.barrier_count++;
}

void add_buffer(uint32_t begin, uint32_t end, int tensor, int full) {
  for (int i = 0; i < all.buffer_count; i++) {
    Buffer *b = &all.buffers[i];
    if (full < 0 || b->full != full || b->tensor != tensor) continue;
    if (begin < b->begin) b->begin = begin;
    if (end > b->end) b->end = end;
    return;
  }
  require(all.buffer_count < MOST_BUFFERS, "too many buffers");
  all.buffers[all.buffer_count++] = (Buffer){begin, end, tensor, full};
}

int find_load(int barrier, int phase, int buffer) {
  for (int i = 0; i < all.load_count; i++) {
    const Load *load = &all.loads[i];
    if (load->barrier == barrier && load->phase == phase && load->buffer == buffer) return i;
  }
  return -1;
}

void add_load(Load load) {
  if (find_load(load.barrier, load.phase, load.buffer) >= 0) return;
  require(all.load_count < MOST_LOADS, "too many tiles");
  all.loads[all.load_count++] = load;
}

static void buffer_of_copy(const Record *r) {
  add_buffer(r->target, r->target + r->bytes, r->memory, barrier_at(r->barrier));
}

/** When the buffers have their numbers. */
static void load_of_copy(const Record *r) {
  const int barrier = barrier_at(r->barrier), buffer = find_buffer(r->target);
  add_load((Load){.barrier = barrier,
                  .phase = r->phase,
                  .buffer = buffer,
                  .first_row = r->place,
                  .first_column = r->first_column});
  Load *load = &all.loads[find_load(barrier, r->phase, buffer)];
  const int end_column = r->first_column + r->columns;
  if (r->place < load->first_row) load->first_row = r->place;
  if (r->place + r->rows > load->end_row) load->end_row = r->place + r->rows;
  if (r->first_column < load->first_column) load->first_column = r->first_column;
  if (end_column > load->end_column) load->end_column = end_column;
}

static void each_tile_copy(const Log *log, void (*use)(const Record *r)) {
  for (int thread = 0; thread < end_of_threads(log); thread += WARP_THREADS) {
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action == TENSOR_LOAD && r->memory <= D_O) use(r); /* others: numbers, of masks */
    }
  }
}

static int by_begin(const void *a, const void *b) {
  return (int)((const Buffer *)a)->begin - (int)((const Buffer *)b)->begin;
}

/** V transposed has the size of V. Its products begin at its first byte, and before them a consumer
 * waits at the mbarrier of what is there. */
static void add_transposed(const Log *log, int thread) {
  uint32_t awaited = 0;
  bool first = true; /* of its group */
  for (size_t i = 0; i < log->counts[thread]; i++) {
    const Record *r = &log->records[thread][i];
    if (r->action == AWAIT) awaited = r->target;
    if (r->action == WGMMA_COMMIT) first = true;
    if (r->action != WGMMA) continue;
    if (first && find_buffer(r->place) < 0) {
      const Buffer *v = NULL;
      for (int b = 0; b < all.buffer_count; b++) {
        if (all.buffers[b].tensor == V) v = &all.buffers[b];
      }
      require(v != NULL, "a product of what was not loaded");
      add_buffer(r->place, r->place + v->end - v->begin, TRANSPOSED, barrier_at(awaited));
    }
    first = false;
  }
}

/** O has a buffer of its own where tensor copies store it from elsewhere than the rows of Q. All
 * warps of a warpgroup have a part of it. */
static void add_output(const Log *log, int group) {
  uint32_t begin = UINT32_MAX, end = 0;
  for (int thread = group; thread < group + GROUP_OF_WARPS; thread++) {
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action != TENSOR_STORE || find_buffer(r->target) >= 0) continue;
      if (r->target < begin) begin = r->target;
      if (r->target + r->bytes > end) end = r->target + r->bytes;
    }
  }
  if (begin < end) add_buffer(begin, end, O, -1);
}

void collect_buffers(const Log *log) {
  all.buffer_count = all.load_count = all.barrier_count = 0;
  each_tile_copy(log, buffer_of_copy);
  add_received(log);
  if (all.backward) add_scores(log);
  for (int group = 0; group < end_of_threads(log); group += GROUP_OF_WARPS) {
    if (!all.backward) add_transposed(log, group);
    add_output(log, group);
  }
  qsort(all.buffers, (size_t)all.buffer_count, sizeof *all.buffers, by_begin);
  each_tile_copy(log, load_of_copy);
}

void collect_barriers(void) {
  for (int i = 0; i < all.barrier_count; i++) all.barriers[i].buffers = 0;
  for (int i = 0; i < all.buffer_count; i++) {
    if (all.buffers[i].full < 0) continue;
    Barrier *b = &all.barriers[all.buffers[i].full];
    b->buffers |= 1ull << i;
    b->is_full = true;
  }
}
