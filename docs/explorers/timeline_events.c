/*
 * From the records of a thread block to the events of its first warp. Lane 0 stands for the warp:
 * all lanes do the same things in the same order. The rows of a tile, and where it goes, are those
 * of all threads of the block together.
 *
 * A phase of a thread lies between two of commit, wait and barrier. Within a phase a block brings
 * at most one tile of each tensor to shared memory.
 */
#include <stdio.h>
#include <stdlib.h>

#include "timeline.h"

enum { MOST_TRANSFERS = 512, MOST_BUFFERS = 16, MOST_GROUPS = 512, LARGEST_PADDING = 32 };

/** A tile, or bits of a mask, that the block brings to shared memory. */
typedef struct Transfer {
  int phase;
  Memory source;
  uint32_t begin, end;        /* in shared memory */
  int64_t first_row, end_row; /* of a tensor */
  int64_t end_of_read;        /* the rows from here on are zeros */
  int group;                  /* of cp.async */
} Transfer;

/** A part of shared memory that holds one thing at a time. */
typedef struct Buffer {
  uint32_t begin, end;
  unsigned holds; /* bit m: Memory m at some time; 0: probabilities */
} Buffer;

typedef enum Op { LOAD, TO_SHARED, CLOSE, RELEASE, MEET, QK, SOFTMAX, PV, OUTPUT, NOTHING } Op;

static const char *const OP_NAMES[] = {"load", "copy",    "commit", "wait",  "barrier",
                                       "qk",   "softmax", "pv",     "output"};

typedef struct Event {
  Op op;
  int transfer; /* of LOAD and TO_SHARED */
  int tile;     /* -1: none */
  int number;   /* of CLOSE: the group; of RELEASE: the groups that may stay in flight */
  int loads, ldmatrix, mma, exps, shuffles, votes, stores; /* instructions of the warp */
  unsigned buffers;                                        /* bit b: it reads buffer b */
} Event;

static Transfer transfers[MOST_TRANSFERS];
static int transfer_count;
static Buffer buffers[MOST_BUFFERS];
static int buffer_count;
static const Problem *problem;
static int keys_per_tile;

static uint32_t row_bytes(void) {
  return (uint32_t)problem->head_dim * 2;
}

/* --- Transfers -------------------------------------------------------------------------------- */

static int find_transfer(int phase, Memory source) {
  for (int i = transfer_count - 1; i >= 0; i--) {
    if (transfers[i].phase == phase && transfers[i].source == source) return i;
  }
  return -1;
}

/** Adds what one thread brings to `target`, from this place of the source. */
static void add_to_transfer(int phase, Memory source, uint32_t place, uint32_t target, bool zeros) {
  int at = find_transfer(phase, source);
  if (at < 0) {
    require(transfer_count < MOST_TRANSFERS, "too many tiles");
    at = transfer_count++;
    transfers[at] = (Transfer){phase, source, UINT32_MAX, 0, INT64_MAX, 0, 0, 0};
  }
  Transfer *t = &transfers[at];
  const int64_t row = place / row_bytes();
  if (target < t->begin) t->begin = target;
  if (target + 16 > t->end) t->end = target + 16;
  if (row < t->first_row) t->first_row = row;
  if (row >= t->end_row) t->end_row = row + 1;
  if (!zeros && row >= t->end_of_read) t->end_of_read = row + 1;
}

/** An ordinary load of a tensor is followed by the store of what was loaded. */
typedef struct Loaded {
  Memory source; /* MEMORIES: nothing */
  uint32_t place;
} Loaded;

static bool ends_phase(const Record *r) {
  return r->action == COMMIT || r->action == WAIT || r->action == BARRIER;
}

/** Follows a thread's ordinary loads; returns whether this record stores what was loaded. */
static bool follow_loads(const Record *r, Loaded *loaded) {
  if (r->action == READ && r->memory <= V) *loaded = (Loaded){(Memory)r->memory, r->place};
  if (r->action == BARRIER || (r->action == READ && r->memory == SHARED)) loaded->source = MEMORIES;
  return r->action == WRITE && r->memory == SHARED && loaded->source != MEMORIES;
}

