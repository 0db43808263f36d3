#include <signal.h>
#include <string.h>

#include "hopper.h"
#include "program.h"

enum { TEXT_BYTES = 512, MAX_GROUPS = 16 };

static void format_index(uint3 index, char *text, size_t text_size) {
  snprintf(text, text_size, "(%u,%u,%u)", index.x, index.y, index.z);
}

/** First line of every report: what happened and in which launch. */
static void print_headline(const Launch *launch, const char *what) {
  char kernel[TEXT_BYTES];
  simt_kernel_name(launch->kernel, kernel, sizeof kernel);
  fflush(stdout); /* keeps the order of stdout and stderr */
  fprintf(stderr, "simt: %s in %s, launch %llu\n", what, kernel,
          (unsigned long long)launch->ordinal);
}

static void tell(const Failure *failure) {
  if (simt_observer != NULL) simt_observer->launch_failed(failure);
}

void simt_tell_refusal(const void *kernel, const char *why) {
  tell(&(Failure){.kernel = kernel, .refused = true, .what = why});
}

/** Reports a failure of the running thread at `pc` to the observer. */
static void tell_of_thread(const Worker *worker, const char *what, uintptr_t pc) {
  tell(&(Failure){.kernel = worker->launch->kernel,
                  .what = what,
                  .worker = worker,
                  .pc = pc,
                  .thread = worker->running});
}

/** "thread (1,0,0) of block (0,0,0)": the running one. */
static const char *running_thread(const Worker *worker, char text[128]) {
  char thread[48], block[48];
  format_index(simt_fiber_thread(worker, worker->running)->index, thread, sizeof thread);
  format_index(worker->block.index, block, sizeof block);
  snprintf(text, 128, "thread %s of block %s", thread, block);
  return text;
}

static void print_culprit(const Worker *worker, uintptr_t pc) {
  char thread[128], where[TEXT_BYTES];
  simt_source_line(pc, where, sizeof where);
  fprintf(stderr, "  by %s\n  at %s\n", running_thread(worker, thread), where);
}

/** A failed call of the running thread at `pc`. */
static void report_call(const Worker *worker, const char *what, uintptr_t pc) {
  print_headline(worker->launch, what);
  print_culprit(worker, pc);
  tell_of_thread(worker, what, pc);
}

/* --- Threads that wait ---------------------------------------------------------------------- */

static bool is_waiting(const Worker *w, int thread) {
  const Warp *warp = &w->warps[thread / WARP_SIZE];
  return ((warp->in_instruction | warp->at_barrier | warp->parked) >> thread % WARP_SIZE & 1) != 0;
}

static bool is_live(const Worker *w, int thread) {
  return (w->warps[thread / WARP_SIZE].live >> thread % WARP_SIZE & 1) != 0;
}

static bool is_parked(const Worker *w, int thread) {
  return (w->warps[thread / WARP_SIZE].parked >> thread % WARP_SIZE & 1) != 0;
}

static bool same_wait(const Worker *w, int thread, int other) {
  const Wait *a = &w->waits[thread], *b = &w->waits[other];
  return a->operation == b->operation && a->mask == b->mask && a->call_site == b->call_site &&
         is_parked(w, thread) == is_parked(w, other) &&
         (!is_parked(w, thread) || a->number == b->number);
}

/** Does `thread` belong to the group of `first`? Without `first`: has it exited? */
static bool in_group(const Worker *w, int thread, int first) {
  if (first < 0) return !is_live(w, thread);
  return is_waiting(w, thread) && same_wait(w, thread, first);
}

/** A thread that has executed the warp instruction in which `thread` waits for it, but with another
 * mask; -1: none. */
static int find_other_mask(const Worker *worker, int thread) {
  const Wait *wait = &worker->waits[thread];
  const int first = thread / WARP_SIZE * WARP_SIZE;
  for (unsigned rest = wait->mask; rest != 0; rest &= rest - 1) {
    const int other = first + __builtin_ctz(rest);
    if (other >= worker->thread_count) break;
    const Executed *its = &worker->executed[other];
    if (its->call_site == wait->call_site && its->mask != wait->mask) return other;
  }
  return -1;
}

