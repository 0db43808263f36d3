/*
 * What the roles of backward passes do beside those of forward passes: P and dS pass through shared
 * memory and to other blocks, and dQ is added to sums. See timeline_roles.h.
 */
#include "timeline_roles.h"

enum { OPERAND_ROWS = 16, PANEL_BYTES = 128 }; /* of a transposed operand A */

Op product_of(int a_tensor, int b_tensor) {
  switch (b_tensor) {
    case K:
      return a_tensor == Q ? QK : DQ;
    case Q:
      return a_tensor == K ? QK : DK;
    case D_O:
      return a_tensor == V ? DP : DV;
    default:
      return PV;
  }
}

/* --- Buffers ---------------------------------------------------------------------------------- */

void add_received(const Log *log) {
  for (int thread = 0; thread < end_of_threads(log); thread++) {
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action != SEND) continue;
      add_buffer(r->target, r->target + r->bytes, RECEIVED, barrier_at(r->barrier));
    }
  }
}

/** A tile of dS, as a product reads it after a wait. */
typedef struct Tile {
  uint32_t barrier, begin, end;
  int phase;
} Tile;

static void add_tile(Tile *tiles, int *count, Tile tile) {
  int i = 0;
  while (i < *count && (tiles[i].barrier != tile.barrier || tiles[i].phase != tile.phase)) i++;
  require(i < MOST_LOADS, "too many tiles of dS");
  if (i == *count) tiles[(*count)++] = tile;
  if (tile.begin < tiles[i].begin) tiles[i].begin = tile.begin;
  if (tile.end > tiles[i].end) tiles[i].end = tile.end;
}

/** Adds the buffer of a tile, unless another tile has it. */
static void add_own(uint32_t begin, uint32_t end, int tensor) {
  for (int i = 0; i < all.buffer_count; i++) {
    Buffer *b = &all.buffers[i];
    if (end <= b->begin || begin >= b->end) continue;
    require(b->tensor == tensor, "a tile where another tensor is");
    if (begin < b->begin) b->begin = begin;
    if (end > b->end) b->end = end;
    return;
  }
  add_buffer(begin, end, tensor, -1);
}

/** dS is operand A of dQ. Its tiles may have one mbarrier, but then they are of different phases.
 */
static void add_ds(const Log *log) {
  static Tile tiles[MOST_LOADS];
  int count = 0;
  for (int thread = 0; thread < end_of_threads(log); thread += GROUP_OF_WARPS) {
    Tile tile = {0};
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action == AWAIT) tile = (Tile){.barrier = r->target, .phase = r->phase};
      if (r->action != WGMMA || r->target == (uint32_t)IN_REGISTERS) continue;
      if (find_buffer(r->target) >= 0 || all.buffers[find_buffer(r->place)].tensor != K) continue;
      tile.begin = r->target;
      tile.end = r->target + OPERAND_ROWS * PANEL_BYTES;
      add_tile(tiles, &count, tile);
    }
  }
  for (int i = 0; i < count; i++) add_own(tiles[i].begin, tiles[i].end, DS_TILE);
}

/** What the threads of a warpgroup with exponentials write elsewhere is P. */
static void add_p(const Log *log) {
  for (int group = 0; group < end_of_threads(log); group += GROUP_OF_WARPS) {
    uint32_t begin = UINT32_MAX, end = 0;
    bool has_exponentials = false;
    for (int thread = group; thread < group + GROUP_OF_WARPS; thread++) {
      for (size_t i = 0; i < log->counts[thread]; i++) {
        const Record *r = &log->records[thread][i];
        has_exponentials |= r->action == EXP;
        if (!has_exponentials || r->action != WRITE || r->memory != SHARED) continue;
        if (find_buffer(r->place) >= 0) continue;
        if (r->place < begin) begin = r->place;
        if (r->place + r->bytes > end) end = r->place + r->bytes;
      }
    }
    if (begin < end) add_own(begin, end, P_TILE);
  }
}

void add_scores(const Log *log) {
  add_ds(log);
  add_p(log);
}

/* --- Events ----------------------------------------------------------------------------------- */

static bool writes_p(const Event *e) {
  return e->op == PUT || e->op == SOFTMAX;
}

void show_scores(const Event *e, int barrier, int phase) {
  Barrier *b = &all.barriers[barrier];
  b->buffers |= 1ull << e->buffer;
  b->is_full = true;
  if (writes_p(e) && all.buffers[e->buffer].tensor == DS_TILE) b->content = P_TILE;
  const uint32_t first_row = (uint32_t)(e->tile * all.tile_rows);
  add_load((Load){.barrier = barrier, .phase = phase, .buffer = e->buffer, .first_row = first_row});
}

void send_on(Reader *reader, const Record *r) {
  Event *e = same_event(reader->role, SEND_ON);
  e->barrier = barrier_at(r->barrier);
  e->phase = r->phase;
  e->buffer = find_buffer(r->place);
  e->q_buffer = find_buffer(r->target);
  e->tile = reader->dp_tile;
  require(e->buffer >= 0 && e->q_buffer >= 0, "a copy between blocks of what is no tile");
  all.barriers[e->barrier].is_full = true;
  add_load((Load){.barrier = e->barrier,
                  .phase = e->phase,
                  .buffer = e->q_buffer,
                  .first_row = (uint32_t)(e->tile * all.tile_rows)});
}

/** A store or load of P or dS. A wait just before a store was for the buffer to be free. */
static void access_scores(Reader *reader, const Record *r, int buffer) {
  Role *role = reader->role;
  const bool is_p = reader->scores == QK;
  const Event *before = last_event(role);
  const bool waited = before != NULL && before->op == AWAIT_PHASE;
  if (r->action == WRITE && waited && !all.barriers[before->barrier].is_full) {
    all.barriers[before->barrier].buffers |= 1ull << buffer;
  }
  Event *e;
  if (r->action != WRITE || !is_p) {
    e = same_event(role, DS);
    e->tile = reader->dp_tile;
  } else {
    e = before->op == SOFTMAX ? last_event(role) : same_event(role, PUT);
    e->tile = reader->s_tile;
  }
  *(r->action == WRITE ? &e->buffer : &e->q_buffer) = buffer;
}

static void access_shared(Reader *reader, const Record *r) {
  const int buffer = find_buffer(r->place);
  if (buffer < 0 || !reader->role->multiplies) return; /* LSE, D and the like */
  if (all.buffers[buffer].tensor > MEMORIES) {
    access_scores(reader, r, buffer);
  } else if (r->action == WRITE) {
    same_event(reader->role, OUTPUT)->buffer = buffer;
  }
}

void compute_backward(Reader *reader, const Record *r) {
  Event *e;
  if (r->memory == SHARED) {
    access_shared(reader, r);
  } else if (r->action == EXP) {
    e = same_event(reader->role, SOFTMAX);
    e->tile = reader->s_tile;
    e->count++;
  } else if (r->action == ADD) {
    e = same_event(reader->role, ADD_UP);
    e->tile = reader->dq_tile;
    e->count++;
  } else if (r->action == LOOK || r->action == PASS_ON) {
    same_event(reader->role, r->action == LOOK ? LOOK_AT : HAND_ON);
  } else if (r->action == WRITE && (r->memory == D_K || r->memory == D_V)) {
    same_event(reader->role, OUTPUT)->tensors |= 1u << r->memory;
  }
}
