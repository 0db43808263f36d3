/*
 * What the threads of a block bring to shared memory, and where it goes. See timeline_tiles.h.
 */
#include "timeline_tiles.h"

#include <stdio.h>
#include <stdlib.h>

enum { LARGEST_PADDING = 32 };

Tiles tiles;

/* --- Transfers -------------------------------------------------------------------------------- */

int find_transfer(int phase, Memory source) {
  for (int i = tiles.transfer_count - 1; i >= 0; i--) {
    if (tiles.transfers[i].phase == phase && tiles.transfers[i].source == source) return i;
  }
  return -1;
}

/** Adds what one thread brings to `target`, from this place of the source. */
static void add_to_transfer(int phase, Memory source, uint32_t place, uint32_t target, bool zeros) {
  int at = find_transfer(phase, source);
  if (at < 0) {
    require(tiles.transfer_count < MOST_TRANSFERS, "too many tiles");
    at = tiles.transfer_count++;
    tiles.transfers[at] = (Transfer){phase, source, UINT32_MAX, 0, INT64_MAX, 0, 0, 0};
  }
  Transfer *t = &tiles.transfers[at];
  const size_t row_bytes = 2 * (size_t)tiles.problem->head_dim;
  const int64_t row = (int64_t)(place / (source == NUMBERS ? sizeof(float) : row_bytes));
  if (target < t->begin) t->begin = target;
  if (target + 16 > t->end) t->end = target + 16;
  if (row < t->first_row) t->first_row = row;
  if (row >= t->end_row) t->end_row = row + 1;
  if (!zeros && row >= t->end_of_read) t->end_of_read = row + 1;
}

bool ends_phase(const Record *r) {
  return r->action == COMMIT || r->action == WAIT || r->action == BARRIER;
}

bool follow_loads(const Record *r, Loaded *loaded) {
  if (r->action == READ && r->memory <= D_O) *loaded = (Loaded){(Memory)r->memory, r->place};
  if (r->action == BARRIER || (r->action == READ && r->memory == SHARED)) loaded->source = MEMORIES;
  return r->action == WRITE && r->memory == SHARED && loaded->source != MEMORIES;
}

static void collect_transfers(const Log *log) {
  tiles.transfer_count = 0;
  for (int thread = 0; thread < log->threads; thread++) {
    Loaded loaded = {.source = MEMORIES};
    int phase = 0;
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      phase += ends_phase(r);
      if (r->action == COPY) {
        add_to_transfer(phase, (Memory)r->memory, r->place, r->target, r->zeros);
      } else if (follow_loads(r, &loaded)) {
        add_to_transfer(phase, loaded.source, loaded.place, r->place, false);
      }
    }
  }
}

/* --- Buffers ---------------------------------------------------------------------------------- */

int buffer_of(uint32_t place) {
  for (int i = 0; i < tiles.buffer_count; i++) {
    if (place >= tiles.buffers[i].begin && place < tiles.buffers[i].end) return i;
  }
  return -1;
}

static void add_part(uint32_t begin, uint32_t end, unsigned holds) {
  for (int i = 0; i < tiles.buffer_count; i++) {
    Buffer *b = &tiles.buffers[i];
    if (end <= b->begin || begin >= b->end) continue;
    if (begin < b->begin) b->begin = begin;
    if (end > b->end) b->end = end;
    b->holds |= holds;
    return;
  }
  require(tiles.buffer_count < MOST_BUFFERS, "too many buffers");
  tiles.buffers[tiles.buffer_count++] = (Buffer){begin, end, holds};
}

static int by_begin(const void *a, const void *b) {
  return (int)((const Buffer *)a)->begin - (int)((const Buffer *)b)->begin;
}

/** What is stored to none of the buffers of the tiles is P, or dS of a backward pass. */
static void collect_buffers(const Log *log, uint32_t shared_bytes) {
  tiles.buffer_count = 0;
  for (int i = 0; i < tiles.transfer_count; i++) {
    add_part(tiles.transfers[i].begin, tiles.transfers[i].end, 1u << tiles.transfers[i].source);
  }
  uint32_t begin = UINT32_MAX, end = 0;
  for (int thread = 0; thread < log->threads; thread++) {
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action != WRITE || r->memory != SHARED || buffer_of(r->place) >= 0) continue;
      if (r->place < begin) begin = r->place;
      if (r->place + r->bytes > end) end = r->place + r->bytes;
    }
  }
  if (begin < end) add_part(begin, end, 0);
  qsort(tiles.buffers, (size_t)tiles.buffer_count, sizeof *tiles.buffers, by_begin);
  for (int i = 0; i < tiles.buffer_count; i++) {
    const uint32_t limit = i + 1 < tiles.buffer_count ? tiles.buffers[i + 1].begin : shared_bytes;
    if (limit - tiles.buffers[i].end <= LARGEST_PADDING) tiles.buffers[i].end = limit;
  }
}

const char *name_of(Memory memory) {
  static const char *const NAMES[] = {"Q",  "K",  "V",   "dO",     "O",        "dQ",
                                      "dK", "dV", "LSE", "LSE, D", "mask bits"};
  return NAMES[memory];
}

void print_buffers(void) {
  printf("\"buffers\": [");
  for (int i = 0; i < tiles.buffer_count; i++) {
    int alike = 0, before = 0;
    for (int j = 0; j < tiles.buffer_count; j++) {
      alike += tiles.buffers[j].holds == tiles.buffers[i].holds;
      before += j < i && tiles.buffers[j].holds == tiles.buffers[i].holds;
    }
    printf("%s\n  {\"name\": \"", i == 0 ? "" : ",");
    const char *separator = "";
    if (tiles.buffers[i].holds == 0) printf(step.backward == NULL ? "P" : "dS");
    for (int m = 0; m < SHARED; m++) {
      if ((tiles.buffers[i].holds >> m & 1) == 0) continue;
      printf("%s%s", separator, name_of((Memory)m));
      separator = "/";
    }
    if (alike > 1) printf("[%d]", before);
    printf("\", \"offset\": %u, \"bytes\": %u}", tiles.buffers[i].begin,
           tiles.buffers[i].end - tiles.buffers[i].begin);
  }
  printf("],\n");
}

void collect_tiles(const Log *log, const Problem *p, uint32_t shared_bytes) {
  tiles.problem = p;
  collect_transfers(log);
  collect_buffers(log, shared_bytes);
}
