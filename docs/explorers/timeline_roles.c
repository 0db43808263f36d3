/*
 * From the records of a thread block to the events of its roles. See timeline_roles.h.
 */
#include "timeline_roles.h"

Event *last_event(Role *role) {
  return role->count == 0 ? NULL : &role->events[role->count - 1];
}

Event *add_event(Role *role, Op op) {
  require(role->count < MOST_EVENTS, "too many events");
  Event *e = &role->events[role->count++];
  *e = (Event){.op = op, .barrier = -1, .buffer = -1, .q_buffer = -1, .tile = -1, .load = -1};
  return e;
}

/** The last event, if it is such an one, or a new one. */
Event *same_event(Role *role, Op op) {
  Event *e = last_event(role);
  return e != NULL && e->op == op ? e : add_event(role, op);
}

/** The only buffer of a barrier; -1: it has none or several. */
static int only_buffer(int barrier) {
  const uint64_t buffers = all.barriers[barrier].buffers;
  return buffers != 0 && (buffers & (buffers - 1)) == 0 ? __builtin_ctzll(buffers) : -1;
}

/** An arrival that expects bytes. A wait just before it is for the buffer to be free, unless it is
 * for something else to be there. What was written between the two belongs to the tile of keys. */
static void ask(Reader *reader, const Record *r) {
  Role *role = reader->role;
  if (last_event(role) != NULL && last_event(role)->op == TELL) {
    role->count--;
    reader->told = -1;
  }
  const Event *before = last_event(role);
  const int barrier = barrier_at(r->target);
  if (before != NULL && before->op == ASK && before->barrier == barrier &&
      before->phase == r->phase) {
    return; /* the same phase: of a tile and of its LSE or D */
  }
  if (before != NULL && before->op == AWAIT_PHASE && !all.barriers[before->barrier].is_full) {
    all.barriers[before->barrier].buffers = all.barriers[barrier].buffers;
  }
  Event *e = add_event(role, ASK);
  e->barrier = barrier;
  e->phase = r->phase;
  e->buffer = only_buffer(barrier);
}

/** A box. Those of several tensors may have the same mbarrier: each tensor is an event. */
static void copy(Reader *reader, const Record *r) {
  Role *role = reader->role;
  Event *e = last_event(role);
  require(e != NULL && e->op == ASK, "a copy without an arrival");
  const int buffer = find_buffer(r->target), barrier = e->barrier, phase = e->phase;
  if (buffer >= 0 && e->buffer < 0) e->buffer = buffer;
  while (buffer >= 0 && e->buffer != buffer && e > role->events && e[-1].op == ASK &&
         e[-1].barrier == barrier) {
    e--;
  }
  if (buffer >= 0 && e->buffer != buffer) {
    e = add_event(role, ASK);
    e->barrier = barrier;
    e->phase = phase;
    e->buffer = buffer;
  }
  e->numbers |= r->memory == NUMBERS;
  e->count++;
  if (buffer < 0) return;
  e->load = find_load(barrier, phase, buffer);
  role->loads |= 1u << r->memory;
}

/** What a warp has transposed is a load for those who wait at this mbarrier. The wait before was
 * for the buffer to be free. */
static void show_transposed(Event *e, int barrier, int phase) {
  const Event *before = e - 1;
  e->buffer = only_buffer(barrier);
  require(before->op == AWAIT_PHASE, "a transposition without a wait");
  all.barriers[before->barrier].buffers = all.barriers[barrier].buffers;
  Load load = all.loads[e->load];
  load.barrier = barrier, load.phase = phase, load.buffer = e->buffer;
  add_load(load);
}

/** The number of the next tile of queries is shown, and the wait before was for its readers. */
static void show_number(Reader *reader, int barrier) {
  Event *told = &reader->role->events[reader->told];
  if (find_buffer(reader->told_place) < 0) {
    add_buffer(reader->told_place, reader->told_place + 4, MEMORIES, -1);
  }
  told->buffer = find_buffer(reader->told_place);
  all.barriers[told[-1].barrier].buffers = all.barriers[barrier].buffers = 1ull << told->buffer;
  all.barriers[barrier].is_full = true;
  reader->told = -1;
}

static void arrive(Reader *reader, const Record *r) {
  Role *role = reader->role;
  const int barrier = barrier_at(r->target);
  Event *before = last_event(role);
  const bool shows =
      before != NULL && (before->op == DS || before->op == PUT || before->op == SEND_ON ||
                         (before->op == SOFTMAX && before->buffer >= 0));
  if (before != NULL && before->op == TRANSPOSE) show_transposed(before, barrier, r->phase);
  if (all.backward && shows) show_scores(before, barrier, r->phase);
  if (reader->told >= 0) show_number(reader, barrier);
  Event *e = add_event(role, ARRIVE_AT);
  e->barrier = barrier;
  e->phase = r->phase;
}

/** The n-th arrival of another lane of the warp at an mbarrier that may be of another block. */
static void arrive_of_lanes(Reader *reader) {
  for (int lane = 1; lane < WARP_THREADS; lane++) {
    const int thread = reader->role->thread + lane;
    int n = 0;
    for (size_t i = 0; i < reader->log->counts[thread]; i++) {
      const Record *r = &reader->log->records[thread][i];
      if (r->remote && n++ == reader->remotes) arrive(reader, r);
    }
  }
  reader->remotes++;
}

static int tile_of(int load) {
  return (int)all.loads[load].first_row / all.tile_rows;
}

