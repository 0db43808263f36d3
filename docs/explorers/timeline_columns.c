/*
 * The columns of the events of all roles, and the events as JSON. See timeline_roles.h.
 */
#include <stdio.h>

#include "timeline_roles.h"

static const char *const OP_NAMES[] = {
    "load", "await",   "arrive",   "turn",      "pass",    "qk",   "pv",   "dp",   "dv",
    "dk",   "dq",      "complete", "transpose", "softmax", "put",  "ds",   "send", "add",
    "look", "hand_on", "output",   "store",     "stored",  "draw", "tell", "learn"};

static const char *const TENSOR_NAMES[] = {[Q] = "Q", [K] = "K",    [V] = "V",    [D_O] = "dO",
                                           [O] = "O", [D_Q] = "dQ", [D_K] = "dK", [D_V] = "dV"};

/* --- Columns ---------------------------------------------------------------------------------- */

/** The column of an event; -1: it has none yet. */
static int column_of(const Role *role, int event) {
  return event < role->placed ? role->events[event].column : -1;
}

/** The last column of the events of all roles that end what is waited for; -1: not all have one.
 * Of named barriers the n-th wait is for the n-th arrival. */
static int end_of_wait(const Role *own, const Event *e) {
  int end = 0, found = 0, turn = 0;
  for (const Event *before = own->events; before < e; before++) {
    turn += e->op == TURN && before->op == TURN && before->number == e->number;
  }
  for (int i = 0; i < all.role_count; i++) {
    int passed = 0;
    for (int j = 0; j < all.roles[i].count; j++) {
      const Event *other = &all.roles[i].events[j];
      bool ends;
      if (e->op == TURN) {
        ends = other->op == PASS && other->number == e->number && passed++ == turn;
      } else {
        ends = (other->op == ASK || other->op == ARRIVE_AT || other->op == SEND_ON) &&
               other->barrier == e->barrier && other->phase == e->phase;
      }
      if (!ends) continue;
      if (column_of(&all.roles[i], j) < 0) return -1;
      const int copies = other->op != ARRIVE_AT &&
                         other->op != PASS; /* which are in flight for a column at least */
      if (column_of(&all.roles[i], j) + copies > end) end = column_of(&all.roles[i], j) + copies;
      found++;
    }
  }
  require(found > 0, "a wait for what never comes");
  return end;
}

static bool place_next(Role *role) {
  if (role->placed == role->count) return false;
  Event *e = &role->events[role->placed];
  e->from = e->column = role->placed == 0 ? 0 : e[-1].column + 1;
  if (e->op == TURN || (e->op == AWAIT_PHASE && e->phase >= 0)) {
    const int end = end_of_wait(role, e);
    if (end < 0) return false;
    if (end + 1 > e->column) e->column = end + 1;
  }
  role->placed++;
  return true;
}

void place_events(void) {
  for (bool any = true; any;) {
    any = false;
    for (int i = 0; i < all.role_count; i++) {
      while (place_next(&all.roles[i])) any = true;
    }
  }
  for (int i = 0; i < all.role_count; i++) {
    require(all.roles[i].placed == all.roles[i].count, "events wait for each other");
  }
}

/* --- Printing: what concerns the block of rank 0 ---------------------------------------------- */

static bool is_own_barrier(int barrier) {
  return barrier >= 0 && all.barriers[barrier].place < BLOCK_PLACES;
}

/** Its number among those that are printed; of an mbarrier of the other block, that of the one at
 * the same place. */
static int printed_barrier(int barrier) {
  const uint32_t place = all.barriers[barrier].place % BLOCK_PLACES;
  int number = 0;
  for (int i = 0; all.barriers[i].place != place; i++) {
    require(i + 1 < all.barrier_count, "an mbarrier of the other block alone");
    number += is_own_barrier(i);
  }
  return number;
}

static bool is_own_role(const Role *role) {
  return role->thread < MOST_BLOCK_THREADS;
}

/** All events of the block; of the other one, what reaches this block. */
static bool is_printed(const Role *role, const Event *e) {
  const bool reaches = e->op == SEND_ON || e->op == ARRIVE_AT;
  return is_own_role(role) || (reaches && is_own_barrier(e->barrier));
}

