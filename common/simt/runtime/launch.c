/*
 * Launches. OS threads, which the first launch starts, take one block at a time or, in groups, one
 * team. The launching thread takes blocks too: it may finish a small grid before the others have
 * woken up.
 */
#include <stdlib.h>
#include <string.h>

#include "hopper.h"
#include "program.h"

/* Shared memory is thread-local storage, which lies on the stacks of the OS threads. */
static const size_t OS_STACK_BYTES = (size_t)64 << 20;

static struct {
  pthread_mutex_t launching; /* one launch at a time */
  pthread_mutex_t lock;      /* protects the rest */
  pthread_cond_t work, done;
  Launch *launch; /* the running launch, or NULL */
  uint64_t launches;
  int busy;
  bool stop;
  int thread_count;
  pthread_t threads[MAX_WORKERS];
  Worker *workers[MAX_WORKERS];
  SimtCounters counters;
} pool = {
    .launching = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
};

/* --- Blocks --------------------------------------------------------------------------------- */

/** Spreads the bits of a number evenly (splitmix64). */
static uint64_t hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
  while (b != 0) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/** Teams follow each other at a fixed stride, modulo their count; a coprime stride visits all. */
static void choose_order(Launch *launch, const Settings *settings) {
  const uint64_t count = launch->team_count;
  launch->team_stride = 1;
  if (settings->order == REVERSE) {
    launch->team_stride = count - 1 + (count == 1);
    launch->first_team = count - 1;
  } else if (settings->order == RANDOM) {
    uint64_t random = hash(settings->seed ^ hash(launch->ordinal));
    launch->first_team = random % count;
    do {
      random = hash(random);
      launch->team_stride = 1 + random % count;
    } while (greatest_common_divisor(launch->team_stride, count) != 1);
  }
}

/** The index of the block at this place of the n-th team that is taken. */
static uint3 block_index(const Launch *launch, uint64_t n, unsigned place) {
  const unsigned __int128 steps = (unsigned __int128)n * launch->team_stride;
  const uint64_t i = (uint64_t)((steps + launch->first_team) % launch->team_count);
  const dim3 size = launch->cluster;
  const unsigned blocks = size.x * size.y * size.z, rank = place % blocks;
  const uint64_t cluster = i * (launch->team_size / blocks) + place / blocks;
  const uint64_t x = launch->grid.x / size.x, y = launch->grid.y / size.y;
  return (uint3){(unsigned)(cluster % x) * size.x + rank % size.x,
                 (unsigned)(cluster / x % y) * size.y + rank / size.x % size.y,
                 (unsigned)(cluster / x / y) * size.z + rank / size.x / size.y};
}

static void add_counters(SimtCounters *sum, const SimtCounters *other) {
  uint64_t *sums = (uint64_t *)sum; /* all members are such numbers */
  const uint64_t *others = (const uint64_t *)other;
  for (size_t i = 0; i < sizeof *sum / sizeof *sums; i++) sums[i] += others[i];
}

/** Takes the next team, and lets the workers of the group run its blocks; false: there is none. */
static bool start_team(Team *team, Launch *launch) {
  const dim3 block = launch->block;
  team->number = launch->team_count;
  if (!atomic_load(&launch->failed)) team->number = atomic_fetch_add(&launch->next_team, 1);
  if (team->number >= launch->team_count) {
    simt_team_close(team);
    return false;
  }
  team->random = hash(simt_settings()->seed ^ hash(launch->ordinal ^ hash(team->number)));
  simt_team_start(team, block.x * block.y * block.z);
  return true;
}

