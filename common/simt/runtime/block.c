/* A block, from the start of its threads to its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hopper.h"

/* --- Threads ---------------------------------------------------------------------------------- */

static void thread_main(void) {
  const Launch *launch = simt_worker->launch;
  launch->entry(launch->arguments);
  simt_refuse_exit(simt_worker);
  simt_refuse_exit_of_stores(simt_worker);
  simt_refuse_exit_of_wgmma(simt_worker);
  simt_exit_thread(simt_worker);
  simt_refuse_end_of_loads(simt_worker);
  simt_refuse_end_of_bytes(simt_worker);
  simt_refuse_end_of_arrivals(simt_worker);
  simt_refuse_unequal_registers(simt_worker);
  if (simt_observer != NULL && simt_worker->cluster->size > 1) simt_observer->block_ended();
  simt_end_block(FINISHED, &(Wait){.call_site = NULL});
}

void simt_use_unset(void) {
  if (simt_worker == NULL || simt_observer == NULL) return;
  simt_observer->unset_used(__builtin_return_address(0));
}

void simt_trap(void) {
  if (simt_worker == NULL) {
    fprintf(stderr, "%s: __trap() outside a kernel\n", program_invocation_short_name);
    abort();
  }
  simt_complain(__builtin_return_address(0), "__trap()");
}

void simt_assert_fail(const char *expression, const char *file, int line, const char *function) {
  Worker *w = simt_worker;
  if (w == NULL) { /* like assert() of the C library */
    fflush(stdout);
    fprintf(stderr, "%s: %s:%d: %s: Assertion `%s' failed.\n", program_invocation_short_name, file,
            line, function, expression);
    abort();
  }
  w->assertion = expression;
  w->assertion_file = file;
  w->assertion_line = line;
  simt_end_block(ASSERTED, &(Wait){.call_site = __builtin_return_address(0)});
}

/* --- Blocks ----------------------------------------------------------------------------------- */

/** Sets the threads' indices, which change only with the shape of the block. */
static void number_threads(Worker *w, int count) {
  const dim3 dim = w->block.dim;
  if (memcmp(&w->threads_dim, &dim, sizeof dim) == 0) return;
  w->threads_dim = dim;
  for (int i = 0; i < count; i++) {
    const unsigned index = (unsigned)i;
    *simt_fiber_thread(w, i) = (SimtThread){
        .index = {index % dim.x, index / dim.x % dim.y, index / dim.x / dim.y},
        .block = &w->block,
    };
  }
}

Outcome simt_run_block(Worker *w) {
  const int count = (int)(w->block.dim.x * w->block.dim.y * w->block.dim.z);
  w->thread_count = count;
  w->land_next = simt_land_tensor_load;
  number_threads(w, count);
  simt_begin_hopper(w);
  simt_fibers_refill(w, count);
  for (int i = 0; i < count; i++) {
    simt_fiber_start(w, i, thread_main);
    simt_start_copies(w, i);
  }
  /* Memory that a kernel has not written must hold neither zeros nor values of the last block.
     Static arrays keep such values, unless the lab fills them: they lie among all thread-local
     variables of the program. */
  memset(smem, 0xff, w->launch->dynamic_shared_bytes);
  memset(w->arrived_at, 0, sizeof w->arrived_at);
  w->begun = true;
  const Outcome outcome = simt_run_threads(w);
  if (outcome != FINISHED) simt_forget_copies(w);
  /* Another block of the cluster that still reads it must not find its values. */
  if (w->cluster->size > 1) memset(smem, 0xff, w->launch->dynamic_shared_bytes);
  return outcome;
}
