/*
 * From the records of a thread block to the events of its first warp. Lane 0 stands for the warp:
 * all lanes do the same things in the same order. The rows of a tile, and where it goes, are those
 * of all threads of the block together.
 */
#include <stdio.h>

#include "timeline_tiles.h"

enum { MOST_GROUPS = 512 };

/** SOFTMAX is P of a backward pass, whose products are QK and DP to DQ. */
typedef enum Op {
  LOAD,
  TO_SHARED,
  CLOSE,
  RELEASE,
  MEET,
  QK,
  SOFTMAX,
  PV,
  DP,
  DS,
  DV,
  DK,
  DQ,
  ADD_UP,
  LOOK_AT,
  PASS,
  OUTPUT,
  NOTHING
} Op;

static const char *const OP_NAMES[] = {"load",    "copy", "commit", "wait",    "barrier", "qk",
                                       "softmax", "pv",   "dp",     "ds",      "dv",      "dk",
                                       "dq",      "add",  "look",   "pass_on", "output"};

typedef struct Event {
  Op op;
  int transfer; /* of LOAD and TO_SHARED */
  int tile;     /* -1: none */
  int number;   /* of CLOSE: the group; of RELEASE: the groups that may stay in flight */
  int loads, ldmatrix, mma, exps, shuffles, votes, stores, adds; /* instructions of the warp */
  unsigned buffers;                                              /* bit b: it reads buffer b */
} Event;

static int tile_rows; /* keys of a tile; of a backward pass queries */

/** The warp while its records are read in order. */
typedef struct Warp {
  int phase, committed;
  bool ended;                /* after the last product: what follows makes O */
  int tile;                  /* of the last product */
  Op product;                /* of a backward pass: the last one, or what came after it */
  int content[MOST_BUFFERS]; /* the last transfer to each buffer; -1: none */
  bool in_flight[MOST_GROUPS];
  Loaded loaded;
  Event event; /* not yet printed: equal ones are merged */
  int printed;
} Warp;

static int tile_of(const Transfer *t) {
  const bool keys = t->source == K || t->source == V;
  const bool queries = t->source == Q || t->source == D_O || t->source == NUMBERS;
  return (step.backward == NULL ? keys : queries) ? (int)(t->first_row / tile_rows) : -1;
}

static void print_transfer(const Transfer *t, bool asynchronous) {
  printf(", \"tensor\": \"%s\"", name_of(t->source));
  printf(", \"buffer\": %d", buffer_of(t->begin));
  if (t->source <= D_O) {
    const int64_t read = t->end_of_read > t->first_row ? t->end_of_read : t->first_row;
    printf(", \"rows\": [%d, %d]", (int)t->first_row, (int)t->end_row - 1);
    if (read < t->end_row) printf(", \"zeros\": %d", (int)(t->end_row - read));
  }
  if (asynchronous) printf(", \"group\": %d", t->group);
}

static void print_groups(const char *name, const Warp *w, int begin, int end) {
  const char *separator = "";
  printf(", \"%s\": [", name);
  for (int group = begin < 0 ? 0 : begin; group < end; group++) {
    if (!w->in_flight[group]) continue;
    printf("%s%d", separator, group);
    separator = ", ";
  }
  printf("]");
}

static void print_event(Warp *w) {
  const Event *e = &w->event;
  if (e->op == NOTHING) return;
  printf("%s\n  {\"op\": \"%s\"", w->printed++ == 0 ? "" : ",", OP_NAMES[e->op]);
  if (e->tile >= 0) printf(", \"tile\": %d", e->tile);
  if (e->op == LOAD || e->op == TO_SHARED) {
    print_transfer(&tiles.transfers[e->transfer], e->op == TO_SHARED);
  }
  if (e->op == CLOSE) printf(", \"group\": %d", e->number);
  if (e->op == RELEASE) {
    const int kept = w->committed - e->number;
    printf(", \"pending\": %d", e->number);
    print_groups("done", w, 0, kept);
    for (int group = 0; group < kept; group++) w->in_flight[group] = false;
    print_groups("in_flight", w, kept, w->committed);
  }
  const char *separator = ", \"reads\": [";
  for (int i = 0; i < tiles.buffer_count; i++) {
    if ((e->buffers >> i & 1) == 0) continue;
    printf("%s%d", separator, i);
    separator = ", ";
  }
  if (e->buffers != 0) printf("]");
  const struct {
    const char *name;
    int count;
  } counts[] = {{e->op == TO_SHARED ? "copies" : "loads", e->loads},
                {"ldmatrix", e->ldmatrix},
                {"mma", e->mma},
                {"exps", e->exps},
                {"shuffles", e->shuffles},
                {"votes", e->votes},
                {"stores", e->stores},
                {"adds", e->adds}};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    if (counts[i].count > 0) printf(", \"%s\": %d", counts[i].name, counts[i].count);
  }
  printf("}");
}

/** The event that a record of this kind belongs to: the current one, or a new one. */
static Event *event_of(Warp *w, Op op, int transfer) {
  Event *e = &w->event;
  const bool single = op == CLOSE || op == RELEASE || op == MEET;
  if (single || e->op != op || e->transfer != transfer) {
    print_event(w);
    *e = (Event){.op = op, .transfer = transfer, .tile = -1};
  }
  return e;
}