/** The numbers of a group's threads. */
static void format_group(const Worker *w, int first, char *text, size_t text_size) {
  unsigned lanes[MAX_WARPS] = {0};
  for (int thread = 0; thread < w->thread_count; thread++) {
    if (in_group(w, thread, first)) lanes[thread / WARP_SIZE] |= 1u << thread % WARP_SIZE;
  }
  simt_format_threads(lanes, text, text_size);
}

static void print_threads(const Worker *w, int first) {
  char text[8 * TEXT_BYTES];
  format_group(w, first, text, sizeof text);
  fprintf(stderr, "  threads %s", text);
}

static bool is_first_of_group(const Worker *w, int thread) {
  for (int earlier = 0; earlier < thread; earlier++) {
    if (in_group(w, earlier, thread)) return false;
  }
  return true;
}

static void print_group(const Worker *w, int first) {
  const Wait *wait = &w->waits[first];
  char where[TEXT_BYTES];
  /* Subtract 1: a return address lies behind the call. */
  simt_source_line((uintptr_t)wait->call_site - 1, where, sizeof where);
  print_threads(w, first);
  if (is_parked(w, first)) {
    char awaited[TEXT_BYTES];
    simt_describe_awaited(w, wait, awaited, sizeof awaited);
    fprintf(stderr, " wait for %s\n    at %s\n", awaited, where);
  } else if (wait->operation == NULL) {
    fprintf(stderr, " wait in __syncthreads()\n    at %s\n", where);
  } else {
    fprintf(stderr, " wait in %s, mask 0x%08x\n    at %s\n", wait->operation->name, wait->mask,
            where);
    const int other = find_other_mask(w, first);
    if (other < 0) return;
    fprintf(stderr, "    thread %d has executed it with the mask 0x%08x\n", other,
            w->executed[other].mask);
  }
}

/** Prints where threads wait, one group of threads after the other. */
static void print_waits(const Worker *w) {
  char block[48];
  const int count = w->thread_count;
  int waiting = 0, groups = 0;
  for (int i = 0; i < count; i++) waiting += is_waiting(w, i);
  format_index(w->block.index, block, sizeof block);
  fprintf(stderr, "  in block %s, %d of %d threads wait:\n", block, waiting, count);
  for (int i = 0; i < count; i++) {
    if (!is_waiting(w, i) || !is_first_of_group(w, i)) continue;
    if (++groups > MAX_GROUPS) {
      fprintf(stderr, "  and others elsewhere\n");
      break;
    }
    print_group(w, i);
  }
  if (w->live_threads < (unsigned)count) {
    print_threads(w, -1);
    fprintf(stderr, " have exited\n");
  }
}

/** Reports the first two groups of waiting threads, and the exited threads. */
static void tell_of_waits(const Worker *w, const char *what) {
  char text[TEXT_BYTES], threads[48];
  Failure failure = {.kernel = w->launch->kernel, .what = text, .worker = w};
  size_t length = (size_t)snprintf(text, sizeof text, "%s", what);
  const char *separator = ": ";
  for (int i = 0; i < w->thread_count && failure.other_pc == 0; i++) {
    if (!is_waiting(w, i) || !is_first_of_group(w, i)) continue;
    const Wait *wait = &w->waits[i];
    const bool first = failure.pc == 0;
    *(first ? &failure.pc : &failure.other_pc) = (uintptr_t)wait->call_site - 1;
    *(first ? &failure.thread : &failure.other_thread) = i;
    format_group(w, i, threads, sizeof threads);
    char awaited[TEXT_BYTES / 2] = "";
    if (is_parked(w, i)) simt_describe_awaited(w, wait, awaited, sizeof awaited);
    length += (size_t)snprintf(text + length, sizeof text - length, "%sthreads %s %s %s", separator,
                               threads, is_parked(w, i) ? "for" : "in",
                               is_parked(w, i)           ? awaited
                               : wait->operation != NULL ? wait->operation->name
                                                         : "__syncthreads()");
    separator = ", ";
  }
  if (w->live_threads < (unsigned)w->thread_count) {
    format_group(w, -1, threads, sizeof threads);
    snprintf(text + length, sizeof text - length, ", threads %s have exited", threads);
  }
  tell(&failure);
}