static bool has_events(const Role *role) {
  for (int i = 0; i < role->count; i++) {
    if (is_printed(role, &role->events[i])) return true;
  }
  return false;
}

static void print_buffer_name(int buffer) {
  static const char *const NAMES[] = {[MEMORIES] = "next",
                                      [TRANSPOSED] = "Vᵀ",
                                      [P_TILE] = "P",
                                      [DS_TILE] = "dS",
                                      [RECEIVED] = "other dS"};
  const int tensor = all.buffers[buffer].tensor;
  int alike = 0, before = 0;
  for (int i = 0; i < all.buffer_count; i++) {
    if (all.buffers[i].begin >= BLOCK_PLACES) continue;
    alike += all.buffers[i].tensor == tensor;
    before += i < buffer && all.buffers[i].tensor == tensor;
  }
  printf("%s", tensor <= O ? TENSOR_NAMES[tensor] : NAMES[tensor]);
  if (alike > 1) printf("[%d]", before);
}

static void print_loads(unsigned loads) {
  const char *separator = "Loads ";
  for (int memory = Q; memory <= D_O; memory++) {
    if ((loads >> memory & 1) == 0) continue;
    printf("%s%s", separator, TENSOR_NAMES[memory]);
    separator = ", ";
  }
}

/** Consumers, producers, warps that load only Q or only some tensors, and those that transpose. A
 * warpgroup without a producer beside it has no such name. */
static void print_role_names(void) {
  int loading = 0, before[4] = {0}; /* roles of the same kind */
  bool has_producer = false;
  for (int i = 0; i < all.role_count; i++) {
    loading += is_own_role(&all.roles[i]) && all.roles[i].loads != 0;
    has_producer |= !all.roles[i].is_consumer;
  }
  const char *separator = "";
  for (int i = 0; i < all.role_count; i++) {
    const Role *role = &all.roles[i];
    if (!has_events(role)) continue;
    printf("%s\"", separator);
    separator = ", ";
    const bool loads_k = (role->loads >> K & 1) != 0, loads_q = (role->loads >> Q & 1) != 0;
    const int kind = role->is_consumer ? 0 : loads_k ? 1 : loads_q ? 2 : 3;
    static const char *const KINDS[] = {"Consumer %d", "Producer", "Loads Q %d", "Transposes %d"};
    if (!is_own_role(role)) {
      printf(role->is_consumer ? "dS of block 1" : "dQ of block 1");
    } else if (role->multiplies && !role->is_consumer) {
      printf(role->loads != 0 ? "dQ and loads" : "dQ");
    } else if (all.backward && !role->is_consumer && loading > 1) {
      print_loads(role->loads);
    } else if (kind > 0) {
      printf(KINDS[kind], before[kind]++);
    } else {
      printf(has_producer ? KINDS[kind] : "Group %d", before[kind]++);
    }
    printf("\"");
  }
}

/** The numbers of the buffers of this block whose bits are set. */
static void print_set(const char *name, uint64_t buffers) {
  const char *separator = "";
  printf("\"%s\": [", name);
  for (int i = 0; i < all.buffer_count && all.buffers[i].begin < BLOCK_PLACES; i++) {
    if ((buffers >> i & 1) == 0) continue;
    printf("%s%d", separator, i);
    separator = ", ";
  }
  printf("]");
}

static void print_tables(void) {
  printf("\"roles\": [");
  print_role_names();
  printf("],\n\"buffers\": [");
  for (int i = 0; i < all.buffer_count && all.buffers[i].begin < BLOCK_PLACES; i++) {
    printf("%s\n  {\"name\": \"", i == 0 ? "" : ",");
    print_buffer_name(i);
    printf("\", \"offset\": %u, \"bytes\": %u}", all.buffers[i].begin,
           all.buffers[i].end - all.buffers[i].begin);
  }
  printf("],\n\"barriers\": [");
  const char *separator = "";
  for (int i = 0; i < all.barrier_count; i++) {
    const Barrier *b = &all.barriers[i];
    if (!is_own_barrier(i)) continue;
    require(b->buffers != 0, "an mbarrier of no buffer");
    printf("%s\n  {", separator);
    print_set("buffers", b->buffers);
    printf(", \"full\": %s", b->is_full ? "true" : "false");
    if (b->content == P_TILE) printf(", \"content\": \"P\"");
    printf("}");
    separator = ",";
  }
  printf("],\n");
}

