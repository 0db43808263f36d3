/* cp.async (PTX ISA 8.7, section 9.7.9.25.3): copies that are promised at once and made at the last
 * legal moment, when the thread that issued them waits for their group. Until then their target
 * holds NaN, so that a wait that names too few groups, or comes too late, shows in the result. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { COPY_BYTES = 16 };

static AsyncQueue *own_queue(void) {
  return &simt_worker->async[simt_worker->running];
}

void simt_copy_async_16(void *shared, const void *global, unsigned source_bytes) {
  AsyncQueue *queue = own_queue();
  if (queue->count == queue->capacity) {
    queue->capacity = 2 * queue->capacity + 32;
    queue->copies = realloc(queue->copies, sizeof(AsyncCopy) * (size_t)queue->capacity);
    if (queue->copies == NULL) abort();
  }
  /* The source is touched here too, so that a bad address is reported where it was given. */
  if (source_bytes > 0) (void)*(const volatile char *)global;
  queue->copies[queue->count++] = (AsyncCopy){shared, global, source_bytes, queue->committed};
  memset(shared, 0xff, COPY_BYTES);
  simt_worker->counters.async_copies++;
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
    memcpy(copy.shared, copy.global, copy.source_bytes);
    memset((char *)copy.shared + copy.source_bytes, 0, COPY_BYTES - copy.source_bytes);
  }
  queue->count = kept;
}

bool simt_warp_copies_in_flight(const Worker *worker) {
  const AsyncQueue *queues = &worker->async[worker->running / WARP_SIZE * WARP_SIZE];
  for (int lane = 0; lane < WARP_SIZE; lane++) {
    if (queues[lane].count > 0) return true;
  }
  return false;
}

void simt_forget_copies(Worker *worker, int index) {
  worker->async[index].count = 0;
  worker->async[index].committed = 0;
}

void simt_free_copies(Worker *worker) {
  for (int i = 0; i < MAX_THREADS; i++) free(worker->async[i].copies);
  memset(worker->async, 0, sizeof worker->async);
}
