/*
 * The columns of the events of all roles, and the events as JSON. See timeline_roles.h.
 */
#include <stdio.h>

#include "timeline_roles.h"

static const char *const OP_NAMES[] = {
    "load",      "await",   "arrive", "turn",  "pass",   "qk",   "pv",   "complete",
    "transpose", "softmax", "output", "store", "stored", "draw", "tell", "learn"};

/* --- Columns ---------------------------------------------------------------------------------- */

/** The column of an event; -1: it has none yet. */
static int column_of(const Role *role, int event) {
  return event < role->placed ? role->events[event].column : -1;
}

/** The last column of the events of all roles that end what is waited for; -1: not all have one.
 * Of named barriers the n-th wait is for the n-th arrival. */
static int end_of_wait(const Roles *all, const Role *own, const Event *e) {
  int end = 0, found = 0, turn = 0;
  for (const Event *before = own->events; before < e; before++) {
    turn += e->op == TURN && before->op == TURN && before->number == e->number;
  }
  for (int i = 0; i < all->role_count; i++) {
    int passed = 0;
    for (int j = 0; j < all->roles[i].count; j++) {
      const Event *other = &all->roles[i].events[j];
      bool ends;
      if (e->op == TURN) {
        ends = other->op == PASS && other->number == e->number && passed++ == turn;
      } else {
        ends = (other->op == ASK || other->op == ARRIVE_AT) && other->barrier == e->barrier &&
               other->phase == e->phase;
      }
      if (!ends) continue;
      if (column_of(&all->roles[i], j) < 0) return -1;
      const int copies = other->op == ASK; /* which are in flight for a column at least */
      if (column_of(&all->roles[i], j) + copies > end) end = column_of(&all->roles[i], j) + copies;
      found++;
    }
  }
  require(found > 0, "a wait for what never comes");
  return end;
}

static bool place_next(const Roles *all, Role *role) {
  if (role->placed == role->count) return false;
  Event *e = &role->events[role->placed];
  e->from = e->column = role->placed == 0 ? 0 : e[-1].column + 1;
  if (e->op == TURN || (e->op == AWAIT_PHASE && e->phase >= 0)) {
    const int end = end_of_wait(all, role, e);
    if (end < 0) return false;
    if (end + 1 > e->column) e->column = end + 1;
  }
  role->placed++;
  return true;
}

void place_events(Roles *all) {
  for (bool any = true; any;) {
    any = false;
    for (int i = 0; i < all->role_count; i++) {
      while (place_next(all, &all->roles[i])) any = true;
    }
  }
  for (int i = 0; i < all->role_count; i++) {
    require(all->roles[i].placed == all->roles[i].count, "events wait for each other");
  }
}

/* --- Printing --------------------------------------------------------------------------------- */

static void print_buffer_name(const Roles *all, int buffer) {
  static const char *const NAMES[] = {"Q", "K", "V", "O"};
  const Buffer *own = &all->buffers[buffer];
  int alike = 0, before = 0;
  for (int i = 0; i < all->buffer_count; i++) {
    alike += all->buffers[i].tensor == own->tensor;
    before += i < buffer && all->buffers[i].tensor == own->tensor;
  }
  printf("%s", own->tensor <= O ? NAMES[own->tensor] : own->tensor == TRANSPOSED ? "Vᵀ" : "next");
  if (alike > 1) printf("[%d]", before);
}

static void print_tables(const Roles *all) {
  printf("\"roles\": [");
  const bool has_producer = !all->roles[0].multiplies;
  int before[4] = {0}; /* roles of the same kind */
  for (int i = 0; i < all->role_count; i++) {
    const Role *role = &all->roles[i];
    const int kind = role->multiplies ? 0 : role->loads_k ? 1 : role->loads_q ? 2 : 3;
    static const char *const KINDS[] = {"Consumer %d", "Producer", "Loads Q %d", "Transposes %d"};
    if (i > 0) printf(", ");
    printf("\"");
    printf(kind > 0 || has_producer ? KINDS[kind] : "Group %d", before[kind]++);
    printf("\"");
  }
  printf("],\n\"buffers\": [");
  for (int i = 0; i < all->buffer_count; i++) {
    printf("%s\n  {\"name\": \"", i == 0 ? "" : ",");
    print_buffer_name(all, i);
    printf("\", \"offset\": %u, \"bytes\": %u}", all->buffers[i].begin,
           all->buffers[i].end - all->buffers[i].begin);
  }
  printf("],\n\"barriers\": [");
  for (int i = 0; i < all->barrier_count; i++) {
    require(all->barriers[i].buffer >= 0, "an mbarrier of no buffer");
    printf("%s\n  {\"buffer\": %d, \"full\": %s}", i == 0 ? "" : ",", all->barriers[i].buffer,
           all->barriers[i].is_full ? "true" : "false");
  }
  printf("],\n");
}

static void print_number(const char *name, int number) {
  if (number >= 0) printf(", \"%s\": %d", name, number);
}

static void print_event(const Roles *all, const Event *e, int role) {
  printf("{\"role\": %d, \"at\": %d, \"from\": %d, \"op\": \"%s\"", role, e->column, e->from,
         OP_NAMES[e->op]);
  print_number("barrier", e->barrier);
  if (e->barrier >= 0) printf(", \"phase\": %d", e->phase);
  print_number("buffer", e->buffer);
  print_number(e->op == TRANSPOSE ? "source" : "q", e->q_buffer);
  print_number("tile", e->tile);
  if (e->op == ASK) {
    const Load *load = &all->loads[e->load];
    printf(", \"tensor\": \"%c\", \"rows\": [%u, %u]", "QKV"[load->tensor], load -> first_row,
           load -> end_row - 1);
    if (load->tensor != Q) print_number("tile", (int)load->first_row / all->keys_per_tile);
  }
  if (e->op == TURN || e->op == PASS) print_number("id", e->number);
  if (e->op == QK || e->op == PV) print_number("group", e->group);
  if (e->op == COMPLETE) {
    printf(", \"pending\": %d, \"done\": [%d, %d]", e->number, e->first_done, e->end_done);
  }
  if (e->count > 0) print_number("count", e->count);
  if (e->shuffles > 0) print_number("shuffles", e->shuffles);
  if (e->votes > 0) print_number("votes", e->votes);
  printf("}");
}

void print_columns(const Roles *all) {
  print_tables(all);
  printf("\"events\": [");
  int left = 0, printed = 0;
  for (int i = 0; i < all->role_count; i++) left += all->roles[i].count;
  for (int column = 0; printed < left; column++) {
    for (int i = 0; i < all->role_count; i++) {
      for (int j = 0; j < all->roles[i].count; j++) {
        if (all->roles[i].events[j].column != column) continue;
        printf(printed++ == 0 ? "\n  " : ",\n  ");
        print_event(all, &all->roles[i].events[j], i);
      }
    }
  }
  printf("]");
}
