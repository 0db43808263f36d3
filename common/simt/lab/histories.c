/*
 * The history of a piece of global memory: which blocks have accessed it in this launch, where in
 * the program, and what was ordered before. Most pieces share their history with others, so
 * histories are numbered, and each is another one and one access more. Each OS thread has its own;
 * a block runs on one OS thread to its end, so its accesses are the latest of a history.
 */
#include <stdlib.h>

#include "internal.h"

/** Accesses at one point of a block. */
typedef struct Moment {
  Point point;
  const Heads *known;
} Moment;

typedef struct Element {
  uint32_t moment;
  uint16_t site;
  uint8_t use;
} Element;

typedef struct Node {
  uint32_t before, element;
} Node;

/** Index 0 of the lists is unused. */
typedef struct Histories {
  Moment *moments;
  Element *elements;
  Node *nodes;
  uint32_t moment_count, element_count, node_count;
  Table by_point; /* of this fold */
  Table by_element, by_node;
  uint32_t quiet; /* the latest moment of an epoch without fences and atomics */
} Histories;

enum { SAME_BLOCK_SEARCH = 16, TIME_BITS = 21 };

static Histories *histories_of(LabWorker *lab) {
  if (lab->histories != NULL) return lab->histories;
  Histories *h = lab->histories = simt_zeroed(1, sizeof *h);
  h->moment_count = h->element_count = h->node_count = 1;
  h->moments = simt_with_room(NULL, 1, sizeof *h->moments);
  return h;
}

void lab_free_histories(LabWorker *lab) {
  Histories *h = lab->histories;
  if (h == NULL) return;
  free(h->moments);
  free(h->elements);
  free(h->nodes);
  lab_free_table(&h->by_point);
  lab_free_table(&h->by_element);
  lab_free_table(&h->by_node);
  free(h);
}

/* --- Additions ------------------------------------------------------------------------------ */

/** What threads know changes between folds only. */
void lab_begin_fold(LabWorker *lab) {
  lab_clear_table(&histories_of(lab)->by_point);
}

static uint32_t add_moment(LabWorker *lab, const Point *point, int thread) {
  Histories *h = lab->histories;
  h->moments = simt_with_room(h->moments, h->moment_count, sizeof *h->moments);
  const Talk *talk = lab->talk[thread];
  h->moments[h->moment_count] = (Moment){*point, talk != NULL ? talk->known : NULL};
  return h->moment_count++;
}

/** In an epoch without fences and atomics, all accesses count as one. */
static uint32_t quiet_moment(LabWorker *lab) {
  Histories *h = lab->histories;
  const Point *last = &h->moments[h->quiet].point;
  if (h->quiet == 0 || last->block != lab->block_tag || last->epoch < lab->talk_epoch) {
    h->quiet = add_moment(lab, &(Point){.block = lab->block_tag, .epoch = lab->epoch}, 0);
  }
  return h->quiet;
}

static uint32_t moment_of(LabWorker *lab, const Point *point) {
  const int thread = point->warp * WARP_SIZE + __builtin_ctz(point->lanes);
  if (point->time >> TIME_BITS != 0) return add_moment(lab, point, thread);
  const uint64_t key = (uint64_t)point->lanes << 32 | (uint64_t)point->agent << (TIME_BITS + 5) |
                       (uint64_t)point->warp << TIME_BITS | point->time;
  uint32_t *moment = lab_entry(&lab->histories->by_point, key);
  if (*moment == 0) *moment = add_moment(lab, point, thread);
  return *moment;
}

static bool contains(const LabWorker *lab, uint32_t history, uint32_t element) {
  const Histories *h = lab->histories;
  for (int i = 0; i < SAME_BLOCK_SEARCH && history != 0; i++) {
    const Node *node = &h->nodes[history];
    if (node->element == element) return true;
    if (h->moments[h->elements[node->element].moment].point.block != lab->block_tag) break;
    history = node->before;
  }
  return false;
}