static void bring(Warp *w, Op op, Memory source) {
  const int at = find_transfer(w->phase, source);
  Transfer *t = &tiles.transfers[at];
  t->group = w->committed;
  w->content[buffer_of(t->begin)] = at;
  if (op == TO_SHARED) w->in_flight[w->committed] = true;
  Event *e = event_of(w, op, at);
  e->tile = tile_of(t);
  e->loads++;
}

static Event *softmax_or_output(Warp *w) {
  Event *e = event_of(w, w->ended ? OUTPUT : SOFTMAX, 0);
  e->tile = w->ended ? -1 : w->tile;
  return e;
}

/** What a backward pass computes when it reads this tile, or dS (SHARED). Q, K and dO are operands
 * of two products each; the first of these reads the other operand before. */
static Op backward_op(Op before, Memory source) {
  switch (source) {
    case K:
      return before == DQ ? DQ : QK;
    case V:
      return DP;
    case Q:
      return before == QK ? QK : DK;
    case D_O:
      return before == DP ? DP : DV;
    case NUMBERS: /* LSE, then D */
      return before == QK || before == SOFTMAX ? SOFTMAX : DP;
    default:
      return DQ;
  }
}

static Event *read_backward(Warp *w, const Transfer *t) {
  const Memory source = t == NULL ? SHARED : t->source;
  w->product = backward_op(w->product, source);
  Event *e = event_of(w, w->product, 0);
  if (source == Q || source == D_O) w->tile = tile_of(t);
  e->tile = w->tile;
  return e;
}

/** Reads of shared memory are operands of a product, bits of a mask or, in the end, rows of O. */
static void read_shared(Warp *w, const Record *r) {
  const int at = buffer_of(r->place);
  require(at >= 0, "a read of shared memory that nothing was written to");
  const Transfer *t =
      w->content[at] < 0 ? NULL : &tiles.transfers[w->content[at]]; /* NULL: P or dS */
  Event *e;
  if (step.backward != NULL) {
    e = read_backward(w, t);
  } else if (w->ended || (t != NULL && t->source == MASK_BITS)) {
    e = softmax_or_output(w);
  } else {
    e = event_of(w, t == NULL || t->source == V ? PV : QK, 0);
    if (t != NULL && t->source != Q) e->tile = w->tile = tile_of(t);
  }
  e->buffers |= 1u << at;
  e->ldmatrix += r->action == LDMATRIX;
  e->loads += r->action == READ;
}

/** What is neither a product nor a copy. */
static Event *compute_backward(Warp *w, const Record *r) {
  const Op op = r->action == EXP       ? SOFTMAX
                : r->action == ADD     ? ADD_UP
                : r->action == LOOK    ? LOOK_AT
                : r->action == PASS_ON ? PASS
                : r->memory == SHARED  ? DS
                                       : OUTPUT;
  w->product = op;
  Event *e = event_of(w, op, 0);
  if (op != OUTPUT && op != PASS) e->tile = w->tile;
  if (op == DS) e->buffers |= 1u << buffer_of(r->place);
  e->adds += r->action == ADD;
  return e;
}

static void compute(Warp *w, const Record *r) {
  Event *e = step.backward != NULL ? compute_backward(w, r) : softmax_or_output(w);
  e->exps += r->action == EXP;
  e->shuffles += r->action == SHUFFLE;
  e->votes += r->action == VOTE;
  e->stores += r->action == WRITE;
}

static void add_record(Warp *w, const Record *r) {
  const bool stored = follow_loads(r, &w->loaded);
  w->phase += ends_phase(r);
  if (r->action == COPY) {
    bring(w, TO_SHARED, (Memory)r->memory);
  } else if (r->action == COMMIT) {
    event_of(w, CLOSE, 0)->number = w->committed++;
    require(w->committed < MOST_GROUPS, "too many groups");
  } else if (r->action == WAIT) {
    event_of(w, RELEASE, 0)->number = r->pending;
  } else if (r->action == BARRIER) {
    event_of(w, MEET, 0);
  } else if (r->action == MMA) {
    w->event.mma++;
  } else if (r->action == LDMATRIX || (r->action == READ && r->memory == SHARED)) {
    read_shared(w, r);
  } else if (r->action == READ && r->memory <= D_O) {
    bring(w, LOAD, (Memory)r->memory);
  } else if (r->action != READ && !stored) {
    compute(w, r);
  }
}

/** The end of the records that belong to the loop over tiles: after the last product. */
static size_t end_of_products(const Log *log) {
  size_t last_mma = 0, last_read = 0;
  for (size_t i = 0; i < log->counts[0]; i++) {
    const Record *r = &log->records[0][i];
    if (r->action == MMA) last_mma = i + 1;
    if (r->action == READ && r->memory == SHARED) last_read = i + 1;
  }
  return last_mma > 0 ? last_mma : last_read;
}

void print_timeline(const Log *log, const Problem *p, const Description *d, uint32_t shared_bytes) {
  tile_rows = step.backward == NULL ? d->block_n : d->block_m;
  collect_tiles(log, p, shared_bytes);
  print_buffers();
  Warp w = {.loaded.source = MEMORIES, .event.op = NOTHING, .product = NOTHING, .tile = -1};
  for (int i = 0; i < MOST_BUFFERS; i++) w.content[i] = -1;
  const size_t end = end_of_products(log);
  printf("\"events\": [");
  for (size_t i = 0; i < log->counts[0]; i++) {
    w.ended = i >= end;
    add_record(&w, &log->records[0][i]);
  }
  print_event(&w);
  printf("]");
}
