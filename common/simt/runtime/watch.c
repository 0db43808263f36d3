/*
 * The time limit and the progress of kernels: a thread checks the running launch ten times a
 * second. It exists only during launches that have a limit or show progress.
 *
 * A kernel that never ends may never call the runtime. So after the limit each OS thread that runs
 * blocks gets a signal, and the handler ends the block as after a fault. It does so only in code of
 * the kernel itself: the runtime, the lab and the C library may hold locks. Elsewhere the handler
 * does nothing, and the signal is sent again a millisecond later.
 */
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "program.h"

enum { TICK_MS = 100, AGAIN_MS = 1 };

static double limit_seconds; /* as set, for the report */
static struct timespec deadline;
static void (*show_progress)(uint64_t blocks_done, uint64_t blocks);

/** State of the running launch. */
static struct {
  pthread_mutex_t lock;
  pthread_cond_t ended;
  bool running;
  Launch *launch;
  Worker *const *workers;
  pthread_t thread;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static struct timespec later(struct timespec time, double seconds) {
  const long long ns = time.tv_nsec + (long long)(1e9 * (seconds - (double)(time_t)seconds));
  time.tv_sec += (time_t)seconds + (time_t)(ns / 1000000000);
  time.tv_nsec = ns % 1000000000;
  return time;
}

static struct timespec now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time;
}

static bool is_before(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

void simt_set_time_limit(double seconds) {
  limit_seconds = seconds;
  deadline = later(now(), seconds);
}

void simt_set_progress(void (*show)(uint64_t blocks_done, uint64_t blocks)) {
  show_progress = show;
}

double simt_time_limit(void) {
  return limit_seconds;
}

/** Tells the workers that the time limit has passed. */
static void stop_workers(Launch *launch) {
  atomic_store(&launch->timed_out, true);
  atomic_store(&launch->failed, true);
  for (int i = 0; i < MAX_WORKERS; i++) {
    const Worker *worker = watch.workers[i];
    if (worker != NULL && worker->launch == launch) pthread_kill(worker->os_thread, SIGURG);
  }
}

static void *look(void *unused) {
  (void)unused;
  pthread_mutex_lock(&watch.lock);
  while (watch.running) {
    const bool past = atomic_load(&watch.launch->timed_out);
    struct timespec next = later(now(), 1e-3 * (past ? AGAIN_MS : TICK_MS));
    if (!past && limit_seconds > 0 && is_before(&deadline, &next)) next = deadline;
    if (pthread_cond_clockwait(&watch.ended, &watch.lock, CLOCK_MONOTONIC, &next) != ETIMEDOUT) {
      continue;
    }
    const struct timespec time = now();
    if (limit_seconds > 0 && !is_before(&time, &deadline)) stop_workers(watch.launch);
    if (show_progress != NULL && !past) {
      show_progress(atomic_load(&watch.launch->blocks_done), watch.launch->block_count);
    }
  }
  pthread_mutex_unlock(&watch.lock);
  return NULL;
}

/** If the handler only returns, the interrupted code continues. */
static void handle(int signal, siginfo_t *info, void *context) {
  (void)signal;
  (void)info;
  Worker *worker = simt_worker;
  if (worker == NULL || !atomic_load(&worker->launch->timed_out)) return;
  const uintptr_t pc = simt_interrupted_pc(context);
  if (simt_is_kernel_code(pc) && simt_leave_block(context, TIMED_OUT)) worker->fault.pc = pc;
}

void simt_watch_begin(Launch *launch, Worker *const *workers) {
  watch.running = limit_seconds > 0 || show_progress != NULL;
  if (!watch.running) return;
  const struct sigaction action = {.sa_sigaction = handle,
                                   .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  sigaction(SIGURG, &action, NULL);
  simt_is_kernel_code(0); /* reads the symbols, which a handler must not */
  watch.launch = launch;
  watch.workers = workers;
  watch.running = pthread_create(&watch.thread, NULL, look, NULL) == 0;
}

void simt_watch_end(void) {
  pthread_mutex_lock(&watch.lock);
  const bool running = watch.running;
  watch.running = false;
  pthread_cond_signal(&watch.ended);
  pthread_mutex_unlock(&watch.lock);
  if (running) pthread_join(watch.thread, NULL);
}