static void print_number(const char *name, int number) {
  if (number >= 0) printf(", \"%s\": %d", name, number);
}

static void print_load(const Event *e) {
  const Load *load = &all.loads[e->load];
  const int tensor = all.buffers[e->buffer].tensor;
  const bool streams = all.backward ? tensor == Q || tensor == D_O : tensor == K || tensor == V;
  printf(", \"tensor\": \"%s\", \"rows\": [%u, %u]", TENSOR_NAMES[tensor], load->first_row,
         load->end_row - 1);
  if (load->end_column - load->first_column < all.head_dim) {
    printf(", \"columns\": [%d, %d]", load->first_column, load->end_column - 1);
  }
  if (streams) print_number("tile", (int)load->first_row / all.tile_rows);
  if (e->numbers) printf(", \"numbers\": \"%s\"", tensor == Q ? "LSE" : "D");
}

/** What a phase of an mbarrier of several buffers brings. */
static void print_brought(const Event *e) {
  const uint64_t buffers = all.barriers[e->barrier].buffers;
  uint64_t brought = 0;
  if ((buffers & (buffers - 1)) == 0 || !all.barriers[e->barrier].is_full) return;
  for (int i = 0; i < all.load_count; i++) {
    const Load *load = &all.loads[i];
    if (load->barrier == e->barrier && load->phase == e->phase) brought |= 1ull << load->buffer;
  }
  if (brought == buffers) return;
  printf(", ");
  print_set("brought", brought);
}

static void print_tensors(unsigned tensors) {
  const char *separator = "";
  if (!all.backward || tensors == 0) return;
  printf(", \"tensors\": [");
  for (int memory = Q; memory <= D_V; memory++) {
    if ((tensors >> memory & 1) == 0) continue;
    printf("%s\"%s\"", separator, TENSOR_NAMES[memory]);
    separator = ", ";
  }
  printf("]");
}

static void print_event(const Role *own, const Event *e, int role) {
  printf("{\"role\": %d, \"at\": %d, \"from\": %d, \"op\": \"%s\"", role, e->column, e->from,
         OP_NAMES[e->op]);
  if (e->barrier >= 0) {
    printf(", \"barrier\": %d, \"phase\": %d", printed_barrier(e->barrier), e->phase);
    if (is_own_role(own) && !is_own_barrier(e->barrier)) printf(", \"other\": true");
    if (e->op == AWAIT_PHASE || e->op == ARRIVE_AT) print_brought(e);
  }
  print_number("buffer", is_own_role(own) ? e->buffer : e->q_buffer);
  const bool names_source = e->op == TRANSPOSE || e->op == DS;
  if (e->op != SEND_ON) print_number(names_source ? "source" : "q", e->q_buffer);
  if (__builtin_popcountll(e->reads) > 2) {
    printf(", ");
    print_set("reads", e->reads);
  }
  print_number("tile", e->tile);
  if (e->op == ASK) print_load(e);
  if (e->op == TURN || e->op == PASS) print_number("id", e->number);
  if (is_product(e->op)) print_number("group", e->group);
  if (e->op == COMPLETE) {
    printf(", \"pending\": %d, \"done\": [%d, %d]", e->number, e->first_done, e->end_done);
  }
  if (e->count > 0) print_number("count", e->count);
  if (e->shuffles > 0) print_number("shuffles", e->shuffles);
  if (e->votes > 0) print_number("votes", e->votes);
  print_tensors(e->tensors);
  printf("}");
}

void print_columns(void) {
  print_tables();
  printf("\"events\": [");
  int left = 0, printed = 0;
  for (int i = 0; i < all.role_count; i++) left += all.roles[i].count;
  for (int column = 0; left > 0; column++) {
    int number = 0;
    for (int i = 0; i < all.role_count; i++) {
      const Role *role = &all.roles[i];
      for (int j = 0; j < role->count; j++) {
        if (role->events[j].column != column) continue;
        left--;
        if (!is_printed(role, &role->events[j])) continue;
        printf(printed++ == 0 ? "\n  " : ",\n  ");
        print_event(role, &role->events[j], number);
      }
      number += has_events(role);
    }
  }
  printf("]");
}
