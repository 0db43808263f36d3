/*
 * What fences and atomics on global memory order, in a block and between blocks: release and
 * acquire, as in the memory model of the PTX ISA.
 *
 * A fence publishes what its thread has done and seen: the next atomics of this thread, and of
 * those that a barrier orders after it, release that. An atomic observes what was released at its
 * address, by those before it in its release sequence, and the next fence of this thread, or of one
 * that a barrier orders after it, makes this known. The forms .release and .acquire do so at once.
 * Read-modify-writes continue a sequence, stores end it.
 *
 * Blocks run on several OS threads, so releases are kept until the launch has ended, and one lock
 * holds from the moment an atomic observes until it has been executed.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { SPINS = 64 };

static struct {
  pthread_mutex_t lock;
  Table by_address; /* 1 + index */
  Release **latest; /* of the sequence at an address; NULL: it has ended */
  _Atomic size_t count;
  uint32_t releases, sequences, searches;
  const Heads **waiting; /* of a search */
  size_t waiting_count;
} board = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Sets of releases ------------------------------------------------------------------------- */

static const Heads *with_release(LabWorker *lab, const Heads *heads, Release *release) {
  Heads *own = lab_allocate(lab, sizeof *own);
  *own = (Heads){NULL, release};
  Heads *last = own;
  for (const Heads *h = heads; h != NULL; h = h->next) {
    if (h->release->sequence == release->sequence) {
      if (h->release->index >= release->index) return heads;
      continue; /* the later one counts for both */
    }
    Heads *kept = lab_allocate(lab, sizeof *kept);
    *kept = (Heads){NULL, h->release};
    last->next = kept;
    last = kept;
  }
  return own;
}

static const Heads *join_heads(LabWorker *lab, const Heads *a, const Heads *b) {
  if (a == NULL || a == b) return b;
  for (; b != NULL; b = b->next) a = with_release(lab, a, b->release);
  return a;
}

/* --- What threads have published -------------------------------------------------------------- */

static bool holds(const Fenced *list, const Fenced *item) {
  for (; list != NULL; list = list->next) {
    if (list->thread == item->thread && list->time >= item->time) return true;
  }
  return false;
}

/** A fence in a later epoch covers all that was published in earlier ones. */
static const Fenced *join_fenced(LabWorker *lab, const Fenced *a, const Fenced *b) {
  if (a == NULL || a == b) return b;
  if (b == NULL || b->epoch < a->epoch) return a;
  if (b->epoch > a->epoch) return b;
  for (; b != NULL; b = b->next) {
    if (holds(a, b)) continue;
    Fenced *own = lab_allocate(lab, sizeof *own);
    *own = *b;
    own->next = a;
    a = own;
  }
  return a;
}

const Talk *lab_join_talk(LabWorker *lab, const Talk *a, const Talk *b) {
  if (a == NULL || a == b) return b;
  if (b == NULL) return a;
  const Talk sum = {join_fenced(lab, a->fenced, b->fenced), join_heads(lab, a->known, b->known),
                    join_heads(lab, a->observed, b->observed),
                    lab_join_views(lab, a->peers, b->peers)};
  if (sum.fenced == a->fenced && sum.known == a->known && sum.observed == a->observed &&
      sum.peers == a->peers) {
    return a;
  }
  Talk *own = lab_allocate(lab, sizeof *own);
  *own = sum;
  return own;
}

void lab_set_talk(LabWorker *lab, int thread, const Talk *talk) {
  const Talk *before = lab->talk[thread];
  if (talk == before) return;
  /* Histories say what was known at the time of an access. */
  if (talk->known != (before != NULL ? before->known : NULL)) lab_fold(lab);
  lab->talk[thread] = talk;
  lab->talks = true;
}

static void change(LabWorker *lab, Talk talk) {
  Talk *own = lab_allocate(lab, sizeof *own);
  *own = talk;
  lab->talk_epoch = lab->epoch;
  lab_set_talk(lab, lab_thread(lab), own);
}

static Talk talk_of(const LabWorker *lab) {
  const Talk *talk = lab->talk[lab_thread(lab)];
  return talk != NULL ? *talk : (Talk){.fenced = NULL};
}

/** The clock of a thread for a Fenced, which keeps it; NULL: it has none. */
static const Clock *keep_clock(const LabWorker *lab, int thread) {
  if (lab->clocks == NULL) return NULL;
  lab->clocks->of_thread[thread]->references++;
  return lab->clocks->of_thread[thread];
}

/** Publishes all that the running thread has done and seen. */
static Fenced *publish(LabWorker *lab, const Heads *known) {
  const int thread = lab_thread(lab);
  Fenced *own = lab_allocate(lab, sizeof *own);
  *own = (Fenced){.known = known,
                  .clock = keep_clock(lab, thread),
                  .epoch = lab->epoch,
                  .time = ++lab->times[thread],
                  .synced = lab->synced[thread / WARP_SIZE],
                  .thread = thread};
  lab->talk_epoch = lab->epoch;
  lab->dirty[thread] &= SINCE_ATOMIC;
  return own;
}