/** Runs the worker's block of the team; returns whether it failed. */
static bool run_block(Worker *worker, Launch *launch, uint64_t n) {
  const Settings *settings = simt_settings();
  const dim3 block = launch->block;
  worker->block.index = block_index(launch, n, worker->place);
  /* Not 0: the generator would only return 0. */
  const uint64_t number = simt_block_number(worker);
  worker->random_state = hash(settings->seed ^ hash(launch->ordinal ^ hash(number))) | 1;
  const Outcome outcome = simt_run_block(worker);
  if (worker->idle_atomics >= SIMT_PATIENCE) launch->stuck--;
  worker->idle_atomics = 0;
  worker->changes++;
  if (outcome == FINISHED) {
    atomic_fetch_add(&launch->blocks_done, 1);
  } else {
    atomic_store(&launch->failed, true);
  }
  if (outcome != FINISHED && outcome != ABANDONED) {
    worker->failed_launch = launch->ordinal;
    worker->failed_turn = n;
  }
  worker->counters.blocks++;
  worker->counters.threads += block.x * block.y * block.z;
  return outcome != FINISHED;
}

/** Runs blocks until there are none left; called with the pool unlocked. */
static void run_blocks(Worker *worker, Launch *launch) {
  const Settings *settings = simt_settings();
  const unsigned threads = launch->block.x * launch->block.y * launch->block.z;
  Team *team = worker->team;
  const bool leads = worker->place == 0;
  simt_worker = worker;
  worker->shared = smem;
  worker->launch = launch;
  worker->block.dim = launch->block;
  worker->block.grid = launch->grid;
  worker->order = settings->order;
  worker->counters = (SimtCounters){0};
  worker->hints.count = 0;
  bool begun = false;
  if (!simt_fibers_create(worker, (int)threads)) {
    if (!atomic_exchange(&launch->failed, true)) {
      fprintf(stderr, "simt: no memory for the stacks of %u threads\n", threads);
      launch->error = cudaErrorLaunchOutOfResources;
    }
  }
  memset(worker->kept_changes, 0, sizeof worker->kept_changes);
  if (simt_observer != NULL &&
      worker->cluster->size > 1) { /* other blocks may access its memory first */
    simt_observer->worker_begins(worker);
    begun = true;
  }
  simt_team_join(team, worker->place);
  launch->running += leads;
  while (leads ? start_team(team, launch) : simt_team_await(worker)) {
    if (simt_observer != NULL && !begun) simt_observer->worker_begins(worker);
    begun = true;
    const bool failed = team->failed || run_block(worker, launch, team->number);
    simt_team_leave(worker, failed);
  }
  launch->running -= leads;
  if (simt_observer != NULL && begun) simt_observer->worker_ended();
  pthread_mutex_lock(&pool.lock);
  add_counters(&pool.counters, &worker->counters);
  simt_keep_hints(&worker->hints);
  pthread_mutex_unlock(&pool.lock);
  simt_worker = NULL;
}

/* --- OS threads ----------------------------------------------------------------------------- */

static void *serve(void *argument) {
  Worker *worker = argument;
  uint64_t last_ordinal = 0;
  worker->os_thread = pthread_self();
  simt_faults_use_own_stack();
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    while (!pool.stop && (pool.launch == NULL || pool.launch->ordinal == last_ordinal)) {
      pthread_cond_wait(&pool.work, &pool.lock);
    }
    if (pool.stop) break;
    Launch *launch = pool.launch;
    last_ordinal = launch->ordinal;
    if (worker->number >= launch->groups * (int)launch->team_size) continue;
    launch->workers_joined++;
    pool.busy++;
    pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.lock);
    run_blocks(worker, launch);
    pthread_mutex_lock(&pool.lock);
    if (--pool.busy == 0) pthread_cond_signal(&pool.done);
  }
  pthread_mutex_unlock(&pool.lock);
  return NULL;
}