/** A load by ldmatrix in a role that does not multiply. */
static void transpose(Reader *reader, const Record *r) {
  Event *e = same_event(reader->role, TRANSPOSE);
  e->count++;
  e->q_buffer = find_buffer(r->place);
  require(e->q_buffer >= 0 && reader->seen[e->q_buffer] >= 0,
          "a transposition of what no wait was for");
  e->load = reader->seen[e->q_buffer];
  e->tile = tile_of(e->load);
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
  for (int i = 0; i < all.load_count; i++) {
    const Load *load = &all.loads[i];
    if (load->barrier == barrier && load->phase == r->phase) reader->seen[load->buffer] = i;
  }
}

static void product(Reader *reader, const Record *r) {
  Role *role = reader->role;
  const int b = find_buffer(r->place);
  const int a = r->target == (uint32_t)IN_REGISTERS ? -1 : find_buffer(r->target);
  require(b >= 0, "a product of what is in no buffer");
  const Op op = product_of(a < 0 ? -1 : all.buffers[a].tensor, all.buffers[b].tensor);
  if (!reader->open) add_event(role, op);
  Event *e = last_event(role);
  reader->open = role->multiplies = true;
  role->is_consumer |= op != DQ;
  e->count++;
  e->reads |= 1ull << b | (a >= 0 ? 1ull << a : 0);
  if (a >= 0 && e->q_buffer < 0) e->q_buffer = a;
  if (e->count > 1) return;
  const int streams = op == DQ ? a : b;
  const int seen = reader->seen[streams];
  require(seen >= 0 || !all.known, "a product of what no wait was for");
  e->buffer = b;
  e->tile = seen < 0 ? -1 : tile_of(seen);
  e->group = reader->groups;
  if (op == PV) reader->pv_tile = e->tile;
}

static void commit(Reader *reader) {
  reader->product_of_group[reader->groups++] = reader->role->count - 1;
  reader->open = false;
}

static void complete(Reader *reader, const Record *r) {
  Event *e = add_event(reader->role, COMPLETE);
  e->number = r->pending;
  e->first_done = reader->done;
  if (reader->groups - r->pending > reader->done) reader->done = reader->groups - r->pending;
  e->end_done = reader->done;
  for (int i = e->first_done; i < e->end_done; i++) {
    const Event *of = &reader->role->events[reader->product_of_group[i]];
    if (of->op == QK) reader->s_tile = of->tile;
    if (of->op == DP) reader->dp_tile = of->tile;
    if (of->op == DQ) reader->dq_tile = of->tile;
    if (of->op == QK || of->op == DP) reader->scores = of->op;
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
  const int buffer = waited ? only_buffer(before->barrier) : -1;
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
    /* What another block sends is expected by what this one has sent. */
    (last_event(role) != NULL && last_event(role)->op == SEND_ON ? arrive : ask)(reader, r);
  } else if (r->action == ARRIVE) {
    arrive(reader, r);
    if (r->remote) arrive_of_lanes(reader);
  } else if (r->action == SEND) {
    send_on(reader, r);
  } else if (r->action == LDMATRIX && !role->multiplies) {
    transpose(reader, r);
  } else if (r->action == AWAIT) {
    await(reader, r);
  } else if (r->action == TENSOR_LOAD) {
    copy(reader, r);
  } else if (r->action == TENSOR_STORE) {
    Event *e = same_event(role, STORE);
    e->buffer = find_buffer(r->target);
    e->tensors |= 1u << r->memory;
    e->count++;
  } else if (r->action == STORES_READ) {
    add_event(role, STORED);
  } else if (r->action == WGMMA) {
    product(reader, r);
  } else if (r->action == WGMMA_COMMIT) {
    commit(reader);
  } else if (r->action == WGMMA_WAIT) {
    complete(reader, r);
  } else if (r->action == NAMED_SYNC || r->action == NAMED_ARRIVE) {
    add_event(role, r->action == NAMED_SYNC ? TURN : PASS)->number = (int)r->place;
  } else if (r->action == DRAW) {
    add_event(role, DRAW_NUMBER);
  } else if (all.backward) {
    compute_backward(reader, r);
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

/** A warpgroup that multiplies is one role; of another, each warp that loads or waits. */
static void collect_roles(const Log *log) {
  all.role_count = 0;
  for (int thread = 0; thread < end_of_threads(log); thread += WARP_THREADS) {
    const bool multiplies = does(log, thread, WGMMA);
    const bool works = does(log, thread, AWAIT) || does(log, thread, TENSOR_LOAD);
    if (multiplies ? thread % GROUP_OF_WARPS != 0 : !works) continue;
    require(all.role_count < MOST_ROLES, "too many roles");
    all.roles[all.role_count++].thread = thread;
  }
}

static void collect_events(const Log *log) {
  for (int i = 0; i < all.role_count; i++) {
    static Reader reader;
    Role *role = &all.roles[i];
    role->count = role->placed = 0;
    role->loads = 0;
    role->multiplies = role->is_consumer = false;
    reader = (Reader){.role = role,
                      .log = log,
                      .s_tile = -1,
                      .pv_tile = -1,
                      .dp_tile = -1,
                      .dq_tile = -1,
                      .told = -1};
    for (int b = 0; b < MOST_BUFFERS; b++) reader.seen[b] = -1;
    for (size_t r = 0; r < log->counts[role->thread]; r++) {
      add_record(&reader, &log->records[role->thread][r]);
    }
  }
}

void print_roles(const Log *log, const Problem *p, const Description *d) {
  all.backward = step.backward != NULL;
  all.tile_rows = all.backward ? d->block_m : d->block_n;
  all.head_dim = p->head_dim;
  collect_buffers(log);
  collect_roles(log);
  /* The first time finds what the mbarriers are for, and what they bring. */
  for (int times = 0; times < 2; times++) {
    all.known = times > 0;
    collect_barriers();
    collect_events(log);
  }
  place_events();
  print_columns();
}