void lab_begin_talk(LabWorker *lab) {
  if (lab->talks) {
    for (int thread = 0; thread < MAX_THREADS; thread++) lab->talk[thread] = NULL;
  }
  lab->talks = false;
  memset(lab->dirty, SINCE_FENCE | SINCE_ATOMIC, sizeof lab->dirty);
}

/** Has the running thread published all that it has done and seen? If it spins on an atomic, which
 * may be for long, the atomic does not count. */
static bool is_published(const LabWorker *lab, const Talk *talk, const Heads *known) {
  const Fenced *fenced = talk->fenced;
  const int thread = lab_thread(lab);
  return fenced != NULL && fenced->thread == thread && fenced->epoch == lab->epoch &&
         !(lab->dirty[thread] & SINCE_FENCE) && known == talk->known && fenced->known == known &&
         fenced->synced == lab->synced[thread / WARP_SIZE] &&
         fenced->clock == (lab->clocks != NULL ? lab->clocks->of_thread[thread] : NULL);
}

void lab_fence(void) {
  LabWorker *lab = lab_worker;
  lab->fences = lab->talked = true;
  Talk talk = talk_of(lab);
  const Heads *known = join_heads(lab, talk.known, talk.observed);
  if (is_published(lab, &talk, known)) return;
  Fenced *own = publish(lab, known);
  for (const Fenced *f = talk.fenced; f != NULL && f->epoch == lab->epoch; f = f->next) {
    if (f->thread == own->thread) continue;
    Fenced *kept = lab_allocate(lab, sizeof *kept);
    *kept = *f;
    kept->next = own->next;
    own->next = kept;
  }
  change(lab, (Talk){.fenced = own, .known = known, .peers = talk.peers});
}

/* --- Atomics ---------------------------------------------------------------------------------- */

static Release **latest_at(uintptr_t address) {
  uint32_t *place = lab_entry(&board.by_address, address);
  if (*place == 0) {
    board.latest = simt_with_room(board.latest, board.count, sizeof *board.latest);
    board.latest[board.count] = NULL;
    *place = (uint32_t)++board.count;
  }
  return &board.latest[*place - 1];
}

void lab_begin_atomic(LabWorker *lab, void *address, SimtAccess access, SimtOrder order) {
  pthread_mutex_lock(&board.lock);
  lab->synchronising = address;
  Release *latest = *latest_at((uintptr_t)address);
  if (latest == NULL || access == SIMT_STORES) return; /* a store reads nothing */
  Talk talk = talk_of(lab);
  const Heads **target = order & SIMT_ACQUIRE ? &talk.known : &talk.observed;
  const Heads *before = *target;
  *target = join_heads(lab, before, &(Heads){NULL, latest});
  if (*target == before) return;
  if (before == NULL) *target = with_release(lab, NULL, latest);
  change(lab, talk);
}

void lab_end_atomic(SimtAccess access, bool writes, SimtOrder order) {
  LabWorker *lab = lab_worker;
  if (lab->synchronising == NULL) return;
  Release **latest = latest_at((uintptr_t)lab->synchronising);
  const int thread = lab_thread(lab);
  const uint32_t time = lab->times[thread]++;
  const Talk talk = talk_of(lab);
  const Fenced *fenced = talk.fenced;
  if (writes && access == SIMT_STORES) *latest = NULL;
  if (writes && order & SIMT_RELEASE) fenced = publish(lab, talk.known);
  Released *released = &lab->released[thread];
  const bool repeats =
      !(lab->dirty[thread] & SINCE_ATOMIC) && released->address == lab->synchronising;
  released->repeated = repeats ? released->repeated + 1 : 0;
  released->address = lab->synchronising;
  const bool spins = released->repeated >= SPINS;
  lab->dirty[thread] = spins ? lab->dirty[thread] & SINCE_FENCE : SINCE_FENCE;
  const bool again = spins && *latest != NULL && (*latest)->sequence == released->sequence &&
                     fenced == released->fenced;
  if (writes && fenced != NULL && !again) {
    Release *own = lab_allocate(lab, sizeof *own);
    *own = (Release){.previous = *latest,
                     .fenced = fenced,
                     .sequence = *latest != NULL ? (*latest)->sequence : ++board.sequences,
                     .index = *latest != NULL ? (*latest)->index + 1 : 0,
                     .number = ++board.releases,
                     .block = lab->block_tag,
                     .epoch = lab->epoch,
                     .time = time,
                     .thread = thread};
    *latest = own;
    lab->talk_epoch = lab->epoch; /* the atomic itself is published */
    released->sequence = own->sequence;
    released->fenced = fenced;
  }
  lab->synchronising = NULL;
  pthread_mutex_unlock(&board.lock);
}

