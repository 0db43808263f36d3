/*
 * From the records of a thread block to the events of its roles. See timeline_roles.h.
 */
#include "timeline_roles.h"

#include <stdlib.h>

static Roles all;

/* --- Buffers, mbarriers and tiles ------------------------------------------------------------- */

static int find_buffer(uint32_t place) {
  for (int i = 0; i < all.buffer_count; i++) {
    if (place >= all.buffers[i].begin && place < all.buffers[i].end) return i;
  }
  return -1;
}

static int barrier_at(uint32_t place) {
  for (int i = 0; i < all.barrier_count; i++) {
    if (all.barriers[i].place == place) return i;
  }
  require(all.barrier_count < MOST_BARRIERS, "too many mbarriers");
  all.barriers[all.barrier_count] = (Barrier){place, -1, false};
  return all.barrier_count++;
}

static void add_buffer(uint32_t begin, uint32_t end, int tensor, int full) {
  for (int i = 0; i < all.buffer_count; i++) {
    Buffer *b = &all.buffers[i];
    if (full < 0 || b->full != full) continue;
    if (begin < b->begin) b->begin = begin;
    if (end > b->end) b->end = end;
    return;
  }
  require(all.buffer_count < MOST_BUFFERS, "too many buffers");
  all.buffers[all.buffer_count++] = (Buffer){begin, end, tensor, full};
}

static int find_load(int barrier, int phase) {
  for (int i = 0; i < all.load_count; i++) {
    if (all.loads[i].barrier == barrier && all.loads[i].phase == phase) return i;
  }
  return -1;
}

static void add_load(const Record *r) {
  const int barrier = barrier_at(r->barrier);
  int at = find_load(barrier, r->phase);
  if (at < 0) {
    require(all.load_count < MOST_LOADS, "too many tiles");
    at = all.load_count++;
    all.loads[at] = (Load){barrier, r->phase, (Memory)r->memory, r->place, 0};
  }
  if (r->place < all.loads[at].first_row) all.loads[at].first_row = r->place;
  if (r->place + r->rows > all.loads[at].end_row) all.loads[at].end_row = r->place + r->rows;
  add_buffer(r->target, r->target + r->bytes, (Memory)r->memory, barrier);
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
static void collect_buffers(const Log *log) {
  all.buffer_count = all.load_count = all.barrier_count = 0;
  for (int thread = 0; thread < log->threads; thread += WARP_THREADS) {
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action == TENSOR_LOAD && r->memory <= V) add_load(r); /* others belong to masks */
    }
  }
  for (int group = 0; group < log->threads; group += GROUP_OF_WARPS) {
    add_transposed(log, group);
    uint32_t begin = UINT32_MAX, end = 0;
    for (int thread = group; thread < group + GROUP_OF_WARPS; thread++) {
      for (size_t i = 0; i < log->counts[thread]; i++) {
        const Record *r = &log->records[thread][i];
        if (r->action != TENSOR_STORE || find_buffer(r->target) >= 0) continue;
        if (r->target < begin) begin = r->target;
        if (r->target + r->bytes > end) end = r->target + r->bytes;
      }
    }
    if (begin >= end) continue;
    require(all.buffer_count < MOST_BUFFERS, "too many buffers");
    all.buffers[all.buffer_count++] = (Buffer){begin, end, O, -1};
  }
  qsort(all.buffers, (size_t)all.buffer_count, sizeof *all.buffers, by_begin);
  for (int i = 0; i < all.buffer_count; i++) {
    if (all.buffers[i].full < 0) continue;
    all.barriers[all.buffers[i].full].buffer = i;
    all.barriers[all.buffers[i].full].is_full = true;
  }
}

/* --- Events ----------------------------------------------------------------------------------- */

/** A role while its records are read in order. */
typedef struct Reader {
  Role *role;
  bool began, open;       /* a wgmma since the last commit */
  int seen[MOST_BUFFERS]; /* the last load that was waited for */
  int groups, done;       /* committed, complete */
  int s_tile, pv_tile;    /* of the last product that is complete, that was started */
  int tile_of_group[MOST_EVENTS];
  int told; /* the event that told of a tile of queries and has no buffer yet, -1: none */
  uint32_t told_place; /* where it wrote */
} Reader;

static Event *last_event(Role *role) {
  return role->count == 0 ? NULL : &role->events[role->count - 1];
}

static Event *add_event(Role *role, Op op) {
  require(role->count < MOST_EVENTS, "too many events");
  Event *e = &role->events[role->count++];
  *e = (Event){.op = op, .barrier = -1, .buffer = -1, .q_buffer = -1, .tile = -1, .load = -1};
  return e;
}

/** The last event, if it is such an one, or a new one. */
static Event *same_event(Role *role, Op op) {
  Event *e = last_event(role);
  return e != NULL && e->op == op ? e : add_event(role, op);
}

/** An arrival that expects bytes. A wait just before it is for the buffer to be free. What was
 * written between the two belongs to the tile of keys. */