/* --- Faults --------------------------------------------------------------------------------- */

static cudaError_t report_fault(const Worker *worker) {
  const Fault *fault = &worker->fault;
  char what[TEXT_BYTES], position[TEXT_BYTES / 2];
  cudaError_t error = cudaErrorIllegalAddress;
  if (simt_in_stack_guard(worker, fault->address)) {
    snprintf(what, sizeof what, "stack overflow: a thread has %d KiB for local variables and calls",
             (int)(SIMT_SLOT_BYTES / 2 >> 10));
    error = cudaErrorLaunchFailure;
  } else if (fault->signal == SIGFPE) {
    snprintf(what, sizeof what, "integer division by zero");
    error = cudaErrorLaunchFailure;
  } else if (fault->signal == SIGBUS || fault->code == SI_KERNEL) {
    /* The processor does not report the address. */
    snprintf(what, sizeof what, "misaligned access, or an address far out of any range,");
    error = cudaErrorMisalignedAddress;
  } else {
    simt_memory_describe(fault->address, position, sizeof position);
    snprintf(what, sizeof what, "out of bounds %s %s", fault->is_write ? "write" : "read",
             position);
  }
  report_call(worker, what, fault->pc);
  return error;
}

static cudaError_t report_assertion(const Worker *worker) {
  char thread[128], what[TEXT_BYTES];
  print_headline(worker->launch, "failed assertion");
  fprintf(stderr, "  by %s\n  at %s:%d: %s\n", running_thread(worker, thread),
          worker->assertion_file, worker->assertion_line, worker->assertion);
  snprintf(what, sizeof what, "failed assertion: %s", worker->assertion);
  tell_of_thread(worker, what, (uintptr_t)worker->waits[worker->running].call_site - 1);
  return cudaErrorAssert;
}

static cudaError_t report_misalignment(const Worker *worker, uintptr_t pc) {
  const Misalignment *m = &worker->misalignment;
  char what[TEXT_BYTES];
  const unsigned past = (unsigned)(m->address % m->alignment);
  snprintf(what, sizeof what, "misaligned %s%s: %u %s past a multiple of %u", m->what, m->type,
           past, simt_bytes(past), m->alignment);
  report_call(worker, what, pc);
  return cudaErrorMisalignedAddress;
}

/* --- Asynchronous copies -------------------------------------------------------------------- */

static void print_bad_copy(const Worker *worker) {
  const BadCopy *bad = &worker->bad_copy;
  const bool committed = bad->copy.group < worker->async[bad->thread].committed;
  char thread[48], where[TEXT_BYTES];
  format_index(simt_fiber_thread(worker, bad->thread)->index, thread, sizeof thread);
  simt_source_line((uintptr_t)bad->copy.call_site - 1, where, sizeof where);
  fprintf(stderr, "  in flight: a copy of thread %s, %s, started\n    at %s\n", thread,
          committed ? "committed but not waited for" : "not committed to any group", where);
}

static void report_bad_copy(const Worker *worker, const char *what, uintptr_t pc) {
  print_headline(worker->launch, what);
  print_culprit(worker, pc);
  print_bad_copy(worker);
  tell(&(Failure){.kernel = worker->launch->kernel,
                  .what = what,
                  .worker = worker,
                  .pc = pc,
                  .thread = worker->running,
                  .other_pc = (uintptr_t)worker->bad_copy.copy.call_site - 1,
                  .other_thread = worker->bad_copy.thread});
}

static void report_abandoned_copy(const Worker *worker, const void *last_wait) {
  static const char what[] = "a thread ends while a copy of its own is in flight";
  char thread[128], where[TEXT_BYTES];
  print_headline(worker->launch, what);
  fprintf(stderr, "  %s\n", running_thread(worker, thread));
  print_bad_copy(worker);
  if (last_wait == NULL) {
    fprintf(stderr, "  it never waited for copies\n");
  } else {
    simt_source_line((uintptr_t)last_wait - 1, where, sizeof where);
    fprintf(stderr, "  its last wait did not cover it\n    at %s\n", where);
  }
  tell_of_thread(worker, what, (uintptr_t)worker->bad_copy.copy.call_site - 1);
}