/** Its releases are one sequence, of which the latest counts for all. */
Release *lab_release_block(LabWorker *lab, const Talk *talk, const Clock *clock, uint32_t epoch) {
  Fenced *fenced = lab_allocate(lab, sizeof *fenced);
  *fenced = (Fenced){.known = talk != NULL ? talk->known : NULL, .clock = clock, .epoch = epoch};
  Release *own = lab_allocate(lab, sizeof *own);
  pthread_mutex_lock(&board.lock);
  const Release *before = lab->block_release;
  *own = (Release){.fenced = fenced,
                   .sequence = before != NULL ? before->sequence : ++board.sequences,
                   .index = before != NULL ? before->index + 1 : 0,
                   .number = ++board.releases,
                   .block = lab->block_tag,
                   .epoch = epoch,
                   .time = UINT32_MAX /* no atomic */};
  pthread_mutex_unlock(&board.lock);
  lab->block_release = own;
  lab->talk_epoch = lab->epoch;
  return own;
}

void lab_know_releases(LabWorker *lab, Release *const *releases, unsigned count) {
  Talk talk = talk_of(lab);
  for (unsigned i = 0; i < count; i++) {
    if (releases[i] != NULL) talk.known = with_release(lab, talk.known, releases[i]);
  }
  lab->talked = true;
  change(lab, talk);
}

void lab_end_sequences(uintptr_t address, unsigned size) {
  if (board.count == 0) return;
  pthread_mutex_lock(&board.lock);
  for (uintptr_t at = address & ~(uintptr_t)3; at < address + size; at += 4) {
    const uint32_t place = lab_look_up(&board.by_address, at);
    if (place != 0) board.latest[place - 1] = NULL;
  }
  pthread_mutex_unlock(&board.lock);
}

void lab_forget_releases(void) {
  lab_free_table(&board.by_address);
  free(board.latest);
  board.latest = NULL;
  board.count = 0;
}

/* --- Searches --------------------------------------------------------------------------------- */

/** The lanes of `point` that this does not cover, of `lanes`. */
static unsigned uncovered(const Fenced *fenced, const Point *point, unsigned lanes) {
  for (; fenced != NULL && lanes != 0; fenced = fenced->next) {
    if (point->agent != BY_THREAD) {
      if (fenced->clock != NULL && fenced->clock->of[point->agent] > point->time) return 0;
      continue;
    }
    if (fenced->epoch > point->epoch) return 0;
    if (fenced->epoch < point->epoch || point->lanes == 0) continue;
    if (fenced->thread / WARP_SIZE == point->warp) {
      if (point->time < fenced->synced) return 0;
      if (point->time < fenced->time) lanes &= ~(1u << fenced->thread % WARP_SIZE);
    }
    if (fenced->clock == NULL) continue;
    const uint32_t *seen = &fenced->clock->of[FIRST_THREAD + point->warp * WARP_SIZE];
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (seen[lane] > point->time) lanes &= ~(1u << lane);
    }
  }
  return lanes;
}

/** Is the point the atomic that released? */
static bool is_itself(const Release *release, const Point *point) {
  return point->epoch == release->epoch && point->time == release->time &&
         point->agent == BY_THREAD && point->warp == release->thread / WARP_SIZE;
}

static void search_later(const Heads *heads) {
  if (heads == NULL || heads->release->visited == board.searches) return;
  board.waiting = simt_with_room(board.waiting, board.waiting_count, sizeof *board.waiting);
  board.waiting[board.waiting_count++] = heads;
}

/** Visits a release and those before it in its sequence. */
static unsigned search(Release *release, const Point *point, unsigned lanes) {
  for (; release != NULL && release->visited != board.searches && lanes != 0;
       release = (Release *)release->previous) {
    release->visited = board.searches;
    if (release->block == point->block) {
      if (is_itself(release, point)) lanes &= ~(1u << release->thread % WARP_SIZE);
      lanes = uncovered(release->fenced, point, lanes);
    }
    for (const Fenced *f = release->fenced; f != NULL; f = f->next) {
      for (const Heads *h = f->known; h != NULL; h = h->next) search_later(h);
    }
  }
  return lanes;
}

unsigned lab_unpublished(const Heads *known, const Point *point) {
  unsigned lanes = point->lanes != 0 ? point->lanes : ~0u;
  if (known == NULL) return lanes;
  pthread_mutex_lock(&board.lock);
  board.searches++;
  board.waiting_count = 0;
  for (const Heads *h = known; h != NULL; h = h->next) search_later(h);
  while (board.waiting_count > 0 && lanes != 0) {
    lanes = search(board.waiting[--board.waiting_count]->release, point, lanes);
  }
  pthread_mutex_unlock(&board.lock);
  return lanes;
}

void lab_add_view(LabWorker *lab, const View *view) {
  if (view == NULL) return;
  Talk *talk = lab_allocate(lab, sizeof *talk);
  *talk = (Talk){.peers = view};
  lab_set_talk(lab, lab_thread(lab), lab_join_talk(lab, lab->talk[lab_thread(lab)], talk));
}
