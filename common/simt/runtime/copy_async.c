/*
 * cp.async (PTX ISA 8.7, section 9.7.9.25.3). A copy is made at the last legal moment: when the
 * thread that issued it waits for its group. Until then its target holds NaN, so that a wait for
 * too few groups, or one that comes too late, gives a wrong result.
 *
 * Errors that do not depend on timing end the launch with a report: see simt_refuse_read(),
 * simt_copy_async_16() and simt_refuse_exit(). A wait before copies are committed is legal: it does
 * not cover them, and they may be committed and waited for later.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static AsyncQueue *own_queue(void) {
  return &simt_worker->async[simt_worker->running];
}

/* --- Copies in flight ------------------------------------------------------------------------- */

__attribute__((noreturn)) static void end_block(Outcome outcome, const AsyncCopy *copy,
                                                int thread_of_copy, const void *call_site) {
  simt_worker->bad_copy = (BadCopy){.copy = *copy, .thread = thread_of_copy};
  simt_end_block(outcome, &(Wait){.call_site = call_site});
}

/** Ends the block if a copy to these 16 bytes is in flight. */
static void refuse_target(Worker *worker, const void *shared, Outcome outcome,
                          const void *call_site) {
  for (int thread = 0; thread < MAX_THREADS; thread++) {
    const AsyncQueue *queue = &worker->async[thread];
    for (int i = 0; i < queue->count; i++) {
      const AsyncCopy *copy = &queue->copies[i];
      if (copy->shared == shared) end_block(outcome, copy, thread, call_site);
    }
  }
}

void simt_refuse_read(Worker *worker, const void *shared) {
  refuse_target(worker, shared, READ_TOO_EARLY, worker->access_call_site);
}

void simt_refuse_exit(Worker *worker) {
  const AsyncQueue *queue = &worker->async[worker->running];
  if (queue->count == 0) return;
  end_block(COPY_ABANDONED, &queue->copies[0], worker->running, queue->last_wait);
}

/* --- Called by kernels ------------------------------------------------------------------------ */

void simt_copy_async_16(void *shared, const void *global, unsigned source_bytes) {
  Worker *worker = simt_worker;
  AsyncQueue *queue = own_queue();
  const AsyncCopy copy = {
      .shared = shared,
      .global = global,
      .source_bytes = source_bytes,
      .group = queue->committed,
      .call_site = __builtin_return_address(0),
  };
  if (source_bytes != 0 && source_bytes != COPY_BYTES) {
    worker->assertion = "source_bytes == 0 || source_bytes == 16";
    worker->assertion_file = __FILE__;
    worker->assertion_line = __LINE__;
    simt_end_block(ASSERTED, &(Wait){.call_site = copy.call_site});
  }
  simt_require_aligned(shared, COPY_BYTES, "target of cp.async", copy.call_site);
  if (source_bytes > 0) {
    simt_require_aligned(global, COPY_BYTES, "source of cp.async", copy.call_site);
  }
  if (simt_observer != NULL) simt_observer->copy_issued(&copy);
  /* Only a wait between them orders two copies, even if their groups differ. */
  if (*simt_under_way_to(worker, shared) != 0) {
    refuse_target(worker, shared, COPIED_TWICE, copy.call_site);
  }
  queue->copies = simt_with_room(queue->copies, (size_t)queue->count, sizeof copy);
  /* Read the source here too, so that a bad address is reported at the cp.async. */
  worker->access_call_site = copy.call_site;
  worker->access_is_write = false;
  if (source_bytes > 0) (void)*(const volatile char *)global;
  worker->access_is_write = true;
  memset(shared, 0xff, COPY_BYTES);
  worker->access_call_site = NULL;
  queue->copies[queue->count++] = copy;
  queue->reading += source_bytes > 0;
  ++*simt_under_way_to(worker, shared);
  worker->counters.async_copies++;
}

void simt_commit_group(void) {
  own_queue()->committed++;
}

void simt_wait_group(unsigned still_pending) {
  AsyncQueue *queue = own_queue();
  int kept = 0;
  for (int i = 0; i < queue->count; i++) {
    const AsyncCopy copy = queue->copies[i];
    if (copy.group + still_pending >= queue->committed) {
      queue->copies[kept++] = copy;
      continue;
    }
    if (simt_observer != NULL) simt_observer->copy_arrived(&copy);
    if (copy.source_bytes > 0) {
      memcpy(copy.shared, copy.global, COPY_BYTES);
    } else {
      memset(copy.shared, 0, COPY_BYTES);
    }
    --*simt_under_way_to(simt_worker, copy.shared);
    queue->reading -= copy.source_bytes > 0;
  }
  queue->count = kept;
  queue->last_wait = __builtin_return_address(0);
}

/* --- Called by the runtime -------------------------------------------------------------------- */

bool simt_warp_copies_in_flight(const Worker *worker) {
  const AsyncQueue *queues = &worker->async[worker->running / WARP_SIZE * WARP_SIZE];
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (queues[lane].reading > 0) return true; /* zero fills read nothing */
  }
  return false;
}

void simt_start_copies(Worker *worker, int thread) {
  worker->async[thread].committed = 0;
  worker->async[thread].last_wait = NULL;
}

void simt_forget_copies(Worker *worker) {
  for (int thread = 0; thread < MAX_THREADS; thread++) {
    worker->async[thread].count = worker->async[thread].reading = 0;
  }
  memset(worker->under_way, 0, sizeof worker->under_way);
}

void simt_free_copies(Worker *worker) {
  for (int i = 0; i < MAX_THREADS; i++) free(worker->async[i].copies);
  memset(worker->async, 0, sizeof worker->async);
}