/* --- All failures --------------------------------------------------------------------------- */

/** A failed warp instruction; `name` and `value` are the wrong operand. */
static void report_instruction(const Worker *worker, const char *what, const char *name,
                               int value) {
  const Wait *wait = &worker->waits[worker->running];
  const uintptr_t pc = (uintptr_t)wait->call_site - 1;
  print_headline(worker->launch, what);
  fprintf(stderr, "  %s, mask 0x%08x, %s %d\n", wait->operation->name, wait->mask, name, value);
  print_culprit(worker, pc);
  tell_of_thread(worker, what, pc);
}

/** Those of the other blocks of its cluster, which it may wait for. */
static void print_other_waits(const Worker *worker) {
  char block[48];
  for (unsigned rank = 0; rank < worker->cluster->size; rank++) {
    const Worker *other = worker->cluster->members[rank];
    if (other == worker) continue;
    if (other->live_threads > 0) {
      print_waits(other);
    } else {
      format_index(other->block.index, block, sizeof block);
      fprintf(stderr, "  block %s of the cluster has ended\n", block);
    }
  }
}

static void report_waits(const Worker *worker, const char *what) {
  print_headline(worker->launch, what);
  print_waits(worker);
  print_other_waits(worker);
  tell_of_waits(worker, what);
}

cudaError_t simt_report_failure(const Worker *worker) {
  const void *call_site = worker->waits[worker->running].call_site;
  const uintptr_t pc = (uintptr_t)call_site - 1;
  switch (worker->outcome) {
    case FAULTED:
      return report_fault(worker);
    case ASSERTED:
      return report_assertion(worker);
    case MISALIGNED:
      return report_misalignment(worker, pc);
    case COPIED_TWICE:
      report_bad_copy(worker, "two copies to the same shared memory, in no order,", pc);
      break;
    case READ_TOO_EARLY:
      report_bad_copy(worker, "ldmatrix reads shared memory that a copy is on its way to", pc);
      break;
    case COPY_ABANDONED:
      report_abandoned_copy(worker, call_site);
      break;
    case WRONG_CALL:
      report_call(worker, worker->complaint, pc);
      break;
    case NOT_IN_MASK:
      report_instruction(worker, "a lane takes part in a warp instruction that its mask omits",
                         "lane", worker->running % WARP_SIZE);
      break;
    case BAD_WIDTH:
      report_instruction(worker, "a shuffle whose width is not 1, 2, 4, 8, 16 or 32", "width",
                         worker->shuffle_width);
      break;
    case DIVERGED:
      report_waits(worker, "lanes name each other in different warp instructions or masks");
      break;
    case INCOMPLETE:
      report_waits(worker, worker->complaint);
      break;
    case DEADLOCK:
      report_waits(worker, "DEADLOCK");
      break;
    case TIMED_OUT:
      return simt_report_timeout(worker->launch, worker);
    case FINISHED:
    case ABANDONED:
      break;
  }
  return cudaErrorLaunchFailure;
}

cudaError_t simt_report_timeout(const Launch *launch, const Worker *worker) {
  char what[TEXT_BYTES];
  snprintf(what, sizeof what, "time limit of %g s reached with %llu of %llu blocks done",
           simt_time_limit(), (unsigned long long)launch->blocks_done,
           (unsigned long long)launch->block_count);
  print_headline(launch, what);
  if (worker != NULL) {
    print_culprit(worker, worker->fault.pc);
    tell_of_thread(worker, what, worker->fault.pc);
  } else {
    tell(&(Failure){.kernel = launch->kernel, .what = what});
  }
  return cudaErrorLaunchTimeout;
}

void simt_report_damage(const Launch *launch, const char *damage) {
  char what[TEXT_BYTES];
  snprintf(what, sizeof what, "out of bounds write %s", damage);
  print_headline(launch, what);
  fprintf(stderr, "  found after the launch; the writer is unknown\n");
  tell(&(Failure){.kernel = launch->kernel, .what = what});
}