/** Creates `count` workers; fewer, but at least one, if the system allows no more. */
static void start_workers(int count) {
  if (pool.workers[0] == NULL) pool.workers[0] = simt_zeroed(1, sizeof(Worker));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, OS_STACK_BYTES);
  while (pool.thread_count < count - 1) {
    const int next = pool.thread_count + 1;
    if (pool.workers[next] == NULL) pool.workers[next] = simt_zeroed(1, sizeof(Worker));
    pool.workers[next]->number = next;
    if (pthread_create(&pool.threads[next], &attributes, serve, pool.workers[next]) != 0) break;
    pool.thread_count++;
  }
  pthread_attr_destroy(&attributes);
}

static void stop_workers(void) {
  pthread_mutex_lock(&pool.launching);
  pthread_mutex_lock(&pool.lock);
  pool.stop = true;
  pthread_cond_broadcast(&pool.work);
  pthread_mutex_unlock(&pool.lock);
  for (int i = 1; i <= pool.thread_count; i++) pthread_join(pool.threads[i], NULL);
  for (int i = 0; i < MAX_WORKERS; i++) {
    if (pool.workers[i] != NULL) {
      simt_fibers_destroy(pool.workers[i]);
      simt_free_copies(pool.workers[i]);
      simt_free_hopper(pool.workers[i]);
    }
    free(pool.workers[i]);
    pool.workers[i] = NULL;
  }
  pool.thread_count = 0;
  pool.stop = false;
  pthread_mutex_unlock(&pool.launching);
}

void simt_reread_environment(void) {
  const int workers = simt_settings()->workers;
  simt_read_settings();
  if (simt_settings()->workers != workers) stop_workers();
}

/** Frees all memory, so that leak checkers find nothing. */
__attribute__((destructor)) static void stop_at_exit(void) {
  const bool in_kernel = simt_worker != NULL; /* which called exit() */
  if (!in_kernel) stop_workers();
}

/** Wakes as many OS threads as can help; all, if some of those that wait must not. */
static void call_helpers(const Launch *launch) {
  const int workers = launch->groups * (int)launch->team_size;
  if (workers <= pool.thread_count) pthread_cond_broadcast(&pool.work);
  const uint64_t helpers = launch->block_count - 1;
  for (uint64_t i = 0; i < helpers && i < (uint64_t)pool.thread_count; i++) {
    pthread_cond_signal(&pool.work);
  }
}

static void run_grid(Launch *launch) {
  pthread_mutex_lock(&pool.lock);
  pool.launch = launch;
  call_helpers(launch);
  pthread_mutex_unlock(&pool.lock);
  pool.workers[0]->os_thread = pthread_self();
  simt_watch_begin(launch, pool.workers);
  run_blocks(pool.workers[0], launch);

  pthread_mutex_lock(&pool.lock);
  /* The workers of a team wait for each other. */
  const int members = launch->team_size > 1 ? launch->groups * (int)launch->team_size : 1;
  while (launch->workers_joined < members - 1) pthread_cond_wait(&pool.done, &pool.lock);
  pool.launch = NULL;
  while (pool.busy > 0) pthread_cond_wait(&pool.done, &pool.lock);
  pool.counters.launches++;
  pthread_mutex_unlock(&pool.lock);
  simt_watch_end();
}

/** A fault says more than where a block was when the time was over. */
static bool is_reported_before(const Worker *worker, const Worker *other) {
  const bool timed_out = worker->outcome == TIMED_OUT;
  if (timed_out != (other->outcome == TIMED_OUT)) return !timed_out;
  return worker->failed_turn < other->failed_turn;
}

/**
 * Reports the failed block that was started first. Without a time limit all blocks started before
 * it have finished, so the report does not depend on the number of OS threads.
 */
static void report_first_failure(Launch *launch) {
  if (simt_reads_otherwise()) {
    launch->error = cudaErrorLaunchFailure;
    return;
  }
  const Worker *first = NULL;
  for (int i = 0; i < MAX_WORKERS; i++) {
    const Worker *worker = pool.workers[i];
    if (worker == NULL || worker->failed_launch != launch->ordinal) continue;
    if (first == NULL || is_reported_before(worker, first)) first = worker;
  }
  if (first != NULL) {
    launch->error = simt_report_failure(first);
  } else if (launch->timed_out) {
    launch->failed = launch->blocks_done < launch->block_count;
    if (launch->failed) launch->error = simt_report_timeout(launch, NULL);
  }
}