static void ask(Reader *reader, const Record *r) {
  Role *role = reader->role;
  if (last_event(role) != NULL && last_event(role)->op == TELL) {
    role->count--;
    reader->told = -1;
  }
  const Event *before = last_event(role);
  const int barrier = barrier_at(r->target);
  if (before != NULL && before->op == AWAIT_PHASE) {
    all.barriers[before->barrier].buffer = all.barriers[barrier].buffer;
  }
  Event *e = add_event(role, ASK);
  e->barrier = barrier;
  e->phase = r->phase;
  e->buffer = all.barriers[barrier].buffer;
  role->loads_q |= all.buffers[e->buffer].tensor == Q;
  role->loads_k |= all.buffers[e->buffer].tensor == K;
}

/** What a warp has transposed is a load for those who wait at this mbarrier. The wait before was
 * for the buffer to be free. */
static void show_transposed(Event *e, int barrier, int phase) {
  const int buffer = all.barriers[barrier].buffer;
  const Event *before = e - 1;
  e->buffer = buffer;
  require(before->op == AWAIT_PHASE, "a transposition without a wait");
  all.barriers[before->barrier].buffer = buffer;
  if (find_load(barrier, phase) >= 0) return;
  require(all.load_count < MOST_LOADS, "too many tiles");
  all.loads[all.load_count] = all.loads[e->load];
  all.loads[all.load_count].barrier = barrier;
  all.loads[all.load_count++].phase = phase;
}

static void arrive(Reader *reader, const Record *r) {
  Role *role = reader->role;
  const int barrier = barrier_at(r->target);
  Event *before = last_event(role);
  if (before != NULL && before->op == TRANSPOSE) show_transposed(before, barrier, r->phase);
  if (reader->told >= 0) { /* it shows a tile of queries, and the wait before was for its readers */
    Event *told = &role->events[reader->told];
    add_buffer(reader->told_place, reader->told_place + 4, MEMORIES, -1);
    told->buffer = all.buffer_count - 1;
    all.barriers[told[-1].barrier].buffer = all.barriers[barrier].buffer = told->buffer;
    all.barriers[barrier].is_full = true;
    reader->told = -1;
  }
  Event *e = add_event(role, ARRIVE_AT);
  e->barrier = barrier;
  e->phase = r->phase;
}

/** A load by ldmatrix in a role that does not multiply. */
static void transpose(Reader *reader, const Record *r) {
  Event *e = same_event(reader->role, TRANSPOSE);
  e->count++;
  e->q_buffer = find_buffer(r->place);
  require(e->q_buffer >= 0 && reader->seen[e->q_buffer] >= 0,
          "a transposition of what no wait was for");
  e->load = reader->seen[e->q_buffer];
  e->tile = (int)all.loads[e->load].first_row / all.keys_per_tile;
}

/** A second wait for a phase that has ended is no event. */
static void await(Reader *reader, const Record *r) {
  const int barrier = barrier_at(r->target);
  for (int i = reader->role->count - 1; i >= 0; i--) {
    const Event *before = &reader->role->events[i];
    if (before->op != AWAIT_PHASE || before->barrier != barrier) continue;
    if (before->phase == r->phase) return;
    break;
  }
  Event *e = add_event(reader->role, AWAIT_PHASE);
  e->barrier = barrier_at(r->target);
  e->phase = r->phase;
  const Barrier *b = &all.barriers[e->barrier];
  if (b->is_full) reader->seen[b->buffer] = find_load(e->barrier, e->phase);
}

static void product(Reader *reader, const Record *r) {
  const Op op = r->target == (uint32_t)IN_REGISTERS ? PV : QK;
  if (!reader->open) add_event(reader->role, op);
  Event *e = last_event(reader->role);
  reader->open = reader->role->multiplies = true;
  e->count++;
  if (e->count > 1) return;
  e->buffer = find_buffer(r->place);
  require(e->buffer >= 0 && reader->seen[e->buffer] >= 0, "a product of what no wait was for");
  e->tile = (int)all.loads[reader->seen[e->buffer]].first_row / all.keys_per_tile;
  e->group = reader->groups;
  if (op == QK) e->q_buffer = find_buffer(r->target);
  if (op == PV) reader->pv_tile = e->tile;
}

static void complete(Reader *reader, const Record *r) {
  Event *e = add_event(reader->role, COMPLETE);
  e->number = r->pending;
  e->first_done = reader->done;
  if (reader->groups - r->pending > reader->done) reader->done = reader->groups - r->pending;
  e->end_done = reader->done;
  for (int i = e->first_done; i < e->end_done; i++) {
    if (reader->tile_of_group[i] >= 0) reader->s_tile = reader->tile_of_group[i];
  }
}