static void collect_transfers(const Log *log) {
  transfer_count = 0;
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

/** The buffer at this place of shared memory; -1: none. */
static int find_buffer(uint32_t place) {
  for (int i = 0; i < buffer_count; i++) {
    if (place >= buffers[i].begin && place < buffers[i].end) return i;
  }
  return -1;
}

static void add_buffer(uint32_t begin, uint32_t end, unsigned holds) {
  for (int i = 0; i < buffer_count; i++) {
    Buffer *b = &buffers[i];
    if (end <= b->begin || begin >= b->end) continue;
    if (begin < b->begin) b->begin = begin;
    if (end > b->end) b->end = end;
    b->holds |= holds;
    return;
  }
  require(buffer_count < MOST_BUFFERS, "too many buffers");
  buffers[buffer_count++] = (Buffer){begin, end, holds};
}

static int by_begin(const void *a, const void *b) {
  return (int)((const Buffer *)a)->begin - (int)((const Buffer *)b)->begin;
}

/** What is stored to none of the buffers of the tiles is P. */
static void collect_buffers(const Log *log, uint32_t shared_bytes) {
  buffer_count = 0;
  for (int i = 0; i < transfer_count; i++) {
    add_buffer(transfers[i].begin, transfers[i].end, 1u << transfers[i].source);
  }
  uint32_t begin = UINT32_MAX, end = 0;
  for (int thread = 0; thread < log->threads; thread++) {
    for (size_t i = 0; i < log->counts[thread]; i++) {
      const Record *r = &log->records[thread][i];
      if (r->action != WRITE || r->memory != SHARED || find_buffer(r->place) >= 0) continue;
      if (r->place < begin) begin = r->place;
      if (r->place + 4 > end) end = r->place + 4;
    }
  }
  if (begin < end) add_buffer(begin, end, 0);
  qsort(buffers, (size_t)buffer_count, sizeof *buffers, by_begin);
  for (int i = 0; i < buffer_count; i++) {
    const uint32_t limit = i + 1 < buffer_count ? buffers[i + 1].begin : shared_bytes;
    if (limit - buffers[i].end <= LARGEST_PADDING) buffers[i].end = limit;
  }
}

static const char *name_of(Memory memory) {
  static const char *const NAMES[] = {"Q", "K", "V", "O", "LSE", "mask bits"};
  return NAMES[memory];
}

static void print_buffers(void) {
  printf("\"buffers\": [");
  for (int i = 0; i < buffer_count; i++) {
    int alike = 0, before = 0;
    for (int j = 0; j < buffer_count; j++) {
      alike += buffers[j].holds == buffers[i].holds;
      before += j < i && buffers[j].holds == buffers[i].holds;
    }
    printf("%s\n  {\"name\": \"", i == 0 ? "" : ",");
    const char *separator = "";
    if (buffers[i].holds == 0) printf("P");
    for (int m = 0; m < SHARED; m++) {
      if ((buffers[i].holds >> m & 1) == 0) continue;
      printf("%s%s", separator, name_of((Memory)m));
      separator = "/";
    }
    if (alike > 1) printf("[%d]", before);
    printf("\", \"offset\": %u, \"bytes\": %u}", buffers[i].begin,
           buffers[i].end - buffers[i].begin);
  }
  printf("],\n");
}

/* --- Events ----------------------------------------------------------------------------------- */

/** The warp while its records are read in order. */
typedef struct Warp {
  int phase, committed;
  bool ended;                /* after the last product: what follows makes O */
  int tile;                  /* of the last product */
  int content[MOST_BUFFERS]; /* the last transfer to each buffer; -1: none */
  bool in_flight[MOST_GROUPS];
  Loaded loaded;
  Event event; /* not yet printed: equal ones are merged */
  int printed;
} Warp;

static int tile_of(const Transfer *t) {
  const bool keys = t->source == K || t->source == V;
  return keys ? (int)(t->first_row / keys_per_tile) : -1;
}

static void print_transfer(const Transfer *t, bool asynchronous) {
  printf(", \"tensor\": \"%s\"", name_of(t->source));
  printf(", \"buffer\": %d", find_buffer(t->begin));
  if (t->source <= V) {
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
    print_transfer(&transfers[e->transfer], e->op == TO_SHARED);
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
  for (int i = 0; i < buffer_count; i++) {
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
                {"stores", e->stores}};
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
  Transfer *t = &transfers[at];
  t->group = w->committed;
  w->content[find_buffer(t->begin)] = at;
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

/** Reads of shared memory are operands of a product, bits of a mask or, in the end, rows of O. */
static void read_shared(Warp *w, const Record *r) {
  const int at = find_buffer(r->place);
  require(at >= 0, "a read of shared memory that nothing was written to");
  const Transfer *t = w->content[at] < 0 ? NULL : &transfers[w->content[at]]; /* NULL: P */
  Event *e;
  if (w->ended || (t != NULL && t->source == MASK_BITS)) {
    e = softmax_or_output(w);
  } else {
    e = event_of(w, t == NULL || t->source == V ? PV : QK, 0);
    if (t != NULL && t->source != Q) e->tile = w->tile = tile_of(t);
  }
  e->buffers |= 1u << at;
  e->ldmatrix += r->action == LDMATRIX;
  e->loads += r->action == READ;
}

static void compute(Warp *w, const Record *r) {
  Event *e = softmax_or_output(w);
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
  } else if (r->action == READ && r->memory <= V) {
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

void print_timeline(const Log *log, const Problem *p, int block_n, uint32_t shared_bytes) {
  problem = p;
  keys_per_tile = block_n;
  collect_transfers(log);
  collect_buffers(log, shared_bytes);
  print_buffers();
  Warp w = {.loaded.source = MEMORIES, .event.op = NOTHING, .tile = -1};
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