static uint32_t add(LabWorker *lab, uint32_t history, uint32_t moment, uint32_t pc, Use use) {
  Histories *h = lab->histories;
  const Element own = {moment, (uint16_t)lab_site(&lab->sites, pc), (uint8_t)use};
  uint32_t *element =
      lab_entry(&h->by_element, (uint64_t)own.moment << 20 | (uint64_t)own.site << 4 | own.use);
  if (*element == 0) {
    h->elements = simt_with_room(h->elements, h->element_count, sizeof *h->elements);
    h->elements[h->element_count] = own;
    *element = h->element_count++;
  }
  if (contains(lab, history, *element)) return history;
  uint32_t *node = lab_entry(&h->by_node, (uint64_t)history << 32 | *element);
  if (*node == 0) {
    h->nodes = simt_with_room(h->nodes, h->node_count, sizeof *h->nodes);
    h->nodes[h->node_count] = (Node){history, *element};
    *node = h->node_count++;
  }
  return *node;
}

/** One lane at a time, if lanes know different things. */
static uint32_t add_reader(LabWorker *lab, uint32_t history, const Reader *reader) {
  const Use use = lab_is_atomic(reader->use) ? reader->use : READS;
  /* A barrier does not end a tensor load that nobody has waited for. */
  const bool ended = reader->agent == BY_THREAD || lab_has_seen(lab, reader->agent, reader->time);
  if (lab->talk_epoch != lab->epoch && ended) {
    return add(lab, history, quiet_moment(lab), reader->pc, use);
  }
  unsigned alike = 0;
  const Talk *const *talk = &lab->talk[reader->warp * WARP_SIZE];
  for (unsigned rest = reader->lanes; rest != 0; rest &= ~alike) {
    const int first = __builtin_ctz(rest);
    alike = 0;
    for (unsigned others = rest; others != 0; others &= others - 1) {
      const int lane = __builtin_ctz(others);
      if (talk[lane] == talk[first]) alike |= 1u << lane;
    }
    const Point point = {lab->block_tag, lab->epoch,    reader->time,
                         alike,          reader->agent, reader->warp};
    history = add(lab, history, moment_of(lab, &point), reader->pc, use);
  }
  return history;
}

uint32_t lab_add_to_history(LabWorker *lab, uint32_t history, const Cell *cell) {
  if (cell->write_epoch == lab->epoch && !cell->folded) {
    const Point point = {lab->block_tag,   lab->epoch,
                         cell->write_time, 1u << cell->writer % WARP_SIZE,
                         BY_THREAD,        (uint8_t)(cell->writer / WARP_SIZE)};
    const uint32_t moment =
        lab->talk_epoch != lab->epoch ? quiet_moment(lab) : moment_of(lab, &point);
    history = add(lab, history, moment, cell->write_pc, WRITES);
  }
  if (cell->read_epoch != lab->epoch) return history;
  const Reader *readers = lab_readers(cell);
  for (unsigned i = 0; i < cell->count; i++) {
    const bool fresh = readers[i].lanes != 0 && !readers[i].folded;
    if (fresh) history = add_reader(lab, history, &readers[i]);
  }
  return history;
}

void lab_mark_folded(LabWorker *lab, Cell *cell) {
  cell->folded = true;
  if (cell->read_epoch != lab->epoch) return;
  Reader *readers = (Reader *)lab_readers(cell);
  for (unsigned i = 0; i < cell->count; i++) readers[i].folded = true;
}

/* --- Look-ups ------------------------------------------------------------------------------- */

void lab_visit_history(const LabWorker *lab, uint32_t history,
                       void (*visit)(const Visit *visit, void *context), void *context) {
  const Histories *h = lab->histories; /* NULL: the history is 0 */
  for (; history != 0; history = h->nodes[history].before) {
    const Element *element = &h->elements[h->nodes[history].element];
    const Moment *moment = &h->moments[element->moment];
    const Visit own = {.block = moment->point.block,
                       .pc = lab->sites.sites[element->site].pc,
                       .use = element->use,
                       .point = moment->point,
                       .known = moment->known};
    visit(&own, context);
  }
}

bool lab_history_writes(const LabWorker *lab, uint32_t history, uint32_t block, bool others,
                        bool updates) {
  const Histories *h = lab->histories;
  for (; history != 0; history = h->nodes[history].before) {
    const Element *element = &h->elements[h->nodes[history].element];
    const bool own = h->moments[element->moment].point.block == block;
    if (!own && !others) return false; /* the running block's are the latest */
    if (own == others) continue;
    if (element->use == WRITES || element->use == EXCHANGES) return true;
    if (updates && lab_updates(element->use)) return true;
  }
  return false;
}