/** Exponentials and shuffles belong to the tile whose S is complete and whose P V has not begun. */
static void compute(Reader *reader, const Record *r) {
  if (!reader->role->multiplies) return;
  const bool is_softmax = reader->s_tile > reader->pv_tile;
  const Op last = last_event(reader->role)->op;
  if (r->action == READ && last != SOFTMAX && last != OUTPUT) return;
  Event *e = same_event(reader->role, is_softmax ? SOFTMAX : OUTPUT);
  if (is_softmax) {
    e->tile = reader->s_tile;
  } else if (r->action == WRITE && r->memory == SHARED) {
    e->buffer = find_buffer(r->place);
  }
  e->count += r->action == EXP;
  e->shuffles += r->action == SHUFFLE;
  e->votes += r->action == VOTE;
}

/** A store or load of shared memory: the number of the next tile of queries, or a part of O. */
static void access_shared(Reader *reader, const Record *r) {
  const Event *before = last_event(reader->role);
  const bool waited = before != NULL && before->op == AWAIT_PHASE;
  const int buffer = waited ? all.barriers[before->barrier].buffer : -1;
  if (!waited ||
      (find_buffer(r->place) >= 0 && all.buffers[find_buffer(r->place)].tensor != MEMORIES) ||
      (buffer >= 0 && all.buffers[buffer].tensor != MEMORIES)) {
    compute(reader, r);
    return;
  }
  add_event(reader->role, r->action == READ ? LEARN : TELL)->buffer = buffer;
  reader->s_tile = reader->pv_tile = -1;
  require(buffer >= 0 || r->action == WRITE, "a number that nobody has written");
  if (buffer >= 0) return;
  reader->told = reader->role->count - 1;
  reader->told_place = r->place;
}

static void add_record(Reader *reader, const Record *r) {
  Role *role = reader->role;
  if (r->action == BARRIER) reader->began = true;
  if (!reader->began) return;
  if (r->action == ARRIVE && r->bytes > 0) {
    ask(reader, r);
  } else if (r->action == ARRIVE) {
    arrive(reader, r);
  } else if (r->action == LDMATRIX && !role->multiplies) {
    transpose(reader, r);
  } else if (r->action == AWAIT) {
    await(reader, r);
  } else if (r->action == TENSOR_LOAD) {
    Event *e = last_event(role);
    require(e != NULL && e->op == ASK, "a copy without an arrival");
    e->load = find_load(barrier_at(r->barrier), r->phase);
    e->count++;
  } else if (r->action == TENSOR_STORE) {
    Event *e = same_event(role, STORE);
    e->buffer = find_buffer(r->target);
    e->count++;
  } else if (r->action == STORES_READ) {
    add_event(role, STORED);
  } else if (r->action == WGMMA) {
    product(reader, r);
  } else if (r->action == WGMMA_COMMIT) {
    const Event *e = last_event(role);
    reader->tile_of_group[reader->groups++] = e->op == QK ? e->tile : -1;
    reader->open = false;
  } else if (r->action == WGMMA_WAIT) {
    complete(reader, r);
  } else if (r->action == NAMED_SYNC || r->action == NAMED_ARRIVE) {
    add_event(role, r->action == NAMED_SYNC ? TURN : PASS)->number = (int)r->place;
  } else if (r->action == DRAW) {
    add_event(role, DRAW_NUMBER);
  } else if ((r->action == READ || r->action == WRITE) && r->memory == SHARED) {
    access_shared(reader, r);
  } else if (r->action != BARRIER && r->action != READ) {
    compute(reader, r);
  }
}

static bool does(const Log *log, int thread, Action action) {
  for (size_t i = 0; i < log->counts[thread]; i++) {
    if (log->records[thread][i].action == action) return true;
  }
  return false;
}

/** A warpgroup that multiplies is one role; of another, each warp that waits for something. */
static void collect_roles(const Log *log) {
  all.role_count = 0;
  for (int thread = 0; thread < log->threads; thread += WARP_THREADS) {
    const bool multiplies = does(log, thread, WGMMA);
    if (multiplies ? thread % GROUP_OF_WARPS != 0 : !does(log, thread, AWAIT)) continue;
    require(all.role_count < MOST_ROLES, "too many roles");
    all.roles[all.role_count].thread = thread;
    all.roles[all.role_count].count = all.roles[all.role_count].placed = 0;
    all.roles[all.role_count].loads_q = all.roles[all.role_count].loads_k = false;
    all.roles[all.role_count++].multiplies = false;
  }
}

static void collect_events(const Log *log) {
  for (int i = 0; i < all.role_count; i++) {
    static Reader reader;
    reader = (Reader){.role = &all.roles[i], .s_tile = -1, .pv_tile = -1, .told = -1};
    for (int b = 0; b < MOST_BUFFERS; b++) reader.seen[b] = -1;
    const int thread = all.roles[i].thread;
    for (size_t r = 0; r < log->counts[thread]; r++) {
      add_record(&reader, &log->records[thread][r]);
    }
  }
}

void print_roles(const Log *log, int block_n) {
  all.keys_per_tile = block_n;
  collect_buffers(log);
  collect_roles(log);
  collect_events(log);
  place_events(&all);
  print_columns(&all);
}