/* --- Launches ------------------------------------------------------------------------------- */

dim3 gridDim, blockDim;

/** Starts as many groups of workers as SIMT_THREADS and the grid allow, at least one: in each, one
 * worker runs at a time. */
static bool make_groups(Launch *launch, const Settings *settings) {
  const int size = (int)launch->team_size;
  int groups = settings->workers;
  if (groups > GUARDED_WORKERS / size) groups = GUARDED_WORKERS / size;
  if (groups == 0) groups = 1; /* a large cooperative launch */
  if (size > 1 && (uint64_t)groups > launch->team_count) groups = (int)launch->team_count;
  start_workers(groups * size);
  if (groups > (pool.thread_count + 1) / size) groups = (pool.thread_count + 1) / size;
  launch->groups = groups;
  launch->teams = simt_zeroed((size_t)groups + (groups == 0), sizeof *launch->teams);
  const dim3 cluster = launch->cluster;
  for (int i = 0; i < groups; i++) {
    simt_team_begin(&launch->teams[i], &pool.workers[i * size], (unsigned)size,
                    cluster.x * cluster.y * cluster.z);
  }
  return groups > 0;
}

static void end_groups(Launch *launch) {
  for (int i = 0; i < launch->groups; i++) simt_team_end(&launch->teams[i]);
  free(launch->teams);
}

static void run_launch(Launch *launch, const Settings *settings) {
  char damage[256];
  gridDim = launch->grid;
  blockDim = launch->block;
  launch->ordinal = ++pool.launches;
  launch->workers = pool.workers;
  launch->block_count = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
  launch->team_size = launch->cluster.x * launch->cluster.y * launch->cluster.z;
  if (launch->cooperative) launch->team_size = (unsigned)launch->block_count;
  launch->team_count = launch->block_count / launch->team_size;
  choose_order(launch, settings);
  if (!make_groups(launch, settings)) {
    fprintf(stderr, "simt: no OS threads for %u blocks that may wait for each other\n",
            launch->team_size);
    free(launch->teams);
    simt_set_sticky_error(cudaErrorLaunchOutOfResources);
    return;
  }
  simt_faults_use_own_stack();
  simt_faults_watch();
  if (simt_observer != NULL) simt_observer->launch_begins(launch);
  run_grid(launch);
  report_first_failure(launch);
  if (simt_observer != NULL) simt_observer->launch_ended(launch);
  end_groups(launch);
  simt_memory_take_back();
  if (launch->failed) {
    simt_set_sticky_error(launch->error);
  } else if (!simt_reads_otherwise() && simt_memory_find_damage(damage, sizeof damage) &&
             !(simt_observer != NULL && simt_observer->tells_bounds())) {
    simt_report_damage(launch, damage);
    simt_set_sticky_error(cudaErrorIllegalAddress);
  }
}

void simt_launch_now(const Launch *given) {
  Launch launch = *given;
  const Settings *settings = simt_settings(); /* before the lock: may end the program */
  if (simt_sticky_error() != cudaSuccess) return;
  pthread_mutex_lock(&pool.launching);
  run_launch(&launch, settings);
  pthread_mutex_unlock(&pool.launching);
}

/* --- Counters ------------------------------------------------------------------------------- */

void simt_read_counters(SimtCounters *counters) {
  pthread_mutex_lock(&pool.lock);
  *counters = pool.counters;
  pthread_mutex_unlock(&pool.lock);
}

void simt_reset_counters(void) {
  pthread_mutex_lock(&pool.lock);
  pool.counters = (SimtCounters){0};
  simt_forget_hints();
  pthread_mutex_unlock(&pool.lock);
}
